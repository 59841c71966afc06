"""What the measures share: the numbers that are there, and how finely they are told apart."""

from __future__ import annotations

from math import nan

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.05  # of every test and, as 1 - LEVEL, of every interval


DIGITS = 9  # differences below are rounding of means, not gains


def there(values: ArrayLike) -> np.ndarray:
    """The numbers among the values, flat."""
    flat = np.asarray(values, dtype=float).ravel()
    return flat[~np.isnan(flat)]


def mean_of(values: ArrayLike) -> float:
    found = there(values)
    return float(found.mean()) if len(found) else nan
