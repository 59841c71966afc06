"""`coterie predict`: what the clients' own models say of new rows."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.cli.plugin_option import PLUGIN
from coterie.cli.printing import build_console
from coterie.core.errors import BadInput
from coterie.deploy.config_files import SITE
from coterie.deploy.current_model import MODEL
from coterie.experiment.config import read_toml
from coterie.results.folder import CONFIG
from coterie.results.personal_models import Models, SingleModel
from coterie.serving.predicting import PredictionRequest, predict_file


@click.command(short_help="Predict new rows with a client's own model.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("rows", required=False, type=click.Path(path_type=Path), metavar="[DATA]")
@click.option("--client", default="", metavar="NAME", help="Whose model.")
@click.option(
    "--client-column",
    default="",
    metavar="COLUMN",
    help="Instead of --client: the column that names each row's client; default the one that RUN "
    "was trained with.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="The same as DATA: rows with the columns of training, in a table of any kind that "
    "training reads, or .npz.",
)
@click.option(
    "--out",
    default="predictions.csv",
    show_default=True,
    type=click.Path(path_type=Path),
    help="A .csv or .parquet to write.",
)
@click.option("--keep", default="", metavar="A,B", help="Columns of --data that --out has too.")
@click.option("--separator", default="", help="Of a CSV; found out where it is not given.")
@click.option(
    "--sure",
    is_flag=True,
    help="Calibrated probabilities, and the set of classes or the interval that holds the truth as "
    "often as `coterie explain` was asked for.",
)
@click.option("--replace", is_flag=True, help="Write over --out if it exists.")
@click.option("--quiet", is_flag=True, help="No progress display.")
@PLUGIN
def predict(
    run: Path,
    rows: Path | None,
    client: str,
    client_column: str,
    data: Path | None,
    out: Path,
    keep: str,
    separator: str,
    sure: bool,
    replace: bool,
    quiet: bool,
) -> None:
    """Predict the rows of the file DATA with the models of RUN, the folder of a run; or of a real
    site, with its own model as it is now, while the federation goes on or after.

    The output has one line per row: its number, the client, the prediction and the probability of
    every class. A column of training that is missing is refused, other columns are ignored, a text
    that training did not know counts as `(other)`, and an empty cell becomes what it became in
    training. Files may be larger than memory.
    """
    if (rows is None) == (data is None):
        raise BadInput(f"name one file of rows to predict, as in `coterie predict {run} my.csv`")
    site = (run / SITE).is_file()
    models = SingleModel(run / MODEL) if site else Models(run)
    wanted = PredictionRequest(
        data=rows or data or Path(),
        out=out,
        client=client or (models.names[0] if site else ""),
        client_column=client_column or ("" if client or site else _find_client_column(run)),
        keep=[name.strip() for name in keep.split(",") if name.strip()],
        separator=separator,
        replace=replace,
        sure=sure,
    )
    columns = [
        TextColumn("{task.fields[rows]} rows"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    ]
    hidden = quiet or not sys.stdout.isatty()
    with Progress(*columns, console=build_console(), disable=hidden, transient=True) as bars:
        bar = bars.add_task("", total=1.0, rows="0")
        count = predict_file(
            models,
            wanted,
            lambda done, rows: bars.update(bar, completed=done, rows=f"{rows:,}"),
        )
    click.echo(f"{count:,} row{'s' * (count != 1)} predicted: {out}")


def _find_client_column(run: Path) -> str:
    """The column that named the clients when the run was trained; "" where there was none."""
    return str(read_toml(run / CONFIG).get("dataset", {}).get("client") or "")
