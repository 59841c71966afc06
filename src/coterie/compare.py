"""Several methods, several seeds, the same data, splits and budgets: one table."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .config import Experiment, change, from_toml, read_toml, to_toml
from .data.federation import Federation
from .errors import BadInput
from .experiment import Run, execute, federation_of, load, resume, start
from .metrics import curve, total
from .run import Report

Watch = Callable[[str, int, Report], None]  # (method, seed, report)
FILE = "comparison.toml"


class Row(NamedTuple):
    """One method over all seeds; accuracies are means over seeds of each seed's figure."""

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

    def rows(self) -> list[Row]:
        """One row a method, in the order they were asked for."""
        return [_row(name, runs) for name, runs in self.runs.items()]

    def accuracy(self, method: str) -> np.ndarray:
        """[seeds, clients] test accuracy of every client's own model."""
        return np.stack([run.accuracy() for run in self.runs[method]])


def _row(name: str, runs: list[Run]) -> Row:
    tests = [run.summary() for run in runs]
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
        over(lambda r: float(np.nanmean(r.accuracy("validation"))) if _has(r, "validation") else float("nan")),
        over(lambda r: total(r.table, "bytes_down")),
        over(lambda r: total(r.table, "bytes_up")),
        over(lambda r: total(r.table, "steps")),
        over(lambda r: total(r.table, "seconds") / max(1, r.table.column("round").to_numpy().max())),
    )


def _has(run: Run, part: str) -> bool:
    rounds, means = curve(run.table, "accuracy", part)
    return bool(len(rounds)) and not np.isnan(means[-1])


def plan(
    methods: Sequence[str], base: Experiment, own: Mapping[str, Mapping[str, Any]] = {}, grids: Mapping[str, Mapping[str, list]] = {}
) -> dict[str, Experiment]:
    """An experiment a method: the common words, then the method's own; everything is checked before anything runs."""
    for named in (own, grids):
        for name in named:
            if name not in methods:
                raise BadInput(f"options are given for '{name}', which is not among the methods {', '.join(methods)}")
    experiments = {}
    for name in dict.fromkeys(methods):
        experiments[name] = change(replace(base, method=name, options={}), own.get(name, {}))
        for word, choices in grids.get(name, {}).items():
            for choice in choices:
                change(experiments[name], {word: choice})
    return experiments


def compare(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    folder: Path,
    watch: Watch = lambda method, seed, report: None,
    grids: Mapping[str, Mapping[str, list]] = {},
    federation: Federation | None = None,
    models: Any = None,
) -> Comparison:
    """Run every method with every seed; runs already finished in the folder are kept, so a stopped comparison goes on.

    `grids` lists values to try for a method's options: the best mean validation accuracy over the seeds wins, and only the
    winner is measured on test data.
    """
    fresh = not (folder / FILE).exists()
    if fresh and folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} exists and is not a comparison: give another --out")
    known: dict[int, Federation] = {}
    for seed in seeds if fresh else ():  # refuse bad input before the folder exists
        first = next(iter(experiments.values()))
        known[seed] = federation or federation_of(replace(first, seed=seed))
        for experiment in experiments.values():
            start(replace(experiment, seed=seed), known[seed], models)
    folder.mkdir(parents=True, exist_ok=True)
    if fresh:
        _write_plan(folder, experiments, seeds, grids)
    runs: dict[str, list[Run]] = {}
    for name, experiment in experiments.items():
        if name in grids:
            experiment = tune(experiment, name, grids[name], seeds, folder / "tuning" / name, watch, known, models)
        runs[name] = [
            _one(replace(experiment, seed=seed), folder / f"{name}-seed{seed}", lambda r: watch(name, seed, r), known.get(seed), models)
            for seed in seeds
        ]
    comparison = Comparison(folder, runs)
    write_csv(comparison)
    return comparison


def _one(experiment: Experiment, folder: Path, watch: Callable[[Report], None], federation: Federation | None, models: Any) -> Run:
    if (folder / "run.json").exists():
        return resume(folder, watch, federation, models)
    return execute(experiment, folder, watch, federation, models)


def tune(
    experiment: Experiment,
    name: str,
    grid: Mapping[str, list],
    seeds: Sequence[int],
    folder: Path,
    watch: Watch,
    known: Mapping[int, Federation],
    models: Any,
) -> Experiment:
    """The experiment with the options of best mean validation accuracy over the seeds; what was tried is written down."""
    tried = []
    for choice in itertools.product(*grid.values()):
        words = dict(zip(grid, choice, strict=True))
        candidate = change(experiment, words)
        candidate = replace(candidate, keep=candidate.keep._replace(models=False, checkpoint=0))
        candidate = replace(candidate, schedule=candidate.schedule._replace(parts=("validation",)))
        label = ",".join(f"{k}={v}" for k, v in words.items())
        scores = []
        for seed in seeds:
            place = folder / f"{label}-seed{seed}"
            run = _one(replace(candidate, seed=seed), place, lambda r, s=seed: watch(f"{name} {label}", s, r), known.get(seed), models)
            scores.append(float(np.nanmean(run.accuracy("validation"))))
        tried.append({"options": words, "validation": scores})
    best = max(tried, key=lambda t: float(np.mean(t["validation"])))  # the first of equals
    (folder / "tuning.json").write_text(json.dumps({"tried": tried, "best": best["options"]}, indent=1))
    return change(experiment, best["options"])


def _write_plan(folder: Path, experiments: Mapping[str, Experiment], seeds: Sequence[int], grids: Mapping[str, Any]) -> None:
    first = next(iter(experiments.values()))
    words = {k: v for k, v in first.words().items() if k not in ("method", "seed", "options")}
    tables = {f"options.{name}": e.options for name, e in experiments.items()}
    grid_tables = {f"tune.{name}": dict(grid) for name, grid in grids.items()}
    text = to_toml({"methods": list(experiments), "seeds": list(seeds), **words, **tables, **grid_tables})
    (folder / FILE).write_text(text)


def read_plan(path: Path) -> tuple[dict[str, Experiment], list[int], dict[str, dict[str, list]]]:
    """A comparison file: methods, seeds, common tables, `[options.METHOD]` and `[tune.METHOD]`."""
    words = read_toml(path)
    methods, seeds = words.pop("methods", None), words.pop("seeds", [0])
    if not isinstance(methods, list) or not methods:
        raise BadInput(f"{path} names no methods: add methods = [\"local\", \"fedavg\", ...]")
    own, grids = words.pop("options", {}), words.pop("tune", {})
    return plan(methods, change(Experiment(), from_toml(words)), own, grids), [int(s) for s in seeds], grids


def load_comparison(folder: Path) -> Comparison:
    """The finished runs of a comparison."""
    experiments, seeds, _ = read_plan(folder / FILE)
    return Comparison(folder, {name: [load(folder / f"{name}-seed{seed}") for seed in seeds] for name in experiments})


def write_csv(comparison: Comparison) -> None:
    """The table, and every client's accuracy, beside the runs."""
    with (comparison.folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows(comparison.rows())
    with (comparison.folder / "clients.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "seed", "client", "test_accuracy"])
        for name, runs in comparison.runs.items():
            for run in runs:
                for i, a in enumerate(run.accuracy()):
                    writer.writerow([name, run.experiment.seed, i, f"{a:.6f}"])
