"""A client's rows cut in a train, a validation and a test part."""

import numpy as np

from coterie.core.errors import BadInput

# at random; the first rows train; each run of one label by time, without the rows at the cuts
CUTS = ("shuffle", "order", "runs")
Cut = tuple[np.ndarray, np.ndarray, np.ndarray]  # train, validation and test rows of one client


def cut_rows(
    rows: np.ndarray,
    y: np.ndarray,
    how: str,
    validation: float,
    test: float,
    rng: np.random.Generator,
) -> Cut:
    """Train, validation and test rows of one client; `how` is one of CUTS."""
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


def cut_points(n: int, validation: float, test: float) -> tuple[int, int]:
    """Where train and where validation end; the small number absorbs rounding of the shares."""
    return int(n * (1 - validation - test) + 1e-9), int(n * (1 - test) + 1e-9)


def check_parts(pieces: list[Cut], names: list[str], validation: float) -> None:
    """Refuse a client that has no rows in a part."""
    for client, (train, held, tested) in enumerate(pieces):
        wanted = (
            ("train", train, True),
            ("validation", held, validation > 0),
            ("test", tested, True),
        )
        for word, rows, needed in wanted:
            if needed and len(rows) == 0:
                total = len(train) + len(held) + len(tested)
                way = "validation = 0, " if word == "validation" else ""
                raise BadInput(
                    f"client {client} ('{names[client]}') has {total} rows, "
                    f"none of them in its {word} part; use {way}fewer clients, "
                    "other shares or a split option such as smallest = 10"
                )
