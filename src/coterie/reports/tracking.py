"""Finished runs for other tools: TensorBoard, MLflow, and Weights & Biases."""

from __future__ import annotations

from pathlib import Path

from coterie.comparison.execute import load_comparison
from coterie.comparison.plan import FILE as PLAN
from coterie.core.errors import BadInput
from coterie.results.folder import CONFIG
from coterie.results.run import Run, load_run
from coterie.results.scalars import iter_scalars
from coterie.results.trackers import (
    EXPERIMENT,
    MlflowTracker,
    TensorBoardTracker,
    Tracker,
    WandbTracker,
)


def to_tensorboard(run: Run, folder: str | Path) -> Path:
    """Write a run as TensorBoard events into `folder`: `tensorboard --logdir` shows it."""
    target = Path(folder)
    if any(target.glob("events.out.tfevents.*")):
        raise BadInput(
            f"{target} holds an export already, and a second would draw every curve twice: "
            "delete it, or give another place"
        )
    _write(run, TensorBoardTracker(run, target))
    return target


def to_mlflow(run: Run, tracking_uri: str | None = None, experiment: str = EXPERIMENT) -> str:
    """Log a run to MLflow and return its id there.

    Without `tracking_uri` it goes where MLflow itself would log (MLFLOW_TRACKING_URI).
    """
    start = min((scalar.time for scalar in iter_scalars(run)), default=None)
    return _write(run, MlflowTracker(run, tracking_uri, experiment, start=start))


def to_wandb(run: Run, folder: str | Path) -> str:
    """Write a run for Weights & Biases into `folder` (WANDB_MODE=online: to its server) and return
    its id there.
    """
    return _write(run, WandbTracker(run, Path(folder)))


def _write(run: Run, tracker: Tracker) -> str:
    tracker.log(iter_scalars(run))
    tracker.finish(run)
    return tracker.key


def runs_of(path: Path) -> list[tuple[str, Run]]:
    """(name, run) of a run folder, or of every run of a comparison."""
    if (path / PLAN).exists():
        inner = load_comparison(path).runs.values()
        return [(f"{path.resolve().name}/{run.folder.name}", run) for runs in inner for run in runs]
    if not (path / CONFIG).exists():
        raise BadInput(f"{path} is not the folder of a run or comparison: it has no {CONFIG}")
    return [(path.resolve().name, load_run(path))]
