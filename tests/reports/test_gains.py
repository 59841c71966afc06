"""Gains are over the better of FedAvg and Local."""

import numpy as np
import pytest

from coterie.analysis.gains import improvement, qoi
from coterie.reports.report import report_data
from coterie.results.run import load_run
from helpers.reports import figure, table


def test_gains_are_over_the_better_of_fedavg_and_local(data, folder):
    def accuracy(name: str) -> list[np.ndarray]:
        return [load_run(folder / f"{name}-seed{seed}").accuracy() for seed in (0, 1)]

    pui = [
        improvement(qoi(p, g, a)).pui
        for p, g, a in zip(*map(accuracy, ("persfl", "fedavg", "local")), strict=True)
    ]
    assert table(data, "gains")["persfl"]["PUI"] == pytest.approx(np.mean(pui))
    assert not {"fedavg", "local"} & set(table(data, "gains"))


def test_without_local_a_gain_is_over_fedavg(folder):
    data = report_data([folder / "fedavg-seed0", folder / "apfl-seed0"])
    assert "over FedAvg" in figure(data, "qoi")["title"]
    assert "gains are measured over FedAvg alone" in data["answer"][1]
