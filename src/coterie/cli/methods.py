"""`coterie methods`: every method, or all about one."""

from __future__ import annotations

import click
from rich import box
from rich.table import Table as Grid

from coterie.cli.printing import format_value, print_line, print_table
from coterie.methods.listing import list_methods

NEED_LABELS = {
    "validation": "validation rows",
    "public": "public rows",
    "groups": "known groups",
}


@click.command(short_help="List the methods, or tell all about one.")
@click.argument("name", required=False)
@click.option("--wide", is_flag=True, help="Papers, options and defaults of all methods.")
def methods(name: str | None, wide: bool) -> None:
    """Every method: what it needs and when to use it; with a NAME, all about that one."""
    if name:
        from coterie.cli.show import show_method

        show_method(name)
    elif wide:
        _print_papers()
    else:
        _print_advice()


def _print_papers() -> None:
    grid = Grid("method", "paper", "options and defaults", show_lines=True)
    for found in list_methods():
        options = ", ".join(f"{k}={format_value(d)}" for k, d in found.options.items())
        grid.add_row(found.name, found.paper, options)
    print_table(grid, 160)


def _print_advice() -> None:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("method", no_wrap=True)
    grid.add_column("use it when")
    grid.add_column("needs", no_wrap=True)
    for found in list_methods():
        needs = ", ".join(NEED_LABELS[word] for word in found.needs) or "-"
        grid.add_row(found.name, found.when, needs)
    print_table(grid, 80)
    print_line("All about one: `coterie methods NAME`; papers and options of all: --wide.")
