"""A federation: one store of all rows, and the rows of each client's train, validation and test part."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.data.datasets import Dataset
from coterie.data.federation import blocks

SCALES = ("unit", "channel", "pixel", "half", "none")


# per-channel mean and deviation of pixels in [0, 1], as the papers use them
CHANNELS = {
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
}


PERFEDAVG_A = {"mnist": 196, "cifar10": 68}


Affine = tuple[np.ndarray, np.ndarray]  # x becomes (x - first) / second


class Look(NamedTuple):
    """How a stored row becomes an input of the model."""

    affine: Affine | None
    channels: int | None  # a grey image repeated this often

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self.affine is not None:
            x = (x.astype(np.float32) - self.affine[0]) / self.affine[1]
        x = x if x.dtype == np.int64 else x.astype(np.float32, copy=False)
        return np.repeat(x, self.channels, axis=1) if self.channels and x.shape[1] == 1 else x


def _top(name: str) -> float:
    """The largest pixel value."""
    return 16.0 if name == "digits" else 255.0


def usual_scale(base: Dataset) -> str:
    if base.x.dtype != np.uint8:
        return "none"
    return "unit" if base.name == "digits" or base.x.ndim != 4 else "channel"


def affine_of(x: np.ndarray, pool: np.ndarray, kind: str, name: str) -> Affine | None:
    """The scaling of `kind`; means and deviations are those of the pool, or the published ones."""
    if kind == "none":
        return None
    top = np.array(_top(name) if x.dtype == np.uint8 else 1, np.float32)
    if kind == "unit":
        return np.zeros_like(top), top
    if kind == "half":
        return np.asarray(top / 2), np.asarray(top / 2)
    if kind == "pixel":  # as FedProx and pFedMe: on raw pixel values
        mean, deviation = _moments(x, pool, ())
        return mean.astype(np.float32), (deviation + 0.001).astype(np.float32)
    if name in CHANNELS:
        mean, deviation = (np.reshape(values, (-1, 1, 1)) * top for values in CHANNELS[name])
    else:
        mean, deviation = _moments(x, pool, (-2, -1))
    return mean.astype(np.float32), np.where(deviation > 0, deviation, 1).astype(np.float32)


def _moments(x: np.ndarray, rows: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation over rows and `axes`, block by block in float64."""
    first = second = np.zeros(1)
    for at in blocks(len(rows)):
        block = x[rows[at]].astype(np.float64)
        first = first + block.mean(axes, keepdims=True).sum(0)
        second = second + (block**2).mean(axes, keepdims=True).sum(0)
    mean = first / len(rows)
    return mean, np.sqrt(np.maximum(second / len(rows) - mean**2, 0))
