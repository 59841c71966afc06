"""Several methods, several seeds, the same data, splits and budgets: one table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.analysis.scores import named, usual_measure
from coterie.comparison.limits import Limits
from coterie.comparison.plan import FILE, ComparisonPlan, Grids, knob_of, read_plan, write_plan
from coterie.comparison.prepared import Prepared
from coterie.comparison.search import optuna
from coterie.comparison.trials import FOLDER
from coterie.comparison.tune import Look, Tuning, candidate, points, tune
from coterie.core.errors import BadInput, Diverged
from coterie.core.files import writing
from coterie.experiment.build import Given, Networks
from coterie.experiment.config import Experiment
from coterie.results.comparison import Comparison, write_csv
from coterie.results.folder import CONFIG, read_about, status
from coterie.results.run import Run, load
from coterie.running.assemble import open_loop
from coterie.running.execute import check_unused, execute_assembly, resume, threads_of
from coterie.running.loop import RoundReport, lengths, saying, tell
from coterie.running.shape import changes, defaults_of, planned_shape, said

Watch = Callable[[str, int, RoundReport], None]  # (method, seed, report)


def tell_of(method: str, seed: int, report: RoundReport) -> None:
    """Say what must be said of a run where nobody else watches."""
    tell(report, f"{method} seed {seed}: ")


def compare(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    folder: Path,
    watch: Watch = tell_of,
    grids: Grids | None = None,
    data: Given = None,
    models: Networks = None,
    search: Limits | None = None,
    only: Sequence[str] = (),
) -> Comparison:
    """Run every method with every seed in a new folder; bad input is refused before the folder
    exists.

    `grids` lists values to try for a method's options, or ranges that `search` limits: the best
    mean on validation data over the seeds wins, and only the winner is measured on test data.
    `only` names the methods that are run now; the others are planned, and run when it is resumed.
    """
    check_unused(folder)
    plan = ComparisonPlan(dict(experiments), list(seeds), grids or {}, search)
    part = _part(plan, only)
    prepared = Prepared(data, models)
    if search:
        optuna()  # its absence is said before any work
        plan = _possible(plan, prepared, watch)
    for seed in seeds:
        _try_out(plan, seed, prepared)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_plan(folder, plan)
    return _play(plan._replace(experiments=part), folder, watch, prepared)


def resume_comparison(
    folder: Path,
    watch: Watch = tell_of,
    data: Given = None,
    models: Networks = None,
    only: Sequence[str] = (),
) -> Comparison:
    """Go on with a comparison that was stopped; runs that are finished stay as they are.

    `only` names the methods that are run now; the others stay as they are.
    """
    plan = read_plan(folder / FILE)
    part = plan._replace(experiments=_part(plan, only))
    return _play(part, folder, watch, Prepared(data, models))


def _part(plan: ComparisonPlan, only: Sequence[str]) -> dict[str, Experiment]:
    """The experiments of some methods, in the plan's order; of all where none is named."""
    for name in only:
        if name not in plan.experiments:
            known = ", ".join(plan.experiments)
            raise BadInput(f"'{name}' is none of its methods: take some of {known}")
    return {k: v for k, v in plan.experiments.items() if not only or k in only}


def runs_of(plan: ComparisonPlan) -> int:
    """How many runs a comparison takes at most, trials included where their number is known."""
    tries = sum(len(points(grid)) for grid in plan.grids.values())
    if plan.search:
        tries = (plan.search.trials or 0) * len(plan.grids)
    return len(plan.seeds) * (len(plan.experiments) + tries)


def check_no_branch(folder: Path, allow_change: bool) -> None:
    """Refuse to branch a comparison, as its methods must share their words from the start."""
    if allow_change:
        raise BadInput(f"{folder} is a comparison, which cannot change on the way: start a new one")


def _try_out(plan: ComparisonPlan, seed: int, prepared: Prepared) -> None:
    """Put every run of a seed together and open it, so that what cannot run is refused now."""
    experiments, _, grids, search = plan
    federation = prepared.federation(replace(next(iter(experiments.values())), seed=seed))
    if grids and not any(len(rows) for rows in federation.validation):
        raise BadInput("tuning chooses on validation data, and there are none: raise --validation")
    for name, experiment in experiments.items():
        tried = [] if search else points(grids.get(name, {}))
        for each in [experiment, *(candidate(experiment, words) for words in tried)]:
            with threads_of(each):
                open_loop(prepared.assembly(replace(each, seed=seed)))


