"""Laws of claims that are no order of methods: they are asked of runs, and fail where they fail."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from coterie.analysis.verdicts import verdict
from coterie.comparison.claims import check_claim
from coterie.core.errors import BadInput
from coterie.experiment.papers import paper_tables


def run_with(note, by_round):
    """A run whose clients noted these values, round by round."""
    rows = [
        {"round": r, "client": i, "part": "", "view": "", "metric": note, "value": float(value)}
        for r, noted in by_round.items()
        for i, value in enumerate(noted)
    ]
    return SimpleNamespace(table=pa.Table.from_pylist(rows))


@pytest.mark.parametrize(("second", "holds"), [(91.2, True), (93.0, False)])
def test_two_methods_are_close_within_a_point(second, holds):
    figures = {"a": [91.0], "b": [second]}
    assert check_claim(["close", "a", "b"], {}, lambda m: figures[m]).holds is holds


@pytest.mark.parametrize(("first", "holds"), [(40.0, True), (42.0, True), (43.0, False)])
def test_a_figure_is_at_most_another(first, holds):
    figures = {"a": [first], "b": [42.0]}
    assert check_claim(["at_most", "a", "b"], {}, lambda m: figures[m]).holds is holds


@pytest.mark.parametrize(("last", "holds"), [(90.0, True), (94.0, False)])
def test_figures_that_do_not_rise_throughout(last, holds):
    figures = {"a": [91.0], "b": [92.0], "c": [last]}
    assert check_claim(["mixed", "a", "b", "c"], {}, lambda m: figures[m]).holds is holds


def test_a_claim_without_runs_says_nothing():
    for words in (
        ["close", "a", "b"],
        ["mixed", "a", "b"],
        ["falls", "a", "n", "5"],
        ["differ", "a", "n"],
    ):
        assert check_claim(words, {}, lambda m: []).holds is None
    assert verdict([], [], [None]) == "not run"


@pytest.mark.parametrize(("end", "holds"), [(1, True), (9, False)])
def test_a_note_falls_after_a_round(end, holds):
    run = run_with("steps", {50: [4, 6], 100: [end, end]})
    found = check_claim(["falls", "m", "steps", "50"], {"m": [run]}, lambda m: [])
    assert found.holds is holds
    assert f"5.0 there, {end:.1f} in the last ten" in found.said


@pytest.mark.parametrize(
    ("noted", "differ", "never"), [([1, 1], False, False), ([0, 2], True, True)]
)
def test_what_clients_chose(noted, differ, never):
    runs = {"m": [run_with("lambda", {3: noted})]}
    assert check_claim(["differ", "m", "lambda"], runs, lambda m: []).holds is differ
    assert check_claim(["never", "m", "lambda", "1"], runs, lambda m: []).holds is never


def test_a_claim_that_fails_is_not_reproduced_and_one_that_holds_is():
    assert verdict([], [], [True]) == "reproduced"
    assert verdict([], [(2.0, 1.0)], [True, False]) == "not reproduced"


def test_an_unknown_claim_is_refused():
    with pytest.raises(BadInput, match="unknown claim 'closer'; did you mean 'close'"):
        check_claim(["closer", "a", "b"], {}, lambda m: [])


def test_the_claims_of_the_papers_can_be_asked():
    asked = [(c.claims, t.id) for t in paper_tables().values() for c in t.columns if c.claims]
    for claims, _ in asked:
        assert all(check_claim(words, {}, lambda m: []).holds is None for words in claims)
    assert len(asked) >= 10
