"""Several methods, several seeds, the same data, splits and budgets: one table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.analysis.scores import default_measure_of, find_score
from coterie.comparison.automatic import decide_trials, settle_steps
from coterie.comparison.cache import AssemblyCache
from coterie.comparison.limits import SearchLimits
from coterie.comparison.plan import FILE, ComparisonPlan, Grids, knob_of, read_plan, write_plan
from coterie.comparison.references import fit_references, write_references
from coterie.comparison.search import load_optuna
from coterie.comparison.trials import FOLDER
from coterie.comparison.tune import (
    RoundHook,
    Tuning,
    build_trial,
    list_points,
    play_first,
    tune,
)
from coterie.core.errors import BadInput, Diverged
from coterie.core.files import catch_write_errors
from coterie.core.option_names import rename_options
from coterie.experiment.build import Given, Networks
from coterie.experiment.config import Experiment
from coterie.experiment.own_code import check_code
from coterie.results.about import options_of
from coterie.results.comparison import Comparison, write_csv
from coterie.results.folder import CONFIG, read_about, read_status
from coterie.results.run import Run, load_run
from coterie.results.trackers import check_trackers
from coterie.running.assembly import is_own_table, open_loop
from coterie.running.execute import (
    PLUGINS,
    check_plugins,
    check_unused,
    execute_assembly,
    find_damage,
    resume,
    threads_of,
)
from coterie.running.identity import defaults_of, find_changes, format_change, planned_identity_of
from coterie.running.loop import RoundReport, message_report_of, print_messages, stage_lengths_of

Watch = Callable[[str, int, RoundReport], None]  # (method, seed, report)


def print_run_messages(method: str, seed: int, report: RoundReport) -> None:
    """Say what must be said of a run where nobody else watches."""
    print_messages(report, f"{method} seed {seed}: ")


def compare(
    experiments: Mapping[str, Experiment],
    seeds: Sequence[int],
    folder: Path,
    watch: Watch = print_run_messages,
    grids: Grids | None = None,
    data: Given = None,
    models: Networks = None,
    search: SearchLimits | None = None,
    only: Sequence[str] = (),
    references: bool = True,
) -> Comparison:
    """Run every method with every seed in a new folder; bad input is refused before the folder
    exists.

    `grids` lists values to try for a method's options, or ranges that `search` limits: the best
    mean on validation data over the seeds wins, and only the winner is measured on test data.
    `only` names the methods that are run now; the others are planned, and run when it is resumed.
    `references`: on tables of one's own, also what scikit-learn reaches alone and pooled.
    """
    check_unused(folder)
    plan = ComparisonPlan(dict(experiments), list(seeds), grids or {}, search)
    part = _select_methods(plan, only)
    check_trackers(next(iter(part.values())).keep.track)
    prepared = AssemblyCache(data, models)
    if search and search.steps:
        plan = settle_steps(plan, prepared)
    elif search or any("model" in grid for grid in plan.grids.values()):
        if search:
            load_optuna()  # its absence is said before any work
        plan = _drop_refused_values(plan, prepared, watch)
    for seed in seeds:
        _check_runs(plan, seed, prepared)
    with catch_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_plan(folder, plan)
    if references:
        _add_references(plan, folder, prepared)
    return _run_all(plan._replace(experiments=part), folder, watch, prepared)


def _add_references(plan: ComparisonPlan, folder: Path, prepared: AssemblyCache) -> None:
    """What scikit-learn reaches on the rows of every seed, where they are a table."""
    first, found, measure = next(iter(plan.experiments.values())), {}, ""
    for seed in plan.seeds:
        experiment = replace(first, seed=seed)
        federation = prepared.federation(experiment)
        if "test" not in first.schedule.parts or not is_own_table(experiment, federation):
            return
        judged = prepared.assembly(experiment).experiment.schedule.metric
        measure = judged or default_measure_of(federation.target.task)
        found[seed] = fit_references(federation, measure, seed)
    if any(found.values()):
        write_references(folder, found, measure)


def resume_comparison(
    folder: Path,
    watch: Watch = print_run_messages,
    data: Given = None,
    models: Networks = None,
    only: Sequence[str] = (),
) -> Comparison:
    """Go on with a comparison that was stopped; runs that are finished stay as they are.

    `only` names the methods that are run now; the others stay as they are.
    """
    plan = read_plan(folder / FILE)
    part = plan._replace(experiments=_select_methods(plan, only))
    for name, experiment in part.experiments.items():
        places = [folder / f"{name}-seed{seed}" for seed in plan.seeds]
        try:
            check_code(experiment, _recorded(places[0]), folder)
        except BadInput:
            if not only and _is_complete(folder, plan):
                return load_comparison(folder)
            raise
    return _run_all(part, folder, watch, AssemblyCache(data, models))


def _recorded(place: Path) -> list[dict[str, str]]:
    """What a run has written down of the code that it needs."""
    return list(read_about(place).get(PLUGINS, [])) if read_status(place) else []


def _is_complete(folder: Path, plan: ComparisonPlan) -> bool:
    """Whether every run of a plan has come to its end and is whole."""
    places = [folder / f"{name}-seed{seed}" for name in plan.experiments for seed in plan.seeds]
    states = {place: read_status(place) for place in places}
    return all(
        state == "diverged" or (state == "finished" and not find_damage(place))
        for place, state in states.items()
    )


def _select_methods(plan: ComparisonPlan, only: Sequence[str]) -> dict[str, Experiment]:
    """The experiments of some methods, in the plan's order; of all where none is named."""
    for name in only:
        if name not in plan.experiments:
            known = ", ".join(plan.experiments)
            raise BadInput(f"'{name}' is none of its methods: take some of {known}")
    return {k: v for k, v in plan.experiments.items() if not only or k in only}


