"""What trackers show of a run: numbers by round, options, and what it was run with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from coterie.analysis.scores import find_score
from coterie.results.metric_table import summarize
from coterie.results.run import Run

MEASURES = ("accuracy", "loss")
COSTS = ("bytes_down", "bytes_broadcast", "bytes_up", "steps", "gradients", "seconds", "clients")


class Scalar(NamedTuple):
    """One number of one round."""

    name: str  # "accuracy/test/personal/mean", "cost/bytes_up"
    round: int
    value: float
    time: float  # when the round was over, in seconds since 1970


def summarize_column(
    key: tuple[str, str, str],  # metric, part, view
    values: np.ndarray,
    rows: np.ndarray,  # of each of these clients
    round: int,
    time: float,
) -> Iterator[Scalar]:
    """Mean, weighted mean and worst client of a measure in one round."""
    found = summarize(values, rows, least_is_worst=find_score(key[0]).higher)
    for name in ("mean", "weighted", "worst"):
        if not np.isnan(value := getattr(found, name)):
            yield Scalar("/".join((*key, name)), round, float(value), time)


def iter_scalars(run: Run) -> Iterator[Scalar]:
    """Mean, weighted mean and worst client of every measure, part and view; then the costs."""
    columns = {name: run.table[name].to_numpy() for name in ("round", "client", "value")}
    names = {
        name: np.asarray(run.table[name].cast("string").to_numpy(zero_copy_only=False))
        for name in ("view", "part", "metric")
    }
    times = _round_times(run)
    wanted = np.isin(names["metric"], (*MEASURES, run.measure))
    shown = wanted & (columns["client"] >= 0) & (names["part"] != "")
    for metric, part, view in sorted(
        {tuple(w) for w in np.stack([names[k][shown] for k in ("metric", "part", "view")], 1)}
    ):
        at = shown & (names["metric"] == metric) & (names["part"] == part) & (names["view"] == view)
        rounds, clients, values = (columns[k][at] for k in ("round", "client", "value"))
        rows = np.array(run.about["rows"][part])[clients]
        for r in np.unique(rounds):
            here = rounds == r
            key, time = (metric, part, view), times[int(r)]
            yield from summarize_column(key, values[here], rows[here], int(r), time)
    for metric in COSTS:
        at = (names["metric"] == metric) & (columns["client"] < 0)
        for r, value in zip(
            columns["round"][at].tolist(), columns["value"][at].tolist(), strict=True
        ):
            yield Scalar(f"cost/{metric}", r, value, times[r])


def _round_times(run: Run) -> dict[int, float]:
    """{round: when it was over}, as if the rounds had gone without pause up to the run's date."""
    rows = run.table.filter((pc.field("metric") == "seconds") & (pc.field("client") < 0))
    rounds, seconds = rows["round"].to_numpy(), rows["value"].to_numpy()
    end = datetime.fromisoformat(run.about["date"]).timestamp()
    known = dict(
        zip(rounds.tolist(), (end - seconds.sum() + seconds.cumsum()).tolist(), strict=True)
    )
    return {int(r): known.get(int(r), end) for r in np.unique(run.table["round"].to_numpy())}


def scalars_of_round(
    round: int,
    costs: Mapping[str, float],
    measured: Mapping[tuple[str, str, str], np.ndarray],  # {(view, part, metric): [clients]}
    rows: Mapping[str, Sequence[int]],  # of every client, by part
    measure: str,
    time: float,
) -> Iterator[Scalar]:
    """The numbers of a round that has just been played, as `iter_scalars` has them afterwards."""
    for (view, part, metric), values in measured.items():
        if metric in (*MEASURES, measure):
            counts = np.array(rows[part])[: len(values)]
            yield from summarize_column((metric, part, view), values, counts, round, time)
    yield from (Scalar(f"cost/{name}", round, float(costs[name]), time) for name in COSTS)


def flatten_options(run: Run) -> dict[str, Any]:
    """The experiment as flat options: "method", "seed", "train.lr", ..."""
    flat: dict[str, Any] = {}
    for section, inner in run.experiment.to_dict().items():
        flat |= (
            {f"{section}.{k}": v for k, v in inner.items()}
            if isinstance(inner, dict)
            else {section: inner}
        )
    return {
        k: v if isinstance(v, bool | int | float | str) else _to_text(v) for k, v in flat.items()
    }


def _to_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def tags_of(run: Run) -> dict[str, str]:
    """What was run with, and on which data."""
    about = run.about
    libraries = {f"version.{name}": str(number) for name, number in about["versions"].items()}
    known = {
        "coterie": about["coterie"],
        "data": about["data"],
        "status": about["status"],
        "folder": run.folder.name,
    }
    return {
        f"coterie.{k}": str(v) for k, v in {**known, "date": about["date"], **libraries}.items()
    }
