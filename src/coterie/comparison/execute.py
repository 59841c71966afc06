"""Several methods, several seeds, the same data, splits and budgets: one table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from coterie.comparison.plan import FILE, Grids, read_plan, write_plan
from coterie.comparison.tune import candidates, tune
from coterie.core.errors import BadInput
from coterie.data.federation import Federation
from coterie.experiment.build import Given, Networks, federation_of
from coterie.experiment.config import Experiment
from coterie.results.comparison import Comparison, write_csv
from coterie.results.folder import CONFIG, status
from coterie.results.run import Run, load
from coterie.running.assemble import start
from coterie.running.execute import check_unused, execute, resume
from coterie.running.loop import RoundReport

Watch = Callable[[str, int, RoundReport], None]  # (method, seed, report)


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
            for _, candidate in candidates(experiment, grids.get(name, {})):
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
        show: Callable[[RoundReport], None] = lambda report: watch(label, seed, report)  # noqa: E731
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


def load_comparison(folder: Path) -> Comparison:
    """The finished runs of a comparison."""
    experiments, seeds, _ = read_plan(folder / FILE)
    return Comparison(folder, {name: [load(folder / f"{name}-seed{seed}") for seed in seeds] for name in experiments})
