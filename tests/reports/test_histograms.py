"""Histograms over clients, in reports and in Python."""

import numpy as np
import pytest

import coterie
from coterie.core.errors import BadInput
from coterie.experiment.config import Experiment, change_options
from coterie.reports.histograms import BINS, bars
from coterie.reports.report import report_data
from coterie.running.execute import execute
from helpers.reports import FAST, figure

WORDS = {
    "dataset": "digits",
    "num_clients": 12,
    "rounds": 6,
    "eval_every": 3,
    "batch_size": 64,
    "participation": 0.5,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = change_options(Experiment(method="selffl"), WORDS | FAST | {"l_max": 6})
    return execute(settings, tmp_path_factory.mktemp("histograms") / "run")


def counted(shown):
    """Clients in all ranges of every series."""
    return {series["name"]: sum(series["y"]) for series in shown["series"]}


def ranges(shown):
    names = [name.replace(",", "").split(" to ") for name in shown["series"][0]["x"]]
    return [(float(low), float(high)) for low, high in names]


def test_a_report_has_every_client_in_the_range_of_its_accuracy(run):
    shown = figure(report_data([run.folder]), "histogram")
    found = 100 * run.accuracy()
    assert counted(shown) == {"selffl": 12}
    assert (shown["kind"], shown["y"], len(ranges(shown))) == ("bars", "clients", BINS)
    for (low, high), count in zip(ranges(shown), shown["series"][0]["y"], strict=True):
        inside = (found >= low - 0.5) & (found <= high + 0.5)  # names are rounded
        assert count <= inside.sum()
    assert ranges(shown)[-1][1] == 100


def test_a_report_of_self_fl_has_the_steps_of_one_round(run):
    """As the paper's Figure 11: the active clients at half of the rounds."""
    shown = figure(report_data([run.folder]), "histogram-raw_steps-selffl")
    frame = run.table.to_pandas()
    steps = frame[(frame.metric == "raw_steps") & frame.value.notna()]
    middle = min(steps["round"].unique(), key=lambda r: abs(r - 3))
    mine = steps[steps["round"] == middle].value
    assert f"round {middle};" in shown["note"]
    assert counted(shown) == {"selffl": len(mine)}
    ends = ranges(shown)
    assert ends[0][0] == pytest.approx(mine.min(), rel=0.01)
    assert ends[-1][1] == pytest.approx(mine.max(), rel=0.02)
    assert np.ptp([np.log(b / a) for a, b in ends]) < 0.05  # of equal width as logarithms


def test_python_draws_them_of_any_round(run):
    plot = coterie.load(run.folder).plot
    assert sum(bar.get_height() for bar in plot.histogram().axes[0].patches) == 12
    last = plot.histogram("raw_steps", round=6)
    assert 0 < sum(bar.get_height() for bar in last.axes[0].patches) <= 6
    assert plot.histogram("steps_taken").axes  # any note of clients by round
    with pytest.raises(BadInput, match="did you mean 'raw_steps'"):
        plot.histogram("raw_step")
    with pytest.raises(BadInput, match="in round 99"):
        plot.histogram("raw_steps", round=99)


def test_few_clients_and_many_methods_have_none(folder):
    assert "histogram" not in [f["key"] for f in report_data([folder])["figures"]]
    with pytest.raises(BadInput, match="ten clients"):
        coterie.load(folder).plot.histogram()


def test_ranges_are_common_to_all_methods_and_leave_out_what_is_missing():
    one, other = bars({"a": np.array([1.0, np.nan, 3.0]), "b": np.array([2.0, 11.0])})
    assert one.x == other.x
    assert (sum(one.y), sum(other.y)) == (2, 2)
    assert bars({"a": np.array([np.nan])}) == ()
    assert sum(bars({"a": np.array([0.0, 5.0, 50.0])}, logs=True)[0].y) == 2
    assert sum(bars({"a": np.full(4, 7.0)})[0].y) == 4  # all alike
    assert bars({"a": np.array([99.0, 100.0])}, top=100.0)[0].x[0] == "90 to 91"
    assert bars({"a": np.array([10.0, 1e13])}, logs=True)[0].x[1] == "158 to 2,510"
