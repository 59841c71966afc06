"""Laws of verdicts: what agrees with a paper, what only has its order, what is undecided."""

from math import nan, sqrt

import numpy as np
import pytest

from coterie.lab.papers.verdicts import (
    Difference,
    Sample,
    difference,
    judge_column,
    judge_table,
    make_figure,
)


def seeds(*figures):
    """Samples without clients, one per seed."""
    return {seed: Sample(value) for seed, value in enumerate(figures)}


def rows(*pairs, over_runs=True):
    """Figures of (paper, spread, ours of every seed)."""
    return [
        make_figure(str(k), p, s, seeds(*ours), over_runs=over_runs)
        for k, (p, s, ours) in enumerate(pairs)
    ]


def test_within_a_point_or_the_papers_deviation_over_repeats_is_reproduced():
    assert judge_column(rows((90.0, 0.1, [90.9]), (80.0, 3.0, [77.5, 77.9]))) == "reproduced"
    assert judge_column(rows((90.0, None, [91.0]))) == "reproduced"


def test_a_deviation_over_users_is_no_doubt_about_a_mean():
    users = rows((80.0, 5.0, [76.0]), over_runs=False)
    assert judge_column(users) == "not reproduced"
    assert judge_column(rows((80.0, 5.0, [76.0]))) == "reproduced"
    apart = ((90.0, 5.0, [85.0, 85.1]), (87.0, 5.0, [86.0, 86.2]))
    assert (
        judge_column(rows(*apart, over_runs=False)) == "not reproduced"
    )  # told apart, and turned round


def test_the_same_order_of_what_the_paper_tells_apart_is_a_trend():
    found = rows((90.0, 0.1, [85.0]), (89.8, 0.1, [86.0]), (80.0, 0.1, [70.0]))
    assert judge_column(found) == "trend"  # the first two are no pair: less than a point apart


def test_another_order_is_not_reproduced():
    assert judge_column(rows((90.0, 0.1, [85.0]), (80.0, 0.1, [86.0]))) == "not reproduced"
    near = rows((90.0, 0.1, [89.2, 89.2]), (88.5, 0.1, [89.4, 89.4]))
    assert judge_column(near) == "not reproduced"  # though both numbers agree


def test_one_number_that_is_far_off_has_no_order_to_hold():
    assert judge_column(rows((90.0, 0.1, [70.0]))) == "not reproduced"


def test_what_was_not_run_says_nothing():
    assert judge_column(rows((90.0, 0.1, []))) == "not run"
    assert judge_column(rows((90.0, 0.1, [90.0]), (80.0, 0.1, []))) == "reproduced"
    assert judge_column([], ["not run"], ["not run"]) == "not run"


# Differences


@pytest.mark.parametrize(
    ("gaps", "answer"), [((2.0, 3.0), "yes"), ((-3.0, -2.0), "no"), ((2.0, -1.0), "level")]
)
def test_a_pair_counts_only_beyond_its_standard_error_over_seeds(gaps, answer):
    found = difference(seeds(*(50 + gap for gap in gaps)), seeds(50.0, 50.0))
    assert found.answer == answer
    assert found.error == pytest.approx(np.std(gaps, ddof=1) / sqrt(2))
    assert found.over == "2 seeds"


def test_differences_are_paired():
    a, b = seeds(60.0, 80.0), seeds(59.0, 79.0)
    assert difference(a, b).answer == "yes"  # a point in each seed, whatever the seeds are
    assert (
        difference({0: Sample(60.0), 1: Sample(9.0)}, {0: Sample(59.0), 2: Sample(99.0)}).value == 1
    )


def test_one_seed_is_held_to_the_error_over_its_clients():
    clients = np.array([50.0, 60.0, 70.0, nan])
    for gaps, answer in (
        (np.array([1.0, 2.0, 3.0, 0.0]), "yes"),
        (np.array([9, -9, 1, 0]), "level"),
    ):
        a, b = (Sample(float(np.nanmean(c)), c) for c in (clients + gaps, clients))
        found = difference({0: a}, {0: b})
        assert found.answer == answer
        assert found.error == pytest.approx(np.std(gaps[:3], ddof=1) / sqrt(3))
        assert found.over == "3 clients"


def test_weights_of_clients_count_in_the_error():
    gaps, clients = np.array([4.0, 0.0, 0.0, 0.0]), np.full(4, 50.0)
    heavy = np.array([97.0, 1.0, 1.0, 1.0])

    def error(rows):
        samples = [{0: Sample(0.0, c, rows)} for c in (clients + gaps, clients)]
        return difference(*samples).error

    assert error(None) == pytest.approx(error(np.ones(4)))
    assert error(heavy) < error(None)


def test_one_seed_without_clients_has_an_order_and_no_error():
    assert difference(seeds(2.0), seeds(1.0)) == Difference(
        1.0, pytest.approx(nan, nan_ok=True), "one seed"
    )
    assert difference(seeds(2.0), seeds(1.0)).answer == "in order"
    assert difference(seeds(1.0), seeds(2.0)).answer == "out of order"
    assert difference(seeds(1.0), seeds(1.0)).answer == "level"
    assert difference(seeds(), seeds(2.0)).answer == "not run"


# Pairs and claims


@pytest.mark.parametrize(
    ("answers", "option"),
    [
        (["yes"], "trend"),
        (["in order"], "trend"),
        (["no"], "not reproduced"),
        (["out of order"], "not reproduced"),
        (["level"], "undecided"),
        (["yes", "level"], "undecided"),
        (["yes", "yes", "level"], "trend"),
        (["yes", "yes", "no"], "not reproduced"),
    ],
)
def test_a_claimed_order_is_confirmed_refuted_or_undecided(answers, option):
    assert judge_column([], answers) == option


@pytest.mark.parametrize(
    ("answer", "option"), [("yes", "reproduced"), ("in order", "trend"), ("level", "trend")]
)
def test_only_what_is_confirmed_makes_a_reproduction(answer, option):
    assert judge_column(rows((90.0, 0.1, [90.0])), [answer]) == option


def test_numbers_that_agree_do_not_hide_a_claim_that_fails():
    assert judge_column(rows((90.0, 0.1, [90.0])), ["no"]) == "not reproduced"


def test_what_holds_by_construction_is_trivial():
    assert judge_column([], trivial=["yes"]) == "trivial"
    assert judge_column([], ["yes"], trivial=["yes"]) == "trend"
    assert judge_column([], trivial=["not run"]) == "not run"
    assert judge_table(["trivial", "not run"]) == "trivial"
    assert judge_table(["trivial", "trend"]) == "trend"


def test_runs_that_are_too_small_confirm_but_do_not_refute():
    low = rows((90.0, 0.1, [70.0]))
    assert judge_column(low, smaller=True) == "too small"
    assert judge_column([], ["no"], smaller=True) == "too small"
    assert judge_column([], ["yes"], smaller=True) == "trend"
    assert judge_column(rows((90.0, 0.1, [90.2])), smaller=True) == "reproduced"
    assert judge_table(["too small", "trend", "not run"]) == "trend"
    assert judge_table(["too small", "not run"]) == "too small"


def test_a_table_is_reproduced_where_all_its_columns_are():
    assert judge_table(["reproduced", "reproduced", "not run"]) == "reproduced"
    assert judge_table(["reproduced", "trend", "not run"]) == "trend"
    assert judge_table(["reproduced", "undecided"]) == "trend"
    assert judge_table(["reproduced", "not reproduced"]) == "not reproduced"
    assert judge_table(["undecided", "not run"]) == "undecided"
    assert judge_table(["not run"]) == "not run"
