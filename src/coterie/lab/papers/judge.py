"""A paper's table held against columns of a results file: cells, pairs, claims and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any, NamedTuple

from coterie.analysis.nan_math import mean_of
from coterie.experiment.config import read_toml
from coterie.experiment.recipes import find_config
from coterie.experiment.smaller import ratios_of, say_ratios, shorten
from coterie.lab.papers.claims import OF_RUNS, CheckedClaim, check_claim
from coterie.lab.papers.paper_tables import (
    PaperColumn,
    PaperRow,
    PaperTable,
    is_outcome,
    tolerance_of,
)
from coterie.lab.papers.stored_columns import (
    Stored,
    has_course,
    key_of,
    samples_of,
    script_claims,
    stored_claim,
)
from coterie.lab.papers.verdicts import (
    Difference,
    Figure,
    Verdict,
    difference,
    judge_column,
    judge_table,
    make_figure,
)


class Cell(NamedTuple):
    """One row of a paper's column, with our figure for every seed."""

    row: PaperRow
    figure: Figure
    seeds: tuple[int, ...]


class Pair(NamedTuple):
    """Two methods of which the paper has the first above the second."""

    better: str
    worse: str
    a: float  # our figure of the first
    b: float
    difference: Difference


class Column(NamedTuple):
    """One column of a paper's table beside our runs of its recipe."""

    column: PaperColumn
    stored: Stored  # what the results file has; empty: nothing
    recipe: str  # that was run
    scale: float  # of its rounds
    done: int  # runs that are finished
    wanted: int  # runs that the recipe has
    seeds: int  # of each method, in the recipe
    cells: tuple[Cell, ...]
    pairs: tuple[Pair, ...]
    claims: tuple[CheckedClaim, ...]
    trivial: tuple[CheckedClaim, ...]
    smaller: tuple[str, ...]  # in what the runs are smaller than the paper's
    end_only: bool  # a claim about the course of training, of which only the end is known
    verdict: Verdict


class Outcome(NamedTuple):
    """A paper's table beside our runs."""

    table: PaperTable
    columns: tuple[Column, ...]

    @property
    def counted(self) -> list[Column]:
        """The columns that have a part in the verdict."""
        return [c for c in self.columns if not c.column.otherwise]

    @property
    def verdict(self) -> Verdict:
        found = judge_table([c.verdict for c in self.counted])
        return "trivial" if self.table.trivial and found in ("reproduced", "trend") else found

    @property
    def in_part(self) -> bool:
        """Whether methods or columns are missing, or columns say nothing."""
        silent = ("not run", "undecided", "too small")
        settings = {c.verdict for c in self.counted}
        mixed = len(settings) > 1 and any(option in silent for option in settings)
        return mixed or any(c.verdict != "not run" and _lacks_methods(c) for c in self.columns)

    @property
    def state(self) -> str:
        """How much of it has been run."""
        done, wanted = (
            sum(getattr(c, option) for c in self.columns) for option in ("done", "wanted")
        )
        if not wanted:
            return "no recipe"
        scaled = any(c.scale != 1 and c.done for c in self.columns)
        option = "finished" if done == wanted else f"{done} of {wanted} runs" if done else "not run"
        return f"{option}, shortened" if scaled else option


def _lacks_methods(column: Column) -> bool:
    names = {run.rpartition("-seed")[0] for run in column.stored["finished"]}
    return len(names) * column.seeds < column.wanted


def count_planned(column: PaperColumn) -> tuple[int, int]:
    """How many methods and seeds a column's recipe has."""
    if not column.recipe:
        return 0, 0
    settings = read_toml(find_config(column.recipe))
    return len(settings["methods"]), len(settings.get("seeds", [0]))


def judge(table: PaperTable, columns: Sequence[Stored]) -> Outcome:
    """A table beside the columns of a results file; a column that is not there was not run."""
    stored = {c["column"]: c for c in columns}
    known = [(c, stored[c.name]) for c in table.columns if c.name in stored]
    found = {c.name: _with_others(c, mine, known) for c, mine in known}
    return Outcome(table, tuple(_judge(table, c, found.get(c.name, {})) for c in table.columns))


def _with_others(
    column: PaperColumn, mine: Stored, known: Sequence[tuple[PaperColumn, Stored]]
) -> Stored:
    """A stored column with the methods of others that are of the same runs and measured alike,
    which its pairs and claims may name.
    """

    def kind(paper: PaperColumn, stored: Stored) -> tuple[Any, ...]:
        return stored["recipe"], stored["scale"], paper.metric, paper.over

    alike = [other for paper, other in known if kind(paper, other) == kind(column, mine)]
    methods: dict[str, Any] = {}
    for other in (*alike, mine):
        methods |= other["methods"]
    return {**mine, "methods": methods}


def _judge(table: PaperTable, column: PaperColumn, stored: Stored) -> Column:
    methods, seeds = count_planned(column)
    found = stored or {"methods": {}, "claims": [], "finished": []}

    def samples(name: str) -> Any:
        return samples_of(column, found, name, column.view)

    def claimed(settings: Sequence[str]) -> CheckedClaim:
        known = settings[0] in OF_RUNS
        return stored_claim(found, settings) if known else check_claim(settings, {}, samples)

    cells = tuple(_cell(table, column, row, found) for row in column.rows)
    pairs = tuple(_pair(column, better, worse, samples) for better, worse in column.above)
    claims = (*map(claimed, column.claims), *script_claims(found))
    trivial = tuple(map(claimed, column.trivial))
    recipe, scale = found.get("recipe", column.cheaper or column.recipe), found.get("scale", 1.0)
    smaller = _smaller(recipe, scale) if stored else ()
    option = judge_column(
        [cell.figure for cell in cells],
        [pair.difference.answer for pair in pairs],
        [claim.answer for claim in claims],
        [claim.answer for claim in trivial],
        bool(smaller),
    )
    return Column(
        column=column,
        stored=found,
        recipe=recipe,
        scale=scale,
        done=len(found["finished"]),
        wanted=found.get("wanted", methods * seeds),
        seeds=found.get("seeds", seeds),
        cells=cells,
        pairs=pairs,
        claims=claims,
        trivial=trivial,
        smaller=smaller,
        end_only=bool(stored) and column.over == "course" and not has_course(found),
        verdict=option,
    )


def _smaller(recipe: str, scale: float) -> tuple[str, ...]:
    """In what runs of a recipe are smaller than the paper's."""
    settings = {} if recipe.endswith(".py") else read_toml(find_config(recipe))
    ratios = ratios_of(settings.get("smaller", {}))
    if scale < 1:
        ratios["rounds"] = shorten(ratios.get("rounds", 1.0), scale)
    return say_ratios(ratios)


def _cell(table: PaperTable, column: PaperColumn, row: PaperRow, stored: Stored) -> Cell:
    ours = samples_of(column, stored, row.method, key_of(row))
    paper = row.value if is_outcome(column.metric) else None
    over_runs = table.spread_over == "runs"
    found = make_figure(row.label, paper, row.spread, ours, tolerance_of(column.metric), over_runs)
    return Cell(row, found, tuple(ours))


def _pair(column: PaperColumn, better: str, worse: str, samples: Any) -> Pair:
    ours = [samples(name) for name in (better, worse)]
    a, b = (mean_of([s.figure for s in some.values()]) for some in ours)
    found = difference(*ours)
    if column.arithmetic and not isnan(found.value):
        found = found._replace(error=0.0, over="arithmetic")
    return Pair(better, worse, a, b, found)
