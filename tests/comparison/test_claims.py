"""Laws of claims that are no order of two methods: they are asked of figures or runs, and fail
where they fail.
"""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from coterie.core.errors import BadInput
from coterie.lab.papers.claims import GRID, OF_FIGURES, OF_RUNS, check_claim
from coterie.lab.papers.paper_tables import read_papers
from coterie.lab.papers.verdicts import Sample, judge_column


def run_with(metric, by_round, seed=0, part="", view=""):
    """A run whose clients noted these values, round by round."""
    rows = [
        {"round": r, "client": i, "part": part, "view": view, "metric": metric, "value": float(v)}
        for r, noted in by_round.items()
        for i, v in enumerate(noted)
    ]
    experiment = SimpleNamespace(seed=seed)
    return SimpleNamespace(table=pa.Table.from_pylist(rows), experiment=experiment, part=part)


def asked(settings, **figures):
    """The answer to a claim about figures of two seeds that hardly differ."""

    def samples(name):
        return {k: Sample(value) for k, value in enumerate(figures.get(name, ()))}

    return check_claim(settings, {}, samples).answer


@pytest.mark.parametrize(("second", "answer"), [(91.2, "yes"), (93.0, "no")])
def test_two_methods_are_close_within_a_point(second, answer):
    for kind in ("close", "matches", "flat"):
        assert asked([kind, "a", "b"], a=[91.0, 91.1], b=[second, second]) == answer
    assert asked(["matches", "a", "b"], a=[91.0], b=[91.2]) == "in order"  # one seed


def test_methods_match_within_a_standard_error_and_are_not_close():
    figures = {"a": [90.0, 96.0], "b": [90.0, 92.0]}
    assert asked(["matches", "a", "b"], **figures) == "yes"
    assert asked(["close", "a", "b"], **figures) == "no"


@pytest.mark.parametrize(
    ("first", "answer"),
    [([40, 40], "yes"), ([42, 42], "yes"), ([43, 43], "no"), ([43], "out of order")],
)
def test_a_figure_is_at_most_another(first, answer):
    assert asked(["at_most", "a", "b"], a=first, b=[42.0] * len(first)) == answer


@pytest.mark.parametrize(("first", "answer"), [(3.9, "yes"), (4.1, "no")])
def test_far_less_is_less_than_a_tenth(first, answer):
    assert asked(["far_less", "a", "b"], a=[first], b=[40.0]) == answer


@pytest.mark.parametrize(("first", "answer"), [(73.5, "yes"), (75.0, "no")])
def test_a_gain_of_so_many_points(first, answer):
    assert asked(["by", "a", "b", "3"], a=[first, first], b=[70.0, 70.0]) == answer


@pytest.mark.parametrize(("last", "answer"), [(90.0, "yes"), (94.0, "no"), (92.0, "level")])
def test_figures_that_do_not_rise_throughout(last, answer):
    found = asked(["mixed", "a", "b", "c"], a=[91.0] * 2, b=[92.0] * 2, c=[last] * 2)
    assert found == answer


@pytest.mark.parametrize(
    ("gain", "useful", "useless"), [(2, "yes", "no"), (-2, "no", "yes"), (0, "level", "yes")]
)
def test_a_teacher_is_of_use_where_students_with_one_are_better(gain, useful, useless):
    clients = np.array([0.5, 0.6, 0.7])

    def samples(name):
        mine = clients + (gain / 100 if name.removeprefix("m:").strip("[]") in GRID else 0)
        return {0: Sample(float(mine.mean()), mine + np.array([0.001, 0, -0.001]))}

    assert check_claim(["useful", "m"], {}, samples).answer == useful
    assert check_claim(["useless", "m"], {}, samples).answer == useless


def test_a_claim_without_runs_says_nothing():
    for settings in (
        ["close", "a", "b"],
        ["mixed", "a", "b"],
        ["falls", "a", "n", "5"],
        ["differ", "a", "n"],
        ["slower", "a", "b"],
        ["useful", "a"],
    ):
        assert check_claim(settings, {}, lambda m: {}).answer == "not run"


@pytest.mark.parametrize(("end", "answer"), [(1, "in order"), (9, "out of order")])
def test_a_note_falls_after_a_round(end, answer):
    run = run_with("steps", {50: [4, 6], 100: [end, end]})
    found = check_claim(["falls", "m", "steps", "50"], {"m": [run]}, lambda m: {})
    assert found.answer == answer  # one seed
    assert f"5.0 there, {end:.1f} in the last ten" in found.said


@pytest.mark.parametrize(
    ("noted", "differ", "never", "positive"),
    [([1, 1], "no", "no", "yes"), ([0, 2], "yes", "yes", "no")],
)
def test_what_clients_chose(noted, differ, never, positive):
    runs = {"m": [run_with("lambda", {3: noted})]}
    assert check_claim(["differ", "m", "lambda"], runs, lambda m: {}).answer == differ
    assert check_claim(["never", "m", "lambda", "1"], runs, lambda m: {}).answer == never
    assert check_claim(["positive", "m", "lambda"], runs, lambda m: {}).answer == positive


def curves(**by_method):
    """Runs with these accuracies of rounds 1, 2, ..., one list a seed."""
    return {
        method: [
            run_with("accuracy", {r + 1: [v] for r, v in enumerate(one)}, seed, "test", "personal")
            for seed, one in enumerate(some)
        ]
        for method, some in by_method.items()
    }


def test_a_slower_method_reaches_the_level_later():
    quick, slow = [0.7, 0.8, 0.8, 0.8], [0.1, 0.2, 0.5, 0.8]
    runs = curves(quick=[quick, quick], slow=[slow, slow])
    assert check_claim(["slower", "slow", "quick"], runs, lambda m: {}).answer == "yes"
    assert check_claim(["slower", "quick", "slow"], runs, lambda m: {}).answer == "no"
    one = {m: some[:1] for m, some in runs.items()}
    assert check_claim(["slower", "slow", "quick"], one, lambda m: {}).answer == "in order"


def test_a_steadier_method_changes_less_in_the_second_half():
    runs = curves(calm=[[0.1, 0.9, 0.8, 0.8]] * 2, wild=[[0.8, 0.8, 0.8, 0.5]] * 2)
    assert check_claim(["steadier", "calm", "wild"], runs, lambda m: {}).answer == "yes"
    assert check_claim(["steadier", "wild", "calm"], runs, lambda m: {}).answer == "no"


def test_a_claim_that_fails_is_not_reproduced_and_one_that_holds_is():
    assert judge_column([], [], ["yes"]) == "reproduced"
    assert judge_column([], ["yes"], ["yes", "no"]) == "not reproduced"


def test_an_unknown_claim_is_refused():
    with pytest.raises(BadInput, match="unknown claim 'closer'; did you mean 'close'"):
        check_claim(["closer", "a", "b"], {}, lambda m: {})


def test_the_claims_of_the_papers_can_be_asked():
    columns = [c for t in read_papers().values() for c in t.columns]
    claims = [settings for c in columns for settings in (*c.claims, *c.trivial)]
    for settings in claims:
        assert check_claim(settings, {}, lambda m: {}).answer == "not run"
    assert {settings[0] for settings in claims} == {*OF_FIGURES, *OF_RUNS}
