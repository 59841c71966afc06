"""What splits share: tables of counts [clients, classes], and rows handed out by them."""

from collections.abc import Sequence

import numpy as np

from coterie.core.errors import BadInput

Rng = np.random.Generator
Parts = Sequence[np.ndarray]


def assign_rows(labels: np.ndarray, counts: np.ndarray, rng: Rng) -> Parts:
    """Assign counts[client, class] rows of each class, shuffled, no row twice."""
    check_counts(counts, labels)
    parts: list[list[np.ndarray]] = [[] for _ in counts]
    for label, value in enumerate(np.unique(labels)):
        rows = rng.permutation(np.flatnonzero(labels == value))
        ends = np.cumsum(counts[:, label])
        for u in np.flatnonzero(counts[:, label]):
            parts[u].append(rows[ends[u] - counts[u, label] : ends[u]])
    return [np.concatenate(part) if part else np.empty(0, int) for part in parts]


def check_counts(counts: np.ndarray, labels: np.ndarray) -> None:
    """Refuse counts [clients, classes] that ask for more rows of a class than there are."""
    values, sizes = np.unique(labels, return_counts=True)
    if counts.min() < 0:
        raise BadInput("a split cannot hand out fewer than 0 rows; give counts of 1 or more")
    for value, size, asked in zip(values, sizes, counts.sum(0), strict=True):
        if asked > size:
            raise BadInput(
                f"class {value} has {size:,} rows, but the split asks for {asked:,}; "
                "use fewer clients, smaller counts or a larger data set"
            )


def check_classes_each(classes_each: int, kinds: int) -> None:
    """Refuse more classes per client than there are."""
    if not 1 <= classes_each <= kinds:
        raise BadInput(
            f"classes_each = {classes_each}, but the rows have {kinds} classes; give 1 to {kinds}"
        )


def equal_shares(size: int, shares: int) -> np.ndarray:
    """`size` rows in parts that differ by one row at most."""
    return size // shares + (np.arange(shares) < size % shares)


def cut_shares(q: np.ndarray, size: int) -> np.ndarray:
    """Cut at floor(cumsum(q) size): every row goes to someone."""
    ends = np.minimum((np.cumsum(q)[:-1] * size).astype(int), size)
    return np.diff(np.concatenate([[0], ends, [size]]))


def round_shares(q: np.ndarray, size: int) -> np.ndarray:
    """round(q size) rows each, the last ones taking what is left when the class runs dry."""
    ends = np.minimum(np.cumsum(np.round(q * size).astype(int)), size)
    return np.diff(np.concatenate([[0], ends]))


def assign_classes(clients: int, kinds: int, each: int, rng: Rng) -> np.ndarray:
    """[clients, kinds] bool: `each` classes per client; two classes differ by one owner at most."""
    owner = np.zeros((clients, kinds), bool)
    left = rng.permutation(equal_shares(clients * each, kinds))
    for u in range(clients):
        chosen = np.lexsort((rng.random(kinds), -left))[
            :each
        ]  # the neediest classes, ties at random
        owner[u, chosen] = True
        left[chosen] -= 1
    return owner


def consecutive_classes(clients: int, kinds: int, each: int) -> np.ndarray:
    """[clients, kinds] 1 where client u owns the class: u, u+1, ... (mod kinds)."""
    return ((np.arange(kinds)[None, :] - np.arange(clients)[:, None]) % kinds < each).astype(int)
