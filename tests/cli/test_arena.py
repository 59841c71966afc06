"""`coterie arena`: what is stored stays unless more is there, and no word is without effect."""

import shutil
from pathlib import Path

import pytest

from coterie.lab.arena.cells import CellState, StoredRuns
from coterie.lab.arena.guide import GUIDE_FILE
from coterie.lab.arena.results import read_results
from coterie.lab.commands import arena as command

DOCS = Path(__file__).parents[2] / "docs"
STORED = Path("results") / "arena.parquet"


@pytest.fixture
def docs(tmp_path):
    """A folder of docs that holds the stored results and the page on choosing, and no more."""
    folder = tmp_path / "docs"
    (folder / "results").mkdir(parents=True)
    shutil.copy(DOCS / STORED, folder / STORED)
    shutil.copy(DOCS / "choose.md", folder)
    return folder


def _runs(monkeypatch, federations):
    """As if the runs of some federations alone were there."""
    whole = read_results(DOCS / STORED)
    kept = [name in federations for name in whole.runs["federation"].to_pylist()]
    some = whole._replace(runs=whole.runs.filter(kept))
    monkeypatch.setattr(command, "collect_results", lambda arena, out, stored: some)
    monkeypatch.setattr(command, "state_of", lambda cell, out: CellState(1, 1))
    return some


def test_without_runs_the_page_is_written_from_the_stored_results(coterie, docs):
    before = (docs / STORED).read_bytes(), GUIDE_FILE.read_bytes()
    runs = len(read_results(docs / STORED).runs)
    table, end = "| they differ in |", "<!-- arena: end -->"
    head, rest = (docs / "choose.md").read_text().split(table)
    (docs / "choose.md").write_text(f"{head}{end}{rest.split(end)[1]}")
    code, out, _ = coterie("arena", "--write", "docs")
    assert (code, out) == (
        0,
        f"wrote docs/arena.md from docs/results/arena.parquet, {runs:,} runs\n",
    )
    for name in ("arena.md", "pictures/arena-ranks.png", "pictures/arena-budgets.png"):
        assert (docs / name).read_bytes() == (DOCS / name).read_bytes()
    assert table in (docs / "choose.md").read_text()
    assert ((docs / STORED).read_bytes(), GUIDE_FILE.read_bytes()) == before


def test_a_guide_that_cannot_be_judged_changes_nothing(coterie, docs, monkeypatch):
    _runs(monkeypatch, ["pairs"])
    before = {path: path.read_bytes() for path in docs.rglob("*") if path.is_file()}
    code, out, errors = coterie("arena", "--write", "docs", "--out", "runs", "--store")
    assert (code, out) == (2, "")
    assert "a guide is judged on a federation that it has not seen" in errors
    assert {path: path.read_bytes() for path in docs.rglob("*") if path.is_file()} == before


def test_a_run_that_writes_goes_on_from_what_is_stored(coterie, docs, monkeypatch):
    begun = []
    monkeypatch.setattr(command, "run_cells", lambda *given: begun.append(given[-1]) or ())
    assert coterie("arena", "--run", "--write", "docs", "--quiet")[0] == 0
    assert len(begun) == 1
    assert sum(map(len, begun[0].chosen.values())) == len(read_results(docs / STORED).runs)
    assert coterie("arena", "--run", "--quiet")[0] == 0
    assert begun[1] == StoredRuns()


def test_the_guide_is_stored_only_where_that_is_asked_for(coterie, docs, monkeypatch, tmp_path):
    guide = tmp_path / "guide.json"
    shutil.copy(GUIDE_FILE, guide)
    monkeypatch.setattr(command, "GUIDE_FILE", guide)
    some = _runs(monkeypatch, ["pairs", "alike"])
    (docs / STORED).unlink()
    code, out, _ = coterie("arena", "--write", "docs", "--out", "runs")
    assert code == 0
    assert f"wrote docs/arena.md and docs/results/arena.parquet from {len(some.runs)} runs" in out
    assert "`coterie advise` keeps its guide, which has other results; --store replaces it" in out
    assert guide.read_bytes() == GUIDE_FILE.read_bytes()
    code, out, _ = coterie("arena", "--write", "docs", "--out", "runs", "--store")
    assert f"stored the guide of `coterie advise` in {guide}" in out
    assert '"hospitals"' not in guide.read_text()
    assert '"hospitals"' in GUIDE_FILE.read_text()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["--judge", "--out", "nowhere"], "--out has no effect on --judge"),
        (["--judge", "--methods", "ditto"], "--methods has no effect on --judge"),
        (["--write", "docs", "--methods", "ditto"], "--methods has no effect on --write"),
        (["--write", "docs", "pairs"], "speak of all federations: name none"),
        (["--write", "docs"], "finished below runs/arena, and there is no docs/results/arena.par"),
        (["--write", "docs", "--out", "nowhere"], "no cell of the arena is finished below nowhere"),
        (["--store"], "--store belongs to --write"),
        (["--time", "--run"], "--time runs and writes nothing: give it alone"),
        (["--methods", "dito"], "there is no method 'dito'; did you mean 'ditto'"),
    ],
    ids=str,
)
def test_words_without_effect_are_refused_and_leave_nothing(coterie, tmp_path, settings, says):
    code, _, errors = coterie("arena", *settings)
    assert code == 2
    assert says in errors
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--out", "--write"])
def test_a_file_is_no_folder(coterie, tmp_path, option):
    (tmp_path / "afile").write_text("")
    code, out, errors = coterie("arena", option, "afile")
    assert (code, out) == (2, "")
    assert f"{option} afile is a file: give a folder" in errors


def test_the_list_has_a_heading_for_every_column_and_counts_in_english(coterie):
    code, out, _ = coterie("arena", "pairs", "--methods", "ditto")
    assert code == 0
    (heads,) = (line.split() for line in out.splitlines() if "federation" in line)
    assert heads[:2] == ["federation", "clients"]
    assert "1 method, 8 trials each" in out
    assert "2 methods, 8 trials each" in coterie("arena", "--methods", "ditto, local")[1]
