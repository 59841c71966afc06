"""What the papers report: a file per table or figure, tied to the recipe that is to reproduce it.

A table has columns, such as a data set with its split; a column names its recipe and has rows: the
paper's label, the method's name in that recipe, and the paper's number. A figure that prints no
number has its claim, and pairs of methods of which the first lies above the second. In pairs and
claims "pfml:global" is a method's figure of another view than the column's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

from coterie.core.errors import BadInput, suggest_name
from coterie.core.options import coerce
from coterie.experiment.config import read_toml
from coterie.experiment.recipes import find_config
from coterie.lab.papers.verdicts import POINT
from coterie.methods.registry import METHODS

PAPERS = Path(__file__).parent / "data"
PAPER_METRICS = {
    "mean": "accuracy, mean over clients",
    "mean_at_time.slow uplink": "the same when FedAvg is done, by the clock: slow uplinks (rho 4)",
    "mean_at_time.fast uplink": "the same when FedAvg is done, by the clock: fast uplinks (rho 2)",
    "mean_at_time.wired": "the same when FedAvg is done, by the clock: wired (rho 1)",
    "weighted": "accuracy over all test rows",
    "weighted.train": "accuracy over all training rows",
    "loss.train": "loss over all training rows",
    "worst": "accuracy of the worst client",
    "worst_tenth": "mean accuracy of the worst tenth of the clients",
    "deviation": "sample standard deviation of the clients' accuracies",
    "largest_tenth": "accuracy over the rows of the tenth of the clients with most of them",
    "gain_over_fedavg": "accuracy minus FedAvg's, per client",
    "gain_over_fedavg.peak": "gain over FedAvg at which the density of the clients' gains peaks",
    "gain_over_fedavg.pui": "share of the clients that gain over FedAvg",
    "gain_over_fedavg.mpi": "median gain over FedAvg of those that gain",
    "gain_over_fedavg.api": "mean gain over FedAvg of those that gain",
    "fairness.jain": "Jain's index of the gains",
    "fairness.entropy": "entropy of the gains",
    "fairness.variance": "average variance (AV) of the gains, lower is fairer",
    "best": "accuracy over all test rows, in the round of the best (chosen on test rows)",
    "chosen": "accuracy over all test rows, in the round that select rows choose",
    "rounds": "rounds until within a point of the best, or until the latest teacher",
    "bytes": "megabytes sent up and down",
    "error": "distance of the estimate from the true parameter",
    "relative_false_accepts": "false accepts over those of the first model, at equal false rejects",
    "note:lambda": "the lambda that clients chose, mean over clients",
    "note:T": "the temperature that clients chose, mean over clients",
    "note:teacher_round": "the round of each client's teacher",
    "note:grid_accuracy": "validation accuracy of the students, mean over clients",
    "note:raw_steps": "local steps before rounding and cutting",
}


def is_in_points(metric: str) -> bool:
    """Whether a metric is an accuracy in percent, so that one point is little."""
    kind = metric.partition(".")[0]
    other = ("rounds", "bytes", "error", "relative_false_accepts", "fairness", "loss")
    return kind not in other and not metric.startswith("note:")


def is_outcome(metric: str) -> bool:
    """Whether a paper's numbers are outcomes, to be held beside ours; rounds are what it chose."""
    return metric != "rounds"


def tolerance_of(metric: str) -> float:
    """A difference from the paper that is none: a point, half a point of a deviation, half a small
    step of the grids of lambda and T, or half of the ten points between the marks of an axis.
    """
    special = {"deviation": 0.5, "note:lambda": 0.125, "note:T": 2.0, "gain_over_fedavg.peak": 5.0}
    return special.get(metric, POINT if is_in_points(metric) else 0.0)


class PaperRow(NamedTuple):
    """One number of a paper."""

    label: str  # as the paper calls it
    method: str = ""  # its name in the column's recipe; "": nothing here reproduces it
    view: str = "personal"  # which model was judged: "personal" or "global"
    point: str = ""  # of a logged quantity with points, such as "lambda=0.5,T=5"
    value: float | None = None  # None: the paper only draws it
    spread: float | None = None
    also: tuple[str, ...] = ()  # other interpretations of the same method in that recipe


class PaperColumn(NamedTuple):
    """The numbers that one recipe reproduces."""

    name: str
    recipe: str = ""  # "": none; the table's note or script says why
    cheaper: str = ""  # a recipe with the same methods that a small machine can run
    metric: str = ""
    view: str = "personal"
    rows: tuple[PaperRow, ...] = ()
    above: tuple[tuple[str, str], ...] = ()  # the first method's figure lies above the second's
    claims: tuple[tuple[str, ...], ...] = ()  # of another kind, as comparison/claims.py knows them
    trivial: tuple[tuple[str, ...], ...] = ()  # claims that hold by construction: not counted
    over: Literal["end", "course"] = "end"  # the last round, or the mean over evaluated rounds
    beside: str = ""  # a view that is shown beside the rows', without a part in the verdict
    arithmetic: bool = False  # bytes, computed from networks and protocol: nothing is trained
    # another interpretation of the set-up: shown, without a part in the verdict
    otherwise: bool = False


