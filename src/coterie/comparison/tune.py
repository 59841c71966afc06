"""Options chosen on validation data, alike for every method: each point of a grid, or a search.

A trial is played with every seed of the comparison. A search stops trials that are not among the
better ones half way (successive halving, on the first seed), and has the same number of trials, or
the same share of the time, for every method.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.comparison.limits import SearchLimits
from coterie.comparison.plan import FILE, is_integer, knob_of, set_method_options, value_of
from coterie.comparison.search import Proposal, SearchedOption, propose_trial
from coterie.comparison.steps import is_clearly_better, propose_step
from coterie.comparison.trials import (
    Record,
    State,
    Trial,
    check_space,
    read_record,
    score_of,
    score_of_report,
    select_best,
    write_record,
)
from coterie.core.errors import BadInput, CannotWrite, Diverged
from coterie.experiment.config import Experiment
from coterie.results.run import Run, load_run
from coterie.running.loop import RoundReport

RoundHook = Callable[[RoundReport], None]
RunFunction = Callable[
    [str, int, Experiment, Path, RoundHook | None], Run
]  # plays a run, or loads it


MAX_REPEATS = 20  # trials in a row that were tried before: the search has seen it all


class TrialStopped(Exception):
    """A trial that gets no more rounds, and why."""

    def __init__(self, state: State):
        self.state = state


class Tuning(NamedTuple):
    """How one method is tuned."""

    name: str  # in the comparison
    experiment: Experiment
    grid: Mapping[str, Any]
    seeds: Sequence[int]
    folder: Path
    search: SearchLimits | None = None
    share: float = float("inf")  # seconds, of the final runs too
    # what only the data and the method's program tell:
    better: int = 1  # 1 where a larger score is better, -1 where a smaller one is
    rounds: int = 1  # of the last stage, in which trials may be stopped early
    before: int = 0  # rounds of the stages before, whose scores say little of the last


class GridPoint(NamedTuple):
    """A point of a grid, which is always played to its end."""

    options: dict[str, Any]


def list_points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every point of a grid; none where it is empty."""
    found = itertools.product(*grid.values()) if grid else ()
    return [dict(zip(grid, choice, strict=True)) for choice in found]


def build_trial(
    experiment: Experiment, settings: Mapping[str, Any], once: bool = False
) -> Experiment:
    """The experiment of a trial: it sees validation data only, and keeps nothing.

    once: nobody looks at it on the way, so that its last round alone is measured.
    """
    tried = set_method_options(experiment, settings)
    schedule = tried.schedule._replace(parts=("validation",))
    if once:
        schedule = schedule._replace(eval_every=schedule.rounds)
    keep = tried.keep._replace(models=False, checkpoint=0, track=())
    return replace(tried, schedule=schedule, keep=keep)


def tune(
    task: Tuning,
    one: RunFunction,
    check: Callable[[Experiment, Path], None],
    whole: Callable[[Tuning], Tuning],
) -> Experiment:
    """The experiment with the options of the best mean validation score over the seeds; every
    trial is written down.

    whole: fills in what the data tell, which are not read where the tuning is over.
    """
    space = {option: knob_of(values, option).text for option, values in task.grid.items()}
    record = read_record(task.folder) or Record(space, [])
    check_space(task.folder, record.space, space, FILE)
    for number, trial in enumerate(record.tried, 1):
        for seed in task.seeds:
            tried = replace(_build(task, trial.options), seed=seed)
            check(tried, _folder_of(task, number, seed))
    task = task if record.best else whole(task)
    while record.best is None:
        proposal = _propose_next(task, record.tried)
        if proposal is None:
            record = record._replace(best=_select(task, record.tried).options)
        else:
            record.tried.append(_run_trial(task, record.tried, proposal, one))
        write_record(task.folder, record)
    return set_method_options(task.experiment, record.best)


def _build(task: Tuning, settings: Mapping[str, Any]) -> Experiment:
    """A trial of this tuning."""
    return build_trial(task.experiment, settings, bool(task.search and task.search.steps))


def _select(task: Tuning, tried: Sequence[Trial]) -> Trial:
    """The best trial; of single steps the first, unless the best is better beyond chance."""
    best, first = select_best(tried, task.better), tried[0]
    if not (task.search and task.search.steps) or first.score is None or best is first:
        return best

    def values_of(number: int) -> np.ndarray:
        runs = [load_run(_folder_of(task, number, seed)) for seed in task.seeds]
        return np.stack([run.client_values("validation") for run in runs])

    found, given = values_of(1 + tried.index(best)), values_of(1)
    return best if is_clearly_better(found, given, task.better) else first


def play_first(task: Tuning, one: RunFunction, limit: float) -> float | None:
    """The processor's seconds of a method's first trial, the options as given, which is played
    once; None where it takes longer than the limit.
    """
    space = {option: knob_of(values, option).text for option, values in task.grid.items()}
    record = read_record(task.folder) or Record(space, [])
    if record.tried:
        return record.tried[0].seconds
    proposal = _propose_next(task, [])
    assert proposal is not None
    for seed in task.seeds:  # a part of an earlier one would take less than all of it
        shutil.rmtree(_folder_of(task, 1, seed), ignore_errors=True)
    begin = time.process_time()  # other programs on the machine decide nothing

    def look(seed: int, report: RoundReport) -> None:
        if time.process_time() - begin > limit:
            raise TrialStopped("out of time")

    trial = _play_trial(task, 1, proposal.options, one, look)
    if trial.state == "out of time":
        return None
    record.tried.append(trial._replace(seconds=time.process_time() - begin))
    write_record(task.folder, record)
    return record.tried[0].seconds


