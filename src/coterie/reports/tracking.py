"""Runs for other tools: TensorBoard event files and MLflow runs, from the table of a run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from coterie.analysis.scores import find_score
from coterie.comparison.execute import load_comparison
from coterie.comparison.plan import FILE as PLAN
from coterie.core.errors import BadInput
from coterie.experiment.toml import to_toml
from coterie.results.folder import CONFIG
from coterie.results.metric_table import summarize
from coterie.results.run import Run, load_run

MEASURES = ("accuracy", "loss")


COSTS = ("bytes_down", "bytes_broadcast", "bytes_up", "steps", "gradients", "seconds", "clients")


BATCH, MAX_CHARACTERS = 1000, 6000  # metrics per request, characters per parameter


class Scalar(NamedTuple):
    """One number of one round."""

    name: str  # "accuracy/test/personal/mean", "cost/bytes_up"
    round: int
    value: float
    time: float  # when the round was over, in seconds since 1970


def iter_scalars(run: Run) -> Iterator[Scalar]:
    """Mean, weighted mean and worst client of every measure, part and view; then the costs."""
    columns = {name: run.table[name].to_numpy() for name in ("round", "client", "value")}
    words = {
        name: np.asarray(run.table[name].cast("string").to_numpy(zero_copy_only=False))
        for name in ("view", "part", "metric")
    }
    times = _round_times(run)
    wanted = np.isin(words["metric"], (*MEASURES, run.measure))
    shown = wanted & (columns["client"] >= 0) & (words["part"] != "")
    for metric, part, view in sorted(
        {tuple(w) for w in np.stack([words[k][shown] for k in ("metric", "part", "view")], 1)}
    ):
        at = shown & (words["metric"] == metric) & (words["part"] == part) & (words["view"] == view)
        rounds, clients, values = (columns[k][at] for k in ("round", "client", "value"))
        rows = np.array(run.about["rows"][part])[clients]
        for r in np.unique(rounds):
            here = rounds == r
            found = summarize(values[here], rows[here], least_is_worst=find_score(metric).higher)
            for name in ("mean", "weighted", "worst"):
                if not np.isnan(value := getattr(found, name)):
                    yield Scalar(
                        f"{metric}/{part}/{view}/{name}", int(r), float(value), times[int(r)]
                    )
    for metric in COSTS:
        at = (words["metric"] == metric) & (columns["client"] < 0)
        for r, value in zip(
            columns["round"][at].tolist(), columns["value"][at].tolist(), strict=True
        ):
            yield Scalar(f"cost/{metric}", r, value, times[r])


def _round_times(run: Run) -> dict[int, float]:
    """{round: when it was over}, as if the rounds had gone without pause up to the run's date."""
    rows = run.table.filter((pc.field("metric") == "seconds") & (pc.field("client") < 0))
    rounds, seconds = rows["round"].to_numpy(), rows["value"].to_numpy()
    end = datetime.fromisoformat(run.about["date"]).timestamp()
    known = dict(
        zip(rounds.tolist(), (end - seconds.sum() + seconds.cumsum()).tolist(), strict=True)
    )
    return {int(r): known.get(int(r), end) for r in np.unique(run.table["round"].to_numpy())}


def flatten_options(run: Run) -> dict[str, Any]:
    """The experiment as flat words: "method", "seed", "train.rate", ..."""
    flat: dict[str, Any] = {}
    for section, inner in run.experiment.words().items():
        flat |= (
            {f"{section}.{k}": v for k, v in inner.items()}
            if isinstance(inner, dict)
            else {section: inner}
        )
    return {
        k: v if isinstance(v, bool | int | float | str) else _to_text(v) for k, v in flat.items()
    }


def _to_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def tags_of(run: Run) -> dict[str, str]:
    """What was run with, and on which data."""
    about = run.about
    libraries = {f"version.{name}": str(number) for name, number in about["versions"].items()}
    known = {
        "coterie": about["coterie"],
        "data": about["data"],
        "status": about["status"],
        "folder": run.folder.name,
    }
    return {
        f"coterie.{k}": str(v) for k, v in {**known, "date": about["date"], **libraries}.items()
    }


