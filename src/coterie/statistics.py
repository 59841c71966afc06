"""What a difference between two methods is worth: paired over clients, with its interval and its population."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .rng import stream

RESAMPLES = 10_000


class Difference(NamedTuple):
    """Mean difference a - b over clients, with a 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    population: str  # what was resampled: "clients", or "seeds" where each seed deals the data anew

    @property
    def sign(self) -> int:
        """1: a is better, -1: b is better, 0: the interval holds zero."""
        return int(self.low > 0) - int(self.high < 0)


def paired(a: np.ndarray, b: np.ndarray, fixed_split: bool) -> Difference:
    """Compare [seeds, clients] accuracies of two methods on the same seeds and clients.

    With a fixed split, seeds are averaged for each client and clients are resampled. Otherwise client k of one seed is not
    client k of another, and whole seeds are resampled: with few seeds the interval is wide, as it should be.
    """
    gaps = a - b
    there = ~np.isnan(gaps)
    axis = 0 if fixed_split else 1
    counts = there.sum(axis)
    values = np.where(there, gaps, 0.0).sum(axis)[counts > 0] / counts[counts > 0]
    if not len(values):
        return Difference(float("nan"), float("nan"), float("nan"), "clients" if fixed_split else "seeds")
    picks = stream(0, "bootstrap").integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[picks].mean(axis=1), [2.5, 97.5])
    return Difference(float(values.mean()), float(low), float(high), "clients" if fixed_split else "seeds")