def count_runs(plan: ComparisonPlan) -> int:
    """How many runs a comparison takes at most, trials included where their number is known."""
    tries = sum(len(list_points(grid)) for grid in plan.grids.values())
    if plan.search:
        tries = (plan.search.trials or 0) * len(plan.grids)
    return len(plan.seeds) * (len(plan.experiments) + tries)


def check_no_branch(folder: Path, allow_change: bool) -> None:
    """Refuse to branch a comparison, as its methods must share their options from the start."""
    if allow_change:
        raise BadInput(f"{folder} is a comparison, which cannot change on the way: start a new one")


def _check_runs(plan: ComparisonPlan, seed: int, prepared: AssemblyCache) -> None:
    """Put every run of a seed together and open it, so that what cannot run is refused now."""
    experiments, _, grids, search = plan
    federation = prepared.federation(replace(next(iter(experiments.values())), seed=seed))
    if grids and not any(len(rows) for rows in federation.validation):
        raise BadInput("tuning chooses on validation data, and there are none: raise --validation")
    for name, experiment in experiments.items():
        tried = [] if search else list_points(grids.get(name, {}))
        for each in [experiment, *(build_trial(experiment, settings) for settings in tried)]:
            with threads_of(each):
                open_loop(prepared.assembly(replace(each, seed=seed)))


def _drop_refused_values(
    plan: ComparisonPlan, prepared: AssemblyCache, watch: Watch
) -> ComparisonPlan:
    """The plan without choices that these data and networks refuse; what is left out is said."""
    seed = plan.seeds[0]
    left: dict[str, dict[str, Any]] = {}
    for name, grid in plan.grids.items():
        left[name] = {}
        for option, values in grid.items():
            knob, good, refusals = knob_of(values, option), [], []
            for value in knob.choices or (knob.low, knob.high):
                tried = build_trial(plan.experiments[name], {option: value})
                try:
                    with threads_of(tried):
                        open_loop(prepared.assembly(replace(tried, seed=seed)))
                    good.append(value)
                except BadInput as problem:
                    refusals.append(problem)
                    watch(
                        name, seed, message_report_of(f"{option} = {value} is not tried: {problem}")
                    )
            if not good:  # where one end of a range is refused, trials near it will be
                raise refusals[0]
            left[name][option] = good if knob.choices else values
    return plan._replace(grids=left)


