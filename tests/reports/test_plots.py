"""`.plot`: the figures of a report in Python, of runs and comparisons."""

import pytest

import coterie
from coterie.core.errors import BadInput
from coterie.reports.draw import Canvas
from coterie.results.plotting import PLOT_MAKERS, plots_of


def test_a_comparison_draws_what_its_report_has(folder):
    plot = coterie.load(folder).plot
    assert {"forest", "curves", "clients"} <= set(plot.keys)
    lines = plot.curves().axes[0].get_lines()
    assert len(lines) >= len(plot.evidence.methods)
    curve = next(s for s in plot.figures["curves"].series if s.name == "fedavg")
    (drawn,) = [line for line in lines if line.get_label() == "fedavg"]
    assert list(drawn.get_ydata()) == pytest.approx(curve.y)
    for figure in (plot.forest(), plot.scores(), plot.clients(), plot.figure("curves-validation")):
        assert isinstance(figure, Canvas)
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_scores_are_the_means_of_the_runs(folder):
    result = coterie.load(folder)
    bars = result.plot.scores().axes[0].containers
    told = result.scores()["fedavg"]
    mine = next(c for c in bars if c.get_label() == "fedavg")
    assert mine[0].get_height() == pytest.approx(100 * next(iter(told.values())))


def test_a_run_draws_itself_and_says_what_it_cannot(folder):
    run = coterie.load(folder).runs["fedavg"][0]
    assert run.plot.curves().axes
    assert run.plot.curves("train").axes
    for act in (run.plot.forest, lambda: run.plot.curves("tset"), lambda: run.plot.figure("x")):
        with pytest.raises(BadInput):
            act()


def test_without_anything_that_draws_the_way_is_told(folder, monkeypatch):
    monkeypatch.delitem(PLOT_MAKERS, "figures")
    with pytest.raises(BadInput, match="import coterie"):
        plots_of(folder)
