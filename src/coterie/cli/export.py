"""Runs and models for other tools: TensorBoard and MLflow show runs; ONNX, torch, safetensors and
MLflow's pyfunc hold the clients' own models.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from coterie.cli.show import track_progress
from coterie.core.errors import BadInput
from coterie.reports.tracking import runs_of, to_mlflow, to_tensorboard
from coterie.results.personal_models import Models
from coterie.serving.model_files import (
    Writer,
    export_model,
    folder_name,
    write_safetensors,
    write_torch,
)
from coterie.serving.onnx_files import OnnxWriter
from coterie.serving.pyfunc import write_pyfunc

RUN_FORMATS = ("tensorboard", "mlflow")
MODEL_FORMATS = ("onnx", "torch", "safetensors", "pyfunc")


@click.command(short_help="Give runs or models to other tools.")
@click.argument(
    "folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN..."
)
@click.option(
    "--to",
    "tool",
    required=True,
    type=click.Choice([*RUN_FORMATS, *MODEL_FORMATS]),
    help="tensorboard, mlflow: the curves of runs. onnx, torch, safetensors, pyfunc (MLflow): the "
    "clients' own models.",
)
@click.option(
    "--out",
    metavar="PLACE",
    help="TensorBoard: a folder (tensorboard). MLflow: an address such as http://host:5000 or "
    "sqlite:///mlflow.db, or a file; "
    "default is MLflow's own. Models: a folder (exported-onnx and so on).",
)
@click.option("--experiment", help="Name of the experiment in MLflow; default coterie.")
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="NAME",
    help="Of models: whose; may be given several times, default is everyone.",
)
def export(
    folders: Sequence[Path],
    tool: str,
    out: str | None,
    experiment: str | None,
    clients: tuple[str, ...],
) -> None:
    """Write RUN for another tool.

    For tensorboard and mlflow RUN is a run or comparison folder, and the curves, costs, words and
    versions of every run of it are written. For the others it is the folder of one run, and its
    clients' models are written, each in a folder with its card; models of onnx and torch run
    without coterie and prepare rows themselves.
    """
    if tool in MODEL_FORMATS:
        if experiment is not None:
            raise BadInput(f"--experiment is for --to mlflow, not for --to {tool}: leave it out")
        _export_models(folders, tool, Path(out or f"exported-{tool}"), clients)
        return
    if clients:
        raise BadInput(f"--client is for models ({', '.join(MODEL_FORMATS)}), not for --to {tool}")
    experiment = experiment or "coterie"
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


def _export_models(folders: Sequence[Path], tool: str, out: Path, clients: Sequence[str]) -> None:
    """Write the clients' own models, each into a folder of its own."""
    if len(folders) > 1:
        raise BadInput(f"--to {tool} takes the models of one run: name one folder")
    models = Models(folders[0])
    numbers = [models.number(name) for name in clients] or list(range(len(models.names)))
    writers: dict[str, Writer] = {
        "torch": write_torch,
        "safetensors": write_safetensors,
        "pyfunc": write_pyfunc,
    }
    writer = OnnxWriter() if tool == "onnx" else writers[tool]
    targets = {number: out / folder_name(models.names[number]) for number in numbers}
    taken = [target for target in targets.values() if target.exists()]
    if taken:
        raise BadInput(f"{taken[0]} exists already and is not overwritten: give another --out")
    for number, target in track_progress(targets.items(), len(targets), "models"):
        export_model(models.model(number), target, writer)
    said = f"{len(targets):,} model{'s' * (len(targets) > 1)}"
    click.echo(f"{said} in {out}, each with its card (README.md, card.html)")
