"""Which method to use, chosen on select rows alone: rows that no method has fitted anything on.

Values are [seeds, clients] per method, higher is better; a client without a number (NaN) does not
vote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coterie.analysis.nan_math import DIGITS
from coterie.analysis.significance import unit_values_of
from coterie.core.errors import BadInput, suggest_name
from coterie.core.rng import stream

BASELINES = ("local", "fedavg")
RESAMPLES = 1000
MIN_UNITS = 3  # units below which resampling says nothing


class Choice(NamedTuple):
    """The chosen method and why; no name where nobody can vote."""

    name: str | None
    top: str | None  # of the highest mean on select rows
    value: float  # the chosen one's mean
    highest: float  # the top's
    stability: float  # share of resamples of the units that choose the same; NaN for too few units
    population: str  # "clients", or "seeds" where each seed partitions the data anew


NO_CHOICE = Choice(name=None, top=None, value=nan, highest=nan, stability=nan, population="")


def is_baseline(name: str) -> bool:
    """Whether a row is FedAvg or local training, under any options: fedavg@long is FedAvg too."""
    return name.partition("@")[0] in BASELINES


def choose(
    values: Mapping[str, ArrayLike], traffic: Mapping[str, float], fixed_partition: bool
) -> Choice:
    """Of the methods within one standard error of the highest mean, the one of least traffic.

    At equal traffic a baseline, as the plainer one; then the one that serves more clients better
    than FedAvg and Local do, then the higher mean: a mean alone may rest on a few clients.
    """
    for name in values:
        if name not in traffic:
            raise BadInput(f"'{name}' has values, but no bytes{suggest_name(name, traffic)}")
    block = unit_values_of(values, fixed_partition) if values else np.empty((0, 0))
    if not block.size:
        return NO_CHOICE
    names = list(values)
    cost = np.array([traffic[name] for name in names])
    floor = [i for i, name in enumerate(names) if is_baseline(name)]
    chosen, top = _pick(block, cost, floor)
    means = block.mean(axis=1)
    return Choice(
        name=names[chosen],
        top=names[top],
        value=float(means[chosen]),
        highest=float(means[top]),
        stability=_stability(block, cost, floor, chosen),
        population="clients" if fixed_partition else "seeds",
    )


def _pick(block: np.ndarray, cost: np.ndarray, floor: Sequence[int]) -> tuple[int, int]:
    """(the chosen, the top) of [methods, units]."""
    n, means = block.shape[1], block.mean(axis=1)
    top = int(means.argmax())
    gaps = np.round(block[top] - block, DIGITS)
    error = gaps.std(axis=1, ddof=1) / sqrt(n) if n > 1 else np.zeros(len(block))
    close = np.flatnonzero(gaps.mean(axis=1) <= error)
    best = block[list(floor)].max(axis=0) if floor else np.full(n, np.inf)
    helped = (np.round(block - best, DIGITS) > 0).mean(axis=1)
    return int(min(close, key=lambda i: (cost[i], i not in floor, -helped[i], -means[i]))), top


def _stability(block: np.ndarray, cost: np.ndarray, floor: Sequence[int], chosen: int) -> float:
    """The share of bootstrap resamples of the units in which the rule takes the same method."""
    n = block.shape[1]
    if n < MIN_UNITS:
        return nan
    draws = stream(0, "stability").integers(0, n, (RESAMPLES, n))
    return float(np.mean([_pick(block[:, draw], cost, floor)[0] == chosen for draw in draws]))
