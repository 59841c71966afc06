"""Whether runs bear out what a paper says: reproduced, trend, undecided, not reproduced, too small,
or trivial.

The rules, which `verdict` and `difference` apply:

A number agrees where ours is within one point of the paper's, or within the paper's deviation over
repeats. A deviation over users says how users differ and nothing about the doubt of a mean: it is
printed and not used.

A pair "A above B" is held to the standard error of the difference, paired: over seeds where both
have two or more (sd / sqrt(n) of the differences per seed), else over the clients of the one seed,
whose accuracies the figure is a mean of. The first counts how runs vary, the second only how
clients do, so that one seed is weaker evidence. Beyond one standard error the answer is yes or no;
within, the two are level, which neither confirms nor refutes. Where there is one seed and the
figure is no mean over clients (the worst client, bytes, an index), no error is known: the plain
order is reported as "in order" or "out of order" and can make a trend, not a reproduction. Pairs
that the paper's own numbers tell apart, by more than a point and more than its deviation over
repeats, are judged likewise.

reproduced: every number agrees, and every pair and claim of the text is confirmed. trend: nothing
is refuted, and more pairs and claims are confirmed than are level. undecided: nothing is refuted,
and no more is confirmed than is level. not reproduced: a pair or claim is refuted, or numbers
differ and no order holds. too small: the same of runs that have narrower networks, fewer rows,
rounds, epochs or public rows than the paper's; these can confirm, not refute. trivial: only claims
that hold by construction were tested. What was not run says nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import isnan, nan, sqrt
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from coterie.analysis.nan_math import mean_of
from coterie.analysis.significance import Interval, mean_interval

Verdict = Literal[
    "reproduced", "trend", "undecided", "not reproduced", "too small", "trivial", "not run"
]
Answer = Literal["yes", "no", "level", "in order", "out of order", "not run"]
POINT = 1.0  # a difference of so many points is none
DECIMALS = 6  # digits beyond are rounding
FOR: tuple[Answer, ...] = ("yes", "in order")
AGAINST: tuple[Answer, ...] = ("no", "out of order")


class Sample(NamedTuple):
    """A method's figure of one seed, and the clients' values that it is the mean of."""

    figure: float
    clients: np.ndarray | None = None  # in the unit of the figure; None: it is no mean over them
    rows: np.ndarray | None = None  # their weights in that mean; None: all alike


Samples = Mapping[int, Sample]  # by seed


class Difference(NamedTuple):
    """A method's figure minus another's."""

    value: float
    error: float  # the standard error; NaN: not known
    over: str  # what the error is over: "3 seeds", "20 clients", or "one seed"

    @property
    def answer(self) -> Answer:
        """Whether the first lies above the second."""
        value = round(self.value, DECIMALS)
        if isnan(value):
            return "not run"
        if isnan(self.error):
            return "in order" if value > 0 else "out of order" if value < 0 else "level"
        return "level" if abs(value) <= self.error else "yes" if value > 0 else "no"


def difference(a: Samples, b: Samples) -> Difference:
    """The paired difference of two methods with its standard error, as the rules above say."""
    common = sorted(a.keys() & b.keys())
    if not common:
        apart = mean_of([s.figure for s in a.values()]) - mean_of([s.figure for s in b.values()])
        return Difference(apart, nan, "different seeds")
    gaps = np.array([a[seed].figure - b[seed].figure for seed in common])
    value = float(gaps.mean())
    if len(common) > 1:
        return Difference(
            value, float(gaps.std(ddof=1)) / sqrt(len(common)), f"{len(common)} seeds"
        )
    one, other = a[common[0]], b[common[0]]
    if one.clients is None or other.clients is None or len(one.clients) != len(other.clients):
        return Difference(value, nan, "one seed")
    return _over_clients(value, one.clients - other.clients, one.rows)


def _over_clients(value: float, gaps: np.ndarray, rows: np.ndarray | None) -> Difference:
    """The error of a weighted mean over clients; with equal weights sd / sqrt(n)."""
    known = ~np.isnan(gaps)
    n = int(known.sum())
    if n < 2:
        return Difference(value, nan, "one seed")
    weights = np.ones(n) if rows is None else np.asarray(rows, dtype=float)[known]
    weights = weights / weights.sum()
    off = gaps[known] - (weights * gaps[known]).sum()
    error = sqrt(n / (n - 1) * float((weights**2 * off**2).sum()))
    return Difference(value, error, f"{n} clients")


class Figure(NamedTuple):
    """A number of a paper beside ours; NaN where there is none."""

    label: str
    paper: float
    spread: float  # the paper's own
    ours: Interval  # over seeds
    point: float = POINT  # a difference up to it is none
    samples: Samples = MappingProxyType({})  # ours of every seed
    over_runs: bool = True  # whether the spread is one over repeats, and so a doubt

    @property
    def difference(self) -> float:
        """Ours minus the paper's."""
        return self.ours.mean - self.paper

    @property
    def doubt(self) -> float:
        """The paper's deviation over repeats; 0 where it is not known."""
        return self.spread if self.over_runs and not isnan(self.spread) else 0.0

    @property
    def agrees(self) -> bool:
        """Within one point, or within the paper's deviation over repeats."""
        return abs(round(self.difference, DECIMALS)) <= max(self.point, self.doubt)


