"""Arrays of many rows: worked on in blocks, shared with torch, and their digest."""

import hashlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

BLOCK = 4096  # rows worked on at once, so that no second copy of a large store is made


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
