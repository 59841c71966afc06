"""What personalization is worth: gain and fairness over clients, and the answer of a comparison.

Gain and fairness are those of Divi, "Unifying Distillation with Personalization in Federated
Learning" (Purdue, 2021), chapter 5; shares of clients and relative false accepts those of Self-FL.
Accuracies are shares from 0 to 1, gains percentage points; a client without a number (NaN) does not
count. What a run costs is in costs.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class EstimationErrors(NamedTuple):
    """Mean distances to the truth over repeats."""

    common: float  # |theta - theta_0|
    personal: float  # mean over clients of |theta_m - its truth|


def estimation_errors(
    theta: ArrayLike, theta_0: float, personal: ArrayLike, truth: ArrayLike
) -> EstimationErrors:
    """Errors of the two-level Gaussian: theta [repeats], personal and truth [repeats, clients], or
    without repeats.
    """
    return EstimationErrors(
        float(np.abs(np.asarray(theta) - theta_0).mean()),
        float(np.abs(np.asarray(personal) - np.asarray(truth)).mean()),
    )