def make_figure(
    label: str,
    paper: float | None,
    spread: float | None,
    ours: Samples,
    point: float = POINT,
    over_runs: bool = True,
) -> Figure:
    """A figure from our samples of every seed."""
    return Figure(
        label=label,
        paper=nan if paper is None else paper,
        spread=nan if spread is None else spread,
        ours=mean_interval([sample.figure for sample in ours.values()]),
        point=point,
        samples=ours,
        over_runs=over_runs,
    )


def judge_column(
    figures: Sequence[Figure],
    above: Sequence[Answer] = (),
    claims: Sequence[Answer] = (),
    trivial: Sequence[Answer] = (),
    smaller: bool = False,
) -> Verdict:
    """The verdict on one column of a paper's table, or on a figure that only claims an order.

    above: what became of the pairs that the text claims. trivial: claims that hold by construction.
    smaller: whether the runs are smaller than the paper's.
    """
    found = _judge(figures, above, claims)
    if found == "not run" and any(answer != "not run" for answer in trivial):
        return "trivial"
    return "too small" if smaller and found == "not reproduced" else found


def _judge(figures: Sequence[Figure], above: Sequence[Answer], claims: Sequence[Answer]) -> Verdict:
    """The verdict, whatever the size of the runs."""
    known = [f for f in figures if not isnan(f.ours.mean) and not isnan(f.paper)]
    said = [answer for answer in (*above, *claims) if answer != "not run"]
    if not known and not said:
        return "not run"
    pairs = itertools.permutations(known, 2)
    ordered = [difference(a.samples, b.samples).answer for a, b in pairs if _differs(a, b)]
    every = [*said, *ordered]
    if any(answer in AGAINST for answer in every):
        return "not reproduced"
    agree = all(f.agrees for f in known)
    has_claims = any(answer != "not run" for answer in claims)
    if (known or has_claims) and agree and all(answer == "yes" for answer in said):
        return "reproduced"
    confirmed, level = sum(a in FOR for a in every), every.count("level")
    if confirmed > level or (known and agree):
        return "trend"
    return "not reproduced" if known else "undecided"


def _differs(a: Figure, b: Figure) -> bool:
    """Whether the paper says that `a` lies above `b`."""
    return a.paper - b.paper > max(a.point, a.doubt, b.doubt)


def judge_table(settings: Sequence[Verdict]) -> Verdict:
    """The verdict on a whole table: reproduced where all columns that were run are; not reproduced
    where one is not; between them a trend where one is at least that.
    """
    found = set(settings) - {"not run", "trivial"}
    if found == {"reproduced"}:
        return "reproduced"
    if "not reproduced" not in found and found & {"reproduced", "trend"}:
        return "trend"
    order: tuple[Verdict, ...] = ("not reproduced", "undecided", "too small", "trivial")
    return next((option for option in order if option in settings), "not run")
