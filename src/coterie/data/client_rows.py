"""The rows that clients hold: one array for all of them, so that a client costs two numbers and no
array of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np


class ClientRows(Sequence[np.ndarray]):
    """The rows of each client, made when they are asked for.

    rows: of all clients; None: every row is its own number, so that a client's rows are a span.
    """

    def __init__(self, rows: np.ndarray | None, first: np.ndarray, counts: np.ndarray):
        self.rows = rows
        self.first, self.counts = first, counts  # [clients] where each begins, and how many it has

    @classmethod
    def of(cls, lists: Sequence[np.ndarray]) -> ClientRows:
        """The rows of each client, given one by one."""
        if isinstance(lists, ClientRows):
            return lists
        counts = np.array([len(rows) for rows in lists], dtype=np.int64)
        rows = np.concatenate(lists) if len(lists) else np.zeros(0, dtype=np.int64)
        return cls.pack(rows.astype(np.int64, copy=False), counts)

    @classmethod
    def pack(cls, rows: np.ndarray | None, counts: np.ndarray) -> ClientRows:
        """Rows that lie one client after another."""
        return cls(rows, np.cumsum(counts) - counts, counts)

    @classmethod
    def none(cls, clients: int) -> ClientRows:
        """Clients without a row."""
        return cls.pack(np.zeros(0, np.int64), np.zeros(clients, np.int64))

    @classmethod
    def by_owner(cls, rows: np.ndarray, owners: np.ndarray) -> ClientRows:
        """Rows in the order of their owners, whose numbers are sorted here."""
        order = np.argsort(owners, kind="stable")  # a client's rows keep their order
        ends = np.flatnonzero(np.diff(owners[order], append=owners.max(initial=0) + 1)) + 1
        return cls.pack(rows[order], np.diff(ends, prepend=0))

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, client: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, client: slice) -> ClientRows: ...

    def __getitem__(self, client: int | slice) -> np.ndarray | ClientRows:
        if isinstance(client, slice):
            return ClientRows(self.rows, self.first[client], self.counts[client])
        begin, end = self.first[client], self.first[client] + self.counts[client]
        return np.arange(begin, end) if self.rows is None else self.rows[begin:end]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))

    def only(self, clients: np.ndarray | Sequence[int]) -> ClientRows:
        """Some of the clients, in the order given."""
        chosen = np.asarray(clients, dtype=np.int64)
        return ClientRows(self.rows, self.first[chosen], self.counts[chosen])

    def concatenate(self) -> np.ndarray:
        """The rows of all clients, one client after another."""
        before = np.cumsum(self.counts) - self.counts
        total = int(self.counts.sum())
        if self.rows is not None and len(self.rows) == total and (self.first == before).all():
            return self.rows
        at = np.repeat(self.first - before, self.counts) + np.arange(total)
        return at if self.rows is None else self.rows[at]

    def owners(self) -> np.ndarray:
        """Whose each of the joined rows is."""
        return np.repeat(np.arange(len(self)), self.counts)

    def firsts(self) -> np.ndarray:
        """The first row of each client, all of whom have one."""
        return self.first if self.rows is None else self.rows[self.first]

    def map_rows(self, to: Callable[[np.ndarray], np.ndarray]) -> ClientRows:
        """The same with other numbers of the rows."""
        rows = self.concatenate() if self.rows is None else self.rows
        packed = ClientRows.pack(None, self.counts) if self.rows is None else self
        return ClientRows(to(rows), packed.first, packed.counts)

    def plus(self, other: ClientRows) -> ClientRows:
        """These clients, and others after them."""
        counts = np.concatenate([self.counts, other.counts])
        if self.rows is None and other.rows is None:
            return ClientRows(None, np.concatenate([self.first, other.first]), counts)
        return ClientRows.pack(np.concatenate([self.concatenate(), other.concatenate()]), counts)


def counts_of(lists: Sequence[np.ndarray]) -> np.ndarray:
    """[clients] how many rows each has."""
    return (
        lists.counts if isinstance(lists, ClientRows) else np.array([len(rows) for rows in lists])
    )
