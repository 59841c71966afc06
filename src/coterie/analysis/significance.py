"""Which differences are more than chance: intervals, paired differences, ranks and tests.

Accuracies are [seeds, clients] shares from 0 to 1; a client without a number (NaN) does not count.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coterie.analysis.lazy_scipy import scipy_stats, student_quantile
from coterie.analysis.nan_math import DIGITS, LEVEL, drop_nan, mean_of, nan_mean
from coterie.core.errors import BadInput
from coterie.core.rng import stream

EXACT = 25  # gaps up to which p is exact; the normal distribution is close above


class Interval(NamedTuple):
    """A mean and its 95 % interval by Student's t; NaN bounds for a single value."""

    mean: float
    low: float
    high: float
    n: int


def mean_interval(values: ArrayLike) -> Interval:
    """The interval of a mean of independent values, one per seed."""
    found = drop_nan(values)
    n, mean = len(found), mean_of(found)
    half = (
        float(student_quantile(1 - LEVEL / 2, n - 1) * found.std(ddof=1) / sqrt(n))
        if n > 1
        else nan
    )
    return Interval(mean, mean - half, mean + half, n)


def seed_interval(values: ArrayLike) -> tuple[float, float, float]:
    """(mean, low, high) over seeds: the 95 % interval from three seeds on, the two values of two,
    no bounds for one.
    """
    found = drop_nan(values)
    if (
        len(found) == 2
    ):  # Student's interval of two values is eighteen times as wide as they are apart
        return float(found.mean()), float(found.min()), float(found.max())
    return mean_interval(found)[:3]


def average_units(values: np.ndarray, fixed_partition: bool) -> np.ndarray:
    """[units] independent numbers from [seeds, clients]: clients, averaged over seeds, where every
    seed has the same ones; else seeds, averaged over clients. A unit without a number drops out.
    """
    return drop_nan(nan_mean(values, 0 if fixed_partition else 1))


def unit_values_of(accuracies: Mapping[str, ArrayLike], fixed_partition: bool) -> np.ndarray:
    """[methods, units] independent numbers from [seeds, clients] of each method; a client that
    lacks one under any method drops out.
    """
    shapes = {name: np.atleast_2d(np.asarray(a)).shape for name, a in accuracies.items()}
    if len(set(shapes.values())) != 1:
        raise BadInput(
            f"accuracies of shapes {shapes}: give [seeds, clients] alike for all methods, at "
            "least one"
        )
    block = np.stack([np.atleast_2d(np.asarray(a, dtype=float)) for a in accuracies.values()])
    known = ~np.isnan(block).any(axis=0)
    return np.stack([average_units(np.where(known, a, np.nan), fixed_partition) for a in block])


class RankTable(NamedTuple):
    """Methods from the best mean rank to the worst, and which differences are real."""

    methods: tuple[str, ...]
    mean: np.ndarray  # [m] accuracy
    rank: np.ndarray  # [m] mean over the units, 1 is best
    p: np.ndarray  # [m, m] Wilcoxon signed-rank, two-sided, Holm-corrected over all pairs
    population: str  # "clients" or "seeds": what the p-values speak of
    n: int  # of them
    note: str  # said where they are too few for any difference to show

    def beats(self, a: str, b: str) -> bool:
        """Whether `a` is significantly better than `b`."""
        i, j = self.methods.index(a), self.methods.index(b)
        return bool(self.p[i, j] < LEVEL and self.mean[i] > self.mean[j])


def build_rank_table(accuracies: Mapping[str, ArrayLike], fixed_partition: bool) -> RankTable:
    """Rank methods by [seeds, clients] accuracies and test all pairs."""
    values = unit_values_of(accuracies, fixed_partition)
    m, n = values.shape
    population = "clients" if fixed_partition else "seeds"
    if not n:
        raise BadInput("no client has an accuracy under every method: nothing can be ranked")
    rank = scipy_stats().rankdata(np.round(-values, DIGITS), axis=0).mean(axis=1)
    order = np.lexsort((-values.mean(axis=1), rank))
    values = values[order]
    pairs = list(itertools.combinations(range(m), 2))
    ranked = [signed_ranks(values[i] - values[j]) for i, j in pairs]
    p = np.ones((m, m))
    for (i, j), corrected in zip(pairs, holm([wilcoxon(r) for r in ranked]), strict=True):
        p[i, j] = p[j, i] = corrected
    names = tuple(np.array(list(accuracies))[order].tolist())
    return RankTable(
        methods=names,
        mean=values.mean(axis=1),
        rank=rank[order],
        p=p,
        population=population,
        n=n,
        note=_explain_too_few(m, n, population, ranked),
    )


