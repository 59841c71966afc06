"""Runs and models for other tools: TensorBoard, MLflow and W&B show runs; ONNX, torch, safetensors
and MLflow's pyfunc hold the clients' own models, peft their adapters.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from coterie.cli.plugin_option import PLUGIN
from coterie.cli.show import track_progress
from coterie.core.errors import BadInput
from coterie.reports.tracking import runs_of, to_mlflow, to_tensorboard, to_wandb
from coterie.results.personal_models import Models
from coterie.serving.model_files import (
    Writer,
    export_model,
    folder_name,
    write_safetensors,
    write_torch,
)
from coterie.serving.onnx_files import OnnxWriter
from coterie.serving.peft_files import choose_writer
from coterie.serving.pyfunc import write_pyfunc

RUN_FORMATS = ("tensorboard", "mlflow", "wandb")
MODEL_FORMATS = ("onnx", "torch", "safetensors", "pyfunc", "peft")


@click.command(short_help="Give runs or models to other tools.")
@click.argument(
    "folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN..."
)
@click.option(
    "--to",
    "tool",
    required=True,
    type=click.Choice([*RUN_FORMATS, *MODEL_FORMATS]),
    help="tensorboard, mlflow, wandb: the curves of runs. onnx, torch, safetensors, pyfunc "
    "(MLflow): the clients' own models. peft: their adapters.",
)
@click.option(
    "--out",
    metavar="PLACE",
    help="TensorBoard, Weights & Biases: a folder (tensorboard, the working folder). "
    "MLflow: an address such as http://host:5000 or "
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
@click.option(
    "--merge",
    is_flag=True,
    help="Of peft: the adapter inside the base model, as a folder of transformers.",
)
@PLUGIN
def export(
    folders: Sequence[Path],
    tool: str,
    out: str | None,
    experiment: str | None,
    clients: tuple[str, ...],
    merge: bool,
) -> None:
    """Write RUN for another tool.

    For tensorboard, mlflow and wandb RUN is a run or comparison folder, and the curves, costs,
    options and versions of every run of it are written. For the others it is the folder of one run,
    and the models of its clients are written, each in a folder with its card; models of onnx and
    torch run
    without coterie and prepare rows themselves.
    """
    if experiment is not None and tool != "mlflow":
        raise BadInput(f"--experiment is for --to mlflow, not for --to {tool}: leave it out")
    if merge and tool != "peft":
        raise BadInput(f"--merge is for --to peft, not for --to {tool}: leave it out")
    if tool in MODEL_FORMATS:
        _export_models(folders, tool, Path(out or f"exported-{tool}"), clients, merge)
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
    elif tool == "wandb":
        for _, run in found:
            to_wandb(run, out or ".")
        click.echo(f"{said}: wandb sync {Path(out or '.') / 'wandb'}/offline-run-*")
    else:
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


def _export_models(
    folders: Sequence[Path], tool: str, out: Path, clients: Sequence[str], merge: bool
) -> None:
    """Write the clients' own models, each into a folder of its own."""
    if len(folders) > 1:
        raise BadInput(f"--to {tool} takes the models of one run: name one folder")
    models = Models(folders[0])
    numbers = [models.number(name) for name in clients] or list(range(len(models.names)))
    writers: dict[str, Writer] = {
        "torch": write_torch,
        "safetensors": write_safetensors,
        "pyfunc": write_pyfunc,
        "peft": choose_writer(merge),
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
