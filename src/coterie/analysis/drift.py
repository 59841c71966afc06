"""Whether a model does worse on new rows than it did before, significantly."""

from __future__ import annotations

from math import nan, sqrt
from typing import NamedTuple

import numpy as np

from coterie.analysis.intervals import share_interval
from coterie.analysis.lazy_scipy import scipy_stats
from coterie.analysis.nan_math import LEVEL


class Drift(NamedTuple):
    """A measure then and now."""

    measure: str
    before: float
    rows_before: int
    now: float
    low: float  # 95 % interval of `now`
    high: float
    rows: int
    p: float  # of a difference as large or larger, if nothing had changed

    @property
    def worse(self) -> bool:
        """Whether the model does significantly worse now."""
        behind = self.now < self.before if self.measure == "accuracy" else self.now > self.before
        return bool(self.p < LEVEL and behind)


def share_drift(before: float, rows_before: int, right: np.ndarray) -> Drift:
    """Of an accuracy, by Fisher's exact test; right: whether each new row was predicted rightly."""
    hits, n = int(np.sum(right)), len(right)
    then = round(before * rows_before)
    table = [[then, rows_before - then], [hits, n - hits]]
    p = float(scipy_stats().fisher_exact(table)[1])
    low, high = share_interval(hits, n)
    return Drift(
        measure="accuracy",
        before=before,
        rows_before=rows_before,
        now=hits / n,
        low=low,
        high=high,
        rows=n,
        p=p,
    )


def loss_drift(before: float, rows_before: int, losses: np.ndarray) -> Drift:
    """Of a mean loss, by Student's t; the rows before are taken to spread as the new ones do."""
    n, mean = len(losses), float(np.mean(losses))
    spread = float(np.std(losses, ddof=1)) if n > 1 else nan
    t = scipy_stats().t
    half = float(t.ppf(1 - LEVEL / 2, n - 1)) * spread / sqrt(n) if n > 1 else nan
    apart = spread * sqrt(1 / n + 1 / rows_before) if n > 1 else nan
    p = float(2 * t.sf(abs(mean - before) / apart, n - 1)) if n > 1 and apart > 0 else 1.0
    return Drift(
        measure="loss",
        before=before,
        rows_before=rows_before,
        now=mean,
        low=mean - half,
        high=mean + half,
        rows=n,
        p=p,
    )
