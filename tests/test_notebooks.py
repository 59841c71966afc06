"""The notebooks run as they stand, from top to bottom; their last expressions can be shown."""

import ast
import json
from pathlib import Path

import pytest

from coterie.methods.registry import METHODS

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
BOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def play(path: Path) -> list[object]:
    """What each code cell ends with, as a notebook would show it; None where it shows nothing."""
    names, shown = {"__name__": path.stem}, []
    for cell in cells(path):
        if cell["cell_type"] != "code":
            continue
        *before, last = ast.parse("".join(cell["source"])).body
        if not isinstance(last, ast.Expr):
            before, last = [*before, last], None
        exec(compile(ast.Module(before, []), str(path), "exec"), names)
        shown.append(
            eval(compile(ast.Expression(last.value), str(path), "eval"), names) if last else None
        )
    return shown


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = dict(METHODS)
    try:
        shown = play(path)
    finally:
        METHODS.clear()
        METHODS.update(before)  # a method that it registers is not seen by other tests
    pages = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(pages) >= 3
    assert all("<table" in page for page in pages)


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_its_outputs(path):
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert len(code) > 3
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
