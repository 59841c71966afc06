"""Who learns from whom: the N x N matrices that servers note down, small enough to look at, and each client's peers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from sklearn.cluster import AgglomerativeClustering

from coterie.reports.figures import Heat

GROUPS = 64  # rows and columns of a matrix at most
FRAMES = 20  # rounds at most
PEERS = 10  # named for each client
NOTHING = 1e-6  # of the largest weight: smaller ones are shown as 0
OTHER = ("v",)  # notes that may be square by chance: pFedHN's embeddings of clients
CLUSTER = "cluster"  # a note of one number a client: members of a cluster share a model


class Mixing(NamedTuple):
    """A method's matrices, row i: from whom client i learns, and how much."""

    name: str  # as in the paper: c, W, xi, P; "cluster"
    rounds: list[int]
    frames: list[np.ndarray]  # [N, N] each


def mixing(folder: Path, clients: int) -> Mixing | None:
    """The matrices in a run's notes, at most FRAMES evenly spaced with the last; None where the method notes none."""
    files = sorted((folder / "notes").glob("round-*.safetensors"))
    name = next((n for file in reversed(files) if (n := _square(file, clients))), None)
    if name is None:
        return None
    read = [(int(file.stem.partition("-")[2]), file) for file in spaced(files)]
    found = [(number, matrix) for number, file in read if (matrix := _matrix(file, name, clients)) is not None]
    distinct = [pair for k, pair in enumerate(found) if not k or not np.array_equal(pair[1], found[k - 1][1])]
    return Mixing(name, [number for number, _ in distinct], [matrix for _, matrix in distinct])


def spaced(items: Sequence[Path], most: int = FRAMES) -> list[Path]:
    """At most so many of the items, evenly spaced, with the first and the last."""
    return [items[k] for k in np.unique(np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int))]


def _square(file: Path, clients: int) -> str | None:
    """The name of the matrix in a file of notes."""
    try:
        with safe_open(file, "np") as notes:
            shapes = {name: list(notes.get_slice(name).get_shape()) for name in notes.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return None
    square = [name for name, shape in shapes.items() if shape == [clients, clients] and name not in OTHER]
    return square[0] if square else CLUSTER if shapes.get(CLUSTER) == [clients] else None


def _matrix(file: Path, name: str, clients: int) -> np.ndarray | None:
    try:
        with safe_open(file, "np") as notes:
            found = np.asarray(notes.get_tensor(name), dtype=float)
    except (SafetensorError, OSError):
        return None
    if name == CLUSTER and found.shape == (clients,):
        same = (found[:, None] == found[None]) & (found[:, None] >= 0)
        return same / np.maximum(same.sum(1, keepdims=True), 1)
    return found if found.shape == (clients, clients) else None


def groups_of(last: np.ndarray, true_groups: np.ndarray) -> tuple[np.ndarray, str]:
    """(group [N] of every client, numbered from 0, how they were found): itself, its true group, or one of alike rows."""
    n, known = len(last), np.unique(true_groups)
    if n <= GROUPS:
        return np.argsort(np.argsort(true_groups, kind="stable"), kind="stable"), "clients"
    if 2 <= len(known) <= GROUPS:
        return np.searchsorted(known, true_groups), "true groups"
    found = AgglomerativeClustering(GROUPS).fit_predict(np.nan_to_num(last))
    return _by_size(found), "groups of clients with alike rows at the last round"


def _by_size(found: np.ndarray) -> np.ndarray:
    """The same groups, the largest first."""
    rank = np.argsort(-np.bincount(found), kind="stable")
    return np.argsort(rank)[found]


def between(matrix: np.ndarray, group: np.ndarray) -> np.ndarray:
    """[G, G] mean weight of a client of one group on a client of another, never on itself; NaN where there is no such pair."""
    order, size = np.argsort(group, kind="stable"), np.bincount(group)
    starts = np.cumsum(size) - size
    own = np.add.reduceat(np.diag(matrix)[order], starts)
    total = np.add.reduceat(np.add.reduceat(matrix[order], starts, axis=0)[:, order], starts, axis=1) - np.diag(own)
    pairs = np.outer(size, size) - np.diag(size)
    return np.where(pairs > 0, total / np.maximum(pairs, 1), np.nan)


def peers(matrix: np.ndarray) -> list[list[tuple[int, float]]]:
    """For every client the PEERS others it learns most from, (client, weight), exact; none of weight 0 or less."""
    weights = np.array(matrix, dtype=float)
    np.fill_diagonal(weights, -np.inf)
    count = min(PEERS, len(weights))
    top = np.argsort(-weights, axis=1, kind="stable")[:, :count]
    return [[(int(j), float(row[j])) for j in picked if row[j] > 0] for row, picked in zip(weights, top, strict=True)]


def heat(found: Mixing, names: Sequence[str], true_groups: np.ndarray) -> tuple[Heat, str]:
    """(the matrices between groups, what the groups are)."""
    group, how = groups_of(found.frames[-1], true_groups)
    size = np.bincount(group)
    if how == "clients":
        order = np.argsort(group)
        labels = [names[i] for i in order]
    else:
        word = "true group" if how == "true groups" else "group"
        labels = [f"{word} {g + 1} ({s} client{'s' if s > 1 else ''})" for g, s in enumerate(size)]
    least = NOTHING * max(float(np.abs(m).max()) for m in found.frames)
    cells = [between(m, group) for m in found.frames]
    frames = [
        (f"round {number}", np.where(np.abs(cell) < least, 0.0, cell).tolist())
        for number, cell in zip(found.rounds, cells, strict=True)
    ]
    return Heat(labels, labels, frames, diverging=bool(min(m.min() for m in found.frames) < 0)), how
