"""What the measures share: the numbers that are there, and how finely they are told apart."""

from __future__ import annotations

from math import nan

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.05  # of every test and, as 1 - LEVEL, of every interval


DIGITS = 9  # differences below are rounding of means, not gains


def drop_nan(values: ArrayLike) -> np.ndarray:
    """The numbers among the values, flat."""
    flat = np.asarray(values, dtype=float).ravel()
    numbers: np.ndarray = flat[~np.isnan(flat)]
    return numbers


def mean_of(values: ArrayLike) -> float:
    found = drop_nan(values)
    return float(found.mean()) if len(found) else nan


def nan_mean(values: np.ndarray, axis: int) -> np.ndarray:
    """The mean along an axis without NaNs; NaN where nothing is left."""
    known = ~np.isnan(values)
    count = known.sum(axis)
    return np.where(
        count > 0, np.where(known, values, 0.0).sum(axis) / np.maximum(count, 1), np.nan
    )


def nan_max(values: np.ndarray, axis: int) -> np.ndarray:
    """The largest along an axis without NaNs, which stays with length 1; NaN where nothing is
    left.
    """
    found = np.where(np.isnan(values), -np.inf, values).max(axis, keepdims=True, initial=-np.inf)
    return np.where(np.isinf(found), np.nan, found)


def deviation_of(values: ArrayLike) -> float:
    """The sample standard deviation without NaNs; 0 for a single value, NaN for none."""
    found = drop_nan(values)
    if len(found) < 2:
        return 0.0 if len(found) else nan
    return float(found.std(ddof=1))
