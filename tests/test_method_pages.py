"""docs/methods has a current page for every method."""

import runpy
from pathlib import Path

import pytest

from coterie.methods.registry import METHODS

ROOT = Path(__file__).parents[1]
MADE = runpy.run_path(str(ROOT / "scripts" / "method_pages.py"))
FOLDER = ROOT / "docs" / "methods"


@pytest.mark.parametrize("name", METHODS)
def test_the_page_is_current(name):
    """After a change of a method's docstrings, options or traffic: make docs."""
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == MADE["page"](name)


def test_there_is_no_page_of_a_method_that_is_gone():
    assert {path.stem for path in FOLDER.glob("*.md")} == set(METHODS)


def test_the_words_speak_only_of_what_is_there():
    options = MADE["WORDS"]["options"]
    known = {name: set(MADE["declared_options"](builder)) for name, builder in METHODS.items()}
    for name, words in options.items():
        if isinstance(words, dict):
            assert set(words) <= known[name]
        else:
            assert any(name in each for each in known.values())


def test_an_option_without_a_meaning_is_refused(monkeypatch):
    monkeypatch.delitem(MADE["WORDS"]["options"]["ifca"], "clusters")
    with pytest.raises(SystemExit, match=r"ifca.clusters has no meaning"):
        MADE["page"]("ifca")


def test_indented_lines_are_formulas_and_the_rest_is_left_as_it_is():
    assert MADE["prose"]("see\n    w_i = 1\nthen w_i") == (
        "see\n\n```text\nw_i = 1\n```\n\nthen w\\_i"
    )
    assert (
        MADE["items"](["both:", "- `a_b`;", "- c (d", "- e)"]) == "both:\n\n- `a_b`;\n- c (d - e)"
    )


def test_a_sentence_of_the_builder_belongs_to_its_option():
    said = MADE["said"]("feddf")
    assert said["patience"] == "steps without progress"
    assert said["clip"] == "longest gradient"
