"""What a results file holds of a column: our figure of every seed, the clients' values that it is a
mean of, the options of each method, versions, date and machine; and how it is read.

    {"column", "recipe", "scale", "finished", "wanted", "seeds", "about",
     "claims": [[answer, what was said, the claim]],  # of those that only runs can answer
     "methods": {method: [{"seed", "figures": {view: value}, "clients": {view: [...]}, "rows",
                           "course": {view: value}, "course_clients": {view: [...]}, "options"}]}}

Files of before have a list of the personal view's clients, no course, and no rows: in an error over
clients these weigh alike. A script's claims have
nothing but what was said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import numpy as np

from coterie.lab.papers.claims import OF_RUNS, CheckedClaim, Runs, check_claim
from coterie.lab.papers.measures import (
    MEANS,
    clients_of,
    measure,
    measure_course,
    measured_as,
    rows_of,
)
from coterie.lab.papers.paper_tables import PaperColumn, PaperRow, methods_named
from coterie.lab.papers.verdicts import Answer, Sample, Samples
from coterie.results.run import Run

Stored = Mapping[str, Any]  # a column of a results file
ABOUT = ("coterie", "versions", "python", "machine", "date", "data")
SECTIONS = ("dataset", "partition", "model", "train", "schedule", "options")
BEFORE = "before_distillation"  # methods that do not distil have only the personal view for it
PERSONAL = "personal"
ANSWERS: dict[Any, Answer] = {True: "yes", False: "no", None: "not run"}


def key_of(row: PaperRow) -> str:
    """Where a results file has our figure of a row."""
    return f"[{row.point}]" if row.point else row.view


# Written


def stored_column(
    column: PaperColumn, recipe: str, scale: float, runs: Runs, wanted: int, seeds: int
) -> dict[str, Any]:
    """A column of a results file; empty where no method of the recipe has come to its end."""
    if not any(runs.values()):
        return {}
    methods = [m for m in methods_named(column) if runs.get(m)]
    base = {run.experiment.seed: run for run in runs.get("fedavg", ())}
    mine = {m: [_stored_run(run, column, base) for run in runs[m]] for m in methods}
    asked = [(terms, check_claim(terms, runs, lambda name: {})) for terms in _of_runs(column)]
    first = next(run for some in runs.values() for run in some)
    return {
        "column": column.name,
        "recipe": recipe,
        "scale": scale,
        "finished": [f"{m}-seed{run.experiment.seed}" for m in runs for run in runs[m]],
        "wanted": wanted,
        "seeds": seeds,
        "about": {k: first.about[k] for k in ABOUT},
        "claims": [[claim.answer, claim.said, list(terms)] for terms, claim in asked],
        "methods": mine,
    }


def says_something(stored: Stored) -> bool:
    """Whether a column has a figure or an answer; else others of its recipe were run, which it does
    not name.
    """
    answers = (ANSWERS.get(answer, answer) for answer, *_ in stored.get("claims", []))
    runs = (run for some in stored["methods"].values() for run in some)
    return any(run["figures"] for run in runs) or any(answer != "not run" for answer in answers)


def _of_runs(column: PaperColumn) -> list[tuple[str, ...]]:
    """The claims that only runs can answer."""
    return [terms for terms in (*column.claims, *column.trivial) if terms[0] in OF_RUNS]


def _stored_run(run: Run, column: PaperColumn, base: Mapping[int, Run]) -> dict[str, Any]:
    seed, metric = run.experiment.seed, column.metric
    figures = {view: measure(run, metric, view, base.get(seed)) for view in run.views}
    clients = {view: clients_of(run, metric, view) for view in run.views}
    if metric.startswith("note:"):
        clients = {}
    for row in (row for row in column.rows if row.point):
        named = measured_as(column, row)
        figures[key_of(row)] = measure(run, named, row.view)
        clients[key_of(row)] = clients_of(run, named, row.view)
    if PERSONAL not in clients:  # of use to figures that are no means, such as the worst client
        clients[PERSONAL] = run.client_values(run.part)
    found = {
        "seed": seed,
        "figures": {view: round(v, 4) for view, v in figures.items() if not isnan(v)},
        "clients": {view: _list(v) for view, v in clients.items() if v is not None},
    }
    if rows := rows_of(run, metric):
        found["rows"] = rows
    if column.over == "course":
        courses = {view: measure_course(run, metric, view) for view in run.views}
        known = {view: one for view, one in courses.items() if one}
        found["course"] = {view: round(c.figure, 4) for view, c in known.items()}
        found["course_clients"] = {view: _list(c.clients) for view, c in known.items()}
    settings = run.experiment.to_dict()
    return found | {"options": {section: settings[section] for section in SECTIONS}}


def options_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run in a results file, which were called words before; {} of a script."""
    return dict(run.get("options") or run.get("words") or {})


def _list(clients: np.ndarray) -> list[float | None]:
    return [None if np.isnan(a) else round(float(a), 4) for a in clients]


# Read


def has_course(stored: Stored) -> bool:
    """Whether all runs of a column have their course."""
    runs = [run for some in stored["methods"].values() for run in some]
    return bool(runs) and all("course" in run for run in runs)


def samples_of(column: PaperColumn, stored: Stored, name: str, key: str) -> Samples:
    """Our figures of a method by seed; `name` may say another view than `key`."""
    method, _, view = name.partition(":")
    course = column.over == "course" and has_course(stored)
    runs = stored["methods"].get(method, ())
    found = {run["seed"]: _sample(column, run, view or key, course) for run in runs}
    return {seed: sample for seed, sample in found.items() if sample is not None}


def _sample(column: PaperColumn, run: Any, key: str, course: bool) -> Sample | None:
    figures = run["course"] if course else run["figures"]
    if key == BEFORE and key not in figures:
        key = PERSONAL
    if figures.get(key) is None:
        return None
    clients = run.get("course_clients" if course else "clients", {})
    mine = (clients if isinstance(clients, Mapping) else {PERSONAL: clients}).get(key)
    kind, _, part = column.metric.partition(".")
    is_mean = key.startswith("[") or (kind in MEANS and (kind == "weighted" or not part))
    if isinstance(clients, Sequence) and part:
        is_mean = False  # a file of before has the clients of the test part only
    if not mine or not is_mean:
        return Sample(figures[key])
    unit = 1 if key.startswith("[") else 100  # accuracies are stored as shares
    values = unit * np.array([np.nan if a is None else a for a in mine], dtype=float)
    rows = run.get("rows")
    return Sample(figures[key], values, None if rows is None else np.array(rows, dtype=float))


def stored_claim(stored: Stored, terms: Sequence[str]) -> CheckedClaim:
    """What a results file says of a claim that only runs can answer."""
    for answer, said, *asked in stored.get("claims", []):
        if asked and tuple(asked[0]) == tuple(terms):
            return CheckedClaim(ANSWERS.get(answer, answer), said)
    return check_claim(terms, {}, lambda name: {})


def script_claims(stored: Stored) -> list[CheckedClaim]:
    """The claims of a file that a script wrote, in its own words."""
    if not str(stored.get("recipe", "")).endswith(".py"):
        return []
    return [CheckedClaim(ANSWERS.get(answer, answer), said) for answer, said in stored["claims"]]
