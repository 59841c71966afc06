"""What the command line prints: tables and the progress line."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Grid

from .comparison import Comparison, Row
from .config import options_of
from .data.federation import Federation, table
from .evaluation import sentences
from .folder import Run
from .methods import METHODS
from .metrics import share
from .run import Report
from .statistics import Difference

MOST = 50  # clients listed by `coterie data`


def console(width: int | None = None) -> Console:
    """Prints what it is given: no markup, no emoji, no colours for numbers."""
    return Console(highlight=False, markup=False, emoji=False, width=width)


def say(line: str) -> None:
    """A line of its own, however long."""
    click.echo(line)


def show(grid: Grid, widest: int = 2000) -> None:
    """A table, not squeezed when the output is a file or a pipe."""
    out = console()
    if not sys.stdout.isatty():
        out = console(min(widest, Measurement.get(console(widest), console(widest).options, grid).maximum))
    out.print(grid)


def paper_of(name: str) -> str:
    """The first paragraph of the method's file: its paper."""
    return " ".join(_about(name)[0].split())


def _about(name: str) -> list[str]:
    """The paragraphs at the head of a method's file."""
    return (inspect.getdoc(inspect.getmodule(METHODS[name])) or "").split("\n\n")


def show_methods() -> None:
    """Every method: paper, options, defaults."""
    grid = Grid("method", "paper", "options and defaults", show_lines=True)
    for name in METHODS:
        grid.add_row(name, paper_of(name), ", ".join(f"{k}={_plain(d)}" for k, (_, d) in options_of("method", name).items()))
    show(grid, 160)


def show_method(name: str) -> None:
    """All about one method: the head of its file, what its builder says, its options."""
    for paragraph in [*_about(name), inspect.getdoc(METHODS[name]) or ""]:
        say(paragraph + "\n")
    options = options_of("method", name)
    if not options:
        say(f"{name} has no options.")
        return
    grid = Grid("option", "default", "type")
    for option, (kind, default) in options.items():
        grid.add_row(option, _plain(default), getattr(kind, "__name__", str(kind)))
    show(grid)
    word = next(iter(options))
    say(f"Set one as in `coterie run {name} --{word} {_plain(options[word][1]) or 'VALUE'}`.")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def show_data(federation: Federation) -> None:
    """Who holds how much."""
    title = f"{federation.name}: {federation.clients:,} clients"
    grid = Grid("client", "name", "train", "validation", "test", "classes", "group", title=title)
    rows = table(federation)
    for row in rows[:MOST]:
        grid.add_row(*(str(cell) for cell in row))
    show(grid)
    if len(rows) > MOST:
        say(f"... and {len(rows) - MOST:,} more clients")
    sizes = federation.sizes
    say(f"training rows: {sizes.sum():,} in all, {sizes.min():,} to {sizes.max():,} a client")


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str, int | None, Report], None]]:
    """A live line a run; nothing when the output is not a terminal."""
    if quiet or not sys.stdout.isatty():
        yield lambda label, seed, report: None
        return
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]} accuracy {task.fields[accuracy]} {task.fields[speed]} clients/s"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console()) as bars:
        tasks: dict[tuple[str, int | None], Any] = {}

        def note(label: str, seed: int | None, report: Report) -> None:
            key = (label, seed)
            if key not in tasks:
                for old in tasks.values():
                    bars.update(old, visible=False)
                words = label if seed is None else f"{label} seed {seed}"
                tasks[key] = bars.add_task(words, total=report.rounds, loss="-", accuracy="-", speed="-")
            shown: dict[str, Any] = {"speed": f"{report.clients / max(report.seconds, 1e-9):,.0f}"}
            if report.accuracy is not None:
                shown |= {"accuracy": f"{report.accuracy:.3f}", "loss": f"{report.loss:.3f}"}
            bars.update(tasks[key], completed=report.round, **shown)

        yield note


