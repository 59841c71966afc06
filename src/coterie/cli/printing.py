"""Lines and tables as the command line prints them."""

from __future__ import annotations

import sys
from typing import Any

import click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid


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
        out = console(
            min(widest, Measurement.get(console(widest), console(widest).options, grid).maximum)
        )
    out.print(grid)


def plain(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ",".join(plain(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
