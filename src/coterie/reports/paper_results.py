"""docs/results: what the page of the papers' tables needs of our runs, so that it can be written
again without them.

A results file holds our figure of every seed, every client's accuracy, the words of each method,
versions, date and machine. What it holds of runs whose folders are gone is kept: a table of many
hours is run on several machines, a part at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from coterie.comparison.plan import ComparisonPlan, plan_of
from coterie.comparison.reproduce import (
    Column,
    Outcome,
    finished,
    measure,
    measured_as,
    outcome,
    place_of,
)
from coterie.core.files import write
from coterie.experiment.config import read_toml
from coterie.experiment.papers import PaperRow, PaperTable
from coterie.experiment.recipes import config_path
from coterie.results.run import Run
from coterie.running.shape import plain, planned_shape

ABOUT = ("coterie", "versions", "python", "machine", "date", "data")


def write_results(tables: Sequence[PaperTable], out: Path, place: Path) -> None:
    """Results files of all tables that have been run below `out`, with what they held before."""
    place.mkdir(parents=True, exist_ok=True)
    for table in tables:
        file = stored(outcome(table, out), out)
        path = place / f"{table.id}.json"
        before = json.loads(path.read_text()) if path.exists() else {"columns": []}
        if file["columns"]:
            write(path, _text(merged(table, before, file)))


def _text(file: Mapping[str, Any]) -> str:
    """A results file, with every list of numbers on one line."""
    text = json.dumps(file, indent=1) + "\n"
    return re.sub(r"\[[^][{}\"]*\]", lambda m: " ".join(m[0].split()), text)


def stored(found: Outcome, out: Path) -> dict[str, Any]:
    """What a results file holds of a table: columns of which some method has come to its end."""
    columns = [_stored_column(column, out) for column in found.columns if column.done]
    return {"table": found.table.id, "columns": [column for column in columns if column]}


def _stored_column(column: Column, out: Path) -> dict[str, Any]:
    folder = place_of(out, column.column)
    assert folder is not None, "a column with finished runs has a folder"
    runs = finished(folder)
    named = [row.method for row in column.column.rows]
    named += [m for row in column.column.rows for m in row.also]
    named += [m for pair in column.column.above for m in pair]
    methods = [m for m in dict.fromkeys(named) if runs.get(m)]
    base = {run.experiment.seed: run for run in runs.get("fedavg", ())}
    mine = {m: [_stored_run(run, column, base) for run in runs[m]] for m in methods}
    answers = [claim.holds for claim in column.claims if claim.holds is not None]
    known = answers or any(run["figures"] for some in mine.values() for run in some)
    if not methods or not known:
        return {}  # others of the recipe have come to their end, which this column does not name
    return {
        "column": column.column.name,
        "recipe": column.recipe,
        "scale": column.scale,
        "finished": [f"{m}-seed{run.experiment.seed}" for m in runs for run in runs[m]],
        "wanted": column.wanted,
        "seeds": column.seeds,
        "about": _about(runs[methods[0]][0]),
        "claims": [list(claim) for claim in column.claims],
        "methods": mine,
    }


def is_older(column: Mapping[str, Any]) -> bool:
    """Whether a recipe has changed since the runs of a stored column were made."""
    plan = plan_of(read_toml(config_path(column["recipe"])))
    return any(
        m not in plan.experiments or _differ(run["words"], plan, m, column["scale"])
        for m, runs in column["methods"].items()
        for run in runs
    )


def _differ(words: Mapping[str, Any], plan: ComparisonPlan, method: str, scale: float) -> bool:
    """Whether a run had other words than its recipe has; what was chosen for it may be any."""
    free = set(plan.grids.get(method, ())) | ({"rounds"} if scale != 1 else set())
    said = {f"{section}.{w}": v for section, table in words.items() for w, v in table.items()}
    planned = planned_shape(plan.experiments[method])
    both = (w for w in planned.keys() & said.keys() if w.partition(".")[2] not in free)
    return any(plain(said[word]) != plain(planned[word]) for word in both)


def key_of(row: PaperRow) -> str:
    """Where a results file has our figure of a row."""
    return f"[{row.point}]" if row.point else row.view


def _about(run: Run) -> dict[str, Any]:
    known = run.about
    return {k: known[k] for k in ABOUT}


def _stored_run(run: Run, column: Column, base: Mapping[int, Run]) -> dict[str, Any]:
    seed, metric = run.experiment.seed, column.column.metric
    figures = {view: measure(run, metric, view, base.get(seed)) for view in run.views}
    for row in (row for row in column.column.rows if row.point):
        figures[key_of(row)] = measure(run, measured_as(column.column, row), row.view)
    return {
        "seed": seed,
        "figures": {view: round(v, 4) for view, v in figures.items() if not isnan(v)},
        "clients": [None if np.isnan(a) else round(float(a), 4) for a in run.measured(run.part)],
        "words": {
            section: run.experiment.words()[section]
            for section in ("data", "split", "model", "train", "schedule", "options")
        },
    }


# What was known before


def merged(table: PaperTable, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """A results file with the columns of both, in the table's order."""
    old, new = ({c["column"]: c for c in file["columns"]} for file in (before, now))
    names = [column.name for column in table.columns if column.name in {*old, *new}]
    columns = [_merged_column(old.get(name), new.get(name)) for name in names]
    return {"table": table.id, "columns": columns}


def _merged_column(old: Any, new: Any) -> Any:
    """Whole runs replace shortened ones; runs of the same recipe and length stand together, unless
    the recipe has changed its data or its networks.
    """
    if not old or not new:
        return old or new
    if (old["recipe"], old["scale"]) != (new["recipe"], new["scale"]) or not _alike(old, new):
        return new if new["scale"] >= old["scale"] else old
    methods = {
        m: _merged_runs(old["methods"].get(m, []), new["methods"].get(m, []), old["about"])
        for m in dict.fromkeys([*old["methods"], *new["methods"]])
    }
    finished = list(dict.fromkeys([*old["finished"], *new["finished"]]))
    claims = _merged_claims(old.get("claims", []), new["claims"])
    return new | {
        "finished": finished,
        "wanted": max(new["wanted"], len(finished)),
        "claims": claims,
        "methods": methods,
    }


def _alike(old: Any, new: Any) -> bool:
    """Whether runs are of the same data, split and networks, and train as before."""
    a, b = (column["methods"] for column in (old, new))
    one, other = (next(runs[0] for runs in methods.values() if runs) for methods in (a, b))
    return _same(one, other, ("data", "split", "model")) and all(
        _same(a[m][0], b[m][0], ("train",)) for m in a if a[m] and b.get(m)
    )


def _same(one: Any, other: Any, sections: Sequence[str]) -> bool:
    """Whether two runs have the same words, of those that both have."""
    pairs = ((one["words"][section], other["words"][section]) for section in sections)
    return all(a[word] == b[word] for a, b in pairs for word in a.keys() & b.keys())


def _merged_runs(old: list[Any], new: list[Any], about: Any) -> list[Any]:
    """The runs of a method by seed; those of before say under which versions they were made."""
    seeds = {run["seed"] for run in new}
    kept = [{"about": about, **run} for run in old if run["seed"] not in seeds]
    return sorted([*kept, *new], key=lambda run: run["seed"])


def _merged_claims(old: list[Any], new: list[Any]) -> list[Any]:
    """What the runs at hand do not answer was answered before."""
    if len(old) != len(new):
        return new
    return [a if b[0] is None else b for a, b in zip(old, new, strict=True)]
