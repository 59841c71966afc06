"""Whether a number of ours agrees with a paper's: reproduced, trend, or not reproduced."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import isnan, nan
from typing import Literal, NamedTuple

from coterie.analysis.significance import Interval, mean_interval

Word = Literal["reproduced", "trend", "not reproduced", "too short", "not run"]
POINT = 1.0  # a difference of so many points is none
DECIMALS = 6  # digits beyond are rounding


class Figure(NamedTuple):
    """A number of a paper beside ours; NaN where there is none."""

    label: str
    paper: float
    spread: float  # the paper's own
    ours: Interval  # over seeds
    point: float = POINT  # a difference up to it is none

    @property
    def difference(self) -> float:
        """Ours minus the paper's."""
        return self.ours.mean - self.paper

    @property
    def agrees(self) -> bool:
        """Within the paper's spread, or within one point."""
        near = max(self.point, 0.0 if isnan(self.spread) else self.spread)
        return abs(round(self.difference, DECIMALS)) <= near


def figure(
    label: str,
    paper: float | None,
    spread: float | None,
    ours: Sequence[float],
    point: float = POINT,
) -> Figure:
    """A figure from our value of every seed."""
    return Figure(
        label=label,
        paper=nan if paper is None else paper,
        spread=nan if spread is None else spread,
        ours=mean_interval(ours),
        point=point,
    )


def verdict(
    figures: Sequence[Figure],
    above: Sequence[tuple[float, float]] = (),
    claims: Sequence[bool | None] = (),
    shortened: bool = False,
) -> Word:
    """The verdict on one column of a paper's table, or on a figure that only claims an order.

    reproduced: every number agrees. trend: every pair of methods that the paper tells apart, by
    more than a point and more than its spread, has the same order here, and so has every pair of
    `above` (ours of the first, ours of the second). What was not run says nothing. A claim of
    another kind holds or not; one that fails is not reproduced. Runs of fewer rounds than the
    paper's can confirm it, but not refute it: they are too short.
    """
    found = _judged(figures, above, claims)
    return "too short" if shortened and found == "not reproduced" else found


def _judged(
    figures: Sequence[Figure],
    above: Sequence[tuple[float, float]],
    claims: Sequence[bool | None],
) -> Word:
    """The verdict, whatever the number of rounds."""
    known = [f for f in figures if not isnan(f.ours.mean) and not isnan(f.paper)]
    pairs = [(a, b) for a, b in above if not isnan(a) and not isnan(b)]
    told = [holds for holds in claims if holds is not None]
    if not known and not pairs and not told:
        return "not run"
    if not all(told):
        return "not reproduced"
    if (known or told) and all(f.agrees for f in known) and all(a > b for a, b in pairs):
        return "reproduced"
    ordered = [(a, b) for a, b in itertools.permutations(known, 2) if _apart(a, b)]
    if (ordered or pairs) and all(a.ours.mean > b.ours.mean for a, b in ordered):
        return "trend" if all(a > b for a, b in pairs) else "not reproduced"
    return "not reproduced"


def _apart(a: Figure, b: Figure) -> bool:
    """Whether the paper says that `a` lies above `b`."""
    doubt = max(0.0 if isnan(f.spread) else f.spread for f in (a, b))
    return a.paper - b.paper > max(a.point, doubt)


def overall(words: Sequence[Word]) -> Word:
    """The verdict on a whole table: the worst of its columns that were run."""
    order: tuple[Word, ...] = ("not reproduced", "trend", "reproduced", "too short")
    return next((word for word in order if word in words), "not run")
