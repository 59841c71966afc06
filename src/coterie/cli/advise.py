"""`coterie advise`: what the arena suggests trying first on some data."""

from __future__ import annotations

import click
from rich.table import Table as Grid

from coterie.analysis.guide import MEANING, Properties
from coterie.cli.printing import say, show
from coterie.cli.show import wrapped
from coterie.cli.words import FREE, words_of
from coterie.comparison.guide import Guide, Suggestion, read_guide, suggest
from coterie.experiment.columns import with_columns
from coterie.experiment.config import Experiment, change


@click.command(context_settings=FREE, short_help="Say which methods to try first on some data.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[DATA] [--WORD VALUE]...")
def advise(arguments: tuple[str, ...]) -> None:
    """Measure DATA (digits) for a minute and say what did best on federations like it.

    Takes the words of `coterie run` for data, split, network and training, such as --client and
    --label for a table of your own. Training rows alone are looked at.
    """
    name, words = words_of(arguments, "DATA")
    experiment = change(Experiment(method=""), ({"data": name} if name else {}) | words)
    show_suggestion(suggest(with_columns(experiment), read_guide()))


def show_suggestion(found: Suggestion) -> None:
    """The properties, the nearest federations, and what follows."""
    show(_properties(found))
    grid = Grid("nearest federation", "distance", "best there", "over local", "over fedavg")
    for near in found.near:
        over = [f"{near.over[bar]:+.1f}" if bar in near.over else "" for bar in ("local", "fedavg")]
        grid.add_row(near.name, f"{near.distance:.2f}", near.best, *over)
    show(grid)
    for near in found.near:
        say(f"  {near.name}: {near.says}")
    first, *more = found.methods
    then = f", then {', '.join(more)}" if more else ""
    say(wrapped(f"Try first: {first}{then}; beside local and fedavg"))
    for method, why in found.refused.items():
        say(wrapped(f"  not {method}, which did well there: {why}"))
    say(wrapped(_evidence(found.guide)))


def _properties(found: Suggestion) -> Grid:
    grid = Grid("property", "here", "in the arena")
    known = found.guide.known.properties
    for k, name in enumerate(Properties._fields):
        span = f"{known[:, k].min():.2f} to {known[:, k].max():.2f}"
        grid.add_row(MEANING[name], f"{found.properties[k]:.2f}", span)
    return grid


def _evidence(guide: Guide) -> str:
    """How far the advice may be trusted."""
    known, judged = guide.known, guide.judged
    how = f"of the {guide.nearest} nearest" if guide.nearest else "of all"
    rule = f"nearest {guide.nearest}" if guide.nearest else "best single method"
    others = [r for r in ("best single method", "always fedavg", "always local") if r != rule]
    beside = ", ".join(f"{r} {judged[r]:.1f}" for r in others if r in judged)
    return (
        f"The rule goes by the results {how} federations. On the arena's "
        f"{len(known.federations)}, each left out once, it lies {judged[rule]:.1f} points behind "
        f"the best method ({beside}). `coterie compare` decides."
    )
