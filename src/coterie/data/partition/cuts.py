"""A client's rows cut in a train, a validation and a test part."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from coterie.data.client_rows import ClientRows
from coterie.data.partition.copies import divide_copies, find_holders

# at random; the first rows train; each run of one label by time, without the rows at the cuts;
# the earliest rows of a column train; rows of one group of a column stay together; as the data say
CUTS = ("shuffle", "order", "runs", "time", "groups", "published")
BY_COLUMN = ("time", "groups")
Cut = tuple[np.ndarray, np.ndarray, np.ndarray]  # train, validation and test rows of one client

Size = TypeVar("Size", int, np.ndarray)


class Cuts(NamedTuple):
    """The train, validation and test rows of all clients."""

    train: ClientRows
    validation: ClientRows
    test: ClientRows


class Shares(NamedTuple):
    """How much of a client's rows is kept from training."""

    validation: float
    test: float


def cuts_of(cuts: Sequence[Cut]) -> Cuts:
    """The cuts of clients, given one by one."""
    train, held, tested = (ClientRows.of([cut[k] for cut in cuts]) for k in range(3))
    return Cuts(train, held, tested)


def cut_at_points(
    parts: ClientRows,
    shares: Shares,
    rngs: Iterable[np.random.Generator] | None,
    copies: np.ndarray | None = None,
) -> Cuts:
    """`cut_rows` of all clients at once: in order, or shuffled where there are generators.

    copies: [rows of all] equal rows have the same number; those of a client stay in one part.
    """
    rows, begin, n = parts.rows, parts.first, parts.counts
    if rngs is not None or copies is not None:
        rows, begin = parts.concatenate().copy(), np.cumsum(n) - n
    if rngs is not None and rows is not None:
        ends = (begin + n).tolist()
        for rng, first, last in zip(rngs, begin.tolist(), ends, strict=True):
            rows[first:last] = rng.permutation(rows[first:last])
    first, second = cut_points(n, *shares)
    if copies is not None and rows is not None:
        for i in find_holders(parts, copies)[0].tolist():
            here = slice(int(begin[i]), int(begin[i] + n[i]))
            sizes = (int(first[i]), int(second[i] - first[i]), int(n[i] - second[i]))
            pieces = divide_copies(rows[here], copies, sizes)
            rows[here] = np.concatenate(pieces)
            first[i], second[i] = np.cumsum([len(piece) for piece in pieces])[:2]
    return Cuts(
        ClientRows(rows, begin, first),
        ClientRows(rows, begin + first, second - first),
        ClientRows(rows, begin + second, n - second),
    )


def cut_rows(
    rows: np.ndarray,
    y: np.ndarray,
    how: str,
    validation: float,
    test: float,
    rng: np.random.Generator,
) -> Cut:
    """Train, validation and test rows of one client; `how` is shuffle, order or runs."""
    if how != "runs":
        rows = rng.permutation(rows) if how == "shuffle" else rows
        first, second = cut_points(len(rows), validation, test)
        return rows[:first], rows[first:second], rows[second:]
    # neighbouring windows of a recording overlap, so the one at each cut is dropped
    starts = np.flatnonzero(np.diff(y[rows])) + 1
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for run in np.split(rows, starts):
        first, second = cut_points(len(run), validation, test)
        parts[0].append(run[:first])
        parts[1].append(run[first + 1 : second])
        parts[2].append(run[second + 1 :])
    train, held, tested = (np.concatenate(part) for part in parts)
    return train, held, tested


def cut_by_time(rows: np.ndarray, times: np.ndarray, shares: Shares) -> Cut:
    """The earliest rows train and the latest test; rows of one moment are never cut apart."""
    rows = rows[np.argsort(times[rows], kind="stable")]
    when = times[rows]
    first, second = (
        _find_moment(when, point, shares.test) for point in cut_points(len(rows), *shares)
    )
    return rows[:first], rows[first : max(first, second)], rows[max(first, second) :]


def cut_as_published(
    rows: np.ndarray, parts: np.ndarray, validation: float, rng: np.random.Generator
) -> Cut:
    """The published parts of one client's rows; validation: the share of its training rows that
    is held where the data publish no validation rows.
    """
    train, held, tested = (rng.permutation(rows[parts[rows] == k]) for k in range(3))
    if validation:
        first, _ = cut_points(len(train), validation, 0.0)
        train, held = train[:first], train[first:]
    return train, held, tested


def _find_moment(when: np.ndarray, point: int, test: float) -> int:
    """The cut nearest to `point` that has no moment on both of its sides."""
    if not 0 < point < len(when):
        return point
    low, high = (int(np.searchsorted(when, when[point], side)) for side in ("left", "right"))
    if low == 0:  # everything before it is one moment: there must be something to train on
        return high
    return low if point - low <= high - point or (high == len(when) and test > 0) else high


def cut_groups(
    parts: Sequence[np.ndarray],
    groups: np.ndarray,
    shares: Shares,
    rngs: Iterable[np.random.Generator],
) -> list[Cut]:
    """Whole groups are assigned to the parts of every client.

    A group that several clients hold is in the same part for all of them: the first decides.
    """
    decided: dict[float, int] = {}
    cuts = []
    for rows, rng in zip(parts, rngs, strict=True):
        names, member, sizes = np.unique(groups[rows], return_inverse=True, return_counts=True)
        part = _assign_groups(names, sizes, decided, shares, rng)
        decided.update(zip(names.tolist(), part.tolist(), strict=True))
        train, held, tested = (rows[part[member] == k] for k in range(3))
        cuts.append((train, held, tested))
    return cuts


