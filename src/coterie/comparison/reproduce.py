"""The papers' tables run again: what is finished, what our runs say, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.analysis.fairness import jain, top_share_by_size, worst, worst_share
from coterie.analysis.gains import improvement, qoi_global
from coterie.analysis.numbers import mean_of
from coterie.analysis.verdicts import POINT, Figure, Word, figure, overall, verdict
from coterie.comparison.claims import Claimed, Runs, check_claim
from coterie.comparison.execute import Watch, compare, resume_comparison
from coterie.comparison.plan import FILE, ComparisonPlan, plan_of, read_plan, write_plan
from coterie.core.errors import BadInput, nearest
from coterie.experiment.config import Experiment, read_toml
from coterie.experiment.papers import (
    PaperColumn,
    PaperRow,
    PaperTable,
    is_outcome,
    near,
    paper_tables,
)
from coterie.experiment.recipes import config_path
from coterie.results.costs import accuracy_against, rounds_to_reach, simulated_time, spent
from coterie.results.folder import status
from coterie.results.run import Run, load
from coterie.results.table import curve, values
from coterie.running.shape import changes, defaults_of, planned_shape, said

SCALED = "@"  # RECIPE@0.1 is the folder of a tenth of the rounds
LEAST = 2  # rounds of a scaled run
MB = 1e6  # bytes
ROUNDING = 1e-9  # two sums of the same times may differ by it


class Cell(NamedTuple):
    """One row of a paper's column, with our figure for every seed."""

    row: PaperRow
    figure: Figure
    seeds: tuple[int, ...]


class Column(NamedTuple):
    """One column of a paper's table beside our runs of its recipe."""

    column: PaperColumn
    recipe: str  # that was run
    scale: float  # of its rounds
    done: int  # runs that are finished
    wanted: int  # runs that the recipe has
    seeds: int  # of each method, in the recipe
    cells: tuple[Cell, ...]
    pairs: tuple[tuple[str, str, float, float], ...]  # better, worse, our figures of both
    claims: tuple[Claimed, ...]
    verdict: Word


class Outcome(NamedTuple):
    """A paper's table beside our runs."""

    table: PaperTable
    columns: tuple[Column, ...]

    @property
    def verdict(self) -> Word:
        return overall([c.verdict for c in self.columns if not c.column.otherwise])

    @property
    def state(self) -> str:
        """How much of it has been run."""
        done, wanted = (sum(getattr(c, word) for c in self.columns) for word in ("done", "wanted"))
        if not wanted:
            return "no recipe"
        scaled = any(c.scale != 1 and c.done for c in self.columns)
        word = "finished" if done == wanted else f"{done} of {wanted} runs" if done else "not run"
        return f"{word}, shortened" if scaled else word


def table_of(name: str) -> PaperTable:
    """A table or figure by its id."""
    known = paper_tables()
    if name not in known:
        raise BadInput(f"there is no table '{name}'{nearest(name, known)}")
    return known[name]


# What our runs say


def measure(run: Run, metric: str, view: str, fedavg: Run | None = None) -> float:
    """A run's figure as a paper measures it, in percent where it is an accuracy; NaN if unknown."""
    kind, _, part = metric.partition(".")
    if metric.startswith("note:"):
        return _noted(run, metric.removeprefix("note:"))
    if kind in ("gain_over_fedavg", "fairness"):
        return _gain(run, fedavg, part)
    if view not in run.views:
        return nan
    if kind == "rounds":
        return _rounds_needed(run, view)
    if kind == "bytes":
        return float(spent(run, "bytes")[1][-1]) / MB
    if kind == "mean_at_time":
        return _at_time(run, fedavg, view, part)
    where = part or run.part
    if kind == "loss":
        return _loss(run, where, view)
    accuracy = values(run.table, "accuracy", where, view)[1]
    if not len(accuracy):
        return nan
    rows = np.array(run.about["rows"][where], dtype=float)
    known = ~np.isnan(accuracy)
    kinds: dict[str, Callable[[], float]] = {
        "mean": lambda: mean_of(accuracy),
        "weighted": lambda: float(np.average(accuracy[known], weights=rows[known])),
        "worst": lambda: worst(accuracy),
        "worst_tenth": lambda: worst_share(accuracy),
        "largest_tenth": lambda: top_share_by_size(accuracy, rows),
    }
    return 100 * kinds[kind]() if kind in kinds and known.any() else nan


def _loss(run: Run, part: str, view: str) -> float:
    """The mean loss over all rows of a part."""
    losses = values(run.table, "loss", part, view)[1]
    if not len(losses) or np.isnan(losses).all():
        return nan
    rows, known = np.array(run.about["rows"][part], dtype=float), ~np.isnan(losses)
    return float(np.average(losses[known], weights=rows[known]))


