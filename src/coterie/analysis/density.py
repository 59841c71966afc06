"""How values are spread, as a density."""

from __future__ import annotations

import numpy as np

from coterie.analysis.nan_math import drop_nan

NARROW = 0.5  # percentage points: the width of the kernels of few or equal values


def density(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A density by Gaussian kernels; of few or equal values with kernels of a fixed width."""
    from scipy.stats import gaussian_kde, norm

    found = drop_nan(values)
    if len(found) > 2 and found.std() > NARROW / 2:
        return np.asarray(gaussian_kde(found)(grid))
    return np.asarray(norm.pdf(grid[:, None], found[None], NARROW).mean(axis=1))
