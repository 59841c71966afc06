"""Laws of verdicts: what agrees with a paper, what only has its order, what does not."""

from math import nan

import pytest

from coterie.analysis.verdicts import figure, overall, verdict


def rows(*pairs):
    """Figures of (paper, spread, ours of every seed)."""
    return [figure(str(k), p, s, ours) for k, (p, s, ours) in enumerate(pairs)]


def test_within_a_point_or_the_papers_spread_is_reproduced():
    assert verdict(rows((90.0, 0.1, [90.9]), (80.0, 3.0, [77.5, 77.9]))) == "reproduced"
    assert verdict(rows((90.0, None, [91.0]))) == "reproduced"


def test_the_same_order_of_what_the_paper_tells_apart_is_a_trend():
    found = rows((90.0, 0.1, [85.0]), (89.8, 0.1, [86.0]), (80.0, 0.1, [70.0]))
    assert verdict(found) == "trend"  # the first two are no pair: less than a point apart


def test_another_order_is_not_reproduced():
    assert verdict(rows((90.0, 0.1, [85.0]), (80.0, 0.1, [86.0]))) == "not reproduced"


def test_one_number_that_is_far_off_has_no_order_to_hold():
    assert verdict(rows((90.0, 0.1, [70.0]))) == "not reproduced"


def test_what_was_not_run_says_nothing():
    assert verdict(rows((90.0, 0.1, []))) == "not run"
    assert verdict(rows((90.0, 0.1, [90.0]), (80.0, 0.1, []))) == "reproduced"
    assert verdict([], [(nan, 1.0)]) == "not run"


@pytest.mark.parametrize(
    ("pair", "word"), [((80.0, 70.0), "trend"), ((70.0, 80.0), "not reproduced")]
)
def test_a_claimed_order_holds_or_not(pair, word):
    assert verdict([], [pair]) == word


def test_numbers_that_agree_do_not_hide_a_claim_that_fails():
    assert verdict(rows((90.0, 0.1, [90.0])), [(1.0, 2.0)]) == "not reproduced"


def test_fewer_rounds_confirm_but_do_not_refute():
    low = rows((90.0, 0.1, [70.0]))
    assert verdict(low, shortened=True) == "too short"
    assert verdict([], [(1.0, 2.0)], shortened=True) == "too short"
    assert verdict([], [(2.0, 1.0)], shortened=True) == "trend"
    assert verdict(rows((90.0, 0.1, [90.2])), shortened=True) == "reproduced"
    assert overall(["too short", "trend", "not run"]) == "trend"
    assert overall(["too short", "not run"]) == "too short"


def test_a_table_is_as_good_as_its_worst_column():
    assert overall(["reproduced", "trend", "not run"]) == "trend"
    assert overall(["reproduced", "not reproduced"]) == "not reproduced"
    assert overall(["not run"]) == "not run"