def _assign_groups(
    names: np.ndarray,
    sizes: np.ndarray,
    decided: dict[float, int],
    shares: Shares,
    rng: np.random.Generator,
) -> np.ndarray:
    """[groups] 0 to train, 1 to validate, 2 to test: each goes where most rows are missing."""
    wanted = sizes.sum() * np.array([1 - sum(shares), shares.validation, shares.test])
    part = np.array([decided.get(name, -1) for name in names.tolist()])
    open_groups = rng.permutation(np.flatnonzero(part < 0))
    # the largest first, so that the shares come out well; equal ones in random order
    for g in open_groups[np.argsort(-sizes[open_groups], kind="stable")]:
        held = np.array([sizes[part == k].sum() for k in range(3)])
        left = int((part < 0).sum())
        empty = (held == 0) & (wanted > 0)
        missing = np.where(wanted > 0, wanted - held, -np.inf)
        if empty.sum() >= left:  # as many groups as empty parts: one group each
            missing = np.where(empty, missing, -np.inf)
        part[g] = int(np.argmax(missing))
    return part


def split_validation(
    held: ClientRows, rows: np.ndarray, y: np.ndarray, how: str, by: np.ndarray
) -> tuple[ClientRows, ClientRows]:
    """(validation, select) of the clients' held rows: what methods may choose on, and what then
    chooses between them; `rows` tells which row of the data set each stored one is.

    The odd row is for methods: a client of a single row does not vote. What the cut keeps together
    stays together: a group or a moment is in one half, and every run of one label is cut by itself.
    """
    if how == "shuffle" and len(by):
        pairs = [halve_held(mine, by[rows[mine]]) for mine in held]
        return ClientRows.of([fit for fit, _ in pairs]), ClientRows.of([kept for _, kept in pairs])
    if how in ("groups", "runs", "time"):
        found = list(_split_each(held, rows, y, how, by))
        return ClientRows.of([first for first, _ in found]), ClientRows.of(
            [second for _, second in found]
        )
    first = half_of(held.counts)
    return (
        ClientRows(held.rows, held.first, first),
        ClientRows(held.rows, held.first + first, held.counts - first),
    )


def halve_held(held: np.ndarray, copies: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """A client's held rows for methods, and those that then choose; copies: [held] which of them
    are equal.
    """
    first = half_of(len(held))
    if copies is None or len(np.unique(copies)) == len(held):
        return held[:first], held[first:]
    fit, kept = divide_copies(np.arange(len(held)), copies, (first, len(held) - first))
    return held[fit], held[kept]


def _split_each(
    held: ClientRows, rows: np.ndarray, y: np.ndarray, how: str, by: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same, client by client, where more than counts decides."""
    decided: dict[float, bool] = {}  # of groups, for all clients that hold one
    for mine in held:
        own = rows[mine]
        if how == "groups":
            fit = _select_groups(by[own], decided)
        elif how == "runs":
            ends = np.flatnonzero((np.diff(own) != 1) | (np.diff(y[own]) != 0)) + 1
            fit = _select_halves([len(run) for run in np.split(own, ends)])
        else:
            fit = np.arange(len(own)) < _find_moment(by[own], half_of(len(own)), 1.0)
        yield mine[fit], mine[~fit]


def _select_groups(groups: np.ndarray, decided: dict[float, bool]) -> np.ndarray:
    """Whether each row's group is for methods: open groups go where fewer rows are."""
    names, sizes = np.unique(groups, return_counts=True)
    count = {True: 0, False: 0}
    for name, size in sorted(
        zip(names.tolist(), sizes.tolist(), strict=True), key=_group_order_of(decided)
    ):
        first = decided.setdefault(name, count[True] <= count[False])
        count[first] += size
    return np.array([decided[name] for name in groups.tolist()], dtype=bool)


def _group_order_of(decided: dict[float, bool]) -> Callable[[tuple[float, int]], tuple[bool, int]]:
    """The order in which groups are assigned: those that are decided, then the largest."""
    return lambda group: (group[0] not in decided, -group[1])


def _select_halves(runs: Sequence[int]) -> np.ndarray:
    """Whether each row of runs, one after another, is in the first half of its run; the odd rows go
    to the halves in turn.
    """
    fit, more = [], True
    for n in runs:
        first = n // 2 + (n % 2 if more else 0)
        more = not more if n % 2 else more
        fit.append(np.arange(n) < first)
    return np.concatenate(fit) if fit else np.zeros(0, bool)


def half_of(n: Size) -> Size:
    """How many of n held rows are for methods; the rest chooses."""
    return (n + 1) // 2


def cut_points(n: Size, validation: float, test: float) -> tuple[Size, Size]:
    """Where train and where validation end; the small number absorbs rounding of the shares."""
    first, second = n * (1 - validation - test) + 1e-9, n * (1 - test) + 1e-9
    if isinstance(n, np.ndarray):
        return first.astype(np.int64), second.astype(np.int64)
    return int(first), int(second)
