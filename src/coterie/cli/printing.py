"""Lines and tables as the command line prints them."""

from __future__ import annotations

import os
import sys
from typing import Any

import click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid


def build_console(width: int | None = None) -> Console:
    """Prints what it is given: no markup, no emoji, no colours for numbers."""
    return Console(highlight=False, markup=False, emoji=False, width=width)


def print_line(line: str) -> None:
    """A line of its own, however long."""
    click.echo(line)


def print_table(grid: Grid, widest: int = 2000) -> None:
    """A table; in a file or a pipe as wide as it needs, or as $COLUMNS says, but no word is cut."""
    out = build_console()
    if not sys.stdout.isatty():
        needs = Measurement.get(build_console(widest), build_console(widest).options, grid)
        said = os.environ.get("COLUMNS", "")
        wanted = int(said) if said.isdecimal() else widest
        out = build_console(min(widest, needs.maximum, max(wanted, needs.minimum)))
    out.print(grid)


def format_value(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ",".join(format_value(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
