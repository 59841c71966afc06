"""Several methods, several seeds, the same data, splits and budgets: one table."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .build import Given, Networks, federation_of
from .config import Experiment
from .data.federation import Federation
from .errors import BadInput
from .evaluation import Answer, answer
from .experiment import Run, check_unused, execute, load, resume, start, status
from .folder import CONFIG, facts, write
from .metrics import mean, total
from .plan import FILE, Grids, own_words, plan, plan_of, read_plan, write_plan
from .run import Report
from .statistics import Difference, paired

__all__ = ["FILE", "Comparison", "Row", "compare", "load_comparison", "plan", "plan_of", "read_plan", "resume_comparison"]
Watch = Callable[[str, int, Report], None]  # (method, seed, report)


class Row(NamedTuple):
    """One method over all seeds: the mean over seeds of each seed's figure; accuracies are losses where there are no classes."""

    method: str
    mean: float  # over clients
    weighted: float  # by test rows
    deviation: float  # over clients, sample
    worst: float
    spread: float  # deviation of `mean` over seeds; NaN with one seed
    validation: float
    bytes_down: float  # a run, all clients
    bytes_up: float
    steps: float  # client-steps a run
    seconds: float  # a round, without evaluation


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison, by method and seed."""

    folder: Path
    runs: dict[str, list[Run]]

    @property
    def first(self) -> Run:
        return next(iter(self.runs.values()))[0]

    def rows(self) -> list[Row]:
        """One row a method, in the order they were asked for."""
        return [_row(name, runs) for name, runs in self.runs.items()]

    def accuracy(self, method: str) -> np.ndarray:
        """[seeds, clients] test accuracy of every client's own model."""
        return np.stack([run.accuracy() for run in self.runs[method]])

    @property
    def fixed_split(self) -> bool:
        """Whether every seed dealt the same rows to the same clients."""
        return len({facts(run.folder)["data"] for run in next(iter(self.runs.values()))}) == 1

    def answer(self) -> Answer | None:
        """Best, fairest, cheapest and recommended; None without FedAvg, Local, accuracies or validation data to choose on."""
        if not {"fedavg", "local"} <= set(self.runs) or self.first.measure != "accuracy" or self.first.part != "test":
            return None
        test, validation = (
            {name: np.stack([run.accuracy(part) for run in runs]) for name, runs in self.runs.items()}
            for part in ("test", "validation")
        )
        if any(not a.size or np.isnan(a).all() for a in validation.values()):
            return None
        traffic = {row.method: row.bytes_down + row.bytes_up for row in self.rows()}
        return answer(test, validation, traffic, self.fixed_split)

    def difference(self, method: str, other: str) -> Difference:
        """How much better `method` serves a client than `other`, on the measured part, with its interval."""
        a, b = (np.stack([run.measured(run.part) for run in self.runs[name]]) for name in (method, other))
        return paired(a, b, self.fixed_split)


def _row(name: str, runs: list[Run]) -> Row:
    tests = [run.summary(run.part) for run in runs]
    means = np.array([t.mean for t in tests])

    def over(f: Callable[[Run], float]) -> float:
        return float(np.mean([f(run) for run in runs]))

    return Row(
        name,
        float(means.mean()),
        float(np.mean([t.weighted for t in tests])),
        float(np.mean([t.deviation for t in tests])),
        float(np.mean([t.worst for t in tests])),
        float(means.std(ddof=1)) if len(means) > 1 else float("nan"),
        over(lambda r: mean(r.measured("validation"))),
        over(lambda r: total(r.table, "bytes_down")),
        over(lambda r: total(r.table, "bytes_up")),
        over(lambda r: total(r.table, "steps")),
        over(lambda r: total(r.table, "seconds") / r.table["round"].to_numpy().max()),
    )


def compare(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    folder: Path,
    watch: Watch = lambda method, seed, report: None,
    grids: Grids | None = None,
    data: Given = None,
    models: Networks = None,
) -> Comparison:
    """Run every method with every seed in a new folder; bad input is refused before the folder exists.

    `grids` lists values to try for a method's options: the best mean validation accuracy over the seeds wins, and only the
    winner is measured on test data.
    """
    check_unused(folder)
    grids = grids or {}
    fetch = _fetcher(experiments, data)
    for seed in seeds:
        federation = fetch(seed)
        if grids and not any(len(rows) for rows in federation.validation):
            raise BadInput("tuning chooses on validation data, and there are none: raise --validation")
        for name, experiment in experiments.items():
            start(replace(experiment, seed=seed), federation, models)
            for _, candidate in _candidates(experiment, grids.get(name, {})):
                start(replace(candidate, seed=seed), federation, models)
    folder.mkdir(parents=True, exist_ok=True)
    write_plan(folder, experiments, seeds, grids)
    return _play(experiments, seeds, grids, folder, watch, fetch, models)


