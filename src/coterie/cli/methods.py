"""`coterie methods`: every method, or all about one."""

from __future__ import annotations

import click
from rich.table import Table as Grid

from coterie.cli.printing import plain, show
from coterie.methods.listing import listed


@click.command(short_help="List the methods, or tell all about one.")
@click.argument("name", required=False)
def methods(name: str | None) -> None:
    """Every method with its paper, options and defaults; with a NAME, all about that one."""
    if name:
        from coterie.cli.show import show_method

        show_method(name)
        return
    grid = Grid("method", "paper", "options and defaults", show_lines=True)
    for found in listed():
        options = ", ".join(f"{k}={plain(d)}" for k, d in found.options.items())
        grid.add_row(found.name, found.paper, options)
    show(grid, 160)
