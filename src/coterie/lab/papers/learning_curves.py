"""How the methods of a leaderboard came to their figures: accuracy over the rounds, of every
method's longest run, which may be longer than the runs that a column compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.lab.papers.claims import Runs
from coterie.lab.papers.measures import pooled_curve
from coterie.lab.papers.paper_tables import PaperColumn
from coterie.lab.papers.stored_columns import options_of
from coterie.reports.figures import Figure, Series, slugify

Curve = Mapping[str, list[float]]  # {"rounds", "values"}, in percent
PICTURES = "pictures"
DPI = 100


def curves_of(column: PaperColumn, runs: Runs) -> dict[str, Curve]:
    """The curve of every method of a column, of its first seed."""
    views = {row.method: row.view for row in column.rows if runs.get(row.method)}
    found: dict[str, Curve] = {}
    for method, view in views.items():
        rounds, values = pooled_curve(runs[method][0], view)
        found[method] = {"rounds": rounds.tolist(), "values": [round(float(v), 2) for v in values]}
    return found


def merge_curves(old: Mapping[str, Curve], new: Mapping[str, Curve]) -> dict[str, Curve]:
    """The longer curve of each method, the newer one of equals."""
    kept = {m: c for m, c in old.items() if m not in new or _last(c) > _last(new[m])}
    return {**new, **kept}


def _last(curve: Curve) -> float:
    return curve["rounds"][-1]


def picture_of(table: str, column: PaperColumn) -> str:
    """The file name of a column's picture."""
    return f"{table}-{slugify(column.name.partition(',')[0])}.png"


def longer_than(column: PaperColumn, stored: Mapping[str, Any]) -> list[tuple[str, int, float]]:
    """(row, rounds, best) of methods that ran for longer than the runs that are compared."""
    rounds = {
        method: options_of(runs[0])["schedule"]["rounds"]
        for method, runs in stored["methods"].items()
        if runs
    }
    compared = max(rounds.values(), default=0)
    curves = stored.get("curves", {})
    named = [(row.label, curves[row.method]) for row in column.rows if row.method in curves]
    return [(label, int(_last(c)), max(c["values"])) for label, c in named if _last(c) > compared]


def draw_curves(column: PaperColumn, curves: Mapping[str, Curve], path: Path) -> None:
    """Write a column's picture."""
    from coterie.reports.draw import draw_figure  # matplotlib takes a second to load

    rows = [row for row in column.rows if row.method in curves]
    rows.sort(key=lambda row: -max(curves[row.method]["values"]))
    lines = [
        Series(row.label, list(curves[row.method]["rounds"]), list(curves[row.method]["values"]))
        for row in rows
    ]
    figure = Figure(
        key=path.stem,
        title=column.name.partition(",")[0],
        note="",
        kind="lines",
        x="round",
        y="accuracy over all test rows, %",
        series=tuple(lines),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_figure(figure, [line.name for line in lines]).savefig(
        path, dpi=DPI, metadata={"Software": None}
    )
