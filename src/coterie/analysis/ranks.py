"""Methods ranked over several data sets: mean ranks, Friedman's test and Nemenyi's distance.

Demsar, "Statistical comparisons of classifiers over multiple data sets", JMLR 2006.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan, sqrt
from typing import NamedTuple

import numpy as np

from coterie.analysis.lazy_scipy import scipy_stats
from coterie.analysis.nan_math import DIGITS, LEVEL


class Ranking(NamedTuple):
    """Methods that ran on every data set, from the best mean rank to the worst."""

    methods: tuple[str, ...]
    rank: np.ndarray  # [m] mean over the data sets, 1 is best
    p: float  # Friedman's: all methods are alike; NaN for fewer than 3 methods or 2 data sets
    distance: float  # two mean ranks further apart than this differ (Nemenyi, 5 %)
    n: int  # data sets

    @property
    def cliques(self) -> list[tuple[int, int]]:
        """The longest runs (first, last) of methods that the data do not tell apart."""
        found: list[tuple[int, int]] = []
        for first in range(len(self.rank)):
            close = np.flatnonzero(~(self.rank - self.rank[first] > self.distance))
            last = int(close[-1])
            if last > first and not (found and last <= found[-1][1]):
                found.append((first, last))
        return found


def rank_rows(values: np.ndarray) -> np.ndarray:
    """[n, m] ranks of each row of numbers, the highest first; equal ones share, NaN is the last."""
    known = np.where(np.isnan(values), -inf, np.round(values, DIGITS))
    found: np.ndarray = scipy_stats().rankdata(-known, axis=1)
    return found


def build_ranking(values: np.ndarray, methods: Sequence[str]) -> Ranking:
    """Rank methods by [data sets, methods] numbers, higher is better."""
    n, m = values.shape
    ranks = rank_rows(values)
    mean = ranks.mean(axis=0)
    order = np.argsort(mean, kind="stable")
    enough = m > 2 and n > 1
    return Ranking(
        methods=tuple(methods[i] for i in order),
        rank=mean[order],
        p=float(scipy_stats().friedmanchisquare(*ranks.T).pvalue) if enough else nan,
        distance=nemenyi(m, n) if m > 1 else nan,
        n=n,
    )


def nemenyi(methods: int, sets: int) -> float:
    """The distance of two mean ranks that chance exceeds in one comparison of twenty."""
    width = scipy_stats().studentized_range.ppf(1 - LEVEL, methods, inf)
    return float(width / sqrt(2) * sqrt(methods * (methods + 1) / (6 * sets)))
