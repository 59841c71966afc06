"""The page of the papers' tables is what the stored results say."""

from pathlib import Path

from coterie.experiment.papers import paper_tables
from coterie.reports.reproduction import PAGE, RESULTS, page, published, verdicts

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_in_the_docs_is_what_the_stored_results_give():
    assert (DOCS / PAGE).read_text() == page(list(paper_tables().values()), DOCS / RESULTS)


def test_the_list_shows_the_verdicts_of_the_page():
    assert published() == verdicts(list(paper_tables().values()), DOCS / RESULTS)
