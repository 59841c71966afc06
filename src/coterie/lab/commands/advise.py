"""`coterie advise`: the arena's best methods that some data allow, as a ready command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from coterie.cli.options import PASS_THROUGH, parse_arguments, split_method_options
from coterie.cli.printing import print_line
from coterie.cli.show import wrap_text
from coterie.experiment.column_roles import with_columns
from coterie.experiment.config import Experiment, change_options
from coterie.lab.arena.guide import MethodRecord, Suggestion, read_guide, suggest_methods

UNPREDICTED = "No property of a federation predicts which method wins"
PREDICTED = "What a federation looks like says a little of which method wins, and is not used here"


@click.command(
    context_settings=PASS_THROUGH, short_help="Say which methods to try first on some data."
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[DATA] [--OPTION VALUE]...")
def advise(arguments: tuple[str, ...]) -> None:
    """Name the arena's best methods that DATA (digits) allow, as a command to compare them.

    Takes the options of `coterie run` for data, split, network and training, such as --client and
    --label for a table of your own, and METHOD.WORD for a single method. Nothing is trained, and
    the data decide nothing but which methods can run: what they look like says little or nothing of
    who wins.
    """
    name, settings = parse_arguments(arguments, "DATA")
    common, own = split_method_options(settings)
    experiment = change_options(Experiment(method=""), ({"dataset": name} if name else {}) | common)
    found = suggest_methods(with_columns(experiment), read_guide(), own=own)
    rest = [option for option in arguments if option != name]
    show_suggestion(found, [*(["--dataset", name] if name else []), *rest])


def show_suggestion(found: Suggestion, rest: Sequence[str] = ()) -> None:
    """One sentence, the command, and what cannot run here."""
    lead, count = found.lead, len(found.guide.known.federations)
    print_line(
        wrap_text(
            f"{PREDICTED if lead.counts else UNPREDICTED}: with each of the arena's "
            f"{count} federations left out once, the best rule that looks at the data lies "
            f"{lead.mean:.1f} points behind the best method there, the best single method "
            f"{lead.single:.1f} (standard error of the difference {lead.error:.1f}). Compare the "
            "arena's best that your data allow with the two baselines:"
        )
    )
    names = [*(one.method for one in found.bars), *(one.method for one in found.methods)]
    print_line("")
    print_line(f"  coterie compare --methods {','.join(names)} {shlex.join(rest)}".rstrip())
    print_line("")
    said = "; ".join(_describe_record(one) for one in (*found.methods, *found.bars))
    print_line(wrap_text(f"In the arena, points behind the best and times FedAvg's work: {said}."))
    for method, why in found.refused.items():
        print_line(wrap_text(f"Not {method}: {why}"))


def _describe_record(one: MethodRecord) -> str:
    return f"{one.method} {one.behind:.1f} and {one.gradients:.1f}"
