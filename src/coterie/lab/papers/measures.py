"""A run's figure as a paper measures it: at the end, or over the course of training."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import NamedTuple

import numpy as np

from coterie.analysis.density import density
from coterie.analysis.fairness import fairness, top_share_by_size, worst, worst_share
from coterie.analysis.gains import improvement, qoi_global
from coterie.analysis.nan_math import deviation_of, mean_of
from coterie.lab.papers.paper_tables import PaperColumn, PaperRow
from coterie.lab.papers.verdicts import POINT
from coterie.results.costs import (
    accuracy_against,
    cumulative_costs_of,
    rounds_to_reach,
    simulated_time,
)
from coterie.results.metric_table import best_round, course, curve_of, values_of
from coterie.results.run import Run

MB = 1e6  # bytes
ROUNDING = 1e-9  # two sums of the same times may differ by it
PEAK_POINTS = 512  # places at which a density is looked at
MEANS = (
    "mean",
    "weighted",
    "best",
    "chosen",
    "gain_over_fedavg",
)  # metrics that are means over clients


class Course(NamedTuple):
    """A figure that is the mean over the rounds in which a run was evaluated."""

    figure: float
    clients: np.ndarray  # each client's accuracy, mean over these rounds


def measure(run: Run, metric: str, view: str, fedavg: Run | None = None) -> float:
    """A run's figure as a paper measures it, in percent where it is an accuracy; NaN if unknown."""
    kind, _, part = metric.partition(".")
    if metric.startswith("note:"):
        return _mean_logged(run, metric.removeprefix("note:"))
    if kind in ("gain_over_fedavg", "fairness"):
        return _gain(run, fedavg, kind, part)
    if view not in run.views:
        return nan
    if kind == "rounds":
        return _rounds_needed(run, view)
    if kind == "bytes":
        return float(cumulative_costs_of(run, "bytes")[1][-1]) / MB
    if kind == "mean_at_time":
        return _at_time(run, fedavg, view, part)
    if kind in ("best", "chosen"):
        at = round_of(run, kind, view)
        found = values_of(run.table, share_of(run), run.part, view, at)[1]
        return nan if at is None else _summary(run, "weighted", run.part, found)
    where = part or run.part
    if kind == "loss":
        return _mean_loss(run, where, view)
    accuracy = values_of(run.table, share_of(run), where, view)[1]
    return _summary(run, kind, where, accuracy) if len(accuracy) else nan


def share_of(run: Run) -> str:
    """What a paper calls the accuracy of a run: of survival, the C-index."""
    return run.measure if run.judged.share else "accuracy"


def round_of(run: Run, kind: str, view: str) -> int | None:
    """The round that counts: the best of all test rows together ("best"), or the one that select
    rows choose ("chosen"; None where there are none).
    """
    if kind == "chosen":
        return best_round(run.table, run.measure, view)
    rounds, values = pooled_curve(run, view)
    return int(rounds[int(np.nanargmax(values))]) if len(rounds) else None


def pooled_curve(run: Run, view: str) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, accuracy over the test rows of all clients together, in percent)."""
    share = share_of(run)
    rounds = curve_of(run.table, share, run.part, view)[0]
    clients = (values_of(run.table, share, run.part, view, r)[1] for r in rounds.tolist())
    return rounds, np.array([_summary(run, "weighted", run.part, one) for one in clients])


def _mean_loss(run: Run, part: str, view: str) -> float:
    """The mean loss over all rows of a part."""
    losses = values_of(run.table, "loss", part, view)[1]
    if not len(losses) or np.isnan(losses).all():
        return nan
    rows, known = np.array(run.about["rows"][part], dtype=float), ~np.isnan(losses)
    return float(np.average(losses[known], weights=rows[known]))


def _summary(run: Run, kind: str, part: str, accuracy: np.ndarray) -> float:
    """One number in percent of the clients' accuracies."""
    rows = np.array(run.about["rows"][part], dtype=float)
    known = ~np.isnan(accuracy)
    kinds: dict[str, Callable[[], float]] = {
        "mean": lambda: mean_of(accuracy),
        "weighted": lambda: float(np.average(accuracy[known], weights=rows[known])),
        "worst": lambda: worst(accuracy),
        "worst_tenth": lambda: worst_share(accuracy),
        "largest_tenth": lambda: top_share_by_size(accuracy, rows),
        "deviation": lambda: deviation_of(accuracy),
    }
    return 100 * kinds[kind]() if kind in kinds and known.any() else nan


