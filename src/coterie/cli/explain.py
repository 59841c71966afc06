"""`coterie explain`: what the clients' models look at, and how sure they are."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from rich import box
from rich.table import Table as Grid

from coterie.analysis.nan_math import mean_of
from coterie.analysis.scores import find_score
from coterie.cli.plugin_option import PLUGIN
from coterie.cli.printing import print_line, print_table
from coterie.cli.show import wrap_text
from coterie.core.errors import BadInput
from coterie.results.personal_models import Models
from coterie.serving.explaining import Dependence, Explained, count_test_rows, describe_sureness
from coterie.serving.explaining import explain as explain_run

SUFFIXES = (".png", ".svg")
MAX_COLUMNS = 15  # columns that are printed
LEAST = 2  # test rows between which cells can change places
MAX_CLASSES = 4  # classes whose mean probability is printed


@click.command(short_help="What clients' models look at, and how sure they are.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--client", default=None, metavar="NAME", help="Whose model; default all of them.")
@click.option(
    "--confidence",
    default=0.9,
    show_default=True,
    help="How often a set of classes or an interval shall hold the truth.",
)
@click.option("--picture", type=click.Path(path_type=Path), help="PNG or SVG to write.")
@PLUGIN
def explain(run: Path, client: str | None, confidence: float, picture: Path | None) -> None:
    """Say which columns the models of RUN use, whether their probabilities hold, and how sure they
    are; the data that RUN was trained on must still be there.

    Importance: how much worse a model does on its test rows where one column's cells change places.
    With --client also what the model says at some values of the columns that matter most. A
    temperature (of probabilities) and a quantile (of conformal sets or intervals) are fitted for
    every client on held rows and stay in RUN, for `coterie predict --sure`; reliability and
    coverage are those on test rows, of which nothing is fitted.
    """
    if picture and (picture.suffix not in SUFFIXES or not picture.parent.is_dir()):
        raise BadInput(f"{picture}: give a file that ends in {' or '.join(SUFFIXES)}, in a folder")
    found = explain_run(run, client, confidence)
    _print_importance(found)
    classes = [str(name) for name in Models(run).model(found.clients[0].client).classes_]
    for one in found.clients[0].dependence:
        _print_dependence(one, classes)
    for line in describe_sureness(found):
        print_line(wrap_text(line))
    if picture:
        from coterie.serving.explained_picture import draw_explained

        draw_explained(found, classes, picture)
        print_line(f"picture: {picture}")
    print_line(f"kept in {run}; new rows: coterie predict {run} NEW.csv --sure")


def _print_importance(found: Explained) -> None:
    """Columns by how much the models lose without them."""
    score, several = find_score(found.measure), len(found.clients) > 1
    means = {n: mean_of([one.importance[n] for one in found.clients]) for n in found.columns}
    order = sorted(means, key=lambda name: -np.nan_to_num(means[name], nan=-np.inf))
    whose = f"{len(found.clients):,} clients, mean" if several else found.clients[0].client
    rows = sum(one.rows for one in found.clients)
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("column")
    grid.add_column(f"{score.label} lost{', points' * score.share}", justify="right")
    if several:
        grid.add_column("least to most", justify="right")
    for name in order[:MAX_COLUMNS]:
        each = [one.importance[name] for one in found.clients]
        known = [value for value in each if value == value]
        ends = f"{score.text(min(known))} to {score.text(max(known))}" if known else "-"
        mean = score.text(means[name]) if known else "-"
        grid.add_row(name, mean, *([ends] if several else []))
    print_line(f"importance of columns: {whose}; {count_test_rows(rows)}")
    print_table(grid)
    if all(one.rows < LEAST for one in found.clients):
        print_line("a cell changes places with that of another test row: there is none")
    if len(order) > MAX_COLUMNS:
        print_line(f"and {len(order) - MAX_COLUMNS:,} more columns")


def _print_dependence(one: Dependence, classes: list[str]) -> None:
    """What the model says at values of a column."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column(one.column)
    if one.answers.ndim == 1:
        shown = [("mean prediction", one.answers)]
    else:
        some = (
            range(len(classes))[-1:] if len(classes) == 2 else range(min(len(classes), MAX_CLASSES))
        )
        shown = [(f"mean probability of {classes[k]}", one.answers[:, k]) for k in some]
    for head, _ in shown:
        grid.add_column(head, justify="right")
    for k, value in enumerate(one.values):
        grid.add_row(value, *(f"{answers[k]:.3g}" for _, answers in shown))
    print_table(grid)
