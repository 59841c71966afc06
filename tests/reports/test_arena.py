"""The page of the arena and the guide are what the stored results give."""

from pathlib import Path

import pytest

from coterie.core.errors import BadInput
from coterie.lab.arena.arena_page import PAGE, PICTURES, RESULTS, render_page, write_page
from coterie.lab.arena.guide import GUIDE_FILE, guide_of, read_guide, write_guide
from coterie.lab.arena.guide_section import CHOOSE, build_choose_table, render_choose_page
from coterie.lab.arena.results import arena_scores_of, read_results

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def stored():
    return read_results(DOCS / RESULTS)


def test_the_page_is_what_the_stored_results_give(stored):
    assert (DOCS / PAGE).read_text() == render_page(stored)


def test_the_table_on_choosing_is_what_the_stored_results_give(stored):
    assert (DOCS / CHOOSE).read_text() == render_choose_page(stored, DOCS)


def test_the_table_on_choosing_has_the_points_of_the_arena(stored):
    known = arena_scores_of(stored)
    table = build_choose_table(stored)
    (row,) = (line for line in table.splitlines() if "what the same input means" in line)
    places = [known.federations.index(name) for name in row.split(" | ")[-1][:-2].split(", ")]
    assert "permuted" in [known.federations[f] for f in places]
    regret = known.regret[places].mean(axis=0)
    best = known.methods[int(regret.argmin())]
    assert f"[{best}](methods/{best}.md) {regret.min():.1f}" in row
    assert "ifca" not in row
    (row,) = (line for line in table.splitlines() if "you do not know" in line)
    assert row.endswith("| all |")
    assert "[pfeddf](methods/pfeddf.md)\\* 2.5" in row


def test_a_page_on_choosing_without_a_place_for_the_table_is_refused(stored, tmp_path):
    assert render_choose_page(stored, tmp_path) == ""
    (tmp_path / CHOOSE).write_text("# Choose\n")
    with pytest.raises(BadInput, match="needs the lines <!-- arena: begin -->"):
        write_page(stored, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [CHOOSE]


def test_what_is_not_alike_is_said_beside_the_ranks(stored):
    text = render_page(stored)
    told = text.split("## On each federation")[0]
    assert "pfeddf 3.2" in told
    assert "ifca was tried with 2 and 3 clusters alone" in told
    assert "[pfeddf](methods/pfeddf.md) | 5.8 | 2.5 | 3 | 13 | 3.2 |" in text
    assert "an R2 below -1 counts as -1" in text


def test_no_rule_that_looks_is_said_to_be_better_than_chance(stored):
    section = render_page(stored).split("## Which method when")[1]
    assert "**No rule that looks at the federation beats the best single method by more" in section
    assert "| best single method (in use) | 2.47 | 10.67 | 4.99 |" in section


def test_the_guide_that_comes_with_the_package_is_what_the_stored_results_give(stored, tmp_path):
    write_guide(guide_of(stored), tmp_path / "guide.json")
    assert (tmp_path / "guide.json").read_text() == GUIDE_FILE.read_text()
    assert set(read_guide().known.federations) == set(stored.runs["federation"].to_pylist())


def test_every_picture_of_the_page_is_there_and_small(stored):
    text = render_page(stored)
    names = [part.split(")")[0] for part in text.split(f"({PICTURES}/")[1:]]
    assert names
    for name in names:
        assert (DOCS / PICTURES / name).stat().st_size < 100_000
