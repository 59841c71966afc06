"""The pages of the papers' tables are what the stored results say."""

import re
from pathlib import Path

from coterie.lab.papers.paper_tables import read_papers
from coterie.lab.papers.reproduction_page import (
    INDEX,
    PAGES,
    REMARKS,
    RESULTS,
    compute_verdicts,
    count,
    outcomes,
    pages,
    read_published,
    read_remarks,
)

DOCS = Path(__file__).parents[2] / "docs"
TABLES = list(read_papers().values())


def test_the_pages_in_the_docs_are_what_the_stored_results_give():
    made = pages(TABLES, DOCS / RESULTS)
    assert {p.name for p in (DOCS / PAGES).iterdir()} == set(made)
    for name, text in made.items():
        assert (DOCS / PAGES / name).read_text() == text, name


def test_the_list_shows_the_verdicts_of_the_pages():
    assert read_published() == compute_verdicts(TABLES, DOCS / RESULTS)


def test_the_index_lists_every_table_and_has_a_line_for_every_paper():
    text = (DOCS / PAGES / INDEX).read_text()
    assert all(f"| {t.id} |" in text or f"[{t.id}](" in text for t in TABLES)
    papers = {t.id.partition("-")[0] for t in TABLES}
    remarks = read_remarks(DOCS / RESULTS / REMARKS)
    assert set(remarks["summary"]) == papers
    assert set(remarks) - {"summary"} <= {t.id for t in TABLES}
    assert count(TABLES, outcomes(TABLES, DOCS / RESULTS)) in text


def test_what_holds_by_construction_is_not_called_reproduced():
    settings = {o.table.id: o for o in outcomes(TABLES, DOCS / RESULTS)}
    assert settings["selffl-figure-6"].verdict == "trivial"
    for figure in ("6.2", "6.5", "6.6", "6.7"):
        (column,) = settings[f"persfl-figure-{figure}"].columns
        assert [claim.answer for claim in column.trivial] == ["yes"]


def test_the_readme_has_the_counts_of_the_index():
    readme = " ".join((DOCS.parent / "README.md").read_text().split())
    said = re.search(
        r"figures (\d+) have been run: (\d+) reproduced, (\d+) trend, (\d+) not", readme
    )
    text = (DOCS / PAGES / INDEX).read_text()
    found = re.search(
        r"(\d+) of \d+ tables.*?: (\d+) reproduced.*?, (\d+) trend.*?, (\d+) not reproduced", text
    )
    assert said.groups() == found.groups()
