"""What a comparison on one's own table says beside its methods: scikit-learn's rows, the trivial
predictor, and a measure that rare classes can be judged by.
"""

import json

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import Ridge

import coterie
from coterie.comparison.plan import plan_of
from coterie.comparison.references import fit_references
from coterie.comparison.steps import rates_around
from coterie.experiment.config import Experiment, change_options
from coterie.reports.gather import gather_evidence
from coterie.reports.method_tables import build_tables
from coterie.running.assembly import assemble, load_federation

FAST = {"rounds": 2, "compile": "no", "report": False}


def write_numbers(path):
    """Four clients with slopes of their own."""
    rng, rows = np.random.default_rng(0), []
    for client in range(4):
        x = rng.normal(size=(30, 3))
        y = (client - 1.5) * 2 * x[:, 0] + rng.normal(0, 0.1, 30)
        rows += [(f"c{client}", *map(float, row), value) for row, value in zip(x, y, strict=True)]
    pl.DataFrame(rows, schema=["who", "a", "b", "c", "y"], orient="row").write_csv(path)
    return str(path)


def write_rare(path, rows):
    """Three clients, a tenth of whose rows are 'ill'."""
    rng, found = np.random.default_rng(0), []
    for client in range(3):
        ill = np.arange(rows) % 10 == 0
        x = rng.normal(size=rows) + 2 * ill
        found += [(f"c{client}", a, "ill" if b else "well") for a, b in zip(x, ill, strict=True)]
    pl.DataFrame(found, schema=["who", "x", "state"], orient="row").write_csv(path)
    return str(path)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    settings = {"client": "who", "label": "y", "task": "regression"}
    path = write_numbers(folder / "numbers.csv")
    settings["budget"] = 0  # rate and network as they are
    return coterie.compare(["local", "fedavg"], dataset=path, out=folder / "o", **settings, **FAST)


def test_references_stand_beside_the_methods_and_the_answer_says_who_wins(compared):
    alone, pooled = compared.references
    assert (alone.name, pooled.name) == ("alone", "pooled")
    assert alone.mean < 0.3 < pooled.mean  # every client has a slope of its own
    said = str(compared.answer)
    assert "Without federated learning, a linear model of scikit-learn alone reaches" in said
    assert "no method shown here does" in said
    assert "Always guessing the median of a client's training rows gives" in said


def test_a_report_has_a_table_of_the_references(compared):
    tables = {table.key: table for table in build_tables(gather_evidence([compared.folder]))}
    alone, pooled = tables["references"].rows
    assert alone[:2] == ["alone", compared.references[0].mean]
    assert pooled[:2] == ["pooled", compared.references[1].mean]


def test_the_linear_model_is_fitted_on_training_rows_and_chosen_on_validation_rows(compared):
    experiment = compared.first.experiment
    federation = load_federation(experiment)
    found = fit_references(federation, "mae", 0)
    x, y = federation.x.numpy(), federation.y.numpy()
    spread, centre = federation.target.spread, federation.target.centre
    train, held, test = (
        part[0] for part in (federation.train, federation.validation, federation.test)
    )
    fitted = [Ridge(alpha=a).fit(x[train], y[train]) for a in (1.0, 10.0, 100.0)]
    best = min(fitted, key=lambda m: np.abs(m.predict(x[held]) - y[held]).mean())
    error = np.abs(best.predict(x[test]) - y[test]).mean() * spread
    assert found["alone"].values[0] == pytest.approx(error, rel=1e-3)
    assert centre == federation.target.centre
    stored = json.loads((compared.folder / "references.json").read_text(encoding="utf-8"))
    assert stored["seeds"]["0"]["alone"]["values"] == pytest.approx(found["alone"].values)


def test_references_can_be_left_out(tmp_path):
    path = write_numbers(tmp_path / "numbers.csv")
    settings = {"client": "who", "label": "y", "task": "regression", "budget": 0}
    made = coterie.compare(
        ["local", "fedavg"], dataset=path, out=tmp_path / "o", references=False, **settings, **FAST
    )
    assert made.references == []
    assert "scikit-learn" not in str(made.answer)


@pytest.mark.parametrize(("rows", "metric"), [(120, "auc"), (40, "balanced_accuracy")])
def test_rare_classes_are_not_judged_by_accuracy_unless_asked_for(rows, metric, tmp_path):
    settings = {"dataset.name": write_rare(tmp_path / "rare.csv", rows)}
    settings |= {"dataset.client": "who", "dataset.label": "state"}
    experiment = change_options(Experiment(), settings)
    federation = load_federation(experiment)
    assert assemble(experiment, federation).experiment.schedule.metric == metric
    said = change_options(experiment, {"metric": "accuracy"})
    assert assemble(said, federation).experiment.schedule.metric == "accuracy"
    assert assemble(experiment, federation, clients=[0]).experiment.schedule.metric == ""


@pytest.mark.parametrize(("zeros", "metric"), [(0.7, "rmse"), (0.3, "")])
def test_counts_that_are_mostly_one_number_are_not_judged_by_absolute_error(
    zeros, metric, tmp_path
):
    rng = np.random.default_rng(0)
    visits = np.where(rng.random(120) < zeros, 0, 1 + rng.poisson(2, 120))
    frame = pl.DataFrame({"who": [f"c{k % 3}" for k in range(120)], "x": visits, "y": visits})
    frame.write_csv(tmp_path / "visits.csv")
    settings = {"name": str(tmp_path / "visits.csv"), "client": "who", "label": "y"}
    settings = {f"dataset.{k}": v for k, v in settings.items()} | {"dataset.task": "counts"}
    experiment = change_options(Experiment(), settings)
    federation = load_federation(experiment)
    assert assemble(experiment, federation).experiment.schedule.metric == metric
    said = change_options(experiment, {"metric": "mae"})
    assert assemble(said, federation).experiment.schedule.metric == "mae"


def test_what_a_command_says_goes_before_what_a_file_leaves_open():
    file = {"train": {"lr": "auto"}}
    assert plan_of(file, ["local"]).grids == {"local": {"lr": rates_around(0.1)}}
    plan = plan_of(file, ["local"], common={"lr": 0.2})
    assert plan.grids == {}
    assert plan.experiments["local"].train.lr == 0.2
