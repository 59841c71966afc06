"""Progress of a Python program: in a notebook a bar that is drawn anew, where ipywidgets can show
one, else a few plain lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coterie.running.loop import RoundReport
from coterie.running.progress_lines import LineProgress, print_named

Watch = Callable[[str, int | None, RoundReport], None]


def has_widgets() -> bool:
    """Whether this is a notebook that can draw a bar anew."""
    return find_spec("ipywidgets") is not None and Console().is_jupyter


@contextmanager
def show_progress(runs: int = 1) -> Iterator[Watch]:
    """What watches runs: a bar in a notebook with widgets, else a few plain lines."""
    if not has_widgets():
        yield LineProgress(runs).note
        return
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[value]}"),
        TimeElapsedColumn(),
    ]
    with Progress(*columns) as bars:
        yield _Bar(bars).note


class _Bar:
    """One line for the run that is being played."""

    def __init__(self, bars: Progress):
        self.bars, self.task = bars, bars.add_task("", total=None, value="")
        self.value = ""  # what was measured last

    def note(self, label: str, seed: int | None, report: RoundReport) -> None:
        print_named(label, seed, report)
        if not report.rounds:  # said between two rounds
            return
        if report.value is not None:
            self.value = f"{report.measure} {report.value:.4g}"
        self.bars.update(
            self.task,
            description=label if seed is None else f"{label} seed {seed}",
            completed=report.round,
            total=report.rounds,
            value=self.value,
        )
