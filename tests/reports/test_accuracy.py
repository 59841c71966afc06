"""Figures of accuracy."""

import pytest

from coterie.reports.report import report_data
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
