"""What a search is about to try, and what it found, on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table as Grid

from coterie.analysis.scores import Score
from coterie.cli.printing import print_line, print_table
from coterie.comparison.plan import ComparisonPlan, knob_of
from coterie.comparison.trials import FOLDER, Record, read_record
from coterie.results.comparison import Comparison


def print_search(plan: ComparisonPlan) -> None:
    """What each method gets, and over what it is searched."""
    if not plan.search or plan.search.steps:
        return
    print_line(
        f"search on validation data: {plan.search.describe(len(plan.experiments))} for each method"
    )
    for name, grid in plan.grids.items():
        space = ", ".join(
            f"{option} {_format_values(values, option)}" for option, values in grid.items()
        )
        print_line(f"  {name}: {space or 'nothing to search, its settings are fixed'}")


def _format_values(values: Any, option: str) -> str:
    settings = knob_of(values, option).text
    return settings if isinstance(settings, str) else "/".join(map(str, settings))


def show_tuning(comparison: Comparison) -> None:
    """One row per method that was tuned: what was chosen, out of how many trials."""
    names = [*comparison.runs, *comparison.diverged]
    found = {name: read_record(comparison.folder / FOLDER / name) for name in names}
    records = {name: record for name, record in found.items() if record and record.best}
    if not records:
        return
    judged = comparison.first.judged
    grid = Grid("method", "chosen on validation data", "trials", "stopped\nearly", judged.label)
    for name, record in records.items():
        grid.add_row(name, *_format_row(record, judged))
    print_line("Tuned options (every trial: report.html)")
    print_table(grid)


def _format_row(record: Record, judged: Score) -> list[str]:
    best = next(trial for trial in record.tried if trial.options == record.best)
    score = "-" if best.score is None else judged.text(best.score)
    early = sum(trial.state in ("stopped", "out of time") for trial in record.tried)
    return [format_options(best.options), str(len(record.tried)), str(early), score]


def format_options(settings: Mapping[str, Any]) -> str:
    """Options as they are given on the command line."""
    return ", ".join(f"{option} {value}" for option, value in settings.items())
