"""False accepts of a detector beside those of a baseline, as Self-FL's paper reports them."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coterie.analysis.nan_math import DIGITS
from coterie.core.errors import BadInput


class FalseAccepts(NamedTuple):
    """A detector beside its baseline; a ratio of two zeros is 1."""

    relative_fa: float  # below 1 is better
    relative_fr: float  # about 1 by choice of the threshold
    threshold: float  # accept from here on


def false_accepts(
    labels: ArrayLike, scores: ArrayLike, baseline: ArrayLike, threshold: float = 0.5
) -> FalseAccepts:
    """False accepts over those of a baseline, at the threshold whose false rejects are closest to
    the baseline's.

    The baseline accepts scores of at least `threshold`. Of equally close thresholds the one with
    fewer false rejects counts, then with fewer false accepts: a model beside itself has at most 1,
    and just below it where positives are many.
    """
    from sklearn.metrics import roc_curve

    truth = np.asarray(labels).astype(bool)
    if truth.all() or not truth.any():
        raise BadInput(
            f"labels of {len(truth)} rows are all alike: false accepts and rejects need rows of "
            "both classes"
        )
    base, own = np.asarray(baseline, dtype=float), np.asarray(scores, dtype=float)
    if np.isnan(base).any() or np.isnan(own).any():
        raise BadInput(
            "some scores are NaN, as with a model that diverged: lower its rate and run it again"
        )
    fa0, fr0 = float((base[~truth] >= threshold).mean()), float((base[truth] < threshold).mean())
    fa, accepted, thresholds = roc_curve(truth, own, drop_intermediate=False)
    fr = np.round(1 - accepted, DIGITS)
    # the last key is the first to count
    best = np.lexsort((fa, fr, np.round(np.abs(fr - fr0), DIGITS)))[0]
    return FalseAccepts(
        _ratio(float(fa[best]), fa0),
        _ratio(float(1 - accepted[best]), fr0),
        float(thresholds[best]),
    )


def _ratio(a: float, b: float) -> float:
    return a / b if b else (inf if a else 1.0)
