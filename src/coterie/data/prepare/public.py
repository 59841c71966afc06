"""Public rows beside the private ones: images of another data set, or rows that were held out."""

from pathlib import Path

import numpy as np

from coterie.core.errors import BadInput
from coterie.core.rng import stream
from coterie.data.arrays import as_tensor, digest_of, iterate_blocks
from coterie.data.dataset import UNREGISTERED, Public
from coterie.data.prepare.scaling import ImageScale, affine_of
from coterie.data.read import catalog

HELD_OUT = "held-out"  # public rows out of the pool, instead of the name of a data set
MAX_ROWS = 70_000  # of full EMNIST's 814,255 images a laptop holds no second copy in float32


def public_of(name: str, x: np.ndarray, y: np.ndarray, labelled: bool) -> Public:
    """Rows as public data, with their labels only where these were asked for."""
    labels = [y] if labelled else []
    return Public(name, as_tensor(x), as_tensor(y) if labelled else None, digest_of(x, *labels))


def load_public_images(
    name: str, rows: int | None, shape: tuple[int, ...], kind: str, seed: int, folder: Path | None
) -> tuple[np.ndarray, np.ndarray]:
    """Images of another data set in the private input shape and in the same kind of scale."""
    other = catalog.load_available(name, folder)
    if len(shape) != 3 or other.x.dtype != np.uint8:
        raise BadInput(
            f"public = '{name}' cannot stand beside inputs of shape {list(shape)}; use '{HELD_OUT}'"
        )
    if rows is not None and not 0 < rows <= len(other.x):
        raise BadInput(
            f"public_rows = {rows:,}, but '{name}' has {len(other.x):,} rows; give 1 to that many"
        )
    wanted = rows or min(len(other.x), MAX_ROWS)
    chosen = np.sort(stream(seed, "public").choice(len(other.x), wanted, replace=False))
    pixels = resize_images(other.x[chosen], shape)
    every = np.arange(len(pixels))
    look = ImageScale(affine_of(pixels, every, kind, UNREGISTERED), None)
    x = np.empty(pixels.shape, np.float32)
    for at in iterate_blocks(len(x)):
        x[at] = look(pixels[at])
    return x, other.y[chosen]


def resize_images(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Images [n, c, h, w] in another shape.

    Channels are averaged and repeated; sides are shrunk, then padded or cut.
    """
    channels, *wanted = shape
    if x.shape[1] != channels:
        grey = x.mean(1, keepdims=True).round().astype(np.uint8)
        x = np.repeat(grey, channels, axis=1)
    factor = min(x.shape[2] // wanted[0], x.shape[3] // wanted[1])
    if factor > 1:
        n, c, h, w = x.shape
        x = x[:, :, : h // factor * factor, : w // factor * factor]
        x = x.reshape(n, c, h // factor, factor, w // factor, factor)
        x = x.mean((3, 5)).round().astype(np.uint8)
    for axis, size in zip((2, 3), wanted, strict=True):
        more = size - x.shape[axis]
        if more >= 0:
            widths = [(0, 0)] * 4
            widths[axis] = (more // 2, more - more // 2)
            x = np.pad(x, widths)
        else:
            x = np.take(x, np.arange(size) + -more // 2, axis)
    return x