def to_tensorboard(run: Run, folder: str | Path) -> Path:
    """Write a run as TensorBoard events into `folder`: `tensorboard --logdir` shows it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams
    except ImportError:
        raise BadInput(
            "TensorBoard files need tensorboard: pip install 'coterie[tensorboard]'"
        ) from None
    target = Path(folder)
    if any(target.glob("events.out.tfevents.*")):
        raise BadInput(
            f"{target} holds an export already, and a second would draw every curve twice: "
            "delete it, or give another place"
        )
    last: dict[str, float] = {}
    with SummaryWriter(str(target)) as writer:
        for scalar in iter_scalars(run):
            writer.add_scalar(scalar.name, scalar.value, scalar.round, walltime=scalar.time)
            last[scalar.name] = scalar.value
        final = int(run.table["round"].to_numpy().max(initial=0))
        for view in run.views:
            values = run.measured(run.part, view)
            if len(values := values[~np.isnan(values)]):
                writer.add_histogram(
                    f"clients/{run.measure}/{run.part}/{view}", values, final, bins="auto"
                )
        writer.add_text("config", _indent(to_toml(run.experiment.words())))
        writer.add_text("tags", _indent("\n".join(f"{k} = {v}" for k, v in tags_of(run).items())))
        ends = {
            k: v
            for k, v in last.items()
            if k.startswith(tuple(f"{m}/{run.part}/" for m in (*MEASURES, run.measure)))
        }
        for summary in hparams(flatten_options(run), ends):
            writer.file_writer.add_summary(
                summary
            )  # here, not in a folder of its own as add_hparams would
    return target


def _indent(text: str) -> str:
    return "\n".join(
        f"    {line}" for line in text.splitlines()
    )  # Markdown's way to leave text alone


def to_mlflow(run: Run, tracking_uri: str | None = None, experiment: str = "coterie") -> str:
    """Log a run to MLflow and return its id there.

    Without `tracking_uri` it goes where MLflow itself would log (MLFLOW_TRACKING_URI).
    """
    try:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise BadInput("MLflow runs need mlflow-skinny: pip install 'coterie[mlflow]'") from None
    try:
        client = MlflowClient(tracking_uri=tracking_uri)
        found = client.get_experiment_by_name(experiment)
        place = found.experiment_id if found else client.create_experiment(experiment)
        metrics = [Metric(s.name, s.value, int(1000 * s.time), s.round) for s in iter_scalars(run)]
        name = f"{run.name}-seed{run.experiment.seed}"
        made = client.create_run(
            place, start_time=min((m.timestamp for m in metrics), default=None), run_name=name
        )
        key = made.info.run_id
        params = [Param(k, str(v)[:MAX_CHARACTERS]) for k, v in flatten_options(run).items()]
        client.log_batch(key, params=params, tags=[RunTag(k, v) for k, v in tags_of(run).items()])
        for k in range(0, len(metrics), BATCH):
            client.log_batch(key, metrics=metrics[k : k + BATCH])
        finished = run.about["status"] == "finished"
        end = max((m.timestamp for m in metrics), default=None)
        client.set_terminated(key, "FINISHED" if finished else "KILLED", end)
        return str(key)
    except MlflowException as problem:
        raise BadInput(
            f"MLflow at {tracking_uri or 'its default place'}: {_first_line(problem)}"
        ) from None
    except ImportError as missing:  # a data base file needs more than the small package
        raise BadInput(
            f"MLflow at {tracking_uri}: {missing}: pip install {missing.name}, or give a "
            "server's address"
        ) from None


def _first_line(problem: Exception) -> str:
    return str(problem).strip().partition("\n")[0][:300] or type(problem).__name__


def runs_of(path: Path) -> list[tuple[str, Run]]:
    """(name, run) of a run folder, or of every run of a comparison."""
    if (path / PLAN).exists():
        inner = load_comparison(path).runs.values()
        return [(f"{path.resolve().name}/{run.folder.name}", run) for runs in inner for run in runs]
    if not (path / CONFIG).exists():
        raise BadInput(f"{path} is not the folder of a run or comparison: it has no {CONFIG}")
    return [(path.resolve().name, load_run(path))]