def show_run(run: Run) -> None:
    """A run's clients in one line a view."""
    heads = ("view", f"mean {run.measure}", f"weighted by {run.part} rows", "deviation over clients", "worst client")
    grid = Grid(*heads)
    for view in run.views:
        grid.add_row(view, *(_number(v, run) for v in run.summary(run.part, view)))
    unit = " in %" if run.measure == "accuracy" else ""
    say(f"{run.name}: {run.part} {run.measure}{unit} of {len(run.rows):,} clients")
    show(grid)
    say(f"run: {run.folder}")


def _number(value: float, run: Run) -> str:
    return f"{100 * value:.2f}" if run.measure == "accuracy" else f"{value:.4g}"


def show_comparison(comparison: Comparison) -> None:
    """The table, best mean first."""
    first = comparison.first
    seeds, clients = len(next(iter(comparison.runs.values()))), len(first.rows)
    grid = Grid(
        "method", "mean", "weighted", "deviation\nover clients", "worst\nclient", "over seeds", "MB down", "MB up", "s a round"
    )
    sign = -1 if first.measure == "accuracy" else 1
    for row in sorted(comparison.rows(), key=lambda r: sign * r.mean):
        grid.add_row(*_cells(row, first))
    found = comparison.answer()
    if found:
        say(sentences(found) + "\n")
    unit = " in %" if first.measure == "accuracy" else ""
    plural = "s" if seeds > 1 else ""
    say(f"{first.part.capitalize()} {first.measure}{unit} of every client's own model: {clients:,} clients, {seeds} seed{plural}")
    show(grid)
    if first.measure == "accuracy":
        _show_differences(comparison)
        _show_views(comparison)
    say(f"runs, table.csv and clients.csv: {comparison.folder}")


def _show_differences(comparison: Comparison) -> None:
    """Every method against the two that it must beat, client by client."""
    others = [name for name in ("fedavg", "local") if name in comparison.runs]
    methods = [row.method for row in sorted(comparison.rows(), key=lambda r: -r.mean)]
    if not others or len(methods) < 2:
        return
    grid = Grid("method", *(f"against {name}" for name in others), "so it beats")
    for method in methods:
        found = {name: comparison.difference(method, name) for name in others if name != method}
        cells = [_interval(found[name]) if name in found else "" for name in others]
        beaten = [name for name, difference in found.items() if difference.sign > 0]
        grid.add_row(method, *cells, " and ".join(beaten) or "-")
    population = comparison.difference(methods[0], methods[-1]).population
    averaged = ", seeds averaged" if population == "clients" else ", each seed deals the data anew"
    say(f"Difference in points, client by client, with a 95 % interval (bootstrap over {population}{averaged})")
    show(grid)


def _show_views(comparison: Comparison) -> None:
    """What else a method's clients could use (the global model, the model before distillation); how often steps were capped."""
    for name, runs in comparison.runs.items():
        others = [view for view in runs[0].views if view != "personal"]
        means = {view: 100 * float(np.mean([run.summary(run.part, view).mean for run in runs])) for view in others}
        words = [f"{view.replace('_', ' ')} {value:.2f}" for view, value in means.items()]
        capped = [share(run.table, "capped") for run in runs]
        if not np.isnan(capped).all():
            words.append(f"at its largest number of steps in {100 * float(np.nanmean(capped)):.0f} % of its clients' rounds")
        if words:
            say(f"{name} also: {', '.join(words)}")


def _interval(difference: Difference) -> str:
    return f"{100 * difference.mean:+.2f} [{100 * difference.low:+.2f}, {100 * difference.high:+.2f}]"


def _cells(row: Row, first: Run) -> list[str]:
    return [
        row.method,
        *(_number(v, first) for v in (row.mean, row.weighted, row.deviation, row.worst)),
        "" if row.spread != row.spread else f"± {_number(row.spread, first)}",
        f"{row.bytes_down / 1e6:.2f}",
        f"{row.bytes_up / 1e6:.2f}",
        f"{row.seconds:.3f}",
    ]
