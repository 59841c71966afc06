"""docs/reproduction: the papers' tables beside our runs, written from results files: index.md with
rules, counts and the list of all tables, and a page per paper.

What was learned about a paper or a table stands in remarks.toml beside the results files, and is
the only part written by hand: a line per paper under [summary], and per table what is shown at once
(`short`, at most 60 words) and what is folded away (`more`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from coterie.analysis.nan_math import mean_of
from coterie.core.errors import BadInput
from coterie.core.files import read_text, write_text
from coterie.experiment.config import read_toml
from coterie.lab.papers import durations
from coterie.lab.papers.claims import CheckedClaim, format_difference
from coterie.lab.papers.judge import Column, Outcome, Pair, judge
from coterie.lab.papers.learning_curves import PICTURES, draw_curves, longer_than, picture_of
from coterie.lab.papers.paper_tables import PAPER_METRICS, PAPERS, PaperTable, can_run, is_in_points
from coterie.lab.papers.result_files import is_older, write_results
from coterie.lab.papers.stored_columns import key_of, samples_of
from coterie.lab.papers.verdicts import Figure

PAGES, INDEX, RESULTS, REMARKS = "reproduction", "index.md", "results", "remarks.toml"
SHORT = 60  # words of a remark that are shown at once
HEAD = """# Reproduction

What the papers report, what this code gives, and a verdict. `coterie reproduce ID` runs a table;
`coterie reproduce --write docs` writes these pages from run folders.

- **reproduced**: every number is within one point of the paper's, or within its deviation over
  repeats, and every pair and claim of its text is confirmed.
- **trend**: nothing is refuted, and more pairs and claims are confirmed than are level.
- **undecided**: nothing is refuted, and no more is confirmed than is level.
- **not reproduced**: a pair or a claim is refuted, or numbers differ and no order holds.
- **too small**: the same of runs that are smaller than the paper's in width, rows, rounds, epochs
  or public rows; these can confirm, not refute.
- **trivial**: it holds by construction, and is not counted.

"A above B" counts only beyond one standard error of the difference: over seeds where there are two
or more, else over the clients of the one seed; within, the two are *level*. Where there is one seed
and the figure is no mean over clients, the plain order is reported as *in order* or *out of order*,
and can make a trend, not a reproduction. A deviation over users says nothing about the doubt of a
mean and is not used. Claims about the course of training are judged by the mean over the evaluated
rounds; *at the end only*: the stored runs have only their end.

