"""The page of the arena and the guide are what the stored results give."""

from pathlib import Path

import pytest

from coterie.core.errors import BadInput
from coterie.lab.arena.arena_page import (
    LONG,
    NOTABLE_GRADIENTS,
    PAGE,
    PICTURES,
    RESULTS,
    render_page,
    write_page,
)
from coterie.lab.arena.guide import GUIDE_FILE, guide_of, read_guide, write_guide
from coterie.lab.arena.guide_section import CHOOSE, build_choose_table, render_choose_page
from coterie.lab.arena.results import arena_scores_of, read_results
from coterie.lab.arena.rules import SINGLE, judge_rules
from coterie.lab.arena.summary import summarize_results

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
    (row,) = (line for line in table.splitlines() if "you do not know" in line)
    assert row.endswith("| all |")
    regret = known.regret.mean(axis=0)
    assert f"(methods/{known.methods[int(regret.argmin())]}.md)" in row.split(",")[0]
    assert f" {regret.min():.1f}" in row.split(",")[0]


def test_a_page_on_choosing_without_a_place_for_the_table_is_refused(stored, tmp_path):
    assert render_choose_page(stored, tmp_path) == ""
    (tmp_path / CHOOSE).write_text("# Choose\n")
    with pytest.raises(BadInput, match="needs the lines <!-- arena: begin -->"):
        write_page(stored, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [CHOOSE]


def test_what_is_not_alike_is_said_beside_the_ranks(stored):
    text = render_page(stored)
    told = text.split("## On each federation")[0]
    found = summarize_results(stored)
    costly = [k for k in range(len(found.methods)) if found.gradients[k] > NOTABLE_GRADIENTS]
    assert "pfedme" in [found.methods[k] for k in costly]
    for k in costly:
        assert f"{found.methods[k]} {found.gradients[k]:.1f}" in told
    assert stored.about["unlike"] in told
    k = found.methods.index("pfedme")
    assert f"[pfedme](methods/pfedme.md) | {found.rank[k]:.1f} | {found.behind[k]:.1f} |" in text
    assert "an R2 below -1 counts as -1" in text


def test_the_runs_are_long_and_on_tables_that_nobody_here_wrote(stored):
    about = stored.about
    assert about["rounds"] * about["steps"] >= LONG
    assert sum(one["natural"] for one in about["federations"].values()) >= 6
    assert len(about["federations"]) >= 12
    text = render_page(stored)
    assert "short runs of small networks" not in text
    for section in ("Equal gradients", "Equal information", "How ranks move with the budget"):
        assert f"## {section}" in text


def test_methods_with_public_rows_are_ranked_beside_those_without(stored):
    section = render_page(stored).split("## Equal information")[1].split("\n## ")[0]
    table = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
    ranks = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in table[1:]}
    assert ranks["ktpfl"][:2] == ["", ""]  # it needs public rows
    assert ranks["persfl"][0] == ranks["persfl"][2] == ""  # it needs validation rows
    assert all(ranks["fedavg"])
    assert ranks["ktpfl"][3]
    assert ranks["persfl"][3]


def test_rules_that_look_are_judged_against_the_best_single_method(stored):
    section = render_page(stored).split("## Which method when")[1]
    single = next(one for one in judge_rules(arena_scores_of(stored)) if one.rule == SINGLE)
    row = f"| {SINGLE} (in use) | {single.mean:.2f} | {single.regret.max():.2f} |"
    assert row in section  # advice goes by it, whatever the others say
    assert section.count("(in use)") == 1
    assert "beats the best single method by more" in section or "does not look" in section


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
