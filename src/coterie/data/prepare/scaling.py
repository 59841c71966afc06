"""How stored rows become inputs of a model: which scale, and the scaling of images."""

from typing import NamedTuple

import numpy as np

from coterie.data.arrays import iterate_blocks
from coterie.data.dataset import Dataset, Source
from coterie.data.read.catalog import DATASETS, source_of

# of features, by training rows: mean and deviation; median and interquartile range; mean and
# deviation of each client's own
FEATURES = ("standard", "robust", "client")
# of images: to [0, 1]; to [-1, 1]; standardised by channel (as published, else by training rows);
# by pixel (by training rows)
PIXELS = ("unit", "half", "channel", "pixel")
# as papers did it, over all rows that are partitioned, test rows among them
POOLED = ("channel-pool", "pixel-pool")
SCALES = (*FEATURES, *PIXELS, *POOLED, "none")
Affine = tuple[np.ndarray, np.ndarray]  # x becomes (x - first) / second


class ImageScale(NamedTuple):
    """How a stored row becomes an input of the model."""

    affine: Affine | None
    channels: int | None  # how often a grey image is repeated

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if self.affine is not None:
            x = (x.astype(np.float32) - self.affine[0]) / self.affine[1]
        x = x if x.dtype == np.int64 else x.astype(np.float32, copy=False)
        return np.repeat(x, self.channels, axis=1) if self.channels and x.shape[1] == 1 else x


def default_scale_of(base: Dataset, table: bool = False) -> str:
    """The scaling where none is named."""
    if table or (base.x.dtype.kind == "f" and base.x.ndim == 2 and base.name not in DATASETS):
        return "standard"
    if base.x.dtype != np.uint8:
        return source_of(base.name).scale or "none"
    return source_of(base.name).scale or ("channel" if base.x.ndim == 4 else "unit")


def affine_of(x: np.ndarray, rows: np.ndarray, kind: str, source: Source) -> Affine | None:
    """The scaling of `kind`, by the published means and deviations, else by those of `rows`."""
    if kind == "none":
        return None
    top = np.array(source.top if x.dtype == np.uint8 else 1, np.float32)
    if kind == "unit":
        return np.zeros_like(top), top
    if kind == "half":
        return np.asarray(top / 2), np.asarray(top / 2)
    if kind == "pixel-pool":  # as FedProx and pFedMe: on raw pixel values
        mean, deviation = _moments_of(x, rows, ())
        return mean.astype(np.float32), (deviation + 0.001).astype(np.float32)
    if kind == "pixel":
        mean, deviation = _moments_of(x, rows, ())
    elif source.channels is not None:
        mean, deviation = (np.reshape(values, (-1, 1, 1)) * top for values in source.channels)
    else:
        mean, deviation = _moments_of(x, rows, (-2, -1))
    # a constant pixel becomes 0 and stays there: infinity divides whatever a test row has
    constant = np.inf if kind == "pixel" else 1
    return mean.astype(np.float32), np.where(deviation > 0, deviation, constant).astype(np.float32)


def _moments_of(
    x: np.ndarray, rows: np.ndarray, axes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation over rows and `axes`, block by block in float64."""
    first = second = np.zeros(1)
    for at in iterate_blocks(len(rows)):
        block = x[rows[at]].astype(np.float64)
        first = first + block.mean(axes, keepdims=True).sum(0)
        second = second + (block**2).mean(axes, keepdims=True).sum(0)
    mean = first / len(rows)
    return mean, np.sqrt(np.maximum(second / len(rows) - mean**2, 0))
