"""What the arena's page says of every method, computed from the stored results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.analysis.fairness import worst_share
from coterie.analysis.nan_math import mean_of, nan_max, nan_mean
from coterie.analysis.ranks import Ranking, build_ranking, rank_rows
from coterie.lab.arena.results import (
    BOUNDS,
    ArenaResults,
    Block,
    build_block,
    client_points_of,
    divide_by_fedavg,
    gradients_of,
    select_runs,
)


class ArenaSummary(NamedTuple):
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


def compute_points(results: ArenaResults, drop: bool = False) -> Block:
    """Mean over clients and seeds of every method on every federation, in points."""
    return build_block(select_runs(results, drop), lambda row: float(client_points_of(row).mean()))


def rank_complete_methods(results: ArenaResults) -> Ranking:
    """The ranking of the methods that were tried on every federation."""
    found = compute_points(results)
    whole = [k for k, name in enumerate(found.methods) if found.ran[:, k].all()]
    return build_ranking(found.values[:, whole], [found.methods[k] for k in whole])


def summarize_results(results: ArenaResults) -> ArenaSummary:
    """Every method by its mean rank."""
    found, rows = compute_points(results), select_runs(results)
    low = build_block(rows, lambda row: worst_share(client_points_of(row)))
    spread = build_block(rows, lambda row: float(client_points_of(row).std()))
    real = [name not in BOUNDS for name in found.methods]
    rank = _mean_ranks(found)
    best = nan_max(found.values[:, real], 1)
    order = np.lexsort((nan_mean(best - found.values, 0), rank))

    def sorted_by_rank(values: np.ndarray) -> np.ndarray:
        taken: np.ndarray = values[order]
        return taken

    lowest = nan_max(low.values[:, real], 1)
    return ArenaSummary(
        methods=tuple(found.methods[i] for i in order),
        rank=sorted_by_rank(rank),
        behind=sorted_by_rank(nan_mean(best - found.values, 0)),
        wins=sorted_by_rank((np.round(best - found.values, 9) <= 0).sum(axis=0)),
        tried=sorted_by_rank(found.ran.sum(axis=0)),
        worst=sorted_by_rank(nan_mean(lowest - low.values, 0)),
        spread=sorted_by_rank(nan_mean(spread.values, 0)),
        bytes=sorted_by_rank(divide_by_fedavg(build_block(rows, lambda row: float(row["bytes"])))),
        gradients=sorted_by_rank(divide_by_fedavg(build_block(rows, gradients_of))),
        dropped=sorted_by_rank(compute_points_lost(results)),
    )


def _mean_ranks(found: Block) -> np.ndarray:
    """[m] mean rank over the federations where a method was tried, as if all were tried there."""
    ranks = np.full(found.values.shape, np.nan)
    for f, ran in enumerate(found.ran):
        here = rank_rows(found.values[f : f + 1, ran])[0]
        ranks[f, ran] = (here - 0.5) / len(here) * len(ran) + 0.5
    return nan_mean(ranks, 0)


def compute_points_lost(results: ArenaResults) -> np.ndarray:
    """[m] points lost where some clients do not answer, on the same federations and seeds."""
    rows = select_runs(results, drop=True)
    kept = {(row["federation"], row["seed"]) for row in rows}
    same = [row for row in select_runs(results) if (row["federation"], row["seed"]) in kept]
    methods = compute_points(results).methods
    if not rows:
        return np.full(len(methods), np.nan)
    full, some = (
        build_block(part, lambda row: float(client_points_of(row).mean())) for part in (same, rows)
    )
    gaps = {
        name: mean_of(full.values[:, k] - _find_column(some, name, full.federations))
        for k, name in enumerate(full.methods)
    }
    return np.array([gaps.get(name, np.nan) for name in methods])


def _find_column(found: Block, method: str, federations: Sequence[str]) -> np.ndarray:
    if method not in found.methods:
        return np.full(len(federations), np.nan)
    k = found.methods.index(method)
    return np.array([found.values[found.federations.index(f), k] for f in federations])