def _possible(plan: ComparisonPlan, prepared: Prepared, watch: Watch) -> ComparisonPlan:
    """The plan without choices that these data and networks refuse; what is left out is said."""
    seed = plan.seeds[0]
    left: dict[str, dict[str, Any]] = {}
    for name, grid in plan.grids.items():
        left[name] = {}
        for word, values in grid.items():
            knob, good, refusals = knob_of(values, word), [], []
            for value in knob.choices or (knob.low, knob.high):
                tried = candidate(plan.experiments[name], {word: value})
                try:
                    with threads_of(tried):
                        open_loop(prepared.assembly(replace(tried, seed=seed)))
                    good.append(value)
                except BadInput as problem:
                    refusals.append(problem)
                    watch(name, seed, saying(f"{word} = {value} is not tried: {problem}"))
            if not good:  # where one end of a range is refused, trials near it will be
                raise refusals[0]
            left[name][word] = good if knob.choices else values
    return plan._replace(grids=left)


def _play(plan: ComparisonPlan, folder: Path, watch: Watch, prepared: Prepared) -> Comparison:
    """Run what is not finished yet: the trials first, then every method with every seed."""
    experiments, seeds, grids, search = plan

    def one(
        label: str, seed: int, experiment: Experiment, place: Path, look: Look | None = None
    ) -> Run:
        _check_plan(experiment, place)
        if status(place) == "finished":
            return load(place)
        if status(place) == "diverged":  # and would again
            raise Diverged(read_about(place)["diverged"]["why"])

        def show(report: RoundReport) -> None:
            watch(label, seed, report)
            if look:
                look(report)

        if (place / CONFIG).exists():
            return resume(place, show, prepared.federation(experiment), prepared.networks)
        shutil.rmtree(place, ignore_errors=True)  # it was stopped before its first word was written
        with threads_of(experiment):
            return execute_assembly(prepared.assembly(experiment), place, show)

    def tuning(name: str, experiment: Experiment) -> Tuning:
        return Tuning(
            name=name,
            experiment=experiment,
            grid=grids[name],
            seeds=seeds,
            folder=folder / FOLDER / name,
            search=search,
            share=search.seconds / len(experiments) if search else float("inf"),
        )

    def whole(task: Tuning) -> Tuning:
        first = prepared.assembly(replace(candidate(task.experiment, {}), seed=seeds[0]))
        *earlier, last = lengths(first.programs[0], first.experiment.schedule)
        measure = task.experiment.schedule.metric or usual_measure(first.federation.target.task)
        return task._replace(better=named(measure).sign, rounds=last, before=sum(earlier))

    tuned = {
        name: tune(tuning(name, experiment), one, _check_plan, whole)
        if grids.get(name)
        else experiment
        for name, experiment in experiments.items()
    }
    runs: dict[str, list[Run]] = {name: [] for name in experiments}
    diverged: dict[str, str] = {}
    for seed in seeds:  # seeds outside, so that each seed's data are made once
        for name, experiment in tuned.items():
            place = folder / f"{name}-seed{seed}"
            try:
                runs[name].append(one(name, seed, replace(experiment, seed=seed), place))
            except Diverged as stop:  # the others go on
                watch(name, seed, saying(f"stopped: {_said(name, stop)}"))
                diverged.setdefault(name, _why(place, seed))
    comparison = _compared(folder, runs, diverged)
    with writing(folder):
        write_csv(comparison)
    return comparison


def _said(name: str, stop: Diverged) -> str:
    """What a stop has to say in a comparison, where a method's rate has a word of its own."""
    return str(stop).replace("lower --rate;", f"lower --{name}.rate;")


def _why(place: Path, seed: int) -> str:
    """Why a run diverged, as its folder says."""
    return f"seed {seed}: {read_about(place)['diverged']['why']}"


def _compared(folder: Path, runs: dict[str, list[Run]], diverged: dict[str, str]) -> Comparison:
    """The methods that came to their end; a method that diverged with any seed is none of them."""
    left = {name: found for name, found in runs.items() if name not in diverged}
    if not left:
        first = next(iter(diverged))
        raise Diverged(
            f"every method of {folder} diverged; {first}: {diverged[first]}; lower --rate"
        )
    return Comparison(folder, left, diverged)


def _check_plan(experiment: Experiment, place: Path) -> None:
    """Refuse a plan that was changed after this run of it had begun."""
    began = read_about(place).get("words", {}) if status(place) else {}
    now = planned_shape(experiment)
    planned = {word: value for word, value in began.items() if word in now}
    found = changes(planned, now, defaults_of(experiment)) if began else {}
    for word, change in found.items():
        raise BadInput(
            f"{said(word, change, FILE, place.name)}: write it back, or start a new comparison"
        )


def load_comparison(folder: Path) -> Comparison:
    """The finished runs of a comparison."""
    experiments, seeds, *_ = read_plan(folder / FILE)
    places = {name: {seed: folder / f"{name}-seed{seed}" for seed in seeds} for name in experiments}
    diverged: dict[str, str] = {}
    for name, mine in places.items():
        for seed, place in mine.items():
            if status(place) == "diverged":
                diverged.setdefault(name, _why(place, seed))
    runs = {
        name: [load(place) for place in mine.values()]
        for name, mine in places.items()
        if name not in diverged
    }
    return _compared(folder, runs, diverged)