def signed_ranks(gaps: np.ndarray) -> np.ndarray:
    """The ranks of the gaps' sizes, equal sizes sharing theirs, with the gaps' signs; zeros drop
    out.
    """
    gaps = np.round(gaps, DIGITS)
    gaps = gaps[gaps != 0]
    return np.asarray(np.sign(gaps) * scipy_stats().rankdata(np.abs(gaps)))


def wilcoxon(ranks: np.ndarray) -> float:
    """Two-sided p of signed ranks: exact up to EXACT of them, whatever their ties.

    Every choice of signs is equally likely if no method is better. The sum of the ranks has the
    variance sum(ranks^2) then, in which ties are accounted for.
    """
    if len(ranks) > EXACT:
        return float(2 * scipy_stats().norm.sf(abs(ranks.sum()) / sqrt(np.square(ranks).sum())))
    doubled = np.rint(2 * np.abs(ranks)).astype(int)  # shared ranks are halves
    whole = int(doubled.sum())
    ways = np.zeros(whole + 1)  # choices of positive ranks, by their sum
    ways[0] = 1
    for rank in doubled:
        ways[rank:] += ways[:-rank].copy()
    apart = np.abs(2 * np.arange(whole + 1) - whole)
    return float(ways[apart >= abs(round(2 * ranks.sum()))].sum() / 2.0 ** len(ranks))


def holm(p: Sequence[float]) -> np.ndarray:
    """Holm's step-down correction: the i-th smallest of k times k + 1 - i, never falling, at most
    1.
    """
    given = np.asarray(p, dtype=float)
    order = np.argsort(given, kind="stable")
    out = np.empty_like(given)
    out[order] = np.minimum(1, np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1)))
    return out


def _explain_too_few(methods: int, n: int, population: str, ranked: Sequence[np.ndarray]) -> str:
    """What is said where no p of the test could be small enough, were all signs of a pair alike:
    three seeds cannot go below .25, and units on which two methods are equal do not count.
    """
    pairs = len(ranked)
    floor = min((pairs * wilcoxon(np.abs(ranks)) for ranks in ranked), default=0.0)
    if floor < LEVEL:
        return ""
    need = next(k for k in itertools.count(1) if pairs * wilcoxon(np.arange(1.0, k + 1)) < LEVEL)
    smallest = f" (a corrected p of {floor:.2g} at best)" if floor < 1 else ""
    most = max(len(ranks) for ranks in ranked)
    few, that = f"{n} {population if n > 1 else population[:-1]}", ""
    if n >= need:
        few, that = f"{few}, of which {most or 'none'} tell two methods apart,", " that do"
    return (
        f"{few} cannot show a difference between {methods} methods{smallest}: it takes {need} "
        f"{population}{that}"
    )


RESAMPLES = 10_000


BLOCK = 10_000_000  # numbers drawn at once


class Difference(NamedTuple):
    """Mean difference a - b over clients, with a 95 % bootstrap interval; NaN bounds where one
    thing alone could be drawn.
    """

    mean: float
    low: float
    high: float
    # what was resampled: "clients", or "seeds" where each seed partitions the data anew
    population: str
    n: int  # of them

    @property
    def sign(self) -> int:
        """1: a is better, -1: b is better, 0: the interval holds zero."""
        return int(self.low > 0) - int(self.high < 0)


def paired_difference(a: np.ndarray, b: np.ndarray, fixed_partition: bool) -> Difference:
    """Compare [seeds, clients] accuracies of two methods on the same seeds and clients.

    With a fixed partition, seeds are averaged for each client and clients are resampled. Otherwise
    client k of one seed is not client k of another, and whole seeds are resampled: an interval
    never leaves the range of its seeds, so with few of them it is too narrow, and `n` says how few.
    """
    values = average_units(a - b, fixed_partition)
    population, n = "clients" if fixed_partition else "seeds", len(values)
    if n < 2:
        return Difference(float(values.sum() if n else nan), nan, nan, population, n)
    rng = stream(0, "bootstrap")
    means = [values[rng.integers(0, n, (size, n))].mean(axis=1) for size in _block_sizes(n)]
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return Difference(float(values.mean()), float(low), float(high), population, n)


def _block_sizes(n: int) -> list[int]:
    """Resamples drawn at once, so that a hundred thousand clients fit in memory."""
    size = max(1, min(RESAMPLES, BLOCK // n))
    return [min(size, RESAMPLES - first) for first in range(0, RESAMPLES, size)]
