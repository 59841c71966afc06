"""Whether clients have enough rows for their parts, and what to do where they have not."""

from collections.abc import Sequence
from math import ceil

import numpy as np

from coterie.core.errors import BadInput
from coterie.data.partition.cuts import Cuts, Shares, cut_points

MAX_ROWS = 1_000_000  # rows of a client, for shares so small that they hardly ever hold one
UNITS = {"groups": "groups", "time": "different times"}  # that are never cut apart


class TooFewRows(BadInput):
    """A client has no rows in a part; `rows` is how many the largest client has in all."""

    def __init__(self, said: str, rows: int) -> None:
        super().__init__(said)
        self.rows = rows


def has_all_parts(cuts: Cuts, validation: float) -> np.ndarray:
    """[clients] whether each has rows in every part that is asked for."""
    train, held, tested = (part.counts > 0 for part in cuts)
    return train & (held | (validation == 0)) & tested


def has_enough_rows(rows: np.ndarray, shares: Shares, train: int = 1) -> np.ndarray:
    """Whether so many rows of a client give every part one, and the train part so many."""
    first, second = cut_points(rows, *shares)
    held, tested = second > first, rows > second
    return (first >= train) & (held | (shares.validation == 0)) & (tested | (shares.test == 0))


def minimum_rows_of(shares: Shares, train: int = 1) -> int:
    """The rows with which, and with any more, every part of a client has one, and the train part
    so many.
    """
    sure = max(train / (1 - sum(shares)), 1 / (shares.validation or 1))
    rows = np.arange(1, min(ceil(sure) + 2, MAX_ROWS))
    lacking = np.flatnonzero(~has_enough_rows(rows, shares, train))
    return int(rows[lacking[-1]]) + 1 if len(lacking) else 1


def check_parts(cuts: Cuts, names: Sequence[str], shares: Shares, how: str, natural: bool) -> None:
    """Refuse a client that has no rows in a part; natural: the clients are those of the data."""
    lacking = np.flatnonzero(~has_all_parts(cuts, shares.validation))
    if not len(lacking):
        return
    client = int(lacking[0])
    sizes = {option: len(part[client]) for option, part in cuts._asdict().items()}
    option = next(w for w, n in sizes.items() if not n and (w != "validation" or shares.validation))
    own = cuts if shares.test else cuts[:2]  # without a share, the test rows are everybody's
    rows: np.ndarray = np.sum([part.counts for part in own], axis=0)
    has = int(rows[client])
    raise TooFewRows(
        f"client {client} ('{names[client]}') has {has} row{'s' * (has != 1)}, none of them in its "
        f"{option} part: {_describe_minimum(shares, how)}; "
        f"{' or '.join(_suggest_fixes(rows, shares, how, natural))}",
        int(rows.max()),
    )


def _describe_minimum(shares: Shares, how: str) -> str:
    """What a client must have to be cut in this way."""
    if how == "runs":
        return "cut = runs cuts every run of one label by itself"
    if how == "published":
        return "cut = published takes the parts that the data state"
    count = 2 + (shares.validation > 0) if how in UNITS else minimum_rows_of(shares)
    return f"with {_format_shares(shares)} a client needs at least {count} {UNITS.get(how, 'rows')}"


def _format_shares(shares: Shares) -> str:
    test = f" and test = {shares.test:g}" if shares.test else ""
    return f"validation = {shares.validation:g}{test}"


def _suggest_fixes(rows: np.ndarray, shares: Shares, how: str, natural: bool) -> list[str]:
    """What would help: of other options, only those that work with the rows that clients have."""

    def works(other: Shares) -> bool:
        fits = has_enough_rows(rows, other)  # natural clients that have too few are left out
        return bool(fits.any() if natural else fits.all())

    if how == "published":
        return ["give it rows in every part", "leave it out"]
    ways = []
    if how in (*UNITS, "runs"):
        ways += ["use cut = shuffle"] * works(shares)
    else:
        fewer = (shares._replace(validation=0.0), Shares(0.0, min(shares.test, 0.2)))
        other = next(filter(works, fewer), None)
        ways += (
            [f"use {_format_shares(other)}, with which {minimum_rows_of(other)} are enough"]
            if other
            else []
        )
    if not natural:
        ways.append("use fewer clients")
    return ways or ["give each client more rows"]