def resume_comparison(
    folder: Path, watch: Watch = lambda method, seed, report: None, data: Given = None, models: Networks = None
) -> Comparison:
    """Go on with a comparison that was stopped; runs that are finished stay as they are."""
    experiments, seeds, grids = read_plan(folder / FILE)
    return _play(experiments, seeds, grids, folder, watch, _fetcher(experiments, data), models)


def _fetcher(experiments: Mapping[str, Experiment], data: Given) -> Callable[[int], Federation]:
    """The data for a seed; only the last asked for are kept, as a large data set fits no laptop twice."""
    first = next(iter(experiments.values()))
    return lru_cache(maxsize=1)(lambda seed: federation_of(replace(first, seed=seed), data))


def _play(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    grids: Grids,
    folder: Path,
    watch: Watch,
    fetch: Callable[[int], Federation],
    models: Networks,
) -> Comparison:
    def one(label: str, seed: int, experiment: Experiment, place: Path) -> Run:
        if status(place) == "finished":
            return load(place)
        show: Callable[[Report], None] = lambda report: watch(label, seed, report)  # noqa: E731
        if (place / CONFIG).exists():
            return resume(place, show, fetch(seed), models)
        shutil.rmtree(place, ignore_errors=True)  # it was stopped before its first word was written
        return execute(experiment, place, show, fetch(seed), models)

    tuned = {
        name: tune(name, experiment, grids[name], seeds, folder / "tuning" / name, one) if name in grids else experiment
        for name, experiment in experiments.items()
    }
    runs: dict[str, list[Run]] = {name: [] for name in experiments}
    for seed in seeds:  # seeds outside, so that each seed's data are made once
        for name, experiment in tuned.items():
            runs[name].append(one(name, seed, replace(experiment, seed=seed), folder / f"{name}-seed{seed}"))
    comparison = Comparison(folder, runs)
    write_csv(comparison)
    return comparison


def _candidates(experiment: Experiment, grid: Mapping[str, Sequence[Any]]) -> list[tuple[dict[str, Any], Experiment]]:
    """(options, experiment) for every point of a grid; a candidate sees validation data only, and keeps nothing."""
    found = []
    for choice in itertools.product(*grid.values()) if grid else ():
        words = dict(zip(grid, choice, strict=True))
        candidate = own_words(experiment, words)
        schedule, keep = candidate.schedule._replace(parts=("validation",)), candidate.keep._replace(models=False, checkpoint=0)
        found.append((words, replace(candidate, schedule=schedule, keep=keep)))
    return found


def tune(
    name: str,
    experiment: Experiment,
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    folder: Path,
    one: Callable[[str, int, Experiment, Path], Run],
) -> Experiment:
    """The experiment with the options of best mean validation accuracy over the seeds; what was tried is written down."""
    tried = []
    for number, (words, candidate) in enumerate(_candidates(experiment, grid), 1):
        label = f"{name} {' '.join(f'{k}={v}' for k, v in words.items())}"
        runs = [one(label, seed, replace(candidate, seed=seed), folder / f"try{number}-seed{seed}") for seed in seeds]
        scores = [mean(run.measured("validation")) for run in runs]
        sign = 1 if runs[0].measure == "accuracy" else -1
        tried.append((sign * float(np.nan_to_num(np.mean(scores), nan=-sign * np.inf)), words, scores))
    best = max(tried, key=lambda t: t[0])[1]  # the first of equals; a try that diverged is the last
    report = {"tried": [{"options": words, "validation": scores} for _, words, scores in tried], "best": best}
    write(folder / "tuning.json", json.dumps(report, indent=1))
    return own_words(experiment, best)


def load_comparison(folder: Path) -> Comparison:
    """The finished runs of a comparison."""
    experiments, seeds, _ = read_plan(folder / FILE)
    return Comparison(folder, {name: [load(folder / f"{name}-seed{seed}") for seed in seeds] for name in experiments})


def write_csv(comparison: Comparison) -> None:
    """The table, and every client's accuracy, beside the runs."""
    with (comparison.folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows(comparison.rows())
    first = comparison.first
    with (comparison.folder / "clients.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "seed", "client", f"{first.part}_{first.measure}"])
        for name, runs in comparison.runs.items():
            for run in runs:
                for i, value in enumerate(run.measured(run.part)):
                    writer.writerow([name, run.experiment.seed, i, f"{value:.6f}"])
