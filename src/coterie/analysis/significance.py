"""What personalization is worth: gain and fairness over clients, and the answer of a comparison.

Gain and fairness are those of Divi, "Unifying Distillation with Personalization in Federated
Learning" (Purdue, 2021), chapter 5; shares of clients and relative false accepts those of Self-FL.
Accuracies are shares from 0 to 1, gains percentage points; a client without a number (NaN) does not
count. What a run costs is in costs.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from coterie.analysis.numbers import DIGITS, LEVEL, mean_of, there
from coterie.core.errors import BadInput
from coterie.core.rng import stream

FEW = 13  # gaps whose signs are all tried


class Interval(NamedTuple):
    """A mean and its 95 % interval by Student's t; NaN bounds for a single value."""

    mean: float
    low: float
    high: float
    n: int


def mean_interval(values: ArrayLike) -> Interval:
    """The interval of a mean of independent values: one a seed."""
    found = there(values)
    n, mean = len(found), mean_of(found)
    half = float(stats.t.ppf(1 - LEVEL / 2, n - 1) * found.std(ddof=1) / sqrt(n)) if n > 1 else nan
    return Interval(mean, mean - half, mean + half, n)


def spread(values: ArrayLike) -> tuple[float, float, float]:
    """(mean, low, high) over seeds: the 95 % interval from three seeds on, the two values of two,
    no bounds for one.
    """
    found = there(values)
    if (
        len(found) == 2
    ):  # Student's interval of two values is eighteen times as wide as they are apart
        return float(found.mean()), float(found.min()), float(found.max())
    return mean_interval(found)[:3]


def units(accuracies: Mapping[str, ArrayLike], fixed_split: bool) -> np.ndarray:
    """[methods, units] independent numbers from [seeds, clients] of each method.

    Clients, averaged over seeds, where every seed deals the same split; else seeds, averaged over
    clients.
    """
    shapes = {name: np.atleast_2d(np.asarray(a)).shape for name, a in accuracies.items()}
    if len(set(shapes.values())) != 1:
        raise BadInput(
            f"accuracies of shapes {shapes}: give [seeds, clients] alike for all methods, at "
            "least one"
        )
    block = np.stack([np.atleast_2d(np.asarray(a, dtype=float)) for a in accuracies.values()])
    known = ~np.isnan(block).any(axis=0)
    axis = 0 if fixed_split else 1
    counts = known.sum(axis)
    return np.where(known, block, 0.0).sum(axis + 1)[:, counts > 0] / counts[counts > 0]


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


def rank_table(accuracies: Mapping[str, ArrayLike], fixed_split: bool) -> RankTable:
    """Rank methods by [seeds, clients] accuracies and test all pairs."""
    values = units(accuracies, fixed_split)
    m, n = values.shape
    population = "clients" if fixed_split else "seeds"
    if not n:
        raise BadInput("no client has an accuracy under every method: nothing can be ranked")
    rank = stats.rankdata(np.round(-values, DIGITS), axis=0).mean(axis=1)
    order = np.lexsort((-values.mean(axis=1), rank))
    values = values[order]
    pairs = list(itertools.combinations(range(m), 2))
    p = np.ones((m, m))
    for (i, j), corrected in zip(
        pairs, holm([_wilcoxon(values[i] - values[j]) for i, j in pairs]), strict=True
    ):
        p[i, j] = p[j, i] = corrected
    names = tuple(np.array(list(accuracies))[order].tolist())
    return RankTable(
        names, values.mean(axis=1), rank[order], p, population, n, _too_few(m, n, population)
    )


def _wilcoxon(gaps: np.ndarray) -> float:
    """Two-sided p; few gaps by all their signs, as scipy's exact way with ties takes seconds and
    others than exact mislead.
    """
    gaps = np.round(gaps, DIGITS)
    gaps = gaps[gaps != 0]
    n = len(gaps)
    if n > FEW:
        return float(stats.wilcoxon(gaps).pvalue)
    ranks = stats.rankdata(np.abs(gaps))
    signs = 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1) - 1
    return float((np.abs(signs @ ranks) >= abs(np.sign(gaps) @ ranks)).mean())


def holm(p: Sequence[float]) -> np.ndarray:
    """Holm's step-down correction: the i-th smallest of k times k + 1 - i, never falling, at most
    1.
    """
    given = np.asarray(p, dtype=float)
    order = np.argsort(given, kind="stable")
    out = np.empty_like(given)
    out[order] = np.minimum(1, np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1)))
    return out


def _too_few(methods: int, n: int, population: str) -> str:
    """The smallest p of n signs is 2 / 2^n: three seeds cannot go below .25."""
    pairs = methods * (methods - 1) // 2
    floor = pairs * 2 / 2**n
    if floor < LEVEL or not pairs:
        return ""
    need = next(k for k in itertools.count(n) if pairs * 2 / 2**k < LEVEL)
    smallest = f" (a corrected p of {floor:.2g} at best)" if floor < 1 else ""
    few = f"{n} {population if n > 1 else population[:-1]}"
    return (
        f"{few} cannot show a difference between {methods} methods{smallest}: it takes {need} "
        f"{population}"
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
    population: str  # what was resampled: "clients", or "seeds" where each seed deals the data anew
    n: int  # of them

    @property
    def sign(self) -> int:
        """1: a is better, -1: b is better, 0: the interval holds zero."""
        return int(self.low > 0) - int(self.high < 0)


def paired(a: np.ndarray, b: np.ndarray, fixed_split: bool) -> Difference:
    """Compare [seeds, clients] accuracies of two methods on the same seeds and clients.

    With a fixed split, seeds are averaged for each client and clients are resampled. Otherwise
    client k of one seed is not client k of another, and whole seeds are resampled: an interval
    never leaves the range of its seeds, so with few of them it is too narrow, and `n` says how few.
    """
    gaps = a - b
    there = ~np.isnan(gaps)
    axis = 0 if fixed_split else 1
    counts = there.sum(axis)
    values = np.where(there, gaps, 0.0).sum(axis)[counts > 0] / counts[counts > 0]
    population, n = "clients" if fixed_split else "seeds", len(values)
    if n < 2:
        return Difference(float(values.sum() if n else nan), nan, nan, population, n)
    rng = stream(0, "bootstrap")
    means = [values[rng.integers(0, n, (size, n))].mean(axis=1) for size in _blocks(n)]
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return Difference(float(values.mean()), float(low), float(high), population, n)


def _blocks(n: int) -> list[int]:
    """Resamples drawn at once, so that a hundred thousand clients fit in memory."""
    size = max(1, min(RESAMPLES, BLOCK // n))
    return [min(size, RESAMPLES - first) for first in range(0, RESAMPLES, size)]