def _rounds_needed(run: Run, view: str) -> float:
    """The first round whose mean accuracy is within a point of the best; where clients choose a
    teacher among the rounds, the latest one chosen, as no later round is of use.
    """
    teachers = values(run.table, "teacher_round", "", "")[1]
    if len(teachers):
        return float(np.nanmax(teachers))
    rounds, means = curve(run.table, "accuracy", run.part, view)
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


def measured_as(column: PaperColumn, row: PaperRow) -> str:
    """The metric of a row; a note with points has one for each."""
    return f"{column.metric}[{row.point}]" if row.point else column.metric


def _noted(run: Run, note: str) -> float:
    """The mean over clients of a note in the last round that has it."""
    found = values(run.table, note, "", "")[1]
    return mean_of(found) if len(found) else nan


def _gain(run: Run, fedavg: Run | None, part: str) -> float:
    """Gains over FedAvg: their mean, one of the figures of Chapter 5, or Jain's index of them."""
    if fedavg is None:
        return nan
    gains = qoi_global(run.accuracy(), fedavg.accuracy())
    if part == "jain":
        return jain(gains[gains > 0])
    return float(getattr(improvement(gains), part)) if part else mean_of(gains)


# Runs on disk


def place_of(out: Path, column: PaperColumn, scale: float | None = None) -> Path | None:
    """The folder that holds runs of a column's recipe, or of the cheaper one; those of a scale, or
    the longest.
    """
    for recipe in filter(None, (column.recipe, column.cheaper)):
        shorter = sorted(out.glob(f"{recipe}{SCALED}*"), key=scale_of, reverse=True)
        for folder in (out / recipe, *shorter):
            if (folder / FILE).exists() and scale in (None, scale_of(folder)):
                return folder
    return None


def scale_of(folder: Path) -> float:
    """The share of the recipe's rounds that a comparison has."""
    return float(folder.name.partition(SCALED)[2] or 1)


def finished(folder: Path) -> Runs:
    """The finished runs of a comparison by method."""
    experiments, seeds, *_ = read_plan(folder / FILE)
    places = {m: [folder / f"{m}-seed{seed}" for seed in seeds] for m in experiments}
    return {m: [load(p) for p in some if status(p) == "finished"] for m, some in places.items()}


def outcome(table: PaperTable, out: Path, scale: float | None = None) -> Outcome:
    """What the runs below `out` say of a table, finished or not: those of a scale, or the
    longest.
    """
    if out.exists() and not out.is_dir():
        raise BadInput(f"out = '{out}' is a file: name a folder")
    return Outcome(table, tuple(_column(column, out, scale) for column in table.columns))


def _column(column: PaperColumn, out: Path, at: float | None) -> Column:
    folder = place_of(out, column, at)
    scale = scale_of(folder) if folder else 1.0
    runs = finished(folder) if folder else {}
    methods, seeds = _planned(column)
    cells = tuple(_cell(column, row, runs) for row in column.rows)
    means = {m: _mean(column, m, column.view, runs) for pair in column.above for m in pair}
    pairs = tuple((a, b, means[a], means[b]) for a, b in column.above)

    def figures(method: str) -> list[float]:
        return list(_figures(column.metric, runs.get(method, ()), column.view, runs))

    claims = tuple(check_claim(words, runs, figures) for words in column.claims)
    return Column(
        column=column,
        recipe=folder.name.partition(SCALED)[0] if folder else column.cheaper or column.recipe,
        scale=scale,
        done=sum(len(some) for some in runs.values()),
        wanted=methods * seeds,
        seeds=seeds,
        cells=cells,
        pairs=pairs,
        claims=claims,
        verdict=verdict(
            [cell.figure for cell in cells],
            [pair[2:] for pair in pairs],
            [claim.holds for claim in claims],
            scale < 1,
        ),
    )


def _planned(column: PaperColumn) -> tuple[int, int]:
    """How many methods and seeds a column's recipe has."""
    if not column.recipe:
        return 0, 0
    words = read_toml(config_path(column.recipe))
    return len(words["methods"]), len(words.get("seeds", [0]))


def _cell(column: PaperColumn, row: PaperRow, runs: Runs) -> Cell:
    mine = runs.get(row.method, ())
    ours = list(_figures(measured_as(column, row), mine, row.view, runs))
    seeds = tuple(run.experiment.seed for run in mine)
    paper = row.value if is_outcome(column.metric) else None
    found = figure(row.label, paper, row.spread, ours, near(column.metric))
    return Cell(row, found, seeds)


def _mean(column: PaperColumn, method: str, view: str, runs: Runs) -> float:
    found = list(_figures(column.metric, runs.get(method, ()), view, runs))
    return mean_of(found) if found else nan


