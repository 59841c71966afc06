"""docs/reproduction.md: the papers' tables beside our runs, written from results files.

What was learned about a table, such as the reading that explains a difference, stands in
remarks.toml beside the results files, and is the only part written by hand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from coterie.analysis.numbers import mean_of
from coterie.analysis.verdicts import Figure, figure, overall, verdict
from coterie.core.files import read_text, write
from coterie.experiment.config import read_toml
from coterie.experiment.papers import (
    METRICS,
    PAPERS,
    PaperColumn,
    PaperTable,
    can_run,
    in_points,
    is_outcome,
    near,
)
from coterie.reports.paper_results import is_older, key_of, write_results

PAGE, RESULTS, REMARKS = "reproduction.md", "results", "remarks.toml"
ANSWERS = {True: "yes", False: "no", None: "not run"}
HEAD = """# Reproduction

What the papers report, what this code gives, and a verdict. Written by
`coterie reproduce --write docs` from run folders; `coterie reproduce ID` runs a table.

**reproduced**: every number is within the paper's spread or one point. **trend**: the methods that
the paper tells apart have the same order. **not reproduced**: neither. **too short**: fewer rounds
than the paper's, which can confirm it but not refute it. The verdict is on the runs that are there.
*In part*: methods or columns are missing. *1 of 5 seeds*: fewer repetitions than the recipe has; a
cell of one seed has no interval. *Shortened*: some columns have fewer rounds. *Older recipe*: a
recipe has changed since.
"""
PUBLISHED = PAPERS / "published.json"
WORDS = ("reproduced", "trend", "not reproduced", "too short")


def write_pages(tables: Sequence[PaperTable], out: Path, docs: Path) -> Path:
    """Results files of all tables that have been run, and the page; the page's path."""
    place = docs / RESULTS
    write_results(tables, out, place)
    write(docs / PAGE, page(tables, place))
    return docs / PAGE


def verdicts(tables: Sequence[PaperTable], place: Path) -> dict[str, str]:
    """The verdict of every table that has a results file, as the page says it."""
    return {t.id: _judged(t, file) for t, file in _files(tables, place)}


def publish(tables: Sequence[PaperTable], docs: Path) -> Path:
    """Store the page's verdicts beside the papers' numbers, for the list of tables."""
    write(PUBLISHED, json.dumps(verdicts(tables, docs / RESULTS), indent=1) + "\n")
    return PUBLISHED


def published() -> dict[str, str]:
    """The verdicts that were stored, by table."""
    return json.loads(read_text(PUBLISHED)) if PUBLISHED.exists() else {}


def page(tables: Sequence[PaperTable], place: Path) -> str:
    """The page, from results files alone."""
    remarks = read_toml(place / REMARKS) if (place / REMARKS).exists() else {}
    files = _files(tables, place)
    words = {t.id: _verdict(t, file) for t, file in files}
    rows = [
        f"| [{t.id}](#{_anchor(t)}) | {t.paper}, {t.place} | {_judged(t, file)} |"
        for t, file in files
    ]
    parts = [HEAD, _count(words, len(tables)), "| | table or figure | verdict |\n|---|---|---|"]
    parts[-1] += "".join(f"\n{row}" for row in rows)
    parts += [_section(t, file, str(remarks.get(t.id, ""))) for t, file in files]
    left = [t for t in tables if t.id not in words]
    later = [f"{t.id} ({t.place})" for t in left if can_run(t)]
    if later:
        parts.append("## Not run yet\n\n" + ", ".join(later) + ".")
    never = [f"- {t.id} ({t.paper}, {t.place}): {t.note}" for t in left if not can_run(t)]
    if never:
        parts.append("## Cannot be run\n\n" + "\n".join(never))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _files(tables: Sequence[PaperTable], place: Path) -> list[tuple[PaperTable, Any]]:
    """The tables whose results files have a verdict, with these files."""
    paths = ((table, place / f"{table.id}.json") for table in tables)
    read = ((table, json.loads(path.read_text())) for table, path in paths if path.exists())
    return [(table, file) for table, file in read if _verdict(table, file) != "not run"]


def _anchor(table: PaperTable) -> str:
    kept = (
        c if c.isalnum() or c == "-" else " " if c == " " else "" for c in _title(table).lower()
    )
    return "".join(kept).replace(" ", "-")


def _title(table: PaperTable) -> str:
    return f"{table.id}: {table.paper}, {table.place}"


def _count(words: Mapping[str, str], tables: int) -> str:
    counts = {w: list(words.values()).count(w) for w in WORDS}
    told = ", ".join(f"{n} {word}" for word, n in counts.items())
    return f"{len(words)} of {tables} tables and figures have been run, wholly or in part: {told}."


def _figures(table: PaperTable, column: Mapping[str, Any]) -> tuple[list[Figure], list[Any]]:
    """The rows of a stored column, and the pairs that the paper claims."""
    paper = _paper(table, column)
    ours = partial(_ours, column)
    point, told = near(paper.metric), is_outcome(paper.metric)
    rows = [
        figure(r.label, r.value if told else None, r.spread, ours(r.method, key_of(r)), point)
        for r in paper.rows
    ]
    pairs = [
        (a, b, *(float(np.mean(ours(m, paper.view) or [np.nan])) for m in (a, b)))
        for a, b in paper.above
    ]
    return rows, pairs