def _run_all(
    plan: ComparisonPlan, folder: Path, watch: Watch, prepared: AssemblyCache
) -> Comparison:
    """Run what is not finished yet: the trials first, then every method with every seed."""
    experiments, seeds, grids, search = plan

    def one(
        label: str, seed: int, experiment: Experiment, place: Path, look: RoundHook | None = None
    ) -> Run:
        _check_plan(experiment, place)
        if read_status(place) == "finished" and not find_damage(place):
            return load_run(place)
        if read_status(place) == "diverged":  # and would again
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
        first = prepared.assembly(replace(build_trial(task.experiment, {}), seed=seeds[0]))
        *earlier, last = stage_lengths_of(first.programs[0], first.experiment.schedule)
        measure = first.experiment.schedule.metric or default_measure_of(
            first.federation.target.task
        )
        return task._replace(better=find_score(measure).sign, rounds=last, before=sum(earlier))

    if search and search.steps and search.trials is None:

        def first_trial(name: str, limit: float) -> float | None:
            return play_first(tuning(name, experiments[name]), one, limit)

        plan = decide_trials(plan, search, first_trial)
        grids, search = plan.grids, plan.search
        if search is None:
            shutil.rmtree(folder / FOLDER, ignore_errors=True)
        write_plan(folder, read_plan(folder / FILE)._replace(grids=grids, search=search))
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
                watch(name, seed, message_report_of(f"stopped: {_adapt_message(name, stop)}"))
                diverged.setdefault(name, _divergence_of(place, seed))
    comparison = _build_comparison(folder, runs, diverged)
    with catch_write_errors(folder):
        write_csv(comparison)
    return comparison


def _adapt_message(name: str, stop: Diverged) -> str:
    """What a stop has to say in a comparison, where a method's rate has an option of its own."""
    return str(stop).replace("lower --lr;", f"lower --{name}.lr;")


def _divergence_of(place: Path, seed: int) -> str:
    """Why a run diverged, as its folder says."""
    return f"seed {seed}: {read_about(place)['diverged']['why']}"


def _build_comparison(
    folder: Path, runs: dict[str, list[Run]], diverged: dict[str, str]
) -> Comparison:
    """The methods that came to their end; a method that diverged with any seed is none of them."""
    left = {name: found for name, found in runs.items() if name not in diverged}
    if not left:
        first = next(iter(diverged))
        raise Diverged(f"every method of {folder} diverged; {first}: {diverged[first]}; lower --lr")
    return Comparison(folder, left, diverged)


def _check_plan(experiment: Experiment, place: Path) -> None:
    """Refuse a plan that was changed after this run of it had begun."""
    began = options_of(read_about(place)) if read_status(place) else {}
    check_plugins(_recorded(place), experiment, place)
    now = planned_identity_of(experiment)
    began = rename_options(began, now)
    planned = {option: value for option, value in began.items() if option in now}
    found = find_changes(planned, now, defaults_of(experiment)) if began else {}
    for option, change in found.items():
        raise BadInput(
            f"{format_change(option, change, FILE, place.name)}: write it back, or start a new "
            "comparison"
        )


def load_comparison(folder: Path) -> Comparison:
    """The finished runs of a comparison."""
    experiments, seeds, *_ = read_plan(folder / FILE)
    places = {name: {seed: folder / f"{name}-seed{seed}" for seed in seeds} for name in experiments}
    diverged: dict[str, str] = {}
    for name, mine in places.items():
        for seed, place in mine.items():
            if read_status(place) == "diverged":
                diverged.setdefault(name, _divergence_of(place, seed))
    runs = {
        name: [load_run(place) for place in mine.values()]
        for name, mine in places.items()
        if name not in diverged
    }
    return _build_comparison(folder, runs, diverged)
