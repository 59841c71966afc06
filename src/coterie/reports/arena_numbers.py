"""What the arena's page says of every method, computed from the stored results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.analysis.fairness import worst_share
from coterie.analysis.numbers import mean_of, means, most
from coterie.analysis.ranks import Ranking, ranked, ranking
from coterie.comparison.arena_results import (
    BOUNDS,
    Block,
    Results,
    block,
    goodness,
    gradients_of,
    runs_with,
    times_fedavg,
)


class Summary(NamedTuple):
    """What the page says of every method, [methods] each; NaN where nothing is known."""

    methods: tuple[str, ...]
    rank: np.ndarray  # among all methods, mean over the federations where it ran
    behind: np.ndarray  # points behind the best method of a federation, mean
    wins: np.ndarray  # federations on which nobody is better
    tried: np.ndarray  # federations where it ran
    worst: np.ndarray  # points of the worst tenth of the clients behind the best such, mean
    spread: np.ndarray  # deviation over clients in points, mean
    bytes: np.ndarray  # times FedAvg's, mean
    gradients: np.ndarray  # times FedAvg's, mean; those of a fine-tuning at the end with them
    dropped: np.ndarray  # points lost where some clients do not answer, mean


def points(results: Results, drop: bool = False) -> Block:
    """Mean over clients and seeds of every method on every federation, in points."""
    return block(runs_with(results, drop), lambda row: float(goodness(row).mean()))


def whole_ranking(results: Results) -> Ranking:
    """The ranking of the methods that were tried on every federation."""
    found = points(results)
    whole = [k for k, name in enumerate(found.methods) if found.ran[:, k].all()]
    return ranking(found.values[:, whole], [found.methods[k] for k in whole])


def summary(results: Results) -> Summary:
    """Every method by its mean rank."""
    found, rows = points(results), runs_with(results)
    low = block(rows, lambda row: worst_share(goodness(row)))
    spread = block(rows, lambda row: float(goodness(row).std()))
    real = [name not in BOUNDS for name in found.methods]
    rank = _ranks_of(found)
    best = most(found.values[:, real], 1)
    order = np.lexsort((means(best - found.values, 0), rank))

    def sorted_by_rank(values: np.ndarray) -> np.ndarray:
        taken: np.ndarray = values[order]
        return taken

    lowest = most(low.values[:, real], 1)
    return Summary(
        methods=tuple(found.methods[i] for i in order),
        rank=sorted_by_rank(rank),
        behind=sorted_by_rank(means(best - found.values, 0)),
        wins=sorted_by_rank((np.round(best - found.values, 9) <= 0).sum(axis=0)),
        tried=sorted_by_rank(found.ran.sum(axis=0)),
        worst=sorted_by_rank(means(lowest - low.values, 0)),
        spread=sorted_by_rank(means(spread.values, 0)),
        bytes=sorted_by_rank(times_fedavg(block(rows, lambda row: float(row["bytes"])))),
        gradients=sorted_by_rank(times_fedavg(block(rows, gradients_of))),
        dropped=sorted_by_rank(lost(results)),
    )


def _ranks_of(found: Block) -> np.ndarray:
    """[m] mean rank over the federations where a method was tried, as if all were tried there."""
    ranks = np.full(found.values.shape, np.nan)
    for f, ran in enumerate(found.ran):
        here = ranked(found.values[f : f + 1, ran])[0]
        ranks[f, ran] = (here - 0.5) / len(here) * len(ran) + 0.5
    return means(ranks, 0)


def lost(results: Results) -> np.ndarray:
    """[m] points lost where some clients do not answer, on the same federations and seeds."""
    rows = runs_with(results, drop=True)
    kept = {(row["federation"], row["seed"]) for row in rows}
    same = [row for row in runs_with(results) if (row["federation"], row["seed"]) in kept]
    methods = points(results).methods
    if not rows:
        return np.full(len(methods), np.nan)
    full, some = (block(part, lambda row: float(goodness(row).mean())) for part in (same, rows))
    gaps = {
        name: mean_of(full.values[:, k] - _column(some, name, full.federations))
        for k, name in enumerate(full.methods)
    }
    return np.array([gaps.get(name, np.nan) for name in methods])


def _column(found: Block, method: str, federations: Sequence[str]) -> np.ndarray:
    if method not in found.methods:
        return np.full(len(federations), np.nan)
    k = found.methods.index(method)
    return np.array([found.values[found.federations.index(f), k] for f in federations])
