"""Several methods, several seeds, the same data, splits and budgets: one table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coterie.comparison.plan import FILE, Grids, read_plan, write_plan
from coterie.comparison.prepared import Prepared
from coterie.comparison.tune import candidates, tune
from coterie.core.errors import BadInput
from coterie.experiment.build import Given, Networks
from coterie.experiment.config import Experiment
from coterie.results.comparison import Comparison, write_csv
from coterie.results.folder import CONFIG, status
from coterie.results.run import Run, load
from coterie.running.assemble import open_loop
from coterie.running.execute import check_unused, execute_assembly, resume, threads_of
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
    """Run every method with every seed in a new folder; bad input is refused before the folder
    exists.

    `grids` lists values to try for a method's options: the best mean validation accuracy over the
    seeds wins, and only the winner is measured on test data.
    """
    check_unused(folder)
    grids = grids or {}
    prepared = Prepared(data, models)
    for seed in seeds:
        _try_out(experiments, seed, grids, prepared)
    folder.mkdir(parents=True, exist_ok=True)
    write_plan(folder, experiments, seeds, grids)
    return _play(experiments, seeds, grids, folder, watch, prepared)


def resume_comparison(
    folder: Path,
    watch: Watch = lambda method, seed, report: None,
    data: Given = None,
    models: Networks = None,
) -> Comparison:
    """Go on with a comparison that was stopped; runs that are finished stay as they are."""
    experiments, seeds, grids = read_plan(folder / FILE)
    return _play(experiments, seeds, grids, folder, watch, Prepared(data, models))


def _try_out(
    experiments: Mapping[str, Experiment], seed: int, grids: Grids, prepared: Prepared
) -> None:
    """Put every run of a seed together and open it, so that what cannot run is refused now."""
    federation = prepared.federation(replace(next(iter(experiments.values())), seed=seed))
    if grids and not any(len(rows) for rows in federation.validation):
        raise BadInput("tuning chooses on validation data, and there are none: raise --validation")
    for name, experiment in experiments.items():
        tried = [candidate for _, candidate in candidates(experiment, grids.get(name, {}))]
        for each in [experiment, *tried]:
            with threads_of(each):
                open_loop(prepared.assembly(replace(each, seed=seed)))


def _play(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    grids: Grids,
    folder: Path,
    watch: Watch,
    prepared: Prepared,
) -> Comparison:
    def one(label: str, seed: int, experiment: Experiment, place: Path) -> Run:
        if status(place) == "finished":
            return load(place)
        show: Callable[[RoundReport], None] = lambda report: watch(label, seed, report)  # noqa: E731
        if (place / CONFIG).exists():
            return resume(place, show, prepared.federation(experiment), prepared.networks)
        shutil.rmtree(place, ignore_errors=True)  # it was stopped before its first word was written
        with threads_of(experiment):
            return execute_assembly(prepared.assembly(experiment), place, show)

    tuned = {
        name: tune(name, experiment, grids[name], seeds, folder / "tuning" / name, one)
        if name in grids
        else experiment
        for name, experiment in experiments.items()
    }
    runs: dict[str, list[Run]] = {name: [] for name in experiments}
    for seed in seeds:  # seeds outside, so that each seed's data are made once
        for name, experiment in tuned.items():
            runs[name].append(
                one(name, seed, replace(experiment, seed=seed), folder / f"{name}-seed{seed}")
            )
    comparison = Comparison(folder, runs)
    write_csv(comparison)
    return comparison


def load_comparison(folder: Path) -> Comparison:
    """The finished runs of a comparison."""
    experiments, seeds, _ = read_plan(folder / FILE)
    return Comparison(
        folder,
        {name: [load(folder / f"{name}-seed{seed}") for seed in seeds] for name in experiments},
    )
