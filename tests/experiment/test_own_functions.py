"""A loss and a metric of one's own: Python functions, or module:function in files."""

import subprocess
import sys

import numpy as np
import polars as pl
import pytest
import torch

import coterie
from coterie.analysis.scores import find_score
from coterie.core.errors import BadInput
from coterie.core.functions import GIVEN, find_function, is_function_name, name_function

WORDS = {"model": "mlr", "rounds": 3, "lr": 0.05, "batch_size": 8, "threads": 1}


def frame(n=120):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    y = 3 + 2 * x[:, 0] + rng.normal(size=n)
    return pl.DataFrame(
        {"client": [f"c{i % 3}" for i in range(n)], "a": x[:, 0], "b": x[:, 1], "label": y}
    )


def half_square(outputs, y):
    return 0.5 * (outputs.squeeze(-1) - y).square()


def double(outputs, y):
    return 2 * half_square(outputs, y)


def within_one(truth, said):
    return (np.abs(truth - said) < 1).mean()


def minus_mae(truth, said):
    return -np.abs(truth - said).mean()


def scalar(outputs, y):
    return half_square(outputs, y).mean()


def broken(outputs, y):
    raise KeyError("no")


def weights_of(run):
    return run.model("c0").module.state_dict()


def test_an_own_loss_that_is_the_tasks_trains_the_same_model(tmp_path):
    settings = WORDS | {"dataset": frame(), "task": "regression"}
    usual = coterie.run("fedavg", out=tmp_path / "a", **settings)
    own = coterie.run("fedavg", out=tmp_path / "b", loss=half_square, **settings)
    for name, value in weights_of(usual).items():
        torch.testing.assert_close(weights_of(own)[name], value)
    assert own.client_values().tolist() == pytest.approx(usual.client_values().tolist(), rel=1e-5)


def test_an_own_loss_is_what_is_descended_and_what_is_told_as_loss(tmp_path):
    settings = WORDS | {"dataset": frame(), "task": "regression"}
    twice = coterie.run("fedavg", out=tmp_path / "a", loss=double, **settings)
    fast = coterie.run("fedavg", out=tmp_path / "b", **settings | {"lr": 0.1})
    for name, value in weights_of(fast).items():
        torch.testing.assert_close(weights_of(twice)[name], value)
    kept = twice.models().preparation.target
    assert kept.loss == f"{__name__}:double"


def test_predictions_need_no_loss(tmp_path, monkeypatch):
    run = coterie.run(
        "fedavg", dataset=frame(), task="regression", loss=double, out=tmp_path, **WORDS
    )
    monkeypatch.delitem(GIVEN, f"{__name__}:double")
    monkeypatch.setattr(sys.modules[__name__], "double", None)
    assert len(coterie.load(tmp_path).model("c0").predict(frame().select("a", "b"))) == 120
    assert run.measure == "mae"


def test_an_own_metric_decides_and_more_of_it_is_better(tmp_path):
    made = coterie.compare(
        ["local", "fedavg"],
        dataset=frame(),
        task="regression",
        metric=minus_mae,
        out=tmp_path,
        **WORDS,
    )
    run = made.runs["local"][0]
    assert run.measure == f"{__name__}:minus_mae"
    usual = coterie.compare(
        ["local", "fedavg"], dataset=frame(), task="regression", out=tmp_path / "b", **WORDS
    ).runs["local"][0]
    assert run.client_values().tolist() == pytest.approx((-usual.client_values()).tolist())
    judged = find_score(run.measure)
    assert judged.higher
    assert judged.bounds == (-np.inf, np.inf)


def test_metrics_of_classes_get_labels_and_probabilities(tmp_path):
    run = coterie.run("fedavg", dataset="digits", metric=sure, rounds=1, model="mlr", out=tmp_path)
    assert 0 < run.client_values().mean() <= 1


def sure(truth, said):
    assert said.shape == (len(truth), 10)
    return said.max(1).mean()


def test_a_file_names_functions_of_the_working_folder(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def loss(out, y):\n    return (out.squeeze(-1) - y).abs()\n"
        "def metric(truth, said):\n    return -abs(truth - said).max()\n"
    )
    frame().write_csv(tmp_path / "t.csv")
    settings = ["run", "fedavg", "--dataset", "t.csv", "--task", "regression", "--rounds", "1"]
    settings += ["--loss", "mine:loss", "--metric", "mine:metric", "--threads", "1", "--out", "run"]
    call = "from coterie.cli.main import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", call, *settings], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert "metric" in found.stdout
    (tmp_path / "mine.py").unlink()
    assert coterie.load(tmp_path / "run").measure == "mine:metric"  # read without it


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"loss": scalar}, r"gives \[\] for 2 rows"),
        ({"loss": broken}, "raises KeyError"),
        ({"loss": "nowhere:loss"}, "No module named 'nowhere'"),
        ({"loss": "math:losses"}, "no attribute 'losses'"),
        ({"loss": "math:pi"}, "is a float, no function"),
        ({"loss": lambda out, y: y}, "made with def"),
        ({"metric": 3}, "made with def"),
        ({"metric": "nowhere:metric"}, "No module named 'nowhere'"),
        ({"metric": "gini"}, "or give module:function"),
    ],
)
def test_what_is_no_loss_or_metric_is_refused_before_a_round(tmp_path, settings, line):
    with pytest.raises(BadInput, match=line):
        coterie.run("fedavg", dataset=frame(), task="regression", out=tmp_path, **WORDS, **settings)


def test_names_are_told_from_other_texts():
    assert is_function_name("a.b:c")
    for text in ("", "mae", "pinball_0.9", "quantile:0.9", "C:\\x.csv", "a b:c"):
        assert not is_function_name(text)
    assert find_function(name_function(within_one, "metric"), "metric") is within_one
