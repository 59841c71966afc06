"""Rows that are made when they are asked for: inputs and labels of clients that are never stored
all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from coterie.core.device import to_numpy
from coterie.core.memory import check_memory, read_memory_limit

CHUNK = 1024  # clients that are made at once where all are needed
MADE = 2**23  # bytes of the rows that a thread makes at once
MAX_KEPT = 1 / 4  # of the memory, which all rows may take if those that were made are kept
RowArrays = tuple[np.ndarray, np.ndarray]  # inputs [n, ...] and labels [n] of some clients


class RowGenerator:
    """Makes the rows of clients; those of the last ones are kept, as they are asked for often."""

    def __init__(
        self,
        counts: np.ndarray,  # [clients] rows of each
        make: Callable[[Sequence[int]], RowArrays],  # the rows of clients, one client after another
        classes: int,
        digest: str,  # of all that decides on them
    ):
        self.counts, self.classes, self.digest = counts, classes, digest
        self.ends = np.cumsum(counts)
        self._make = make
        self._last: tuple[tuple[int, ...], tuple[Tensor, Tensor]] | None = None
        self._labels: np.ndarray | None = None
        self._whole: tuple[Tensor, Tensor] | None = None
        self._made = np.zeros(len(counts), bool)  # clients whose rows are in it
        self._each = 0  # bytes of a row
        self._one = Lock()

    def whole(self) -> tuple[Tensor, Tensor] | None:
        """Memory for the inputs and labels of all clients, which has those of clients that were
        `made`; None where they are too many to be kept.
        """
        if self._whole is None:
            x, y = (rows[:0] for rows in self.of([0]))
            total = int(self.ends[-1])
            self._each = x.shape[1:].numel() * x.itemsize + y.itemsize
            if total * self._each > MAX_KEPT * read_memory_limit():
                return None
            # the system gives memory when it is first written
            kept = (np.zeros((total, *part.shape[1:]), part.numpy().dtype) for part in (x, y))
            self._whole = torch.from_numpy(next(kept)), torch.from_numpy(next(kept))
        return self._whole

    def make(self, clients: np.ndarray) -> None:
        """Put the rows of some clients where `whole` keeps them."""
        assert self._whole is not None
        with self._one:  # several threads may ask
            new = np.unique(clients[~self._made[clients]])
            before = np.cumsum(self.counts[new]) * self._each // MADE
            blocks = np.split(new, np.flatnonzero(np.diff(before)) + 1)
            threads = min(torch.get_num_threads(), len(blocks))
            # BLAS with threads of its own only waits for them, as the products are small
            with threadpool_limits(1, "blas"), ThreadPoolExecutor(max(1, threads)) as pool:
                list(pool.map(self._keep, blocks))
            self._made[new] = True

    def _keep(self, some: np.ndarray) -> None:
        """Make the rows of a few clients, and put them in their place."""
        assert self._whole is not None
        rows, counts = self._make(some.tolist()), self.counts[some]
        place = np.repeat(self.ends[some] - np.cumsum(counts), counts)
        place += np.arange(len(place))
        for kept, made in zip(self._whole, rows, strict=True):
            kept.numpy()[place] = made

    def of(self, clients: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs and labels of some clients, one client after another."""
        who, last = tuple(int(i) for i in clients), self._last
        if last is None or last[0] != who:
            x, y = self._make(who)
            last = who, (torch.from_numpy(x), torch.from_numpy(y))
            self._last = last  # whole at once, as several threads may ask
        return last[1]

    def labels(self) -> np.ndarray:
        """The labels of all clients; every client is made for them, once."""
        whole = self.whole()
        if whole is not None:
            self.make(np.arange(len(self.counts)))
            return to_numpy(whole[1])
        if self._labels is None:
            total = int(self.counts.sum())
            check_memory(16 * total, f"the labels of {total:,} rows", "lower --num-clients")
            found = np.empty(total, np.int64)
            for start in range(0, len(self.counts), CHUNK):
                some = range(start, min(start + CHUNK, len(self.counts)))
                begin = self.ends[start] - self.counts[start]
                found[begin : self.ends[some[-1]]] = self._make(some)[1]
            self._labels = found
        return self._labels


class LazyRows:
    """The inputs or the labels of all clients; it answers as the tensor of all rows would."""

    def __init__(self, maker: RowGenerator, labels: bool):
        self.maker, self._labels = maker, labels
        one = self._of(maker.of([0]))
        self.dtype: torch.dtype = one.dtype
        self.shape = torch.Size((int(maker.ends[-1]), *one.shape[1:]))
        self.ndim = one.ndim
        self.nbytes = 0  # nothing is stored

    def _of(self, rows: tuple[Tensor, Tensor]) -> Tensor:
        return rows[1] if self._labels else rows[0]

    def __len__(self) -> int:
        return int(self.shape[0])

    def dim(self) -> int:
        return self.ndim

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def __getitem__(self, rows: Any) -> Tensor:
        """Some rows, by their numbers."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        wanted = np.asarray(rows, dtype=np.int64)
        if wanted.ndim == 0:
            return self[wanted[None]][0]
        owner = np.searchsorted(self.maker.ends, wanted.ravel(), side="right")
        clients, place = np.unique(owner, return_inverse=True)
        counts = self.maker.counts[clients]
        begins = self.maker.ends[clients] - counts  # among all rows, and among those made here
        near = wanted.ravel() - (begins - (np.cumsum(counts) - counts))[place]
        found = self._of(self.maker.of(clients.tolist()))[torch.from_numpy(near)]
        return found.reshape(*wanted.shape, *self.shape[1:])

    def numpy(self) -> np.ndarray:
        """All rows."""
        if self._labels:
            return self.maker.labels()
        what = f"{len(self):,} rows"
        check_memory(8 * self.shape.numel(), what, "lower --num-clients")
        found: np.ndarray = self[:].numpy()
        return found


def generator_of(rows: object) -> RowGenerator | None:
    """What makes the rows of a federation when they are asked for; None: they are stored."""
    return rows.maker if isinstance(rows, LazyRows) else None