def _paper(table: PaperTable, column: Mapping[str, Any]) -> PaperColumn:
    return next(c for c in table.columns if c.name == column["column"])


def _ours(column: Mapping[str, Any], method: str, key: str) -> list[float]:
    """Our figure of a method for every seed."""
    found = (run["figures"].get(key) for run in column["methods"].get(method, []))
    return [value for value in found if value is not None]


def _otherwise(paper: PaperColumn, column: Mapping[str, Any], form: str) -> list[str]:
    """Our figures of other readings of a row's method."""
    found = [(r, m, _ours(column, m, key_of(r))) for r in paper.rows for m in r.also]
    return [f"- {r.label} as `{m}`: {mean_of(ours):{form}}" for r, m, ours in found if ours]


def _verdict(table: PaperTable, file: Mapping[str, Any]) -> str:
    counted = [c for c in file["columns"] if not _paper(table, c).otherwise]
    return overall([_column_verdict(table, column) for column in counted])


def _judged(table: PaperTable, file: Mapping[str, Any]) -> str:
    """The verdict, with a word on what is missing, of fewer rounds or of an older recipe."""
    columns = file["columns"]
    found = _verdict(table, file)
    marks = {
        "in part": len(columns) < len(table.columns) or any(map(_lacks_methods, columns)),
        "shortened": any(c["scale"] != 1 for c in columns) and found != "too short",
        _fewest_seeds(columns): any(map(_lacks_seeds, columns)),
        "older recipe": any(map(_is_older, columns)),
    }
    told = ", ".join(mark for mark, holds in marks.items() if holds)
    return f"{found} ({told})" if told else found


def _seeds_of(column: Mapping[str, Any]) -> Counter[str]:
    """How many runs of each method are finished."""
    return Counter(run.rpartition("-seed")[0] for run in column["finished"])


def _lacks_methods(column: Mapping[str, Any]) -> bool:
    return len(_seeds_of(column)) * column["seeds"] < column["wanted"]


def _lacks_seeds(column: Mapping[str, Any]) -> bool:
    return min(_seeds_of(column).values(), default=0) < column["seeds"]


def _fewest_seeds(columns: Sequence[Mapping[str, Any]]) -> str:
    """The least that a method was repeated, where it is less than its recipe says."""
    lacking = [(min(_seeds_of(c).values(), default=0), c["seeds"]) for c in columns]
    done, wanted = min(lacking, key=lambda one: one[0] / max(1, one[1]))
    return f"{done} of {wanted} seeds"


def _is_older(column: Mapping[str, Any]) -> bool:
    return not column["recipe"].endswith(".py") and is_older(column)  # scripts have no words


def _column_verdict(table: PaperTable, column: Mapping[str, Any]) -> Any:
    rows, pairs = _figures(table, column)
    claims = [holds for holds, _ in column.get("claims", [])]
    return verdict(rows, [pair[2:] for pair in pairs], claims, column["scale"] < 1)


def _section(table: PaperTable, file: Mapping[str, Any], remark: str) -> str:
    said = f"**{_judged(table, file)}**"
    lines = [f"## {_title(table)}", "", f"The paper: {table.claim} {said}"]
    lines += ["", table.note] if table.note else []
    for column in file["columns"]:
        lines += ["", *_column_lines(table, column)]
    lines += ["", remark] if remark else []
    return "\n".join(lines)


def _column_lines(table: PaperTable, column: Mapping[str, Any]) -> list[str]:
    rows, pairs = _figures(table, column)
    paper = _paper(table, column)
    about = column["about"]
    shorter = "" if column["scale"] == 1 else f", {column['scale']:g} of the rounds"
    done, wanted = len(column["finished"]), column["wanted"]
    parts = "" if done == wanted else f", {done} of {wanted} runs finished"
    parts += ", before the recipe changed" if _is_older(column) else ""
    title = (
        f"**{column['column']}** ({METRICS[paper.metric]}; `{column['recipe']}`{shorter}{parts}; "
    )
    title += f"version {about['coterie']}, {_dates(column)}, {about['machine']}): "
    apart = ", read otherwise and not counted above" if paper.otherwise else ""
    lines = [title + str(_column_verdict(table, column)) + apart]
    form = ".2f" if in_points(paper.metric) else ".4g"
    if rows:
        lines += ["", "| | paper | ours | 95 % over seeds | difference |", "|---|---|---|---|---|"]
        lines += [_row_line(row, form) for row in rows]
    others = _otherwise(paper, column, form)
    lines += ["", "Read otherwise:", "", *others] if others else []
    lines += ["", *(_pair_line(form, *pair) for pair in pairs)] if pairs else []
    claims = column.get("claims", [])
    lines += ["", *(f"- {said}: {ANSWERS[holds]}" for holds, said in claims)] if claims else []
    return lines


def _dates(column: Mapping[str, Any]) -> str:
    """The day on which a column's runs were made, or the first and the last."""
    runs = (run for some in column["methods"].values() for run in some)
    days = sorted({run.get("about", column["about"])["date"][:10] for run in runs})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


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
