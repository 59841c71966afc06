"""What a difference between two methods is worth: paired over clients, with its interval and its population."""

from __future__ import annotations

from math import nan
from typing import NamedTuple

import numpy as np

from .rng import stream

RESAMPLES = 10_000
BLOCK = 10_000_000  # numbers drawn at once


class Difference(NamedTuple):
    """Mean difference a - b over clients, with a 95 % bootstrap interval; NaN bounds where one thing alone could be drawn."""

    mean: float
    low: float
    high: float
    population: str  # what was resampled: "clients", or "seeds" where each seed deals the data anew
    n: int  # of them

    @property
    def sign(self) -> int:
        """1: a is better, -1: b is better, 0: the interval holds zero."""
        return int(self.low > 0) - int(self.high < 0)


def paired(a: np.ndarray, b: np.ndarray, fixed_split: bool) -> Difference:
    """Compare [seeds, clients] accuracies of two methods on the same seeds and clients.

    With a fixed split, seeds are averaged for each client and clients are resampled. Otherwise client k of one seed is not
    client k of another, and whole seeds are resampled: an interval never leaves the range of its seeds, so with few of them it
    is too narrow, and `n` says how few.
    """
    gaps = a - b
    there = ~np.isnan(gaps)
    axis = 0 if fixed_split else 1
    counts = there.sum(axis)
    values = np.where(there, gaps, 0.0).sum(axis)[counts > 0] / counts[counts > 0]
    population, n = "clients" if fixed_split else "seeds", len(values)
    if n < 2:
        return Difference(float(values.sum() if n else nan), nan, nan, population, n)
    rng = stream(0, "bootstrap")
    means = [values[rng.integers(0, n, (size, n))].mean(axis=1) for size in _blocks(n)]
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return Difference(float(values.mean()), float(low), float(high), population, n)


def _blocks(n: int) -> list[int]:
    """Resamples drawn at once, so that a hundred thousand clients fit in memory."""
    size = max(1, min(RESAMPLES, BLOCK // n))
    return [min(size, RESAMPLES - first) for first in range(0, RESAMPLES, size)]