The verdict is on the runs that are there: a table is reproduced where all its columns are, and not
reproduced where one is not. *In part*: methods or columns are missing, or say nothing. *1 of 5
seeds*: fewer repetitions than the recipe has. *Shortened*: some columns have fewer rounds. *Older
recipe*: a recipe has changed since.
"""
VERDICTS_FILE = PAPERS / "published.json"
VERDICTS = ("reproduced", "trend", "undecided", "not reproduced", "too small")


def write_pages(tables: Sequence[PaperTable], out: Path, docs: Path) -> Path:
    """Results files of all tables that have been run, and the pages; the path of the index."""
    place = docs / RESULTS
    write_results(tables, out, place)
    (docs / PAGES).mkdir(parents=True, exist_ok=True)
    for name, text in pages(tables, place).items():
        write_text(docs / PAGES / name, text)
    for found in outcomes(tables, place):
        for column in found.columns:
            if curves := column.stored.get("curves"):
                picture = picture_of(found.table.id, column.column)
                draw_curves(column.column, curves, docs / PICTURES / picture)
    return docs / PAGES / INDEX


def compute_verdicts(tables: Sequence[PaperTable], place: Path) -> dict[str, str]:
    """The verdict of every table that has a results file, as the pages say it."""
    return {found.table.id: verdict_line(found) for found in outcomes(tables, place)}


def store_verdicts(tables: Sequence[PaperTable], docs: Path) -> Path:
    """Store the pages' verdicts beside the papers' numbers, for the list of tables."""
    write_text(VERDICTS_FILE, json.dumps(compute_verdicts(tables, docs / RESULTS), indent=1) + "\n")
    return VERDICTS_FILE


def read_published() -> dict[str, str]:
    """The verdicts that were stored, by table."""
    return json.loads(read_text(VERDICTS_FILE)) if VERDICTS_FILE.exists() else {}


def outcomes(tables: Sequence[PaperTable], place: Path) -> list[Outcome]:
    """The tables whose results files have a verdict."""
    paths = ((table, place / f"{table.id}.json") for table in tables)
    read = ((table, json.loads(path.read_text())) for table, path in paths if path.exists())
    found = [judge(table, file["columns"]) for table, file in read]
    return [one for one in found if one.verdict != "not run"]


def pages(tables: Sequence[PaperTable], place: Path) -> dict[str, str]:
    """{file name: text}, from results files alone."""
    remarks = read_remarks(place / REMARKS)
    found = outcomes(tables, place)
    papers = dict.fromkeys(_paper_of(table) for table in tables)
    every = {INDEX: _index(tables, found, remarks)}
    for paper in papers:
        mine = [table for table in tables if _paper_of(table) == paper]
        some = [one for one in found if _paper_of(one.table) == paper]
        every[f"{paper}.md"] = _page(mine, some, remarks)
    return {
        name: "\n\n".join(p.strip() for p in parts if p) + "\n" for name, parts in every.items()
    }


def read_remarks(path: Path) -> Mapping[str, Any]:
    """What was written by hand, checked."""
    remarks = read_toml(path) if path.exists() else {}
    for name, remark in remarks.items():
        if name != "summary" and len(str(remark.get("short", "")).split()) > SHORT:
            raise BadInput(f"{path}: [{name}] short has more than {SHORT} words: move some to more")
    return remarks


def _paper_of(table: PaperTable) -> str:
    """The name of a paper's page."""
    return table.id.partition("-")[0]


# The index


def _index(
    tables: Sequence[PaperTable], found: Sequence[Outcome], remarks: Mapping[str, Any]
) -> list[str]:
    known = {one.table.id: one for one in found}
    lines = []
    for paper in dict.fromkeys(map(_paper_of, tables)):
        mine = [table for table in tables if _paper_of(table) == paper]
        summary = str(remarks.get("summary", {}).get(paper, "")).strip()
        lines.append(f"- **[{mine[0].paper}]({paper}.md)**: {summary}".rstrip(": "))
    rows = [f"| {_place(t, known)} | {t.paper}, {t.place} | {_state(t, known)} |" for t in tables]
    never = [f"- {t.id} ({t.paper}, {t.place}): {t.note}" for t in tables if not can_run(t)]
    return [
        HEAD,
        count(tables, found),
        "## The papers\n\n" + "\n".join(lines),
        "## All tables and figures\n\nWhere nothing has been run: what it takes on one thread, all "
        "seeds, as `coterie reproduce --time` measured it.\n\n| | table or figure | verdict, or "
        "time |\n|---|---|---|\n" + "\n".join(rows),
        "## Cannot be run\n\n" + "\n".join(never) if never else "",
    ]


def _place(table: PaperTable, known: Mapping[str, Outcome]) -> str:
    if table.id not in known:
        return table.id
    return f"[{table.id}]({_paper_of(table)}.md#{_anchor_of(table)})"


def _state(table: PaperTable, known: Mapping[str, Outcome]) -> str:
    """The verdict of a table, or what it would take."""
    if table.id in known:
        return verdict_line(known[table.id])
    if not can_run(table):
        return "cannot be run"
    time = str(durations.estimate_table(table, durations.read_durations()))
    return f"not run: {'time not measured' if time == '-' else time}"


def count(tables: Sequence[PaperTable], found: Sequence[Outcome]) -> str:
    """The headline: how many tables have which verdict, whole and in part apart."""
    described_options = []
    for option in VERDICTS:
        some = [one for one in found if one.verdict == option]
        part = sum(one.in_part for one in some)
        described_options.append(
            f"{len(some)} {option}" + (f" ({part} of them in part)" if part else "")
        )
    never = sum(not can_run(table) for table in tables)
    others = {
        "trivial, not counted": sum(one.verdict == "trivial" for one in found),
        "not run yet": len(tables) - len(found) - never,
        "cannot be run (private data)": never,
    }
    text = f"{len(found)} of {len(tables)} tables and figures have been run: "
    text += ", ".join(described_options)
    return text + "".join(f"; {n} {settings}" for settings, n in others.items() if n) + "."


