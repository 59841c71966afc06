"""A federation: one store of all rows, and the rows of each client's train, validation and test part."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

BLOCK = 4096  # rows worked on at once, so that no second copy of a large store is made


class Public(NamedTuple):
    """Data that server and clients both know, for methods that transfer knowledge."""

    name: str
    x: torch.Tensor  # [n, ...] of the private input shape
    y: torch.Tensor | None  # [n] int64, only where labels were asked for
    checksum: str


class Federation(NamedTuple):
    name: str
    x: torch.Tensor  # [n, ...] float32, or int64 rows of `table`; all rows of all clients
    y: torch.Tensor  # [n] int64 labels; float32 targets when classes == 0
    classes: int
    train: list[np.ndarray]  # rows of each client, int64
    validation: list[np.ndarray]  # empty arrays when validation = 0
    test: list[np.ndarray]
    groups: np.ndarray  # [clients] int64, the true group: rotation, permutation or classes; zeros where there is none
    names: list[str]  # what each client is called
    public: Public | None = None
    truth: torch.Tensor | None = None  # [clients, 1], the means behind the Gaussian's observations
    table: torch.Tensor | None = None  # [words + 1, dimension] word vectors
    labels: list[str] | None = None  # [classes] names of the classes, where they have any

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def sizes(self) -> np.ndarray:
        """[clients] training rows."""
        return np.array([len(rows) for rows in self.train])

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])


class ClientRow(NamedTuple):
    client: int
    name: str
    train: int
    validation: int
    test: int
    classes: int  # how many classes it holds
    group: int


def class_counts(federation: Federation) -> np.ndarray:
    """[clients, classes] rows of each class that a client holds in all its parts."""
    y = federation.y.numpy()
    held = zip(federation.train, federation.validation, federation.test, strict=True)
    if federation.classes == 0:
        return np.zeros((federation.clients, 0), np.int64)
    return np.stack([np.bincount(y[np.concatenate(rows)], minlength=federation.classes) for rows in held])


def table(federation: Federation) -> list[ClientRow]:
    """One row a client, for printing."""
    classes = (class_counts(federation) > 0).sum(1)
    parts = zip(federation.train, federation.validation, federation.test, strict=True)
    return [
        ClientRow(i, federation.names[i], len(a), len(b), len(c), int(classes[i]), int(federation.groups[i]))
        for i, (a, b, c) in enumerate(parts)
    ]


def checksum(federation: Federation) -> str:
    """A digest of everything a run can depend on: rows, labels, who has them, names and public data."""
    parts = (federation.train, federation.validation, federation.test)
    rows = [np.concatenate(part) for part in parts] + [np.array([len(r) for r in part]) for part in parts]
    text = "\x1f".join([*federation.names, str(federation.classes), federation.public.checksum if federation.public else ""])
    return digest_of(
        federation.x.numpy(),
        federation.y.numpy(),
        federation.groups,
        *rows,
        np.frombuffer(text.encode(), np.uint8),
    )


def blocks(n: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """The array's own memory as a tensor; nothing in a federation is ever written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def digest_of(*arrays: np.ndarray) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        for at in blocks(len(array)):
            digest.update(np.ascontiguousarray(array[at]).data)
    return digest.hexdigest()
