"""Errors of estimated means, as in Self-FL's two-level Gaussian example."""

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
