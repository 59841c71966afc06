"""`coterie advise`: the arena's best methods that some data allow."""

from __future__ import annotations

from math import isnan

import click
from rich.table import Table as Grid

from coterie.cli.options import PASS_THROUGH, parse_arguments, split_method_options
from coterie.cli.printing import print_line, print_table
from coterie.cli.show import wrap_text
from coterie.experiment.column_roles import with_columns
from coterie.experiment.config import Experiment, change_options
from coterie.lab.arena.guide import MethodRecord, Suggestion, read_guide, suggest_methods
from coterie.lab.arena.rules import MEANINGS, SINGLE, Properties


@click.command(
    context_settings=PASS_THROUGH, short_help="Say which methods to try first on some data."
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[DATA] [--WORD VALUE]...")
def advise(arguments: tuple[str, ...]) -> None:
    """Name the arena's best methods that DATA (digits) allow, and how they did there.

    Measures the data for a minute and shows the federations of the arena that are nearest, for
    information: advice goes by them only where that beats naming the best methods of the whole
    arena by more than chance, and the figures are printed.

    Takes the words of `coterie run` for data, split, network and training, such as --client and
    --label for a table of your own, and METHOD.WORD for a single method. Training rows alone are
    looked at.
    """
    name, words = parse_arguments(arguments, "DATA")
    common, own = split_method_options(words)
    experiment = change_options(Experiment(method=""), ({"data": name} if name else {}) | common)
    show_suggestion(suggest_methods(with_columns(experiment), read_guide(), own=own))


def show_suggestion(found: Suggestion) -> None:
    """The properties, the nearest federations, and what to try."""
    print_table(_properties_grid(found))
    grid = Grid("nearest federation", "distance", "best there", "over local", "over fedavg")
    for near in found.near:
        over = [f"{near.over[bar]:+.1f}" if bar in near.over else "" for bar in ("local", "fedavg")]
        grid.add_row(near.name, f"{near.distance:.2f}", near.best, *over)
    print_table(grid)
    for near in found.near:
        print_line(f"  {near.name}: {near.says}")
    for line in found.remarks:
        print_line(wrap_text(line))
    print_table(_methods_grid(found))
    print_line(
        wrap_text(
            "Behind: points behind the best method of a federation, mean over those where it "
            "ran. Gradients: times FedAvg's."
        )
    )
    for method, why in found.refused.items():
        behind = found.guide.known.mean_behind(method)
        print_line(wrap_text(f"Not {method}, {behind:.1f} points behind there: {why}"))
    print_line(wrap_text(_describe_evidence(found)))


def _properties_grid(found: Suggestion) -> Grid:
    grid = Grid("property", "here", "in the arena")
    known = found.guide.known.properties
    for k, name in enumerate(Properties._fields):
        span = f"{known[:, k].min():.2f} to {known[:, k].max():.2f}"
        grid.add_row(MEANINGS[name], f"{found.properties[k]:.2f}", span)
    return grid


def _methods_grid(found: Suggestion) -> Grid:
    """What to try, with its own figures, and the two that belong beside it."""
    grid = Grid("try", "method", "behind", "federations", "gradients")
    for k, tried in enumerate(found.methods, 1):
        grid.add_row(f"{k}.", *_format_tried(tried))
    for tried in found.bars:
        grid.add_row("beside", *_format_tried(tried))
    return grid


def _format_tried(tried: MethodRecord) -> tuple[str, ...]:
    work = "" if isnan(tried.gradients) else f"{tried.gradients:.1f}"
    return tried.method, f"{tried.behind:.1f}", str(tried.federations), work


def _describe_evidence(found: Suggestion) -> str:
    """What the advice goes by, and how far it may be trusted."""
    lead, count = found.lead, len(found.guide.known.federations)
    goes = (
        "These are the arena's best methods that your data allow, whatever the data look like: no "
        "rule that looks at them does better by more than chance."
        if lead.taken == SINGLE
        else f"These follow from your data by the rule '{lead.rule}', which does better than the "
        "best methods of the whole arena by more than chance."
    )
    return (
        f"{goes} Judged with the methods that your data allow, each of the arena's {count} "
        f"federations left out once: the best single method lies {lead.single:.1f} points behind "
        f"the best, the best rule that looks at the data ('{lead.rule}') {lead.mean:.1f}, and the "
        f"difference has a standard error of {lead.error:.1f}. `coterie compare` decides."
    )
