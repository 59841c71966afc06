"""docs/reproduction.md and docs/results: the papers' tables beside our runs, written from runs.

A results file holds what a table's page needs, so that the page can be written again without the
runs: our figure of every seed, every client's accuracy, the words of each method, versions, date
and machine. What was learned about a table, such as the reading that explains a difference, stands
in remarks.toml beside the results files, and is the only part written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from coterie.analysis.verdicts import POINT, Figure, figure, overall, verdict
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
from coterie.experiment.papers import METRICS, PaperRow, PaperTable, in_points
from coterie.results.run import Run

PAGE, RESULTS, REMARKS = "reproduction.md", "results", "remarks.toml"
ANSWERS = {True: "yes", False: "no", None: "not run"}
HEAD = """# Reproduction

What the papers report, what this code gives, and a verdict. Written by
`coterie reproduce --write docs` from run folders; `coterie reproduce ID` runs a table.

**reproduced**: every number is within the paper's spread or one point. **trend**: the methods that
the paper tells apart have the same order. **not reproduced**: neither. *In part*: some runs are
missing, and the verdict is on those that are there. A cell of one seed has no interval.
"""


# From runs to files


def write_pages(tables: Sequence[PaperTable], out: Path, docs: Path) -> Path:
    """Results files of all tables that have been run, and the page; the page's path."""
    place = docs / RESULTS
    place.mkdir(parents=True, exist_ok=True)
    for table in tables:
        file = stored(outcome(table, out), out)
        if file["columns"]:
            write(place / f"{table.id}.json", _text(file))
    write(docs / PAGE, page(tables, place))
    return docs / PAGE


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
    runs, _ = finished(folder)
    named = [row.method for row in column.column.rows]
    named += [m for row in column.column.rows for m in row.also]
    named += [m for pair in column.column.above for m in pair]
    methods = [m for m in dict.fromkeys(named) if runs.get(m)]
    base = {run.experiment.seed: run for run in runs.get("fedavg", ())}
    if not methods:  # others of the recipe have, which this column does not name
        return {}
    return {
        "column": column.column.name,
        "recipe": column.recipe,
        "scale": column.scale,
        "runs": [column.done, column.wanted],
        "about": _about(runs[methods[0]][0]),
        "claims": [list(claim) for claim in column.claims],
        "methods": {m: [_stored_run(run, column, base) for run in runs[m]] for m in methods},
    }


def _key(row: PaperRow) -> str:
    """Where a results file has our figure of a row."""
    return f"[{row.point}]" if row.point else row.view


def _about(run: Run) -> dict[str, Any]:
    known = run.about
    return {k: known[k] for k in ("coterie", "versions", "python", "machine", "date", "data")}


def _stored_run(run: Run, column: Column, base: Mapping[int, Run]) -> dict[str, Any]:
    seed, metric = run.experiment.seed, column.column.metric
    figures = {view: measure(run, metric, view, base.get(seed)) for view in run.views}
    for row in (row for row in column.column.rows if row.point):
        figures[_key(row)] = measure(run, measured_as(column.column, row), row.view)
    return {
        "seed": seed,
        "figures": {view: round(v, 4) for view, v in figures.items() if not isnan(v)},
        "clients": [None if np.isnan(a) else round(float(a), 4) for a in run.measured(run.part)],
        "words": {
            section: run.experiment.words()[section]
            for section in ("data", "split", "model", "train", "schedule", "options")
        },
    }


# From files to the page


def page(tables: Sequence[PaperTable], place: Path) -> str:
    """The page, from results files alone."""
    remarks = read_toml(place / REMARKS) if (place / REMARKS).exists() else {}
    files = {t.id: json.loads(p.read_text()) for t in tables if (p := _file(place, t)).exists()}
    words = {t.id: _verdict(t, files[t.id]) for t in tables if t.id in files}
    rows = [
        f"| [{t.id}](#{_anchor(t)}) | {t.paper}, {t.place} | {words[t.id]}{_part(t, files[t.id])} |"
        for t in tables
        if t.id in files
    ]
    parts = [HEAD, _count(words, len(tables)), "| | table or figure | verdict |\n|---|---|---|"]
    parts[-1] += "".join(f"\n{row}" for row in rows)
    parts += [_section(t, files[t.id], str(remarks.get(t.id, ""))) for t in tables if t.id in files]
    left = [f"{t.id} ({t.place})" for t in tables if t.id not in files]
    if left:
        parts.append("## Not run yet\n\n" + ", ".join(left) + ".")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _file(place: Path, table: PaperTable) -> Path:
    return place / f"{table.id}.json"


