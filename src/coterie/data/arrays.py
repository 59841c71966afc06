"""Arrays of many rows: worked on in blocks, shared with torch, and their digest."""

import hashlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

BLOCK = 4096  # rows worked on at once, so that no second copy of a large store is made
ODD, OTHER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)  # of splitmix64
FAR = 50.0  # interquartile ranges from the median: farther values than a bell's or a rate's tail
GAP = np.uint64(0x7FF8000000000000)  # any NaN


def iterate_blocks(n: int, size: int = BLOCK) -> Iterator[slice]:
    """The rows 0 to n, a block at a time."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """The array's own memory as a tensor; nothing in a federation is ever written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        backwards = any(step < 0 for step in array.strides)  # torch counts forwards only
        return torch.from_numpy(array.copy() if backwards else array)


def digest_of(*arrays: np.ndarray) -> str:
    """A digest of the values, types and shapes of arrays."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        update_digest(digest, array)
    return digest.hexdigest()


def update_digest(digest: Any, array: np.ndarray) -> None:
    digest.update(f"{array.dtype}{array.shape}".encode())
    for at in iterate_blocks(len(array)):
        digest.update(np.ascontiguousarray(array[at]).data)


def measure_reach(values: np.ndarray) -> float:
    """How many interquartile ranges the farthest of some numbers lies from their median; 0 where
    half of them are the same.
    """
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)) if len(values) else (0, 0, 0)
    return float(np.abs(values - middle).max() / (high - low)) if high > low else 0.0


def hash_rows(columns: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """[n] 64 bits of every row of numbers [n, columns]; NaN is like NaN.

    That two different rows of a million share theirs has odds of one in thirty million. start: [n]
    the bits of what stands before these columns.
    """
    found = np.zeros(len(columns), np.uint64) if start is None else start
    for k in range(columns.shape[1]):
        cells = columns[:, k].astype(np.float64) + 0.0  # -0.0 is 0.0
        bits = np.where(np.isnan(cells), GAP, cells.view(np.uint64))
        found = (found ^ bits) * ODD
        found = (found ^ (found >> np.uint64(29))) * OTHER
        found ^= found >> np.uint64(32)
    return found
