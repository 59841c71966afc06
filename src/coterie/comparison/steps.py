"""A short search for a learning rate and a network: one step at a time from the options as given.

First the networks at the given rate; then, with the best one, rates by factors of about three up
or down as long as that is better; then the other networks at the rate that was found, and on from
there where they are better. What is tried next follows from the scores so far and from nothing
else, so that a search that was stopped goes on as it would have gone.

Validation rows are few, and the best of several trials is partly luck. So the options as given stay
unless the best is better than they are by more than two standard errors of the difference, client
by client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, log2, sqrt
from typing import Any

import numpy as np

from coterie.analysis.nan_math import mean_of
from coterie.comparison.limits import SearchLimits
from coterie.comparison.trials import Trial

FACTORS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # of the rate as given
DENSE, LINEAR = "dnn", "mlr"  # the networks that are tried beside the given one
USUAL_WIDTH, WIDEST = 100, 512  # units of the dense one's hidden layer
MOST_WEIGHTS = 2**26  # of all clients' hidden layers, a quarter of a GB
MOST_TRIALS = 12  # of a method; steps that lead nowhere end a search sooner
LEAST_TRIALS = 4  # fewer say little: the other network, and a rate on either side
ERRORS = 2.0  # standard errors by which the best must be better than the options as given
USUAL = SearchLimits(budget="30s", listed=True, steps=True)  # where nobody asks for a search


def rates_around(rate: float) -> list[float]:
    """The rates that may be tried, in ascending order."""
    return [rate if factor == 1 else float(f"{rate * factor:.3g}") for factor in FACTORS]


def dense_for(rows: int, cells: int = 1) -> str:
    """The dense network for so many training rows: as wide as a table's usual one, or a power of
    two near the square root of the rows where that is at least twice as wide.

    cells: clients times inputs, as every client may keep such a network.
    """
    width = min(2 ** round(log2(sqrt(max(rows, 1)))), WIDEST)
    while width * cells > MOST_WEIGHTS:
        width //= 2
    return DENSE if width < 2 * USUAL_WIDTH else f"{DENSE}:hidden={width}"


def is_clearly_better(best: np.ndarray, given: np.ndarray, better: int) -> bool:
    """Whether [seeds, clients] validation scores are better than others beyond chance."""
    gaps = better * (best - given)
    gap = np.array([mean_of(client) for client in gaps.T])
    gap = gap[~np.isnan(gap)]
    if len(gap) < 2:
        return bool(gap.sum() > 0)
    return bool(gap.mean() > ERRORS * gap.std(ddof=1) / sqrt(len(gap)))


class _Untried(Exception):
    """A point whose score decides the next step."""

    def __init__(self, point: dict[str, Any]):
        self.point = point


def propose_step(
    grid: Mapping[str, Sequence[Any]], rate: float, tried: Sequence[Trial], better: int
) -> dict[str, Any] | None:
    """The next options to try, from a rate as given; None where every step was taken."""
    rates, networks = list(grid.get("lr", ())), list(grid.get("model", (None,)))
    begin = rates.index(rate) if rates else 0

    def score(network: Any, at: int) -> float:
        known = {"lr": rates[at]} if rates else {}
        point = known | ({} if network is None else {"model": network})
        trial = next((t for t in tried if t.options == point), None)
        if trial is None:
            raise _Untried(point)
        return -inf if trial.score is None else better * trial.score

    def climb(network: Any, first: int) -> int:
        at = first
        for step in (1, -1):
            while 0 <= at + step < len(rates) and score(network, at + step) > score(network, at):
                at += step
            if at != first:
                break
        return at

    try:
        at_first = {network: score(network, begin) for network in networks}
        best, *others = sorted(networks, key=at_first.__getitem__, reverse=True)
        at = climb(best, begin)
        for network in others:
            if score(network, at) > score(best, at):
                best, at = network, climb(network, at)
    except _Untried as next_one:
        return next_one.point
    return None