def _anchor(table: PaperTable) -> str:
    kept = (
        c if c.isalnum() or c == "-" else " " if c == " " else "" for c in _title(table).lower()
    )
    return "".join(kept).replace(" ", "-")


def _title(table: PaperTable) -> str:
    return f"{table.id}: {table.paper}, {table.place}"


def _count(words: Mapping[str, str], tables: int) -> str:
    counts = {w: list(words.values()).count(w) for w in ("reproduced", "trend", "not reproduced")}
    told = ", ".join(f"{n} {word}" for word, n in counts.items())
    return f"{len(words)} of {tables} tables and figures have been run, wholly or in part: {told}."


def _figures(table: PaperTable, column: Mapping[str, Any]) -> tuple[list[Figure], list[Any]]:
    """The rows of a stored column, and the pairs that the paper claims."""
    paper = next(c for c in table.columns if c.name == column["column"])

    def ours(method: str, key: str) -> list[float]:
        found = (run["figures"].get(key) for run in column["methods"].get(method, []))
        return [value for value in found if value is not None]

    point = POINT if in_points(paper.metric) else 0.0
    rows = [figure(r.label, r.value, r.spread, ours(r.method, _key(r)), point) for r in paper.rows]
    pairs = [
        (a, b, *(float(np.mean(ours(m, paper.view) or [np.nan])) for m in (a, b)))
        for a, b in paper.above
    ]
    return rows, pairs


def _verdict(table: PaperTable, file: Mapping[str, Any]) -> str:
    return overall([_column_verdict(table, column) for column in file["columns"]])


def _part(table: PaperTable, file: Mapping[str, Any]) -> str:
    """A word on tables of which some runs are missing: their verdict is on what is there."""
    whole = all(done == wanted for done, wanted in (c["runs"] for c in file["columns"]))
    return "" if whole and len(file["columns"]) == len(table.columns) else " (in part)"


def _column_verdict(table: PaperTable, column: Mapping[str, Any]) -> Any:
    rows, pairs = _figures(table, column)
    claims = [holds for holds, _ in column.get("claims", [])]
    return verdict(rows, [pair[2:] for pair in pairs], claims)


def _section(table: PaperTable, file: Mapping[str, Any], remark: str) -> str:
    said = f"**{_verdict(table, file)}**{_part(table, file)}"
    lines = [f"## {_title(table)}", "", f"The paper: {table.claim} {said}"]
    lines += ["", table.note] if table.note else []
    for column in file["columns"]:
        lines += ["", *_column_lines(table, column)]
    lines += ["", remark] if remark else []
    return "\n".join(lines)


def _column_lines(table: PaperTable, column: Mapping[str, Any]) -> list[str]:
    rows, pairs = _figures(table, column)
    paper = next(c for c in table.columns if c.name == column["column"])
    about = column["about"]
    shorter = "" if column["scale"] == 1 else f", {column['scale']:g} of the rounds"
    done, wanted = column["runs"]
    parts = "" if done == wanted else f", {done} of {wanted} runs finished"
    title = (
        f"**{column['column']}** ({METRICS[paper.metric]}; `{column['recipe']}`{shorter}{parts}; "
    )
    title += f"version {about['coterie']}, {about['date'][:10]}, {about['machine']}): "
    lines = [title + str(_column_verdict(table, column))]
    form = ".2f" if in_points(paper.metric) else ".4g"
    if rows:
        lines += ["", "| | paper | ours | 95 % over seeds | difference |", "|---|---|---|---|---|"]
        lines += [_row_line(row, form) for row in rows]
    lines += ["", *(_pair_line(form, *pair) for pair in pairs)] if pairs else []
    claims = column.get("claims", [])
    lines += ["", *(f"- {said}: {ANSWERS[holds]}" for holds, said in claims)] if claims else []
    return lines


def _row_line(row: Figure, form: str) -> str:
    spread = "" if isnan(row.spread) else f" ± {row.spread:g}"
    paper = "" if isnan(row.paper) else f"{row.paper:g}{spread}"
    if isnan(row.ours.mean):
        return f"| {row.label} | {paper} | not run | | |"
    low, high = (f"{end:{form}}" for end in (row.ours.low, row.ours.high))
    interval = f"{low} to {high}" if row.ours.n > 1 else "one seed"
    gap = "" if isnan(row.paper) else f"{row.difference:+{form}}"
    return f"| {row.label} | {paper} | {row.ours.mean:{form}} | {interval} | {gap} |"


def _pair_line(form: str, better: str, worse: str, a: float, b: float) -> str:
    if isnan(a) or isnan(b):
        return f"- {better} above {worse}: not run"
    answer = "yes" if a > b else "no"
    return f"- {better} above {worse}: {answer}, {a:{form}} against {b:{form}}"
