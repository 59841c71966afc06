"""Runs for other tools: TensorBoard event files and MLflow runs, from the same table that
everything else reads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from coterie.reports.export import runs_of, to_mlflow, to_tensorboard


@click.command(short_help="Give runs to TensorBoard or MLflow.")
@click.argument(
    "folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN..."
)
@click.option(
    "--to",
    "tool",
    required=True,
    type=click.Choice(["tensorboard", "mlflow"]),
    help="The tool to write for.",
)
@click.option(
    "--out",
    metavar="PLACE",
    help="TensorBoard: a folder (tensorboard). MLflow: an address such as http://host:5000 or "
    "sqlite:///mlflow.db, or a file; "
    "default is MLflow's own.",
)
@click.option(
    "--experiment", default="coterie", show_default=True, help="Name of the experiment in MLflow."
)
def export(folders: Sequence[Path], tool: str, out: str | None, experiment: str) -> None:
    """Write the curves, costs, words and versions of RUN (run or comparison folders, every run of
    them) for another tool.
    """
    found = [one for folder in folders for one in runs_of(folder)]
    said = f"{len(found)} run{'s' * (len(found) > 1)}"
    if tool == "tensorboard":
        place = Path(out or "tensorboard")
        for name, run in found:
            to_tensorboard(run, place / name)
        click.echo(f"{said}: tensorboard --logdir {place}")
    else:
        os.environ.setdefault(
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"
        )  # or a wrong address is told after minutes
        address = out if out is None or ":" in out else f"sqlite:///{Path(out).resolve()}"
        for _, run in found:
            to_mlflow(run, address, experiment)
        way = (
            address
            if address and address.startswith("http")
            else f"mlflow ui --backend-store-uri {address}"
            if address
            else "mlflow ui"
        )
        click.echo(f"{said} in experiment '{experiment}': {way}")