def measure_course(run: Run, metric: str, view: str) -> Course | None:
    """The same over the course of training; None where the metric is no mean over clients."""
    kind, _, part = metric.partition(".")
    where = part or run.part
    if kind not in ("mean", "weighted") or view not in run.views:
        return None
    clients = course(run.table, share_of(run), where, view)[1]
    return Course(_summary(run, kind, where, clients), clients) if len(clients) else None


def clients_of(run: Run, metric: str, view: str) -> np.ndarray | None:
    """The clients' values that a figure is the mean of: accuracies as shares, or a logged quantity;
    None where it is no such mean.
    """
    kind, _, part = metric.partition(".")
    if metric.startswith("note:"):
        found = values_of(run.table, metric.removeprefix("note:"), "", "")[1]
    elif kind in ("best", "chosen"):
        at = round_of(run, kind, view)
        if at is None:
            return None
        found = values_of(run.table, share_of(run), run.part, view, at)[1]
    elif kind in MEANS and not (kind == "gain_over_fedavg" and part):
        found = values_of(run.table, share_of(run), part or run.part, view)[1]
    else:
        return None
    return found if len(found) else None


def rows_of(run: Run, metric: str) -> list[int] | None:
    """The rows by which a metric weighs clients; None where it does not."""
    kind, _, part = metric.partition(".")
    known = kind in ("weighted", "best", "chosen")
    return [int(n) for n in run.about["rows"][part or run.part]] if known else None


def measured_as(column: PaperColumn, row: PaperRow) -> str:
    """The metric of a row; a logged quantity with points has one for each."""
    return f"{column.metric}[{row.point}]" if row.point else column.metric


def _rounds_needed(run: Run, view: str) -> float:
    """The first round whose mean accuracy is within a point of the best; where clients choose a
    teacher among the rounds, the latest one chosen, as no later round is of use.
    """
    teachers = values_of(run.table, "teacher_round", "", "")[1]
    if len(teachers):
        return float(np.nanmax(teachers))
    rounds, means = curve_of(run.table, "accuracy", run.part, view)
    needed = rounds_to_reach(rounds, means, np.nanmax(means) - POINT / 100) if len(means) else None
    return nan if needed is None else float(needed)


def _at_time(run: Run, fedavg: Run | None, view: str, system: str) -> float:
    """Mean accuracy when FedAvg has come to its end, by the clock of a modelled system."""
    if fedavg is None:
        return nan
    end = simulated_time(fedavg, system)[-1]
    times, means = accuracy_against(run, "time", run.part, view, system)
    within = means[times <= end * (1 + ROUNDING)]
    return 100 * float(within[-1]) if len(within) else nan


def _mean_logged(run: Run, note: str) -> float:
    """The mean over clients of a logged quantity in the last round that has it."""
    found = values_of(run.table, note, "", "")[1]
    return mean_of(found) if len(found) else nan


def _gain(run: Run, fedavg: Run | None, kind: str, part: str) -> float:
    """Gains over FedAvg: their mean, where their density peaks, one of the figures of Chapter 5, or
    how evenly those that gain share them.
    """
    if fedavg is None:
        return nan
    gains = qoi_global(run.accuracy(), fedavg.accuracy())
    if kind == "fairness":
        return float(getattr(fairness(gains[gains > 0]), part))
    if part == "peak":
        grid = np.linspace(np.nanmin(gains), np.nanmax(gains), PEAK_POINTS)
        return float(grid[np.argmax(density(gains, grid))])
    return float(getattr(improvement(gains), part)) if part else mean_of(gains)
