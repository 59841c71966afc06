"""TensorBoard, MLflow and Weights & Biases: one writer for each, for runs that go on and for those
that are over.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import numpy as np

from coterie.core.errors import BadInput
from coterie.experiment.toml import to_toml
from coterie.results.run import Run
from coterie.results.scalars import MEASURES, Scalar, flatten_options, tags_of

BATCH, MAX_CHARACTERS = 1000, 6000  # metrics per request, characters per parameter
EXPERIMENT = "coterie"  # the experiment of MLflow, the project of W&B
# MLflow waits for minutes otherwise: how often it asks again, and seconds for an answer
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


class Tracker(Protocol):
    """Where the numbers of one run go."""

    key: str  # by which the run is found there again

    def log(self, scalars: Iterable[Scalar]) -> None:
        """Add numbers, so that whoever looks sees them now."""

    def finish(self, run: Run) -> None:
        """Close a run that is over, or that was stopped and may go on."""


def name_run(run: Run) -> str:
    return f"{run.name}-seed{run.experiment.seed}"


class TensorBoardTracker:
    """Event files in a folder: `tensorboard --logdir` shows them."""

    def __init__(self, run: Run, folder: Path, first: int = 1):
        writer, _ = _import_tensorboard()
        self.key, self.last = folder.name, dict[str, float]()
        # events of rounds that are played again are dropped
        self.writer = writer(str(folder), purge_step=first if first > 1 else None)
        self.writer.add_text("config", _indent(to_toml(run.experiment.to_dict())))

    def log(self, scalars: Iterable[Scalar]) -> None:
        for scalar in scalars:
            self.writer.add_scalar(scalar.name, scalar.value, scalar.round, walltime=scalar.time)
            self.last[scalar.name] = scalar.value
        self.writer.flush()

    def finish(self, run: Run) -> None:
        if run.about["status"] == "finished":
            self._add_end(run)
        self.writer.close()

    def _add_end(self, run: Run) -> None:
        """How clients spread at the end, and the options beside the last numbers."""
        final = int(run.table["round"].to_numpy().max(initial=0))
        for view in run.views:
            values = run.client_values(run.part, view)
            if len(values := values[~np.isnan(values)]):
                name = f"clients/{run.measure}/{run.part}/{view}"
                self.writer.add_histogram(name, values, final, bins="auto")
        tags = "\n".join(f"{k} = {v}" for k, v in tags_of(run).items())
        self.writer.add_text("tags", _indent(tags))
        shown = tuple(f"{m}/{run.part}/" for m in (*MEASURES, run.measure))
        ends = {k: v for k, v in self.last.items() if k.startswith(shown)}
        _, hparams = _import_tensorboard()
        for summary in hparams(flatten_options(run), ends):
            # here, not in a folder of its own as add_hparams would
            self.writer.file_writer.add_summary(summary)


def _import_tensorboard() -> tuple[Any, Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams
    except ImportError:
        raise BadInput(
            "TensorBoard files need tensorboard: pip install 'coterie[tensorboard]'"
        ) from None
    return SummaryWriter, hparams


def _indent(text: str) -> str:
    """Markdown's way to leave text alone."""
    return "\n".join(f"    {line}" for line in text.splitlines())


class MlflowTracker:
    """A run of an MLflow server or data base."""

    def __init__(
        self,
        run: Run,
        place: str | None = None,  # none: where MLflow itself would log
        experiment: str = EXPERIMENT,
        key: str = "",
        start: float | None = None,  # seconds since 1970; none: now
    ):
        self.place, self.end = place, None if start is None else int(1000 * start)
        with catch_mlflow(place):
            self.client = _open_mlflow(place)
            if key:
                self.key = key
                self.client.update_run(key, status="RUNNING")
                return
            found = self.client.get_experiment_by_name(experiment)
            home = found.experiment_id if found else self.client.create_experiment(experiment)
            made = self.client.create_run(home, self.end, run_name=name_run(run))
            self.key = str(made.info.run_id)
            self._describe(run)

    def _describe(self, run: Run) -> None:
        from mlflow.entities import Param, RunTag

        params = [Param(k, str(v)[:MAX_CHARACTERS]) for k, v in flatten_options(run).items()]
        tags = [RunTag(k, v) for k, v in tags_of(run).items()]
        self.client.log_batch(self.key, params=params, tags=tags)

    def log(self, scalars: Iterable[Scalar]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(s.name, s.value, int(1000 * s.time), s.round) for s in scalars]
        with catch_mlflow(self.place):
            for k in range(0, len(metrics), BATCH):
                self.client.log_batch(self.key, metrics=metrics[k : k + BATCH])
        self.end = max((m.timestamp for m in metrics), default=self.end)

    def finish(self, run: Run) -> None:
        from mlflow.entities import RunTag

        status = {"finished": "FINISHED", "diverged": "FAILED"}.get(run.about["status"], "KILLED")
        with catch_mlflow(self.place):
            tags = [RunTag(k, v) for k, v in tags_of(run).items()]
            self.client.log_batch(self.key, tags=tags)
            self.client.set_terminated(self.key, status, self.end)


