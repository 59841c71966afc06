"""Copies of rows: equal in every input and in the label.

In a client they stay in one part, as a copy of a training row would flatter whatever it measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.data.arrays import hash_rows
from coterie.data.client_rows import ClientRows

MOST = 0.5  # a client with more copies has rows that are equal by chance, as few columns have


class Copies(NamedTuple):
    """Which rows are equal."""

    row: np.ndarray  # [n] rows of one owner that are equal have the same number
    apart: int  # owners most of whose rows are equal to another: they count as different


def find_copies(x: np.ndarray, y: np.ndarray, owners: np.ndarray | None = None) -> Copies:
    """Equal rows of x [n, columns], with their labels y [n] or [n, labels].

    owners: [n] the client of each, where the data have clients.
    """
    held = np.zeros(len(x), np.int64) if owners is None else owners - owners.min(initial=0)
    labels = y if y.dtype.kind in "biuf" else np.unique(y, return_inverse=True)[1]
    mixed = hash_rows(labels.reshape(len(y), -1), hash_rows(x, held.astype(np.uint64)))
    _, first, row = np.unique(mixed, return_index=True, return_inverse=True)
    again = np.ones(len(x), bool)
    again[first] = False
    many = np.bincount(held, again) > MOST * np.bincount(held)
    own = many[held]  # each row is one of its own there
    return Copies(np.where(own, len(x) + np.arange(len(x)), row), int(many.sum()))


def find_holders(parts: ClientRows, row: np.ndarray) -> tuple[np.ndarray, int]:
    """The clients that hold copies of one row, and how many copies they hold in all."""
    owners = parts.owners()
    pairs = np.stack([owners, row[parts.concatenate()]])
    order = np.lexsort(pairs[::-1])
    again = (np.diff(pairs[:, order], axis=1) == 0).all(0)
    return np.unique(owners[order][1:][again]), int(again.sum())


def divide_copies(rows: np.ndarray, copies: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """A client's rows in parts of about these sizes, equal rows in one part.

    Every part gets its share of the rows that have copies, and single rows fill it up. How large
    the parts become follows from how often rows occur; which go where, from the order of the rows.
    """
    _, start, member, times = np.unique(
        copies[rows], return_index=True, return_inverse=True, return_counts=True
    )
    order = np.lexsort((start, -times))  # the most frequent first
    several = int((times > 1).sum())
    part_of = np.empty(len(times), np.int64)
    found, room = _assign_copies(times[order][:several].tolist(), len(times), sizes)
    part_of[order[:several]] = found
    part_of[order[several:]] = np.repeat(np.arange(len(sizes)), room)
    part = part_of[member]
    return [
        rows[at[np.argsort(start[member][at], kind="stable")]]
        for at in (np.flatnonzero(part == k) for k in range(len(sizes)))
    ]


def _assign_copies(
    times: Sequence[int], different: int, sizes: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The part of every row that has copies, and how many single rows each part gets."""
    parts, copied = range(len(sizes)), sum(times)
    wanted = [copied * size / max(1, sum(sizes)) for size in sizes]
    held, found = [0] * len(sizes), list[int]()
    for k, count in enumerate(times):
        empty = [p for p in parts if sizes[p] and not held[p]]
        open_parts = empty if len(empty) >= different - k else [p for p in parts if sizes[p]]
        best = max(open_parts, key=lambda p: wanted[p] - held[p])
        held[best] += count
        found.append(best)
    room = [max(0, sizes[p] - held[p]) for p in parts]
    for _ in range(sum(room) - (different - len(times))):  # a part with too many takes from others
        room[max(parts, key=lambda p: room[p] - (not held[p]) / 2)] -= 1
    return found, room
