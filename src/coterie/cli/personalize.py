"""`coterie personalize` and `coterie update`: models that a finished run gets later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich import box
from rich.table import Table as Grid

from coterie.analysis.scores import find_score
from coterie.cli.plugin_option import PLUGIN
from coterie.cli.printing import print_line, print_table
from coterie.cli.show import wrap_text
from coterie.results.newcomer_results import WAYS
from coterie.serving import personalizing, updating
from coterie.serving.personalizing import Way

DATA_HELP = (
    "Rows with the columns and the label of training, in a table of any kind that training reads."
)


@click.command(short_help="Give a client that was not there a model of a run.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--data", required=True, type=click.Path(path_type=Path), help=DATA_HELP)
@click.option("--client", default="", metavar="NAME", help="Its name; default: that of the file.")
@click.option("--separator", default="", help="Of a CSV; found out where it is not given.")
@PLUGIN
def personalize(run: Path, data: Path, client: str, separator: str) -> None:
    """Give the client whose rows are in --data a model of RUN, the folder of a finished run.

    The rows are prepared as in training and cut in train, validation and test parts. The method's
    own rule for newcomers makes the model, which is saved as one more client of RUN; fine-tuning
    of the global model and training alone are shown beside it.
    """
    found = personalizing.personalize(run, data, client or data.name.partition(".")[0], separator)
    print_line(f"{found.client}: {_format_rows(found.rows)}")
    _print_models([(WAYS[way.way], way) for way in found.ways], found.rows["test"])
    print_line(wrap_text(f"own rule: a newcomer {found.rule}."))
    print_line(f"saved as one more client of {run}; use it as in")
    print_line(f"  coterie predict {run} --client {found.client} --data NEW.csv")


@click.command(short_help="Go on training a client's model with its new rows.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--client", required=True, metavar="NAME", help="Whose model.")
@click.option("--data", required=True, type=click.Path(path_type=Path), help=DATA_HELP)
@click.option("--separator", default="", help="Of a CSV; found out where it is not given.")
@click.option("--force", is_flag=True, help="Save the new version even if it is worse.")
@PLUGIN
def update(run: Path, client: str, data: Path, separator: str, force: bool) -> None:
    """Go on training a client's model of RUN with the rows of --data.

    First it is reported whether the rows have drifted: how the model that is served now does on
    them, against its card. Then it trains on; the result is a new version beside the old one, and
    is served from then on. Nothing is written over. A version that is worse on test rows both old
    and new is refused without --force.
    """
    found = updating.update(run, data, client, separator, force=force)
    print_line(f"{found.client}: {_format_rows(found.rows)}")
    print_line(wrap_text(found.verdict))
    print_line(wrap_text(f"trained {found.how}"))
    old = f"old test rows: not measured ({found.unmeasured})"
    if found.old_before and found.old_after:
        old = updating.describe_scores(found.old_before, found.old_after, found.old_rows, "old")
    new = updating.describe_scores(found.before, found.after, found.rows["test"], "new")
    print_line(wrap_text(old))
    print_line(wrap_text(new))
    print_line(
        f"saved as version {found.version} of '{found.client}' in {run}; the older ones stay"
    )


def _format_rows(counts: dict[str, int]) -> str:
    parts = ", ".join(f"{n:,} {part}" for part, n in counts.items())
    return f"{sum(counts.values()):,} rows: {parts}"


def _print_models(rows: Sequence[tuple[str, Way]], tested: int) -> None:
    """Models beside each other on the client's test rows."""
    judged = find_score(rows[0][1].measure)
    known = any(way.low == way.low for _, way in rows)
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("model", no_wrap=True)
    heads = [f"{judged.label}{judged.unit}", *(["95 % interval"] if known else []), "loss"]
    for head in heads:
        grid.add_column(head, justify="right")
    for name, way in rows:
        interval = [f"{judged.text(way.low)} to {judged.text(way.high)}"] if known else []
        grid.add_row(name, judged.text(way.value), *interval, f"{way.loss:.4g}")
    print_line(f"on {tested:,} test rows:")
    print_table(grid)
