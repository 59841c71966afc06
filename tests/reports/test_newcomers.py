"""What comparisons and reports say of newcomers."""

import csv

import numpy as np
import pytest

import coterie
from coterie.analysis.significance import mean_interval
from coterie.data.read.user_data import from_arrays
from coterie.reports.content import build_figures, build_page
from coterie.reports.gather import gather_evidence
from coterie.reports.newcomer_tables import build_newcomer_table
from helpers.runs import FAST


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    rng = np.random.default_rng(0)
    x, owners = rng.normal(size=(240, 5)), np.repeat(np.arange(8), 30)
    y = (x[:, 0] + 0.2 * owners * x[:, 1] > 0).astype(np.int64)
    return coterie.compare(
        ["fedavg", "ditto"],
        seeds=2,
        dataset=from_arrays(x, y, owners.astype(str), name="made"),
        out=tmp_path_factory.mktemp("newcomers") / "comparison",
        rounds=2,
        newcomers=2,
        newcomer_rounds=2,
        few_shot=[2, 5],
        lr=0.1,  # one rate and one network for both methods, which newcomers train with too
        model="dnn",
        **FAST,
    )


def test_the_newcomers_of_all_seeds_are_one_sample(compared):
    rows = compared.newcomers()
    assert list(rows) == ["fedavg", "ditto"]
    found = [run.came.values("rule") for run in compared.runs["ditto"]]
    wanted = mean_interval(np.concatenate(found))
    own = rows["ditto"][0]
    assert (own.n, own.mean) == (4, pytest.approx(wanted.mean))
    assert rows["fedavg"][1].gain == 0  # fine-tuning is what fedavg's newcomers do
    with (compared.folder / "newcomers.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [(line["method"], line["way"]) for line in written[:3]] == [
        ("fedavg", way) for way in ("rule", "finetune", "local")
    ]
    assert float(written[3]["mean"]) == pytest.approx(own.mean)


def test_training_alone_is_the_same_whatever_the_method(compared):
    fedavg, ditto = (compared.newcomers()[name] for name in ("fedavg", "ditto"))
    assert fedavg[2].mean == ditto[2].mean


def test_a_report_has_a_table_and_a_curve_of_newcomers(compared):
    evidence = gather_evidence([compared.folder])
    table = build_newcomer_table(evidence)
    assert [row[:2] for row in table.rows][:2] == [
        ["fedavg", "own rule"],
        ["fedavg", "global, fine-tuned"],
    ]
    assert table.rows[3][2] == pytest.approx(100 * compared.newcomers()["ditto"][0].mean)
    assert table.rows[3][8] == 4
    figure = next(f for f in build_figures(evidence) if f.key == "few-shot")
    lines = {series.name: series for series in figure.series}
    assert list(lines) == ["fedavg", "ditto", "fedavg (global, fine-tuned)"]
    assert lines["ditto"].x == [2, 5, 18.0]
    assert lines["ditto"].y[1] == pytest.approx(100 * compared.newcomers(5)["ditto"][0].mean)
    keys = [table["key"] for table in build_page(evidence, [compared.folder])["tables"]]
    assert "newcomers" in keys
