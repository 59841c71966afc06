"""How sure predictions are: temperature scaling, reliability, and conformal sets and intervals.

All of it is fitted on held rows that no training has seen. A temperature T turns probabilities p
into softmax(log p / T) (Guo et al., ICML 2017). Split conformal prediction (Vovk et al., 2005)
takes the ceil((n + 1)(1 - alpha))-th smallest of n scores, which a new, exchangeable row exceeds
with probability alpha at most.
"""

from __future__ import annotations

from math import ceil, inf, log
from typing import NamedTuple

import numpy as np

LOWEST, HIGHEST = 0.05, 20.0  # temperatures that are tried
TINY = 1e-12  # probabilities below count as it


def scale_probabilities(probabilities: np.ndarray, temperature: float | np.ndarray) -> np.ndarray:
    """[n, K] softmax(log p / T); T may be one per row [n, 1]."""
    logits = np.log(np.clip(probabilities, TINY, None)) / temperature
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def log_loss(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The mean of -log p of the labels."""
    chosen = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.clip(chosen, TINY, None)).mean())


def fit_temperature(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The temperature of the least log loss on held rows [n, K], [n]; 1 where there are none."""
    if not len(labels):
        return 1.0
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda t: log_loss(scale_probabilities(probabilities, float(np.exp(t))), labels),
        bounds=(log(LOWEST), log(HIGHEST)),
        method="bounded",
    )
    return float(np.exp(found.x))


class ReliabilityBin(NamedTuple):
    """Predictions of about the same confidence."""

    confidence: float  # its mean
    right: float  # the share that is right
    rows: int


def reliability_curve(
    probabilities: np.ndarray, labels: np.ndarray, bins: int = 10
) -> list[ReliabilityBin]:
    """Confidence of the likeliest class against how often it is right, in bins of equal width."""
    sure, right = probabilities.max(1), probabilities.argmax(1) == labels
    place = np.minimum((sure * bins).astype(int), bins - 1)
    return [
        ReliabilityBin(float(sure[at].mean()), float(right[at].mean()), int(at.sum()))
        for at in (place == k for k in range(bins))
        if at.any()
    ]


def calibration_gap(curve: list[ReliabilityBin]) -> float:
    """The expected calibration error: |confidence - right|, weighted by rows."""
    rows = sum(one.rows for one in curve)
    gap = sum(one.rows * abs(one.confidence - one.right) for one in curve)
    return gap / rows if rows else float("nan")


def class_scores(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """[n] how strange each label looks to a classifier: 1 - p of it."""
    return np.asarray(1 - probabilities[np.arange(len(labels)), labels])


def least_rows(confidence: float) -> int:
    """From how many scores on a quantile of them is finite."""
    return ceil(confidence / (1 - confidence) - 1e-9)


def conformal_quantile(scores: np.ndarray, confidence: float) -> float:
    """The score that a new row stays within with this confidence; infinite for too few rows."""
    n = len(scores)
    rank = ceil((n + 1) * confidence - 1e-9)
    return float(np.sort(scores)[rank - 1]) if 0 < rank <= n else inf


def prediction_sets(probabilities: np.ndarray, quantile: float | np.ndarray) -> np.ndarray:
    """[n, K] which classes are not too strange; the quantile may be one per row [n, 1]."""
    return np.asarray(1 - probabilities <= quantile)
