"""docs/results: what the page of the papers' tables needs of our runs, so that it can be written
again without them.

A results file holds our figure of every seed, every client's accuracy, the options of each method,
versions, date and machine. What it holds of runs whose folders are gone is kept: a table of many
hours is run on several machines, a part at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.comparison.plan import ComparisonPlan, plan_of
from coterie.core.files import write_text
from coterie.core.option_names import rename_tables
from coterie.experiment.config import read_toml
from coterie.experiment.recipes import find_config
from coterie.lab.papers.learning_curves import merge_curves
from coterie.lab.papers.paper_tables import PaperTable
from coterie.lab.papers.reproduction import stored_columns
from coterie.lab.papers.stored_columns import options_of, says_something
from coterie.running.identity import normalize, planned_identity_of


def write_results(tables: Sequence[PaperTable], out: Path, place: Path) -> None:
    """Results files of all tables that have been run below `out`, with what they held before."""
    place.mkdir(parents=True, exist_ok=True)
    for table in tables:
        columns = [c for c in stored_columns(table, out) if says_something(c)]
        path = place / f"{table.id}.json"
        before = json.loads(path.read_text()) if path.exists() else {"columns": []}
        if columns:
            write_text(path, _format_json(merge_results(table, before, {"columns": columns})))


def _format_json(file: Mapping[str, Any]) -> str:
    """A results file, with every list of numbers on one line."""
    text = json.dumps(file, indent=1) + "\n"
    return re.sub(r"\[[^][{}\"]*\]", lambda m: " ".join(m[0].split()), text)


def is_older(column: Mapping[str, Any]) -> bool:
    """Whether a recipe has changed since the runs of a stored column were made."""
    if column["recipe"].endswith(".py") or not all(map(options_of, _runs(column))):
        return False  # of a script, or arithmetic
    plan = plan_of(read_toml(find_config(column["recipe"])))
    return any(
        m not in plan.experiments or _has_other_options(options_of(run), plan, m, column["scale"])
        for m, runs in column["methods"].items()
        for run in runs
    )


def _runs(column: Mapping[str, Any]) -> list[Any]:
    return [run for some in column["methods"].values() for run in some]


def _has_other_options(
    settings: Mapping[str, Any], plan: ComparisonPlan, method: str, scale: float
) -> bool:
    """Whether a run had other options than its recipe has; what was chosen for it may be any."""
    free = set(plan.grids.get(method, ())) | ({"rounds"} if scale != 1 else set())
    tables = rename_tables(settings)  # the file may be older than a name
    said = {f"{section}.{w}": v for section, table in tables.items() for w, v in table.items()}
    planned = planned_identity_of(plan.experiments[method])
    both = (w for w in planned.keys() & said.keys() if w.partition(".")[2] not in free)
    return any(normalize(said[option]) != normalize(planned[option]) for option in both)


# What was known before


def merge_results(
    table: PaperTable, before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, Any]:
    """A results file with the columns of both, in the table's order."""
    old, new = ({c["column"]: c for c in file["columns"]} for file in (before, now))
    names = [column.name for column in table.columns if column.name in {*old, *new}]
    columns = [_merge_column(old.get(name), new.get(name)) for name in names]
    return {"table": table.id, "columns": columns}


def _merge_column(old: Any, new: Any) -> Any:
    """Longer runs replace shorter ones, unless these are of most methods and the longer are not;
    runs of the same recipe and length stand together, unless the recipe has changed its data or its
    networks.
    """
    if not old or not new:
        return old or new
    if (old["recipe"], old["scale"]) != (new["recipe"], new["scale"]) or not _is_same_setup(
        old, new
    ):
        return max(new, old, key=lambda column: (_has_most(column), column["scale"]))
    methods = {
        m: _merge_runs(old["methods"].get(m, []), new["methods"].get(m, []), old["about"])
        for m in dict.fromkeys([*old["methods"], *new["methods"]])
    }
    finished = list(dict.fromkeys([*old["finished"], *new["finished"]]))
    claims = _merge_claims(old.get("claims", []), new["claims"])
    curves = merge_curves(old.get("curves", {}), new.get("curves", {}))
    return new | {
        **({"curves": curves} if curves else {}),
        "finished": finished,
        "wanted": max(new["wanted"], len(finished)),
        "claims": claims,
        "methods": methods,
    }


def _has_most(column: Any) -> bool:
    return 2 * len(column["finished"]) > column["wanted"]


def _is_same_setup(old: Any, new: Any) -> bool:
    """Whether runs are of the same data, split and networks, and train as before."""
    if not all(map(options_of, (*_runs(old), *_runs(new)))):
        return False
    a, b = (column["methods"] for column in (old, new))
    one, other = (next(runs[0] for runs in methods.values() if runs) for methods in (a, b))
    return _has_same_options(one, other, ("dataset", "partition", "model")) and all(
        _has_same_options(a[m][0], b[m][0], ("train",)) for m in a if a[m] and b.get(m)
    )


def _has_same_options(one: Any, other: Any, sections: Sequence[str]) -> bool:
    """Whether two runs have the same options, of those that both have."""
    mine, theirs = (rename_tables(options_of(run)) for run in (one, other))
    pairs = ((mine[section], theirs[section]) for section in sections)
    return all(a[option] == b[option] for a, b in pairs for option in a.keys() & b.keys())


def _merge_runs(old: list[Any], new: list[Any], about: Any) -> list[Any]:
    """The runs of a method by seed; those of before say under which versions they were made."""
    seeds = {run["seed"] for run in new}
    kept = [{"about": about, **run} for run in old if run["seed"] not in seeds]
    return sorted([*kept, *new], key=lambda run: run["seed"])


def _merge_claims(old: list[Any], new: list[Any]) -> list[Any]:
    """What the runs at hand do not answer was answered before."""
    before = {
        tuple(settings): [answer, said, settings]
        for answer, said, *more in old
        for settings in more
    }
    return [before.get(tuple(c[2]), c) if c[0] == "not run" else c for c in new]
