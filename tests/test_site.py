"""The documentation as a site: every page is in its navigation, and nothing is fetched."""

import re
import runpy
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
HOOKS = runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def test_a_pattern_stands_for_the_pages_that_no_other_entry_names():
    nav = [{"A": ["a.md", "*.md"]}, {"B": ["m/*.md"]}, "b.md"]
    pages = ["a.md", "b.md", "c.md", "m/x.md", "m/y.md"]
    made = HOOKS["expanded"](nav, pages, set(HOOKS["named"](nav)))
    assert made == [{"A": ["a.md", "c.md"]}, {"B": ["m/x.md", "m/y.md"]}, "b.md"]


def test_every_page_is_in_the_navigation_once_and_every_entry_is_there():
    config = HOOKS["on_config"]({"docs_dir": ROOT / "docs", "nav": CONFIG["nav"]})
    named = HOOKS["named"](config["nav"])
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert sorted(named) == sorted(pages)


def test_a_link_out_of_the_documentation_becomes_the_name_of_its_file():
    docs = ROOT / "docs"
    text = "[a](../examples/own_data.py), [b](../nowhere.py), [c](../methods.md), [d](data.md)"
    shown = HOOKS["without_outward_links"](text, docs / "tutorial.md", docs)
    assert shown == "`examples/own_data.py`, [b](../nowhere.py), [c](../methods.md), [d](data.md)"
    deeper = HOOKS["without_outward_links"](text, docs / "methods" / "ditto.md", docs)
    assert "[c](../methods.md)" in deeper


def test_formulas_are_mathml_and_dollars_of_code_stay():
    text = "`$HOME` is $x_{i}$:\n\n$$\ny^2\n$$\n\n```\n$a_b$\n```\n"
    formulas: list[str] = []
    marked = HOOKS["with_marks"](text, formulas)
    assert marked == "`$HOME` is formula0mark:\n\nformula1mark\n\n```\n$a_b$\n```\n"
    html = HOOKS["with_formulas"]("<p>is formula0mark:</p>\n<p>formula1mark</p>", formulas)
    assert html.startswith("<p>is <math")
    assert 'display="inline"' in html
    assert '</p>\n<div class="formula" tabindex="0"><math' in html


def test_search_and_lists_of_pages_have_names():
    page = (
        '<nav class="md-nav" data-md-level="1" aria-labelledby="__nav_2_label" aria-expanded="x">'
    )
    named = HOOKS["with_names"](page)
    assert 'aria-label="Pages of section 2" aria-expanded' in named
    assert "labelledby" not in named


def test_the_site_asks_no_other_host():
    assert CONFIG["theme"]["font"] is False
    ours = [*CONFIG["extra"]["polyfills"], *CONFIG["extra_css"], *CONFIG["extra_javascript"]]
    assert all((ROOT / "docs" / path).exists() for path in ours)
    for path in (ROOT / "docs").rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"!\[[^]]*\]\(https?:|<script|```mermaid", text), path


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 600