def _figures(metric: str, mine: Sequence[Run], view: str, runs: Runs) -> Iterator[float]:
    base = {run.experiment.seed: run for run in runs.get("fedavg", ())}
    return (measure(run, metric, view, base.get(run.experiment.seed)) for run in mine)


# Running


def reproduce(
    table: PaperTable,
    out: Path,
    watch: Watch = lambda method, seed, report: None,
    seeds: Sequence[int] | None = None,
    scale: float = 1.0,
    cheaper: bool = True,
    words: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    some: Sequence[str] = (),
) -> Outcome:
    """Run the recipes of a table, or go on with them; what is finished is kept.

    scale: a share of the rounds, for a look that is marked as shortened. cheaper: where a recipe
    costs too much for a small machine, the one of narrower networks. only, some: the methods and
    the recipes that are run now; the others stay as they are.
    """
    if not 0 < scale <= 1:
        raise BadInput(f"scale = {scale:g}: give a share of the rounds above 0, up to 1")
    check_runs(table)
    recipes = dict.fromkeys(
        (column.cheaper if cheaper and column.cheaper else column.recipe)
        for column in table.columns
        if column.recipe
    )
    for name in some:
        if name not in recipes:
            raise BadInput(f"'{name}' is no recipe of {table.id}{nearest(name, recipes)}")
    picked = [recipe for recipe in recipes if not some or recipe in some]
    known = {recipe: read_toml(config_path(recipe))["methods"] for recipe in picked}
    for name in only:
        if not any(name in methods for methods in known.values()):
            every = dict.fromkeys(m for methods in known.values() for m in methods)
            raise BadInput(f"'{name}' is no method of {table.id}{nearest(name, every)}")
    for recipe in picked:
        mine = [name for name in only if name in known[recipe]]
        if only and not mine:
            continue
        folder = out / (recipe if scale == 1 else f"{recipe}{SCALED}{scale:g}")
        play_recipe(recipe, folder, watch, seeds, scale, words, mine)
    return outcome(table, out, scale)


def check_runs(table: PaperTable) -> None:
    """Refuse a table that no recipe reproduces, with what does."""
    if not any(column.recipe for column in table.columns):
        way = f"run `python {table.script} --write docs/results`" if table.script else table.note
        raise BadInput(f"'{table.id}' has no recipe: {way}")


def play_recipe(
    recipe: str,
    folder: Path,
    watch: Watch = lambda method, seed, report: None,
    seeds: Sequence[int] | None = None,
    scale: float = 1.0,
    words: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
) -> None:
    """Run a recipe in its folder, or go on with it; seeds that are new there are added."""
    plan = plan_of(read_toml(config_path(recipe)), seeds=seeds, common=words or {})
    shortened = {name: _shortened(one, scale) for name, one in plan.experiments.items()}
    plan = plan._replace(experiments=shortened)
    if (folder / FILE).exists():
        begun = read_plan(folder / FILE)
        _check_same(recipe, plan, begun, folder)
        wider = _widened(begun, plan, seeds or [], folder)
        if wider != begun:
            write_plan(folder, wider)
        resume_comparison(folder, watch, only=only)
        return
    compare(shortened, plan.seeds, folder, watch, plan.grids, search=plan.search, only=only)


def _check_same(recipe: str, plan: ComparisonPlan, begun: ComparisonPlan, folder: Path) -> None:
    """Refuse to go on with runs of a recipe that has changed since they began."""
    for name in begun.experiments.keys() & plan.experiments.keys():
        experiment = plan.experiments[name]
        before, now = (planned_shape(e) for e in (begun.experiments[name], experiment))
        for word, change in changes(before, now, defaults_of(experiment)).items():
            raise BadInput(
                f"{name}: {said(word, change, recipe, str(folder))}: give --out another folder, or "
                "delete this one"
            )


def _widened(
    begun: ComparisonPlan, plan: ComparisonPlan, seeds: Sequence[int], folder: Path
) -> ComparisonPlan:
    """A comparison's plan with the methods that its recipe has got since, and with new seeds."""
    new = [seed for seed in seeds if seed not in begun.seeds]
    if new and begun.grids:
        has, asked = (",".join(map(str, some)) for some in (begun.seeds, seeds))
        raise BadInput(
            f"{folder} has chosen options with seeds {has}, and --seeds asks for {asked}: give "
            "--out another folder"
        )
    return begun._replace(
        experiments={**plan.experiments, **begun.experiments},
        seeds=[*begun.seeds, *new],
        grids={**plan.grids, **begun.grids},
    )


def _shortened(experiment: Experiment, scale: float) -> Experiment:
    schedule = experiment.schedule
    rounds = max(min(LEAST, schedule.rounds), round(schedule.rounds * scale))
    return replace(experiment, schedule=schedule._replace(rounds=rounds))