class PaperTable(NamedTuple):
    """A table or figure of a paper."""

    id: str
    paper: str
    place: str  # such as "Table 1"
    claim: str  # in one sentence
    metric: str
    unit: str = "%"
    spread: str = ""  # what the rows' spreads are; "": there are none
    spread_over: Literal["", "users", "runs"] = ""  # only one over runs is a doubt about a mean
    runs: int = 0  # of which the values are means; 0: not stated
    page: int = 0  # 0: not known
    script: str = ""  # what reproduces it and writes its results file, where no recipe does
    note: str = ""
    trivial: str = ""  # why all of it holds by construction; "": it does not
    columns: tuple[PaperColumn, ...] = ()

    def rows(self) -> Iterator[tuple[PaperColumn, PaperRow]]:
        """Every row with its column."""
        return ((column, row) for column in self.columns for row in column.rows)


def can_run(table: PaperTable) -> bool:
    """Whether a recipe or a script reproduces a table; else its note says why none does."""
    return bool(table.script) or any(column.recipe for column in table.columns)


def read_papers(folder: Path = PAPERS) -> dict[str, PaperTable]:
    """All tables and figures by id; refuses a file that names a recipe, method or metric which is
    not there.
    """
    return {path.stem: read_paper(path) for path in sorted(folder.glob("*.toml"))}


def read_paper(path: Path) -> PaperTable:
    """One table or figure, checked."""
    try:
        table = _parse_table(read_toml(path))
        if table.id != path.stem:
            raise BadInput(f"id = '{table.id}': name it '{path.stem}', as the file")
        _check_table(table)
    except BadInput as problem:
        raise BadInput(f"{path}: {problem}") from None
    return table


def _parse_table(table: Mapping[str, Any]) -> PaperTable:
    metric = table.get("metric", "")
    columns = tuple(
        _parse_column({"metric": metric, **column}) for column in table.get("columns", ())
    )
    return PaperTable(
        **_coerce_fields(PaperTable, {k: v for k, v in table.items() if k != "columns"}, "table"),
        columns=columns,
    )


def _parse_column(table: Mapping[str, Any]) -> PaperColumn:
    view = {"view": table["view"]} if "view" in table else {}
    rows = tuple(
        PaperRow(**_coerce_fields(PaperRow, {**view, **row}, "row"))
        for row in table.get("rows", ())
    )
    pairs = table.get("above", ())
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise BadInput(f"above = {pairs}: give pairs of methods, the better one first")
    lists = ("rows", "above", "claims", "trivial")
    rest = {k: v for k, v in table.items() if k not in lists}
    claims, trivial = (
        tuple(tuple(map(str, claim)) for claim in table.get(option, ()))
        for option in ("claims", "trivial")
    )
    return PaperColumn(
        **_coerce_fields(PaperColumn, rest, "column"),
        rows=rows,
        above=tuple((str(a), str(b)) for a, b in pairs),
        claims=claims,
        trivial=trivial,
    )


def methods_named(column: PaperColumn) -> list[str]:
    """The methods that a column's rows, pairs and claims name, each once."""
    named = [m for row in column.rows for m in (row.method, *row.also)]
    named += [name.partition(":")[0] for pair in column.above for name in pair]
    terms = (term for claim in (*column.claims, *column.trivial) for term in claim[1:])
    found = (term.partition(":")[0] for term in terms)
    named += [name for name in found if name.partition("@")[0] in METHODS]
    return [name for name in dict.fromkeys(named) if name]


def _coerce_fields(kind: Any, table: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The options of a table, column or row as what they are to be."""
    hints = get_type_hints(kind)
    for option in table:
        if option not in hints:
            raise BadInput(f"unknown option '{option}' of a {place}{suggest_name(option, hints)}")
    for option in kind._fields:
        if option not in table and option not in kind._field_defaults:
            raise BadInput(f"a {place} has no {option}: {dict(table)}")
    return {option: coerce(hints[option], value, option) for option, value in table.items()}


def _check_table(table: PaperTable) -> None:
    """Refuse what refers to nothing."""
    if not table.columns:
        raise BadInput(f"'{table.id}' has no columns")
    for column in table.columns:
        if column.metric not in PAPER_METRICS:
            raise BadInput(
                f"unknown metric '{column.metric}'{suggest_name(column.metric, PAPER_METRICS)}"
            )
        if not column.rows and not column.above:
            raise BadInput(f"column '{column.name}' has neither rows nor pairs of methods")
        named = methods_named(column)
        if not column.recipe:
            if not table.script and (any(named) or not table.note):
                raise BadInput(
                    f"column '{column.name}' has no recipe: say why in a note, and name no methods"
                )
            continue
        for recipe in filter(None, (column.recipe, column.cheaper)):
            methods = read_toml(find_config(recipe)).get("methods", [])
            for method in (m for m in named if m not in methods):
                way = suggest_name(method, methods)
                raise BadInput(
                    f"'{method}' of column '{column.name}' is not in the recipe {recipe}{way}"
                )