# A paper's page


def _page(
    tables: Sequence[PaperTable], found: Sequence[Outcome], remarks: Mapping[str, Any]
) -> list[str]:
    paper = _paper_of(tables[0])
    summary = str(remarks.get("summary", {}).get(paper, ""))
    parts = [f"# Reproduction of {tables[0].paper}", summary, count(tables, found)]
    parts.append(f"[Rules and all papers]({INDEX}).")
    parts += [_render_section(one, remarks.get(one.table.id, {})) for one in found]
    known = {one.table.id for one in found}
    later = [f"{t.id} ({t.place})" for t in tables if t.id not in known and can_run(t)]
    if later:
        parts.append("## Not run yet\n\n" + ", ".join(later) + ".")
    return parts


def _title_of(table: PaperTable) -> str:
    return f"{table.id}: {table.paper}, {table.place}"


def _anchor_of(table: PaperTable) -> str:
    kept = (
        c if c.isalnum() or c == "-" else " " if c == " " else "" for c in _title_of(table).lower()
    )
    return "".join(kept).replace(" ", "-")


def verdict_line(found: Outcome) -> str:
    """The verdict, with a word on what is missing, of fewer rounds or of an older recipe."""
    columns = [c for c in found.columns if c.verdict != "not run"]
    marks = {
        "in part": found.in_part,
        "shortened": any(c.scale != 1 for c in columns) and found.verdict != "too small",
        _format_fewest_seeds(columns): any(map(_lacks_seeds, columns)),
        "older recipe": any(is_older(c.stored) for c in columns),
    }
    said = ", ".join(mark for mark, holds in marks.items() if holds)
    return f"{found.verdict} ({said})" if said else found.verdict


def _fewest(column: Column) -> int:
    """How often the method was repeated that was least."""
    runs = Counter(run.rpartition("-seed")[0] for run in column.stored["finished"])
    return min(runs.values(), default=0)


def _lacks_seeds(column: Column) -> bool:
    return _fewest(column) < column.seeds


def _format_fewest_seeds(columns: Sequence[Column]) -> str:
    """The least that a method was repeated, where it is less than its recipe says."""
    lacking = [(_fewest(c), c.seeds) for c in columns]
    done, wanted = min(lacking, key=lambda one: one[0] / max(1, one[1]))
    return f"{done} of {wanted} seeds"


def _render_section(found: Outcome, remark: Mapping[str, str]) -> str:
    table = found.table
    lines = [f"## {_title_of(table)}", "", f"The paper: {table.claim} **{verdict_line(found)}**"]
    lines += ["", f"Holds by construction: {table.trivial}"] if table.trivial else []
    lines += ["", remark["short"].strip()] if remark.get("short") else []
    lines += ["", *_fold(remark["more"].strip())] if remark.get("more") else []
    lines += ["", table.note] if table.note else []
    for column in found.columns:
        if column.verdict != "not run":
            lines += ["", *_render_column(column), *_render_curves(table, column)]
    return "\n".join(lines)


def _render_curves(table: PaperTable, column: Column) -> list[str]:
    """The picture of a column whose figures are those of a round, and what longer runs give."""
    if not column.stored.get("curves"):
        return []
    name = picture_of(table.id, column.column)
    lines = ["", f"![Accuracy by round, {column.column.name}](../{PICTURES}/{name})"]
    longer = longer_than(column.column, column.stored)
    said = ", ".join(f"{row} {best:.2f} in {rounds:,} rounds" for row, rounds, best in longer)
    return [*lines, "", f"The best round of longer runs: {said}."] if longer else lines


def _fold(text: str) -> list[str]:
    return ['<details markdown="1"><summary>More</summary>', "", text, "", "</details>"]


