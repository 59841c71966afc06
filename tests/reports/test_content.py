"""What a page says is what the runs hold."""

import json

import numpy as np
import pytest

from coterie.comparison.execute import load_comparison
from coterie.experiment.config import Experiment, change_options
from coterie.reports.logged_values import MAX_FRAMES
from coterie.reports.matrices import MAX_GROUPS, MAX_PEERS
from coterie.reports.report import report_data
from coterie.results.run import load_run
from coterie.running.execute import execute
from helpers.reports import FAST, base, figure, pretend, table

KINDS = {"lines", "dots", "bars", "density", "points", "forest", "heat"}
SECTIONS = {"answer", "accuracy", "fairness", "cost", "collaboration", "inside", "data"}


def test_every_figure_is_whole(data):
    assert {f["section"] for f in data["figures"]} == SECTIONS
    keys = [f["key"] for f in data["figures"]] + [t["key"] for t in data["tables"]]
    assert len(set(keys)) == len(keys)
    for f in data["figures"]:
        assert f["kind"] in KINDS
        assert f["title"]
        assert f["note"].endswith(".")
        assert f["y"]
        for s in f["series"]:
            assert len(s["x"]) == len(s["y"]) > 0
            assert len(s["low"]) == len(s["high"]) in (0, len(s["y"]))
            assert len(s["text"]) in (0, len(s["y"]))
        if f["kind"] == "heat":
            for _, z in f["heat"]["frames"]:
                assert np.shape(z) == (len(f["heat"]["rows"]), len(f["heat"]["columns"]))
    json.dumps(data, allow_nan=False)


def test_clients_are_those_of_the_first_seed_where_splits_differ(data, folder):
    run = load_run(folder / "apfl-seed0")
    assert data["clients"]["accuracy"]["apfl"] == pytest.approx(run.accuracy(), rel=1e-4)
    assert data["clients"]["rows"] == run.about["rows"]
    assert np.sum(data["clients"]["counts"]) == sum(map(sum, run.about["rows"].values()))
    assert "Seed 0 alone" in figure(data, "clients")["note"]
    assert len(dict(data["clients"]["notes"]["persfl"])["round of the teacher"]) == 4


def test_clients_are_means_over_seeds_where_the_split_is_one(tmp_path):
    for seed in (1, 2):
        execute(base(method="local", seed=seed, **{"dataset.seed": 0}), tmp_path / f"s{seed}")
    data = report_data([tmp_path / "s1", tmp_path / "s2"])
    mean = np.mean([load_run(tmp_path / f"s{seed}").accuracy() for seed in (1, 2)], axis=0)
    assert data["clients"]["accuracy"]["local"] == pytest.approx(mean, rel=1e-4)
    assert [r["seed"] for r in data["runs"]] == [1, 2]


def test_the_answer_is_that_of_the_comparison(data, folder):
    found = load_comparison(folder).answer
    assert data["answer"][0] == str(found)
    assert data["use"] == found.use
    assert data["warnings"] == []


def test_the_differences_of_the_answer_are_drawn_with_their_intervals(data, folder):
    found, drawn = load_comparison(folder), figure(data, "forest")
    assert (drawn["kind"], drawn["section"]) == ("forest", "answer")
    assert [s["name"] for s in drawn["series"]] == ["against local", "against fedavg"]
    for series, other in zip(drawn["series"], ("local", "fedavg"), strict=True):
        assert set(series["x"]) == set(data["methods"])
        for name, mean, low, high in zip(
            *(series[k] for k in ("x", "y", "low", "high")), strict=True
        ):
            if name == other:
                assert mean is None
                continue
            wanted = found.difference(name, other)
            assert [mean, low, high] == pytest.approx([100 * v for v in wanted[:3]], rel=1e-4)


def test_what_runs_share_is_said_once(data):
    assert 'name = "digits"' in data["common"]
    assert "method" not in data["common"].split("[")[0]
    for run in data["runs"]:
        assert f"method = {run['method'].partition('@')[0]}" in run["own"]
        assert f"seed = {run['seed']}" in run["own"]
        assert "rounds" not in run["own"]
    assert any(option.startswith("clients: ") for option in data["setup"])
    assert any("steps per client and round" in option for option in data["setup"])


def test_mixing_is_noted_for_methods_that_mix(data):
    assert set(data["clients"]["learned_from"]) == {"ktpfl", "ucfl", "cfl"}
    grid = figure(data, "grid_accuracy-persfl")["heat"]
    assert grid["rows"] == sorted(grid["rows"], key=float)


def test_a_loss_is_lower_is_better(tmp_path):
    for name in ("fedavg", "local"):
        execute(
            change_options(Experiment(method=name), {"dataset": "gaussian", "rounds": 2, **FAST}),
            tmp_path / name,
        )
    data = report_data([tmp_path / "fedavg", tmp_path / "local"])
    assert data["measure"] == "loss"
    means = [row["mean"] for row in table(data, "methods").values()]
    assert means == sorted(means)
    worst = table(data, "methods")["local"]["worst client"]
    assert worst == pytest.approx(load_run(tmp_path / "local").client_values().max(), rel=1e-4)
    assert "no classes" in " ".join(data["answer"])
    assert not [f for f in data["figures"] if f["key"] in ("qoi", "evenness", "split")]
    better = next(
        c
        for t in data["tables"]
        if t["key"] == "methods"
        for c in t["columns"]
        if c["name"] == "mean"
    )
    assert better["better"] == "low"


def test_a_thousand_clients_fit_on_a_page(tmp_path):
    names = ["local", "fedavg", "apfl", "ucfl"]
    for name in names:
        pretend(tmp_path / name, name, 1000, 6)
    data = report_data([tmp_path / name for name in names])
    assert len(json.dumps(data)) < 4e6
    for f in data["figures"]:
        if f["kind"] == "heat":
            assert len(f["heat"]["rows"]) <= MAX_GROUPS
            assert len(f["heat"]["frames"]) <= MAX_FRAMES
    assert len(data["clients"]["names"]) == 1000
    assert all(len(found) == MAX_PEERS for found in data["clients"]["learned_from"]["ucfl"])
