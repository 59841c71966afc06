"""Laws of a comparison that is judged by another measure than accuracy, on any task."""

import json

import numpy as np
import polars as pl
import pytest
import torch

import coterie
from coterie.analysis.answer import format_answer
from coterie.core.errors import BadInput
from coterie.data.pipeline import build_federation
from coterie.data.read.user_data import from_frame
from coterie.data.target import task_of
from coterie.results.data_files import read_preparation
from coterie.results.metric_table import best_round, curve_of

FAST = {
    "rounds": 3,
    "model": "mlr",
    "eval_every": 1,
    "threads": 1,
    "compile": "no",
    "path": "vectorized",
    "width": 8,
}
LABELS = {
    "regression": "score",
    "counts": "times",
    "ordinal": "grade",
    "multilabel": "late,ill",
    "binary": "late",
}


def pupils():
    """Six schools with a linear law each, a label for every task."""
    rng = np.random.default_rng(0)
    n = 240
    school, a, b = np.arange(n) % 6, rng.normal(size=n), rng.normal(size=n)
    score = 50 + (8 + school) * a - 3 * b + rng.normal(size=n)
    return pl.DataFrame(
        {
            "school": [f"s{k}" for k in school],
            "a": a,
            "b": b,
            "score": score,
            "times": rng.poisson(np.exp(1 + 0.4 * a)),
            "grade": np.searchsorted([40, 50, 60], score),
            "late": (a + rng.normal(size=n) > 0).astype(int),
            "ill": (b + rng.normal(size=n) > 0).astype(int),
        }
    )


def federation(task, **more):
    data = from_frame(pupils(), client="school", label=LABELS[task], features="a,b")
    return build_federation(data, task=task, **more)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    return coterie.compare(
        ["local", "fedavg", "ditto"],
        dataset=federation("regression"),
        out=tmp_path_factory.mktemp("tasks") / "compared",
        **FAST,
    )


def test_a_regression_is_judged_by_its_absolute_error_in_its_own_unit(compared):
    run = compared.runs["local"][0]
    assert (run.task, run.measure) == ("regression", "mae")
    data, errors = federation("regression"), []
    task = task_of(data.target)
    for i, rows in enumerate(data.test):
        with torch.no_grad():
            said = task.predict(run.model(i)(data.x[rows])).numpy()
        errors.append(np.abs(said - task.truth(data.y[rows]).numpy()).mean())
    np.testing.assert_allclose(run.client_values("test"), errors, rtol=1e-4)
    assert run.summary().worst == pytest.approx(max(errors), rel=1e-4)
    assert run.trivial["mae"] > run.summary().mean
    assert read_preparation(run.folder).target == data.target


def test_the_best_round_of_an_error_is_the_lowest(compared):
    run = compared.runs["fedavg"][0]
    rounds, means = curve_of(run.table, "mae", "validation")
    assert best_round(run.table, "mae") == rounds[np.argmin(means)]


def test_low_errors_come_first_in_answer_ranks_and_differences(compared):
    means = {row.method: row.mean for row in compared.rows()}
    best = min(means, key=means.get)
    assert compared.ranks().methods[0] == best
    other = max(means, key=means.get)
    assert compared.difference(best, other).mean == pytest.approx(
        means[other] - means[best], rel=1e-6
    )
    found = compared.answer
    said = format_answer(found)
    assert "absolute error" in said
    assert "accuracy" not in said
    assert found.use in means
    assert not found.measure.higher


def test_tuning_chooses_by_the_metric_that_is_named(tmp_path):
    found = {}
    for metric in ("mae", "r2"):
        comparison = coterie.compare(
            ["local"],
            dataset=federation("regression"),
            tune={"local": {"lr": [1e-4, 0.05]}},
            out=tmp_path / metric,
            metric=metric,
            **FAST,
        )
        found[metric] = json.loads(
            (tmp_path / metric / "tuning" / "local" / "tuning.json").read_text()
        )
        assert comparison.first.measure == metric
    for metric, pick in (("mae", min), ("r2", max)):
        tried = found[metric]["tried"]
        best = pick(tried, key=lambda one: one["validation"][0])
        assert found[metric]["best"] == best["options"] == {"lr": 0.05}
    assert found["mae"]["tried"][0]["validation"][0] > 5  # in the unit of the label
    assert found["r2"]["tried"][0]["validation"][0] < 1


@pytest.mark.parametrize("task", list(LABELS))
def test_stacked_clients_learn_any_task_as_single_ones_do(task, tmp_path):
    runs = [
        coterie.run(
            "fedavg",
            dataset=federation(task),
            out=tmp_path / path,
            **{**FAST, "rounds": 2, "path": path},
        )
        for path in ("vectorized", "sequential")
    ]
    for metric in ("loss", runs[0].measure):
        one, two = (curve_of(run.table, metric)[1] for run in runs)
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
        if metric == "loss":
            assert one[-1] < curve_of(runs[0].table, "loss", "train")[1][0] * 1.2
    assert runs[0].model(0)(torch.zeros(1, 2)).shape[-1] == {"ordinal": 3, "binary": 2}.get(
        task, 2 if task == "multilabel" else 1
    )


@pytest.mark.parametrize("method", ["fml", "pfml", "feddf", "fedmd", "scaffold", "fedala"])
def test_methods_that_compare_predictions_compare_numbers(method, tmp_path):
    settings = {**FAST, "rounds": 2, "lr": 0.01}
    if method in ("feddf", "fedmd"):
        settings["draw"] = 20
    data = federation("regression", public="held-out", public_rows=30)
    run = coterie.run(method, dataset=data, out=tmp_path / "run", **settings)
    assert np.isfinite(run.client_values("test")).all()


@pytest.mark.parametrize("method", ["persfl", "ktpfl", "sim-pfl"])
def test_methods_over_class_probabilities_refuse_numbers_before_anything_is_written(
    method, tmp_path
):
    data = federation("regression", public="held-out", public_rows=30)
    with pytest.raises(BadInput, match=rf"{method} .*class.* the task of mlr is 'regression'"):
        coterie.run(method, dataset=data, out=tmp_path / "run", **FAST)
    assert not (tmp_path / "run").exists()


def test_balanced_weights_find_more_of_a_rare_class(tmp_path):
    rng = np.random.default_rng(0)
    n = 400
    a = rng.normal(size=n)
    frame = pl.DataFrame(
        {"client": [f"c{i % 4}" for i in range(n)], "a": a, "label": (a + rng.normal(size=n) > 2)}
    )
    found = []
    for weights in ("none", "balanced"):
        data = build_federation(from_frame(frame), class_weights=weights)
        out = tmp_path / weights
        run = coterie.run("fedavg", dataset=data, out=out, metric="balanced_accuracy", **FAST)
        found.append(run.summary().mean)
    assert found[1] > found[0] + 0.03


def test_a_metric_of_another_task_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(BadInput, match="metric = 'auc'"):
        coterie.run(
            "local", dataset=federation("regression"), metric="auc", out=tmp_path / "run", **FAST
        )
    assert not (tmp_path / "run").exists()
