"""Augmentation of training images: a random crop out of a padded image, and a random flip.

It is named in `[train]`, as in `augment = "crop:4,flip"`. What becomes of a row is drawn before the
steps run, and applied where a batch is assembled; a step never knows of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import BadInput, format_value
from coterie.core.options import PositiveInt, coerce
from coterie.core.rng import Rng

NONE = "none"
FORMS = "give none, crop:4 (its border in pixels), flip, or crop:4,flip"


class Augmentation(NamedTuple):
    """What a training image goes through whenever it is read."""

    border: int = 0  # pixels around an image out of which it is cropped; 0: it is not
    flip: bool = False  # left to right, with probability 1/2

    def draw(self, rng: Rng, rows: int) -> np.ndarray:
        """A move of each of so many rows [rows, 3]: pixels down and to the right at which its crop
        begins, negative in the border, and whether it is flipped.
        """
        side, flips = 2 * self.border + 1, 1 + self.flip
        drawn = rng.integers(0, side * side * flips, rows)
        crop, flip = np.divmod(drawn, flips)
        down, right = np.divmod(crop, side)
        moves: np.ndarray = np.stack([down - self.border, right - self.border, flip], axis=1)
        return moves

    def check(self, shape: Sequence[int], name: str) -> None:
        """Refuse rows that are no images, or smaller than the border."""
        spec = self.spec
        if len(shape) != 3:
            raise BadInput(
                f"augment = {spec} crops and flips images, but '{name}' has rows of shape "
                f"{list(shape)}: leave out --augment"
            )
        smaller = min(shape[1:])
        if self.border >= smaller:
            raise BadInput(
                f"augment = {spec}, but the images of '{name}' are {shape[1]} x {shape[2]}: give "
                f"a border of at most {smaller - 1}"
            )
        if self.flip and shape[2] == 1:
            raise BadInput(
                f"augment = {spec}, but the images of '{name}' have one column: a flip changes "
                "nothing, leave it out"
            )

    @property
    def spec(self) -> str:
        """As `read_augmentation` reads it."""
        crop = [f"crop:{self.border}"] if self.border else []
        return ",".join([*crop, *["flip"] * self.flip]) or NONE


@lru_cache(maxsize=64)
def read_augmentation(spec: str) -> Augmentation | None:
    """What "crop:4,flip" says; None of "none"."""
    if spec in ("", NONE):
        return None
    found = Augmentation()
    for piece in (part.strip() for part in spec.split(",")):
        name, colon, border = piece.partition(":")
        if name == "crop" and colon and not found.border:
            pixels = coerce(PositiveInt, border, f"augment, border of {name},", 4)
            found = found._replace(border=pixels)
        elif piece == "flip" and not found.flip:
            found = found._replace(flip=True)
        else:
            raise BadInput(f"augment = {format_value(spec)}: {FORMS}")
    return found


def draw_moves(spec: str, places: np.ndarray, rngs: Iterable[Rng]) -> np.ndarray:
    """The moves of all rows of batches [clients, ..., 3], of each client from its own stream.

    A row that is padding (its place is -1) stays as it is and takes no draw.
    """
    known = read_augmentation(spec)
    assert known is not None
    moves = np.zeros((*places.shape, 3), np.int32)
    for mine, into, rng in zip(places, moves, rngs, strict=True):
        real = mine >= 0
        into[real] = known.draw(rng, int(real.sum()))
    return moves


def move_images(x: Tensor, moves: Tensor, border: Tensor) -> Tensor:
    """Images [n, c, h, w], each cropped and flipped by its move [n, 3]; `border` [c, h, w] is what
    stands where a crop reaches over the edge.
    """
    n, c, h, w = x.shape
    down, right, flip = moves.long().unbind(1)
    across = torch.arange(w).expand(n, w)
    rows = torch.arange(h) + down[:, None]
    columns = torch.where(flip[:, None] > 0, w - 1 - across, across) + right[:, None]
    inside = ((rows >= 0) & (rows < h))[:, :, None] & ((columns >= 0) & (columns < w))[:, None, :]
    at = rows.clamp(0, h - 1)[:, :, None] * w + columns.clamp(0, w - 1)[:, None, :]
    read = x.reshape(n, c, h * w).gather(2, at.reshape(n, 1, h * w).expand(n, c, h * w))
    return torch.where(inside[:, None], read.reshape(n, c, h, w), border)
