"""What the command line prints of newcomers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table as Grid

from coterie.analysis.scores import Score
from coterie.cli.printing import print_line, print_table
from coterie.results.newcomer_results import WAYS, NewcomerRow
from coterie.results.run import Run


def show_newcomers(found: Mapping[str, Sequence[NewcomerRow]], runs: Mapping[str, Run]) -> None:
    """How newcomers were served, way by way, for each method; nothing where there were none."""
    found = {name: rows for name, rows in found.items() if rows}
    if not found:
        return
    first = runs[next(iter(found))]
    judged, n = first.judged, next(iter(found.values()))[0].n
    print_line(
        f"Newcomers, kept out of training: test {judged.label}{judged.unit} of {n:,} "
        f"newcomer{'s' * (n > 1)}"
    )
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("method", "model"):
        grid.add_column(head, no_wrap=True)
    for head in ("mean", "95 % interval", "own rule against it"):
        grid.add_column(head, justify="right", no_wrap=True)
    for name, rows in found.items():
        for row in rows:
            grid.add_row(name if row.way == "rule" else "", *format_newcomer(row, judged))
    print_table(grid)
    for name in found:
        print_line(textwrap.fill(f"{name}: a newcomer {runs[name].came.rule}.", 80))


def format_newcomer(row: NewcomerRow, judged: Score) -> list[str]:
    """A row as text: the way, the mean, its interval, and the gain of the rule."""
    known = row.low == row.low
    interval = f"{judged.text(row.low)} to {judged.text(row.high)}" if known else "-"
    scale, form = (100, "+.2f") if judged.share else (1, "+.3g")
    gain = f"{scale * row.gain:{form}}"
    if row.gain_low == row.gain_low:
        gain += f" [{scale * row.gain_low:{form}}, {scale * row.gain_high:{form}}]"
    return [WAYS[row.way], judged.text(row.mean), interval, "" if row.way == "rule" else gain]
