"""The papers' tables run again: what is finished, what our runs say, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from coterie.comparison.execute import Watch, compare, resume_comparison
from coterie.comparison.plan import FILE, ComparisonPlan, plan_of, read_plan, write_plan
from coterie.core.errors import BadInput, suggest_name
from coterie.experiment.config import Experiment, read_toml
from coterie.experiment.recipes import find_config
from coterie.lab.papers.claims import Runs
from coterie.lab.papers.judge import Outcome, count_planned, judge
from coterie.lab.papers.learning_curves import curves_of
from coterie.lab.papers.paper_tables import PaperColumn, PaperTable, read_papers
from coterie.lab.papers.stored_columns import Stored, stored_column
from coterie.lab.papers.traffic import count_traffic, stored_traffic
from coterie.results.folder import read_status
from coterie.results.run import load_run
from coterie.running.execute import extend
from coterie.running.identity import defaults_of, find_changes, format_change, planned_identity_of

SCALE_MARK = "@"  # RECIPE@0.1 is the folder of a tenth of the rounds
MIN_ROUNDS = 2  # rounds of a scaled run


def table_of(name: str) -> PaperTable:
    """A table or figure by its id."""
    known = read_papers()
    if name not in known:
        raise BadInput(f"there is no table '{name}'{suggest_name(name, known)}")
    return known[name]


# Runs on disk


def place_of(out: Path, column: PaperColumn, scale: float | None = None) -> Path | None:
    """The folder that holds runs of a column's recipe, or of the cheaper one; those of a scale, or
    the longest in which most methods have come to their end, if there is one.
    """
    for recipe in filter(None, (column.recipe, column.cheaper)):
        found = [f for f in folders_of(recipe, out) if scale in (None, scale_of(f))]
        if found:
            return next(filter(_has_most, found), found[0])
    return None


def folders_of(recipe: str, out: Path) -> list[Path]:
    """The folders that hold runs of a recipe, the longest first."""
    shorter = sorted(out.glob(f"{recipe}{SCALE_MARK}*"), key=scale_of, reverse=True)
    return [folder for folder in (out / recipe, *shorter) if (folder / FILE).exists()]


def _has_most(folder: Path) -> bool:
    """Whether more than half of a comparison's methods have come to their end."""
    experiments, seeds, *_ = read_plan(folder / FILE)
    ended = [read_status(folder / f"{m}-seed{seeds[0]}") == "finished" for m in experiments]
    return 2 * sum(ended) > len(ended)


def scale_of(folder: Path) -> float:
    """The share of the recipe's rounds that a comparison has."""
    return float(folder.name.partition(SCALE_MARK)[2] or 1)


def load_finished(folder: Path) -> Runs:
    """The finished runs of a comparison by method."""
    experiments, seeds, *_ = read_plan(folder / FILE)
    places = {m: [folder / f"{m}-seed{seed}" for seed in seeds] for m in experiments}
    return {
        m: [load_run(p) for p in some if read_status(p) == "finished"] for m, some in places.items()
    }


def outcome_of(table: PaperTable, out: Path, scale: float | None = None) -> Outcome:
    """What the runs below `out` say of a table, finished or not: those of a scale, or the
    longest.
    """
    if out.exists() and not out.is_dir():
        raise BadInput(f"out = '{out}' is a file: name a folder")
    return judge(table, stored_columns(table, out, scale))


def stored_columns(table: PaperTable, out: Path, scale: float | None = None) -> list[Stored]:
    """What a results file holds of the runs below `out`: columns of whose recipes some method has
    come to its end.
    """
    found = (_read_stored(column, out, scale) for column in table.columns)
    return [column for column in found if column]


def _read_stored(column: PaperColumn, out: Path, scale: float | None) -> Stored:
    if column.arithmetic:
        return stored_traffic(column, out)
    folder = place_of(out, column, scale)
    if folder is None:
        return {}
    methods, seeds = count_planned(column)
    recipe = folder.name.partition(SCALE_MARK)[0]
    runs = load_finished(folder)
    found = stored_column(column, recipe, scale_of(folder), runs, methods * seeds, seeds)
    if found and column.metric == "best":
        longest: Runs = {}
        for place in reversed(folders_of(recipe, out)):
            longest = {**longest, **{m: some for m, some in load_finished(place).items() if some}}
        found["curves"] = curves_of(column, longest)
    return found


# Running


