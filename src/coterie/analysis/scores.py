"""What one client's own model is worth beyond accuracy, and a detector's false accepts beside those of a baseline.

Macro averages run over the classes that the client HOLDS in the part: it cannot be blamed for a class it never sees, and a row
taken for such a class costs recall. So recall and balanced accuracy are one number, kept under both names.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.calibration import calibration_curve
from sklearn.metrics import precision_recall_fscore_support

from coterie.core.errors import BadInput

NAMES = ("accuracy", "f1", "precision", "recall", "balanced_accuracy", "calibration_error")


BINS = 15


def scores(labels: ArrayLike, probabilities: ArrayLike) -> dict[str, float]:
    """Every measure of NAMES from labels [n] and probabilities [n, K], or [n] of class 1; NaN where there are no rows."""
    y, p = np.asarray(labels).astype(int), np.asarray(probabilities, dtype=float)
    if p.ndim == 1 or p.shape[1] == 1:
        p = np.stack([1 - p.ravel(), p.ravel()], axis=1)
    if len(p) != len(y):
        raise BadInput(f"{len(y)} labels, but probabilities of {len(p)} rows: give one row each")
    if not len(y):
        return dict.fromkeys(NAMES, float("nan"))
    guess = p.argmax(axis=1)
    precision, recall, f1, _ = precision_recall_fscore_support(y, guess, labels=np.unique(y), average="macro", zero_division=0)
    right = guess == y
    found = (right.mean(), f1, precision, recall, recall, calibration_error(right, p[np.arange(len(p)), guess]))
    return dict(zip(NAMES, map(float, found), strict=True))


def calibration_error(right: ArrayLike, confidence: ArrayLike) -> float:
    """Expected calibration error: the gap between confidence and accuracy in 15 bins of equal width, weighted by rows.

    NaN for confidences that are no numbers, as of a model that diverged.
    """
    hits, sure = np.asarray(right).astype(int), np.clip(np.asarray(confidence, dtype=float), 0, 1)  # softmax rounds above 1
    if not len(sure) or np.isnan(sure).any():
        return float("nan")
    accuracy, stated = calibration_curve(hits, sure, n_bins=BINS)
    place = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], sure)  # its bins: an edge belongs to the bin below
    counts = np.bincount(place, minlength=BINS)
    return float(np.average(np.abs(accuracy - stated), weights=counts[counts > 0]))
