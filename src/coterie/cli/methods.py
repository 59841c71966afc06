"""`coterie methods`: every method, or all about one."""

from __future__ import annotations

import click
from rich.table import Table as Grid

from coterie.cli.plugin_option import PLUGIN
from coterie.cli.printing import format_value, print_line, print_table
from coterie.methods.families import FAMILIES, OTHERS
from coterie.methods.listing import MethodEntry, list_methods

NEED_LABELS = {
    "validation": "validation rows",
    "public": "public rows",
    "groups": "known groups",
}

# of the list, with their widths
COLUMNS = {"method": 10, "year": 4, "use it when": 33, "down / up": 11, "rank": 4, "work": 4}


@click.command(short_help="List the methods, or describe one.")
@click.argument("name", required=False)
@click.option("--wide", is_flag=True, help="Papers, options and defaults of all methods.")
@PLUGIN
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
    found = list_methods()
    for family in [*FAMILIES, OTHERS]:
        members = [one for one in found if one.family == family]
        if members:
            print_line(f"\n{family.upper()}")
            print_table(_tabulate(sorted(members, key=lambda one: one.year or 0)), 80)
    print_line(
        "\nDown / up: floats per client and round; d of the network, f features, N clients;\n"
        "over public rows: of 20 rows and 3 classes. Rank: the mean in the arena; work:\n"
        "gradients there, times FedAvg's. All about one, with where it wins: `coterie\n"
        "methods NAME`; papers and options of all: --wide."
    )


def _tabulate(members: list[MethodEntry]) -> Grid:
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head, width in COLUMNS.items():
        grid.add_column(head, width=width)
    for one in members:
        needs = ", ".join(NEED_LABELS[option] for option in one.needs)
        grid.add_row(
            one.name,
            str(one.year or ""),
            one.when + (f" (needs {needs})" if needs else ""),
            one.traffic,
            "" if one.rank is None else f"{one.rank:.1f}",
            "" if one.work is None else f"{one.work:.1f}",
        )
    return grid