def run_table(
    table: PaperTable,
    out: Path,
    watch: Watch = lambda method, seed, report: None,
    seeds: Sequence[int] | None = None,
    scale: float = 1.0,
    cheaper: bool = True,
    settings: Mapping[str, Any] | None = None,
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
    check_has_recipe(table)
    for column in table.columns:
        if column.arithmetic:
            count_traffic(column, out)
    recipes = dict.fromkeys(
        (column.cheaper if cheaper and column.cheaper else column.recipe)
        for column in table.columns
        if column.recipe and not column.arithmetic
    )
    for name in some:
        if name not in recipes:
            raise BadInput(f"'{name}' is no recipe of {table.id}{suggest_name(name, recipes)}")
    picked = [recipe for recipe in recipes if not some or recipe in some]
    known = {recipe: read_toml(find_config(recipe))["methods"] for recipe in picked}
    for name in only:
        if not any(name in methods for methods in known.values()):
            every = dict.fromkeys(m for methods in known.values() for m in methods)
            raise BadInput(f"'{name}' is no method of {table.id}{suggest_name(name, every)}")
    for recipe in picked:
        mine = [name for name in only if name in known[recipe]]
        if only and not mine:
            continue
        folder = out / (recipe if scale == 1 else f"{recipe}{SCALE_MARK}{scale:g}")
        run_recipe(recipe, folder, watch, seeds, scale, settings, mine)
    return outcome_of(table, out, scale)


def check_has_recipe(table: PaperTable) -> None:
    """Refuse a table that no recipe reproduces, with what does."""
    if not any(column.recipe for column in table.columns):
        way = f"run `python {table.script} --write docs/results`" if table.script else table.note
        raise BadInput(f"'{table.id}' has no recipe: {way}")


def run_recipe(
    recipe: str,
    folder: Path,
    watch: Watch = lambda method, seed, report: None,
    seeds: Sequence[int] | None = None,
    scale: float = 1.0,
    settings: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
) -> None:
    """Run a recipe in its folder, or go on with it; seeds that are new there are added."""
    plan = plan_of(read_toml(find_config(recipe)), seeds=seeds, common=settings or {})
    shortened = {name: _shorten_experiment(one, scale) for name, one in plan.experiments.items()}
    plan = plan._replace(experiments=shortened)
    if (folder / FILE).exists():
        begun = read_plan(folder / FILE)
        _check_recipe_unchanged(recipe, plan, begun, folder)
        wider = _widen_plan(begun, plan, seeds or [], folder)
        if wider != begun:
            write_plan(folder, wider)
        plan = wider
    elif not find_shorter(recipe, folder):
        compare(shortened, plan.seeds, folder, watch, plan.grids, search=plan.search, only=only)
        return
    else:
        folder.mkdir(parents=True)
        write_plan(folder, plan)
    _extend_shorter(recipe, folder, plan, watch, only)
    resume_comparison(folder, watch, only=only)


def find_shorter(recipe: str, folder: Path) -> list[Path]:
    """The folders of a recipe beside this one with fewer of its rounds, the longest first."""
    found = folder.parent.glob(f"{recipe}{SCALE_MARK}*")
    shorter = [place for place in found if scale_of(place) < scale_of(folder)]
    return sorted(shorter, key=scale_of, reverse=True)


def _extend_shorter(
    recipe: str, folder: Path, plan: ComparisonPlan, watch: Watch, only: Sequence[str]
) -> None:
    """Begin runs where shorter ones of the same recipe ended."""
    names = [m for m in plan.experiments if m not in plan.grids and (not only or m in only)]
    for name, seed in ((name, seed) for name in names for seed in plan.seeds):
        place = f"{name}-seed{seed}"
        if (folder / place).exists():
            continue
        experiment = replace(plan.experiments[name], seed=seed)
        for shorter in find_shorter(recipe, folder):
            if extend(shorter / place, experiment, folder / place, partial(watch, name, seed)):
                break


def _check_recipe_unchanged(
    recipe: str, plan: ComparisonPlan, begun: ComparisonPlan, folder: Path
) -> None:
    """Refuse to go on with runs of a recipe that has changed since they began."""
    for name in begun.experiments.keys() & plan.experiments.keys():
        experiment = plan.experiments[name]
        before, now = (planned_identity_of(e) for e in (begun.experiments[name], experiment))
        for option, change in find_changes(before, now, defaults_of(experiment)).items():
            raise BadInput(
                f"{name}: {format_change(option, change, recipe, str(folder))}: give --out "
                "another folder, or "
                "delete this one"
            )


def _widen_plan(
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


def _shorten_experiment(experiment: Experiment, scale: float) -> Experiment:
    schedule = experiment.schedule
    rounds = max(min(MIN_ROUNDS, schedule.rounds), round(schedule.rounds * scale))
    return replace(experiment, schedule=schedule._replace(rounds=rounds))
