"""Tables as pandas frames, and what a notebook shows."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest

import coterie
from coterie.core.errors import BadInput
from coterie.results import frames
from coterie.results.comparison import Comparison
from helpers.runs import IMAGES


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frames") / "out"
    return coterie.compare(
        ["local", "fedavg"], seeds=2, dataset="digits", out=folder, watch=lambda *_: None, **IMAGES
    )


def test_the_frame_of_a_run_is_its_table(result):
    run = result.runs["local"][0]
    frame = run.to_pandas()
    assert list(frame.columns) == run.table.column_names
    last = frame[(frame["round"] == frame["round"].max()) & (frame["part"] == "test")]
    found = last[(last["view"] == "personal") & (last["metric"] == "accuracy")]
    np.testing.assert_allclose(found.sort_values("client")["value"], run.accuracy())


def test_the_frames_of_a_comparison_are_its_csv_files(result):
    for of, name in (("methods", "table.csv"), ("clients", "clients.csv")):
        frame = result.to_pandas(of)
        with (result.folder / name).open(encoding="utf-8") as file:
            heads, *rows = csv.reader(file)
        assert list(frame.columns) == heads
        assert len(frame) == len(rows)
        for (_, row), cells in zip(frame.iterrows(), rows, strict=True):
            for value, cell in zip(row, cells, strict=True):
                assert str(value) == cell or float(value) == pytest.approx(float(cell), abs=1e-6)


def test_the_frame_of_clients_has_every_clients_figure(result):
    frame = result.to_pandas("clients")
    found = frame.pivot_table(
        index=["method", "seed"], columns="client", values="test_accuracy", sort=True
    )
    for name in result.runs:
        np.testing.assert_allclose(found.loc[name], result.accuracy(name))
    assert list(found.columns) == list(range(len(result.first.rows)))


def test_a_method_that_diverged_is_in_the_frame_without_figures(result):
    frame = Comparison(result.folder, result.runs, {"ditto": "seed 0, round 1"}).to_pandas()
    row = frame.set_index("method").loc["ditto"]
    assert row["diverged"] == "seed 0, round 1"
    assert np.isnan(row["mean"])


def test_an_unknown_frame_is_refused(result):
    with pytest.raises(BadInput, match="'methods' or 'clients'"):
        result.to_pandas("rows")


def test_without_pandas_the_way_out_is_told(monkeypatch):
    monkeypatch.setattr(frames, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install pandas"):
        frames.as_pandas(SimpleNamespace())


def test_a_notebook_shows_a_run_with_its_views(result):
    run = result.runs["fedavg"][0]
    shown = run._repr_html_()
    assert f"{100 * run.summary().mean:.2f}" in shown
    assert shown.count("<tr>") == 1 + len(run.views)


def test_a_notebook_shows_the_answer_and_the_best_method_first(result):
    shown = result._repr_html_()
    assert result.answer._repr_html_() in shown
    assert shown.startswith(f"<p>Use {result.answer.use}")
    best = max(result.rows(), key=lambda row: row.mean)
    cells = shown.split("<tbody>")[1].split("</td>")
    assert cells[0].endswith(f">{best.method}")
    assert cells[1].endswith(f">{100 * best.mean:.2f}")
