"""A federation: one store of all rows, and the rows of each client's train, validation and test part."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coterie.core.errors import BadInput
from coterie.core.rng import stream
from coterie.data import datasets
from coterie.data.datasets import Dataset
from coterie.data.federation import Public, as_tensor, blocks, digest_of
from coterie.data.scaling import Look, affine_of


def public_rows_of(
    name: str | None,
    held_out: np.ndarray,
    base: Dataset,
    look: Look,
    kind: str,
    shape: tuple[int, ...],
    seed: int,
    rows: int | None,
    labelled: bool,
    folder: str | Path | None,
) -> Public | None:
    """Public rows in the private input shape: other images in the same kind of scale, or held-out rows."""
    if name is None:
        return None
    if name == "held-out":
        x, y = look(base.x[held_out]), base.y[held_out]
    else:
        if name == base.name:
            raise BadInput(f"public = '{name}' is the private data set itself; use public = 'held-out' with public_rows")
        other = datasets.load_part(name, None if folder is None else Path(folder))
        if len(shape) != 3 or other.x.dtype != np.uint8:
            raise BadInput(f"public = '{name}' cannot stand beside inputs of shape {list(shape)}; use 'held-out'")
        most = min(len(other.x), 70_000)  # of full EMNIST's 814,255 images a laptop holds no second copy in float32
        if rows is not None and not 0 < rows <= len(other.x):
            raise BadInput(f"public_rows = {rows:,}, but '{name}' has {len(other.x):,} rows; give 1 to that many")
        chosen = np.sort(stream(seed, "public").choice(len(other.x), rows or most, replace=False))
        pixels, y = _fit(other.x[chosen], shape), other.y[chosen]
        affine = affine_of(pixels, np.arange(len(pixels)), "unit" if kind == "none" else kind, "")
        x = np.empty(pixels.shape, np.float32)
        for at in blocks(len(x)):
            x[at] = Look(affine, None)(pixels[at])
    return Public(name, as_tensor(x), as_tensor(y) if labelled else None, digest_of(x, *([y] if labelled else [])))


def _fit(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Images [n, c, h, w] with other channels (averaged, repeated) and sizes (shrunk, then padded or cut)."""
    channels, *wanted = shape
    if x.shape[1] != channels:
        x = np.repeat(x.mean(1, keepdims=True).round().astype(np.uint8), channels, axis=1)
    factor = min(x.shape[2] // wanted[0], x.shape[3] // wanted[1])
    if factor > 1:
        n, c, h, w = x.shape
        x = x[:, :, : h // factor * factor, : w // factor * factor]
        x = x.reshape(n, c, h // factor, factor, w // factor, factor).mean((3, 5)).round().astype(np.uint8)
    for axis, size in zip((2, 3), wanted, strict=True):
        more = size - x.shape[axis]
        if more >= 0:
            widths = [(0, 0)] * 4
            widths[axis] = (more // 2, more - more // 2)
            x = np.pad(x, widths)
        else:
            x = np.take(x, np.arange(size) + -more // 2, axis)
    return x
