"""What other tools read: TensorBoard, MLflow and the table in pandas, polars and DuckDB."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from coterie.cli.export import export
from coterie.comparison.execute import compare
from coterie.comparison.plan import plan_experiments
from coterie.core.errors import BadInput
from coterie.experiment.config import Experiment, change_options
from coterie.reports.tracking import to_mlflow, to_tensorboard
from coterie.results.metric_table import total_of
from coterie.results.run import load_run
from coterie.results.scalars import flatten_options, iter_scalars, tags_of

WORDS = {
    "num_clients": 4,
    "rows": 160,
    "classes-each": 4,
    "hidden": 6,
    "batch_size": 8,
    "rounds": 3,
    "eval_every": 1,
}
FAST = {"path": "vectorized", "width": 20, "compile": "no", "threads": 1}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "both"
    compare(
        plan_experiments(["fedavg", "ditto"], change_options(Experiment(method=""), WORDS | FAST)),
        [0],
        folder,
    )
    return folder


@pytest.fixture(scope="module")
def run(comparison):
    return load_run(comparison / "ditto-seed0")


def events(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def test_scalars_are_the_figures_of_the_table(run):
    found = {(s.name, s.round): s.value for s in iter_scalars(run)}
    end = run.summary()
    for name in ("mean", "weighted", "worst"):
        assert found[f"accuracy/test/personal/{name}", 3] == getattr(end, name)
    assert (
        found["loss/test/personal/worst", 3] >= found["loss/test/personal/mean", 3]
    )  # the highest loss is the worst
    assert {
        view for name, _ in found if len(parts := name.split("/")) == 4 for view in [parts[2]]
    } == {"personal", "global"}
    assert sum(v for (name, _), v in found.items() if name == "cost/bytes_up") == total_of(
        run.table, "bytes_up"
    )
    times = [s.time for s in iter_scalars(run) if s.name == "cost/steps"]
    assert len(times) == 3
    assert times == sorted(times)


def test_tensorboard_reads_what_the_run_says(run, tmp_path):
    read = events(to_tensorboard(run, tmp_path / "events"))
    for name in ("accuracy/test/personal/mean", "loss/train/global/mean", "cost/bytes_down"):
        told = {e.step: e.value for e in read.Scalars(name)}
        assert told == pytest.approx(
            {s.round: s.value for s in iter_scalars(run) if s.name == name}, rel=1e-6
        )
    clients = read.Histograms("clients/accuracy/test/personal")[-1]
    assert clients.step == 3
    assert clients.histogram_value.num == len(run.accuracy())
    assert clients.histogram_value.sum == pytest.approx(run.accuracy().sum())
    text = {
        tag: read.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in read.Tags()["tensors"]
    }
    assert "rounds = 3" in text["config/text_summary"]
    assert run.about["data"] in text["tags/text_summary"]
    assert "_hparams_/session_start_info" in read.summary_metadata


def test_tensorboard_export_is_not_doubled(run, tmp_path):
    to_tensorboard(run, tmp_path)
    with pytest.raises(BadInput, match="holds an export already"):
        to_tensorboard(run, tmp_path)


def test_command_exports_every_run_of_a_comparison(comparison, tmp_path):
    out = tmp_path / "boards"
    said = CliRunner().invoke(
        export, [str(comparison), "--to", "tensorboard", "--out", str(out)], catch_exceptions=False
    )
    assert said.output.startswith("2 runs: tensorboard --logdir")
    for name in ("fedavg-seed0", "ditto-seed0"):
        assert events(out / "both" / name).Scalars("accuracy/test/personal/mean")[-1].step == 3


# MLflow's own use of SQLAlchemy warns of its deprecations
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_what_the_run_says(run, comparison, tmp_path):
    from mlflow.tracking import MlflowClient

    place = f"sqlite:///{tmp_path / 'mlflow.db'}"
    key = to_mlflow(run, place, "tests")
    client = MlflowClient(tracking_uri=place)
    read = client.get_run(key)
    assert read.data.params["train.batch_size"] == "8"
    assert read.data.params == {k: str(v) for k, v in flatten_options(run).items()}
    assert tags_of(run).items() <= read.data.tags.items()
    assert read.data.tags["coterie.data"] == run.about["data"]
    assert read.info.status == "FINISHED"
    assert read.data.metrics["accuracy/test/personal/mean"] == run.summary().mean
    history = client.get_metric_history(key, "cost/bytes_up")
    assert [m.step for m in history] == [1, 2, 3]
    assert sum(m.value for m in history) == total_of(run.table, "bytes_up")
    settings = [
        str(comparison),
        "--to",
        "mlflow",
        "--out",
        str(tmp_path / "mlflow.db"),
        "--experiment",
        "both",
    ]
    assert (
        "2 runs in experiment 'both'"
        in CliRunner().invoke(export, settings, catch_exceptions=False).output
    )
    logged = client.search_runs([client.get_experiment_by_name("both").experiment_id])
    assert {r.info.run_name for r in logged} == {"fedavg-seed0", "ditto-seed0"}


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_place_is_one_line(run, comparison, tmp_path):
    with pytest.raises(BadInput, match="MLflow at nowhere:place"):
        to_mlflow(run, "nowhere:place")
    with pytest.raises(BadInput, match=r"it has no config\.toml"):
        CliRunner().invoke(export, [str(tmp_path), "--to", "tensorboard"], catch_exceptions=False)


def test_metrics_read_alike_everywhere(run):
    import duckdb
    import pandas
    import polars

    path = run.folder / "metrics.parquet"
    keys = ["stage", "round", "client", "view", "part", "metric"]
    ours = sorted((*(row[k] for k in keys), row["value"]) for row in run.table.to_pylist())
    others = {
        "pandas": pandas.read_parquet(path)[[*keys, "value"]].itertuples(index=False, name=None),
        "polars": polars.read_parquet(path).select(*keys, "value").iter_rows(),
        "duckdb": duckdb.sql(f"select {', '.join(keys)}, value from '{path}'").fetchall(),
    }
    assert not np.isnan([row[-1] for row in ours]).any()  # or nothing would be equal
    for name, rows in others.items():
        assert sorted(rows) == ours, name
