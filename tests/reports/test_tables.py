"""The tables are those of the runs."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coterie.analysis.scores import MORE, RANKED
from coterie.cli.show import show_comparison
from coterie.comparison.execute import load_comparison
from coterie.experiment.config import Experiment, change_options
from coterie.reports.report import report_data
from coterie.results.false_accepts import relative_false_accepts
from coterie.results.metric_table import values_of
from coterie.results.run import load_run
from coterie.running.execute import execute
from helpers.reports import FAST, METHODS, table


def test_the_method_table_is_that_of_the_runs(data, folder):
    found = table(data, "methods")
    assert set(found) == set(METHODS) == set(data["methods"])
    for name in METHODS:
        runs = [load_run(folder / f"{name}-seed{seed}") for seed in (0, 1)]
        assert found[name]["mean"] == pytest.approx(
            100 * np.mean([r.accuracy().mean() for r in runs]), rel=1e-5
        )
        assert found[name]["worst client"] == pytest.approx(
            100 * np.mean([r.accuracy().min() for r in runs]), rel=1e-5
        )
    means = [row["mean"] for row in found.values()]
    assert means == sorted(means, reverse=True)


def test_two_classes_have_false_accepts_over_fedavg(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    frame = {f"x{k}": x[:, k] for k in range(4)} | {
        "label": (x.sum(1) > 0).astype(int),
        "client": np.arange(120) % 3,
    }
    pq.write_table(pa.table(frame), tmp_path / "own.parquet")
    settings = {"dataset": str(tmp_path / "own.parquet"), "rounds": 2, **FAST}
    for name in ("fedavg", "local"):
        execute(change_options(Experiment(method=name), settings), tmp_path / name)
    runs = [load_run(tmp_path / name) for name in ("local", "fedavg")]
    found = table(report_data([run.folder for run in runs]), "scores-accepts")
    assert found["local"]["relative false accepts"] == pytest.approx(
        relative_false_accepts(*runs).relative_fa, rel=1e-5
    )
    for file in ("scores.parquet", "split.parquet"):  # readable all the same
        path = tmp_path / "local" / file
        pq.write_table(pq.read_table(path).slice(1), path)
    data = report_data([run.folder for run in runs])
    way = "which is damaged or gone: restore it from a copy, or run again"
    said = f"local, local, lacks split.parquet, {way}; it lacks scores.parquet, {way}"
    assert data["warnings"] == [said]
    assert "scores-accepts" not in [t["key"] for t in data["tables"]]
    assert "split" not in [f["key"] for f in data["figures"]]


def test_every_declared_score_is_in_report_terminal_and_file(data, folder, capsys):
    """One declaration in analysis/scores.py is all that a new measure takes."""
    columns = next(t for t in data["tables"] if t["key"] == "scores")["columns"][1:]
    assert [(c["name"], c["better"]) for c in columns] == [
        (s.label, "high" if s.higher else "low") for s in (*MORE, *RANKED)
    ]
    rows = pd.read_csv(folder / "table.csv").set_index("method")
    show_comparison(load_comparison(folder), wide=True)
    said = capsys.readouterr().out
    found = table(data, "scores")
    nothing = found.pop("(knows training labels only)")
    for score in (*MORE, *RANKED):
        scale = 100 if score.share else 1
        known = load_run(folder / "local-seed0").trivial[score.name]
        assert nothing[score.label] == pytest.approx(scale * known, rel=1e-5)
        for name, cells in found.items():
            runs = [load_run(folder / f"{name}-seed{seed}") for seed in (0, 1)]
            wanted = np.mean([np.mean(values_of(run.table, score.name)[1]) for run in runs])
            assert rows.loc[name, score.name] == pytest.approx(wanted)
            assert cells[score.label] == pytest.approx(scale * wanted, rel=1e-5)
            if score in MORE:  # a terminal of 80 columns has no room for the others
                assert score.label.split()[0] in said
                assert f"{100 * wanted:.2f}" in said
