"""How evenly clients are served: fairness of gains and losses, and the clients at the ends.

Measures are those of Divi, "Unifying Distillation with Personalization in Federated Learning"
(Purdue, 2021), chapter 5; shares of clients are those of Self-FL. A client without a number (NaN)
does not count.
"""

from __future__ import annotations

from math import ceil, log, nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coterie.analysis.lazy_scipy import scipy_stats
from coterie.analysis.nan_math import DIGITS, drop_nan, mean_of
from coterie.core.errors import BadInput


def _check_shares(values: ArrayLike) -> np.ndarray | None:
    f = drop_nan(values)
    if len(f) and f.min() < 0:
        raise BadInput(
            f"fairness of {f.min():g}: give values of at least 0, gains and losses apart"
        )
    return f if len(f) and f.max() > 0 else None


def variance_of(values: ArrayLike) -> float:
    """Average variance (5.8), population; lower is fairer."""
    f = _check_shares(values)
    return nan if f is None else float(f.var())


def cosine(values: ArrayLike) -> float:
    """Cosine of F and the vector of ones (5.10), from 1/sqrt(K) to 1; the square root of Jain's
    index.
    """
    return sqrt(jain(values))


def jain(values: ArrayLike) -> float:
    """Jain's index (sum F)^2 / (K sum F^2) (5.13), from 1/K to 1."""
    f = _check_shares(values)
    if f is None:
        return nan
    f = f / f.max()  # no square under- or overflows
    return min(1.0, float(f.sum() ** 2 / (len(f) * (f**2).sum())))


def entropy(values: ArrayLike) -> float:
    """Entropy of the shares (5.12), from 0 to ln K: compare only sets of one size."""
    f = _check_shares(values)
    return nan if f is None else float(scipy_stats().entropy(f / f.max()))


def evenness(values: ArrayLike) -> float:
    """Entropy divided by ln K, from 0 to 1, for sets of any size; 1 for a single value."""
    found, k = entropy(values), len(drop_nan(values))
    return min(found / log(k), 1.0) if k > 1 and found >= 0 else found + 1


class Fairness(NamedTuple):
    """How evenly something is shared by `n` clients."""

    variance: float
    cosine: float
    jain: float
    entropy: float
    evenness: float
    n: int


def fairness(values: ArrayLike) -> Fairness:
    """All measures of one vector."""
    return Fairness(
        variance_of(values),
        cosine(values),
        jain(values),
        entropy(values),
        evenness(values),
        len(drop_nan(values)),
    )


def gain_fairness(qoi: ArrayLike) -> tuple[Fairness, Fairness]:
    """How evenly the gains are shared by those that gain (U+), and the losses by those that lose
    (U-).
    """
    q = drop_nan(qoi)
    return fairness(q[q > 0]), fairness(-q[q < 0])


def worst(accuracy: ArrayLike) -> float:
    """Accuracy of the worst client."""
    found = drop_nan(accuracy)
    return float(found.min()) if len(found) else nan


def _count_share(share: float, clients: int) -> int:
    if not 0 < share <= 1:
        raise BadInput(f"share = {share:g} of the clients: give more than 0 and at most 1")
    return ceil(round(share * clients, DIGITS))  # 0.07 * 100 is a little more than 7


def worst_share(accuracy: ArrayLike, share: float = 0.1) -> float:
    """Mean accuracy of the ceil(share * M) clients with the lowest one."""
    found = np.sort(drop_nan(accuracy))
    return mean_of(found[: _count_share(share, len(found))])


def top_share_by_size(accuracy: ArrayLike, sizes: ArrayLike, share: float = 0.1) -> float:
    """Accuracy of the ceil(share * M) clients with the most samples, weighted by samples."""
    a, n = np.asarray(accuracy, dtype=float), np.asarray(sizes, dtype=float)
    a, n = a[~np.isnan(a)], n[~np.isnan(a)]
    top = np.argsort(-n, kind="stable")[: _count_share(share, len(a))]
    return float(np.average(a[top], weights=n[top])) if n[top].sum() > 0 else nan


def deciles(accuracy: ArrayLike) -> np.ndarray:
    """[11] accuracies: the lowest, nine deciles, the highest."""
    found = drop_nan(accuracy)
    return np.percentile(found, np.arange(0, 101, 10)) if len(found) else np.full(11, nan)