def _propose_next(task: Tuning, tried: Sequence[Trial]) -> GridPoint | Proposal | None:
    """What is tried next; None where the tuning is over."""
    if task.search is None:
        left = list_points(task.grid)[len(tried) :]
        return GridPoint(left[0]) if left else None
    if task.search.steps:
        over = len(tried) >= (task.search.trials or 1)
        rate = task.experiment.train.lr
        point = None if over else propose_step(task.grid, rate, tried, task.better)
        return None if point is None else GridPoint(point)
    repeats = [t.rounds == 0 for t in tried[-MAX_REPEATS:]]
    enough = len(tried) >= (task.search.trials or float("inf"))
    if tried and (
        enough or _seconds_left_of(task, tried) <= 0 or repeats.count(True) == MAX_REPEATS
    ):
        return None
    return propose_trial(
        searched_options_of(task.experiment, task.grid), tried, task.better, task.rounds
    )


def searched_options_of(
    experiment: Experiment, grid: Mapping[str, Any]
) -> dict[str, SearchedOption]:
    """What a search turns."""
    return {
        option: SearchedOption(
            knob_of(values, option), is_integer(experiment, option), value_of(experiment, option)
        )
        for option, values in grid.items()
    }


def _seconds_left_of(task: Tuning, tried: Sequence[Trial]) -> float:
    """Seconds of a method's share that are left for trials; the best so far is run at the end."""
    final = select_best(tried, task.better).seconds or 0.0
    return task.share - final - sum(trial.seconds or 0.0 for trial in tried)


def _folder_of(task: Tuning, number: int, seed: int) -> Path:
    return task.folder / f"try{number}-seed{seed}"


def _run_trial(
    task: Tuning, tried: Sequence[Trial], proposal: GridPoint | Proposal, one: RunFunction
) -> Trial:
    """Play a trial with every seed, as far as it is worth it."""
    begin, number = time.perf_counter(), len(tried) + 1
    if isinstance(proposal, GridPoint):
        return _play_trial(task, number, proposal.options, one)
    before = next((t for t in tried if t.options == proposal.options), None)
    if before:
        return _repeat_trial(before)
    curve: dict[str, float] = {}
    # the options as given are played in any case
    left = _seconds_left_of(task, tried) if tried else float("inf")

    def look(seed: int, report: RoundReport) -> None:
        score = score_of_report(report)
        step = report.round - task.before
        if seed == task.seeds[0] and score is not None and step > 0:
            curve[str(step)] = score
            if not proposal.goes_on(step, task.better * score):
                raise TrialStopped("stopped")
        if time.perf_counter() - begin > left and report.round < report.rounds:
            raise TrialStopped("out of time")

    for seed in task.seeds:  # what a killed search left of this trial lacks its scores on the way
        shutil.rmtree(_folder_of(task, number, seed), ignore_errors=True)
    found = _play_trial(task, number, proposal.options, one, look)
    if found.state in ("stopped", "out of time"):
        found = found._replace(validation=[next(reversed(curve.values()), None)])
    spent = time.perf_counter() - begin if task.search and task.search.budget else None
    rounds = max(found.rounds, task.before + max(map(int, curve), default=0))
    return found._replace(
        rounds=rounds, point=proposal.point, curve=curve, rungs=proposal.rungs, seconds=spent
    )


def _repeat_trial(before: Trial) -> Trial:
    """A trial whose options were tried before: it has the same score, and cost nothing."""
    state: State = "repeated" if before.state == "finished" else before.state
    return before._replace(state=state, rounds=0, rungs=None, seconds=before.seconds and 0.0)


def _play_trial(
    task: Tuning,
    number: int,
    settings: Mapping[str, Any],
    one: RunFunction,
    look: Callable[[int, RoundReport], None] | None = None,
) -> Trial:
    """One trial with every seed; one that diverges has no score."""
    tried = _build(task, settings)
    label = f"{task.name} {' '.join(f'{k}={v}' for k, v in settings.items())}"
    scores: list[float | None] = []
    state: State = "finished"
    rounds = 0
    for seed in task.seeds:
        watch = partial(look, seed) if look else None
        place = _folder_of(task, number, seed)
        try:
            run = one(label, seed, replace(tried, seed=seed), place, watch)
        except Diverged:
            scores.append(None)
            state = "diverged"
            continue
        except TrialStopped as stop:
            return Trial(dict(settings), [], rounds, stop.state)
        except CannotWrite:
            raise
        except BadInput:  # each value was tried out by itself, but not with every other
            if not look:
                raise
            return Trial(dict(settings), [None], rounds, "refused")
        rounds = rounds or int(run.table["round"].to_numpy().max())
        score = score_of(run)
        scores.append(None if score != score else score)
    return Trial(dict(settings), scores, rounds, state)
