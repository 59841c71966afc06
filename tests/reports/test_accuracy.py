"""Figures of accuracy."""

import numpy as np
import pytest

import coterie
from coterie.core.errors import BadInput
from coterie.reports.report import report_data
from coterie.results.metric_table import values_of
from helpers.reports import figure, pretend, table


def test_the_last_curve_point_is_the_method_tables_mean(data):
    for s in figure(data, "curves")["series"]:
        assert s["y"][-1] == pytest.approx(table(data, "methods")[s["name"]]["mean"], rel=1e-3)


def test_many_clients_are_in_each_methods_own_order(tmp_path):
    for name in ("local", "fedavg"):
        pretend(tmp_path / name, name, 70, 2)
    data = report_data([tmp_path / "local", tmp_path / "fedavg"])
    for s in figure(data, "clients")["series"]:
        assert s["y"] == sorted(s["y"])
        assert s["x"] == list(range(1, 71))
    local = figure(data, "clients")["series"][0]
    client = int(local["text"][0].split()[2].rstrip(","))
    assert 100 * data["clients"]["accuracy"]["local"][client] == pytest.approx(
        local["y"][0], rel=1e-3
    )


def test_the_training_loss_by_round_is_that_of_the_tables(data, folder):
    for key, view in (("loss", "personal"), ("loss-global", "global")):
        shown = figure(data, key)
        assert "selffl" in [s["name"] for s in shown["series"]]
        for s in shown["series"]:
            runs = coterie.load(folder).runs[s["name"]]
            ends = [np.nanmean(values_of(r.table, "loss", "train", view)[1]) for r in runs]
            assert s["y"][-1] == pytest.approx(np.mean(ends), rel=1e-3)
    assert "local" not in [s["name"] for s in figure(data, "loss-global")["series"]]


def test_python_draws_the_loss_and_says_where_there_is_none(folder):
    run = coterie.load(folder).runs["local"][0]
    assert run.plot.loss().axes
    with pytest.raises(BadInput, match="'global' models"):
        run.plot.loss("global")