def _render_column(column: Column) -> list[str]:
    paper, about = column.column, column.stored["about"]
    facts = [PAPER_METRICS[paper.metric], f"`{column.recipe}`"]
    if paper.over == "course":
        facts.append("at the end only" if column.end_only else "mean over the evaluated rounds")
    facts += [f"smaller: {', '.join(column.smaller)}"] if column.smaller else []
    if column.done != column.wanted:
        facts.append(f"{column.done} of {column.wanted} runs finished")
    facts += ["before the recipe changed"] if is_older(column.stored) else []
    facts += ["arithmetic, nothing was trained"] if paper.arithmetic else []
    facts.append(f"version {about['coterie']}, {_format_dates(column.stored)}, {about['machine']}")
    apart = ", read otherwise and not counted above" if paper.otherwise else ""
    lines = [f"**{paper.name}** ({'; '.join(facts)}): {column.verdict}{apart}"]
    form = form_of(column)
    if column.cells:
        lines += ["", "| | paper | ours | 95 % over seeds | difference |", "|---|---|---|---|---|"]
        alone = "exact" if paper.arithmetic else "one seed"
        lines += [_render_row(cell.figure, form, alone) for cell in column.cells]
    others = other_figures(column)
    lines += ["", "Read otherwise:", "", *(f"- {line}" for line in others)] if others else []
    said = statements(column)
    return lines + (["", *(f"- {line}" for line in said)] if said else [])


def form_of(column: Column) -> str:
    """How the figures of a column are written."""
    if column.column.metric == "bytes":
        return ",.0f"
    return ".2f" if is_in_points(column.column.metric) else ".4g"


def other_figures(column: Column) -> list[str]:
    """Our figures of other interpretations of a row's method, and of another view."""
    paper, form = column.column, form_of(column)
    found = []
    for row in paper.rows:
        asked = [(name, key_of(row)) for name in row.also]
        if paper.beside and row.view != paper.beside and row.method:
            asked.insert(0, (f"{row.method}:{paper.beside}", key_of(row)))
        for name, key in asked:
            if ours := samples_of(paper, column.stored, name, key):
                mean = mean_of([sample.figure for sample in ours.values()])
                found.append(f"{row.label} as `{name}`: {mean:{form}}")
    return found


def statements(column: Column) -> list[str]:
    """What became of the pairs and claims of a column, a line each."""
    form = form_of(column)
    lines = [pair_line(pair, form) for pair in column.pairs]
    lines += [_claim_line(claim) for claim in column.claims]
    return lines + [f"{_claim_line(claim)} (trivial, not counted)" for claim in column.trivial]


def _claim_line(claim: CheckedClaim) -> str:
    return f"{claim.said}: {claim.answer}"


def pair_line(pair: Pair, form: str) -> str:
    """What became of a pair, with both figures and the doubt about their difference."""
    said = f"{pair.better} above {pair.worse}: {pair.difference.answer}"
    if pair.difference.answer == "not run":
        return said
    doubt = format_difference(pair.difference, form)
    return f"{said}, {pair.a:{form}} against {pair.b:{form}} ({doubt})"


def _format_dates(stored: Mapping[str, Any]) -> str:
    """The day on which a column's runs were made, or the first and the last."""
    runs = (run for some in stored["methods"].values() for run in some)
    days = sorted({run.get("about", stored["about"])["date"][:10] for run in runs})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _render_row(row: Figure, form: str, alone: str) -> str:
    spread = "" if isnan(row.spread) else f" ± {row.spread:g}"
    paper = "" if isnan(row.paper) else f"{row.paper:g}{spread}"
    if isnan(row.ours.mean):
        return f"| {row.label} | {paper} | not run | | |"
    low, high = (f"{end:{form}}" for end in (row.ours.low, row.ours.high))
    interval = f"{low} to {high}" if row.ours.n > 1 else alone
    gap = "" if isnan(row.paper) else f"{row.difference:+{form}}"
    return f"| {row.label} | {paper} | {row.ours.mean:{form}} | {interval} | {gap} |"
