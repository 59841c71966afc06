"""The page of the arena and the guide are what the stored results give."""

from pathlib import Path

import pytest

from coterie.comparison.arena_results import read_results
from coterie.comparison.guide import GUIDE, guide_of, read_guide, write_guide
from coterie.reports.arena import PAGE, PICTURES, RESULTS, page

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def stored():
    return read_results(DOCS / RESULTS)


def test_the_page_is_what_the_stored_results_give(stored):
    assert (DOCS / PAGE).read_text() == page(stored)


def test_the_guide_that_comes_with_the_package_is_what_the_stored_results_give(stored, tmp_path):
    write_guide(guide_of(stored), tmp_path / "guide.json")
    assert (tmp_path / "guide.json").read_text() == GUIDE.read_text()
    assert set(read_guide().known.federations) == set(stored.runs["federation"].to_pylist())


def test_every_picture_of_the_page_is_there_and_small(stored):
    text = page(stored)
    names = [part.split(")")[0] for part in text.split(f"({PICTURES}/")[1:]]
    assert names
    for name in names:
        assert (DOCS / PICTURES / name).stat().st_size < 100_000
