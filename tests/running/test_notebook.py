"""Progress in a notebook: a widget where there are any, else nothing but what must be said."""

import sys
from textwrap import dedent

import pytest

from coterie.running import notebook
from coterie.running.loop import RoundReport, message_report_of

REPORT = RoundReport(
    stage="train", round=1, rounds=2, clients=3, seconds=0.1, accuracy=0.5, loss=1.0, value=0.5
)


def test_outside_of_a_notebook_only_what_must_be_said_is_said(capsys):
    assert not notebook.has_widgets()
    with notebook.show_progress() as show:
        show("ditto", 0, REPORT)
        show("ditto", 0, message_report_of("mind this"))
    assert capsys.readouterr() == ("", "coterie: ditto seed 0: mind this\n")


def test_a_notebook_without_widgets_is_plain(monkeypatch, capsys):
    monkeypatch.setattr(notebook.Console, "is_jupyter", True, raising=False)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr(notebook, "find_spec", lambda name: None)
    with notebook.show_progress() as show:
        show("ditto", None, REPORT)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_shows_a_bar_and_figures(tmp_path):
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipywidgets")
    pytest.importorskip("ipykernel")
    formats = pytest.importorskip("nbformat.v4")
    settings = (
        "data='digits', clients=4, rows=160, rounds=2, hidden=6, path='vectorized', compile='no'"
    )
    code = f"""\
        import coterie
        coterie.run('local', {settings}, out={str(tmp_path / "run")!r})
        """
    cells = [dedent(code), "coterie.load('run').plot.curves()"]
    book = formats.new_notebook(cells=[formats.new_code_cell(text) for text in cells])
    client.NotebookClient(
        book, timeout=600, startup_timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    first, second = ([out for out in cell.outputs if "data" in out] for cell in book.cells)
    assert any("application/vnd.jupyter.widget-view+json" in out["data"] for out in first)
    assert any("<table" in out["data"].get("text/html", "") for out in first)
    assert any("image/png" in out["data"] for out in second)
