"""A miniature of every recipe, checked against the figures stored with them: an interpretation that
changes is noticed in a minute, not after the hours of the whole table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.analysis.nan_math import mean_of
from coterie.comparison.plan import plan_of
from coterie.core.errors import BadInput
from coterie.core.files import read_text, write_text
from coterie.data.dataset import Public
from coterie.data.federation import PARTS, Federation
from coterie.experiment.config import Experiment, read_toml
from coterie.experiment.recipes import find_config
from coterie.lab.papers.paper_tables import PAPERS, PaperTable
from coterie.results.metric_table import values_of
from coterie.results.run import Run
from coterie.running.assembly import assemble, load_federation
from coterie.running.execute import execute_assembly, threads_of

LOSSES_FILE = PAPERS / "miniatures.json"
CLIENTS, ROWS, ROUNDS, STEPS, METHODS = 4, 24, 2, 2, 2
TOLERANCE = 0.005  # of a loss: machines round differently, and two rounds hardly spread it
# options that decide how long a method works beside its steps, cut down to this
SHORT_OPTIONS = {
    "distil_epochs": 1,
    "tune_epochs": 1,
    "draw": ROWS,
    "public_batch_size": ROWS // 2,
    "distil_steps": 1,
}
# methods in whose place a paper speaks: they are checked before the others
PAPER_METHODS = ("persfl", "pfml", "ktpfl", "selffl", "ucfl", "fml")

Losses = dict[str, float]  # by method


class LossDifference(NamedTuple):
    """A method whose miniature gives another loss than the stored one."""

    recipe: str
    method: str
    stored: float | None  # None: there is none
    found: float


class MiniatureCheck(NamedTuple):
    """What came of the miniatures."""

    found: dict[str, Losses]  # by recipe
    missing: dict[str, str]  # {recipe: why its data are not here}
    differences: tuple[LossDifference, ...]


def recipes_of(tables: Iterable[PaperTable]) -> list[str]:
    """Every recipe that these tables name, the cheaper one where there are two."""
    columns = (column for table in tables for column in table.columns)
    return sorted({c.cheaper or c.recipe for c in columns if c.recipe and not c.arithmetic})


def check_miniatures(
    recipes: Iterable[str], folder: Path, watch: Callable[[str], None] = lambda recipe: None
) -> MiniatureCheck:
    """Play the miniatures in a folder of their own and hold them against what is stored."""
    stored: dict[str, Losses] = json.loads(read_text(LOSSES_FILE)) if LOSSES_FILE.exists() else {}
    found, missing = dict[str, Losses](), dict[str, str]()
    for recipe in recipes:
        watch(recipe)
        small = build_miniature(recipe)
        try:
            federation = cut_federation(load_federation(next(iter(small.values()))))
        except BadInput as why:  # the data are not on this machine
            missing[recipe] = str(why)
            continue
        found[recipe] = run_miniature(small, federation, folder / recipe)
    return MiniatureCheck(found, missing, tuple(_find_differences(found, stored)))


def build_miniature(recipe: str) -> dict[str, Experiment]:
    """The chosen methods of a recipe, cut down."""
    settings = read_toml(find_config(recipe))
    planned = plan_of(settings, seeds=[0], common={"threads": 1}).experiments
    return {name: shorten_experiment(planned[name]) for name in select_methods(list(planned))}


def run_miniature(
    experiments: Mapping[str, Experiment], federation: Federation, folder: Path
) -> Losses:
    """The mean loss of the clients' models after every experiment."""
    losses = Losses()
    for name, experiment in experiments.items():
        with threads_of(experiment):
            run = execute_assembly(assemble(experiment, federation), folder / name)
        losses[name] = _loss_of(run)
    return losses


def cut_federation(federation: Federation) -> Federation:
    """The first clients of a federation with their first rows, and no other row."""
    public = federation.public
    small = first_clients(federation, CLIENTS, ROWS)
    return small._replace(public=public and _cut_public(public))


def first_clients(federation: Federation, clients: int, rows: int | None = None) -> Federation:
    """The first clients of a federation, with their first rows or all of them."""
    few = {p: [mine[:rows] for mine in getattr(federation, p)[:clients]] for p in PARTS}
    used = np.unique(np.concatenate([mine for lists in few.values() for mine in lists]))
    kept: dict[str, Any] = {
        p: [np.searchsorted(used, mine) for mine in lists] for p, lists in few.items()
    }
    truth = federation.truth
    return federation._replace(
        **kept,
        x=federation.x[used],
        y=federation.y[used],
        rows=None if federation.rows is None else federation.rows[used],
        groups=federation.groups[:clients],
        names=federation.names[:clients],
        truth=None if truth is None else truth[:clients],
    )


def _cut_public(public: Public) -> Public:
    y = None if public.y is None else public.y[:ROWS]
    return public._replace(x=public.x[:ROWS], y=y)


def select_methods(methods: Sequence[str]) -> list[str]:
    """The methods of a recipe that its miniature plays: the paper's own first."""
    own = [m for m in methods if m.partition("@")[0].partition("-")[0] in PAPER_METHODS]
    others = [m for m in methods if m not in own]
    return [*own[: METHODS - 1], *others, *own[METHODS - 1 :]][:METHODS]


def shorten_experiment(experiment: Experiment) -> Experiment:
    """An experiment cut down to a few steps: the same data, network and interpretation."""
    schedule = experiment.schedule._replace(
        rounds=ROUNDS,
        participation=min(experiment.schedule.participation, CLIENTS),
        eval_every=ROUNDS,
        parts=("test",),
    )
    options = {
        option: min(SHORT_OPTIONS[option], value)
        if option in SHORT_OPTIONS and isinstance(value, int)
        else value
        for option, value in experiment.options.items()
    }
    return replace(
        experiment,
        train=experiment.train._replace(local_steps=STEPS),
        schedule=schedule,
        options=options,
        engine=experiment.engine | {"path": "sequential", "width": CLIENTS, "compile": "no"},
        keep=experiment.keep._replace(models=False),
    )


def store_losses(found: Mapping[str, Losses]) -> Path:
    """Write the figures that later checks are held against."""
    known: dict[str, Any] = json.loads(read_text(LOSSES_FILE)) if LOSSES_FILE.exists() else {}
    text = json.dumps(dict(sorted((known | dict(found)).items())), indent=1)
    write_text(LOSSES_FILE, text + "\n")
    return LOSSES_FILE


def _loss_of(run: Run) -> float:
    return round(mean_of(values_of(run.table, "loss", run.part)[1]), 6)


def _find_differences(
    found: Mapping[str, Losses], stored: Mapping[str, Losses]
) -> Iterable[LossDifference]:
    for recipe, losses in found.items():
        for method, loss in losses.items():
            before = stored.get(recipe, {}).get(method)
            if before is None or abs(loss - before) > TOLERANCE * abs(before):
                yield LossDifference(recipe, method, before, loss)