def _open_mlflow(place: str | None) -> Any:
    try:
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise BadInput("MLflow runs need mlflow-skinny: pip install 'coterie[mlflow]'") from None
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    return MlflowClient(tracking_uri=place)


@contextmanager
def catch_mlflow(place: str | None) -> Iterator[None]:
    """One line for whatever MLflow has to complain of."""
    try:
        yield
    except ImportError as missing:  # a data base file needs more than the small package
        raise BadInput(
            f"MLflow at {place}: {missing}: pip install {missing.name}, or give a server's address"
        ) from None
    except BadInput:
        raise
    except Exception as problem:
        if type(problem).__module__.partition(".")[0] not in ("mlflow", "requests", "sqlalchemy"):
            raise
        raise BadInput(
            f"MLflow at {place or 'its default place'}: {_first_line(problem)}"
        ) from None


def _first_line(problem: Exception) -> str:
    return str(problem).strip().partition("\n")[0][:300] or type(problem).__name__


class WandbTracker:
    """A run of Weights & Biases; files in a folder, for `wandb sync`, unless WANDB_MODE asks for
    more: nothing leaves this machine unasked.
    """

    def __init__(self, run: Run, folder: Path, key: str = ""):
        wandb = _import_wandb()
        self.key = key or uuid4().hex[:12]
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self.run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", EXPERIMENT),
                name=name_run(run),
                id=self.key,
                resume="allow" if key else None,
                group=run.folder.resolve().parent.name,
                dir=str(folder.resolve()),
                config=flatten_options(run) | tags_of(run),
                mode=os.environ.get("WANDB_MODE", "offline"),
                reinit="create_new",  # runs of a comparison follow each other in one process
                settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
            )
        except wandb.Error as problem:
            raise BadInput(f"Weights & Biases: {_first_line(problem)}") from None
        self.run.define_metric("*", step_metric="round")

    def log(self, scalars: Iterable[Scalar]) -> None:
        rounds: dict[int, dict[str, float]] = {}
        for scalar in scalars:
            rounds.setdefault(scalar.round, {})[scalar.name] = scalar.value
        for number, values in sorted(rounds.items()):
            self.run.log({"round": number, **values}, step=number)

    def finish(self, run: Run) -> None:
        self.run.config.update(tags_of(run), allow_val_change=True)
        self.run.finish(exit_code=0 if run.about["status"] == "finished" else 1)


def _import_wandb() -> Any:
    try:
        import wandb
    except ImportError:
        raise BadInput("Weights & Biases needs wandb: pip install 'coterie[wandb]'") from None
    return wandb


def open_tracker(name: str, run: Run, key: str = "", first: int = 1) -> Tracker:
    """The tracker of a run that begins, or goes on as `key` with the round `first`."""
    if name == "mlflow":
        return MlflowTracker(run, key=key)
    if name == "wandb":
        return WandbTracker(run, run.folder, key)
    return TensorBoardTracker(run, run.folder / name, first)


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker whose library or server is not there, before any work."""
    if "tensorboard" in names:
        _import_tensorboard()
    if "wandb" in names:
        _import_wandb()
    if "mlflow" in names:
        with catch_mlflow(None):
            _open_mlflow(None).search_experiments(max_results=1)
