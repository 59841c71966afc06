"""Who learns from whom: N x N matrices made small enough to look at, and each client's peers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.reports.figures import Heat
from coterie.reports.logged_values import Frame, space_evenly

MAX_GROUPS = 64  # rows and columns of a matrix at most
MAX_PEERS = 10  # named for each client
MAX_CELLS = 24_000  # of all frames of a figure together
MIN_FRAMES = 4
NEGLIGIBLE = 1e-6  # of the largest weight: smaller ones are shown as 0


def groups_of(last: np.ndarray, true_groups: np.ndarray) -> tuple[np.ndarray, str]:
    """(group [N] of every client, numbered from 0, how they were found).

    A client's group is itself, its true group, or one of clients with alike rows.
    """
    n, known = len(last), np.unique(true_groups)
    if n <= MAX_GROUPS:
        return np.argsort(np.argsort(true_groups, kind="stable"), kind="stable"), "clients"
    if 2 <= len(known) <= MAX_GROUPS:
        return np.searchsorted(known, true_groups), "true groups"
    from sklearn.cluster import AgglomerativeClustering

    found = AgglomerativeClustering(MAX_GROUPS).fit_predict(np.nan_to_num(last))
    return _sort_by_size(found), "groups of clients with alike rows at the last round"


def _sort_by_size(found: np.ndarray) -> np.ndarray:
    """The same groups, the largest first."""
    rank = np.argsort(-np.bincount(found), kind="stable")
    return np.argsort(rank)[found]


def mean_between(matrix: np.ndarray, group: np.ndarray) -> np.ndarray:
    """[G, G] mean weight of a client of one group on a client of another, never on itself.

    NaN where there is no such pair.
    """
    order, size = np.argsort(group, kind="stable"), np.bincount(group)
    starts = np.cumsum(size) - size
    own = np.add.reduceat(np.diag(matrix)[order], starts)
    rows = np.add.reduceat(matrix[order], starts, axis=0)
    total = np.add.reduceat(rows[:, order], starts, axis=1) - np.diag(own)
    pairs = np.outer(size, size) - np.diag(size)
    return np.where(pairs > 0, total / np.maximum(pairs, 1), np.nan)


def find_peers(matrix: np.ndarray) -> list[list[tuple[int, float]]]:
    """For every client the PEERS others it learns most from, (client, weight), exact.

    None of weight 0 or less.
    """
    weights = np.array(matrix, dtype=float)
    np.fill_diagonal(weights, -np.inf)
    count = min(MAX_PEERS, len(weights))
    top = np.argsort(-weights, axis=1, kind="stable")[:, :count]
    return [
        [(int(j), float(row[j])) for j in picked if row[j] > 0]
        for row, picked in zip(weights, top, strict=True)
    ]


def labels_of(group: np.ndarray, how: str, names: Sequence[str]) -> list[str]:
    """The names of groups, as they stand beside a matrix."""
    if how == "clients":
        return [names[i] for i in np.argsort(group)]
    option = "true group" if how == "true groups" else "group"
    sizes = np.bincount(group)
    return [f"{option} {g + 1} ({s} client{'s' if s > 1 else ''})" for g, s in enumerate(sizes)]


def thin_frames(found: Sequence[Frame], cells: int) -> list[Frame]:
    """Fewer rounds of large matrices, so that a page of many methods stays small; the first and the
    last are among them.
    """
    return space_evenly(found, max(MIN_FRAMES, MAX_CELLS // cells))


def build_mixing_heat(
    found: Sequence[Frame], names: Sequence[str], true_groups: np.ndarray
) -> tuple[Heat, str]:
    """(the matrices between groups, what the groups are)."""
    group, how = groups_of(found[-1][1], true_groups)
    labels = labels_of(group, how, names)
    found = thin_frames(found, len(labels) ** 2)
    least = NEGLIGIBLE * max(float(np.abs(m).max()) for _, m in found)
    small = [(number, mean_between(m, group)) for number, m in found]
    frames = [
        (f"round {number}", np.where(np.abs(cell) < least, 0.0, cell).tolist())
        for number, cell in small
    ]
    diverging = bool(min(m.min() for _, m in found) < 0)
    return Heat(labels, labels, frames, diverging), how


def build_vector_heat(
    found: Sequence[Frame], names: Sequence[str], true_groups: np.ndarray
) -> tuple[Heat, str]:
    """(a row per client or the mean per group, what the rows are); at most GROUPS columns."""
    group, how = groups_of(found[-1][1], true_groups)
    size = np.bincount(group)
    frames = []
    for number, values in thin_frames(found, len(size) * min(MAX_GROUPS, found[-1][1].shape[1])):
        total = np.zeros((len(size), values.shape[1]))
        np.add.at(total, group, values)
        frames.append((f"round {number}", (total / size[:, None])[:, :MAX_GROUPS].tolist()))
    columns = [str(k + 1) for k in range(min(MAX_GROUPS, found[-1][1].shape[1]))]
    diverging = bool(min(v.min() for _, v in found) < 0)
    return Heat(labels_of(group, how, names), columns, frames, diverging), how
