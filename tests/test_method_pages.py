"""docs/methods has a current page for every method, docs/reference.md every option."""

import runpy
from pathlib import Path

import formulas
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


def test_the_reference_is_current():
    """After a change of an option or of what is said beside it: make docs."""
    assert (ROOT / "docs" / "reference.md").read_text(encoding="utf-8") == MADE["reference"]()


def test_interpretations_are_of_methods_that_are_there():
    assert {path.stem for path in MADE["INTERPRETATIONS"].glob("*.md")} <= set(METHODS)


def test_an_option_without_a_meaning_is_refused():
    entry = MADE["OptionEntry"]("clusters", "a whole number", "2", "")
    with pytest.raises(SystemExit, match="'clusters' has no meaning"):
        MADE["table_of"]([entry])


def test_every_paper_has_a_number_by_which_it_is_found():
    without = {"local", "oracle"}  # baselines of no paper
    for name in set(METHODS) - without:
        page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        assert "](https://" in page.split("**Paper:**")[1].splitlines()[0], name


def test_indented_lines_are_formulas_and_letters_with_an_index_too():
    assert MADE["prose"]("see\n    w_i = 1  (2)\nthen w_i by_name") == (
        "see\n\n$$\nw_{i} = 1\\qquad (2)\n$$\n\nthen $w_{i}$ by\\_name"
    )
    assert (
        MADE["items"](["both:", "- `a_b`;", "- c (d", "- e)"]) == "both:\n\n- `a_b`;\n- c (d - e)"
    )


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("w_ij ~ n_j exp(-|g|^2)", r"w_{ij} \sim  n_{j} \exp (-|g|^2)"),
        ("sum_{k != m} theta_k'", r"\sum _{k \ne  m} \theta _{k}'"),
        ("Theta^_i of the top", r"\hat{\Theta }_{i}\text{ of the top}"),
        ("|m - m_prev|", r"|m - m_{\text{prev}}|"),
    ],
)
def test_plain_formulas_become_latex(text, latex):
    assert formulas.latex(text) == latex
