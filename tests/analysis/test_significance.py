"""Paired differences and signed ranks: what is resampled, what an interval and a p say."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coterie.analysis.significance import paired, rank_table, spread, wilcoxon

calm = settings(deadline=None)  # no test may fail because the machine is busy


def test_a_constant_gain_has_an_interval_of_no_width():
    b = np.random.default_rng(0).random((3, 20))
    difference = paired(b + 0.1, b, fixed_split=True)
    assert difference[:3] == pytest.approx((0.1, 0.1, 0.1))
    assert difference.sign == 1
    assert difference.population == "clients"
    assert paired(b, b + 0.1, fixed_split=True).sign == -1


def test_seeds_are_averaged_for_each_client_when_the_split_is_fixed():
    """Noise between seeds that cancels for every client leaves no width; with new splits it
    does.
    """
    b = np.zeros((2, 10))
    a = np.vstack([np.full(10, 0.3), np.full(10, -0.1)])
    assert paired(a, b, fixed_split=True)[:3] == pytest.approx((0.1, 0.1, 0.1))
    loose = paired(a, b, fixed_split=False)
    assert (loose.low, loose.high) == pytest.approx((-0.1, 0.3))
    assert loose.population == "seeds"
    assert loose.sign == 0


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        d = paired(rng.normal(0.5, 1, (1, 40)), np.zeros((1, 40)), fixed_split=True)
        hits += d.low <= 0.5 <= d.high
    assert 0.88 <= hits / 200 <= 0.99


def test_a_client_without_a_number_does_not_count():
    a = np.array([[0.5, np.nan, 0.7]])
    assert paired(a, np.zeros((1, 3)), fixed_split=True).mean == pytest.approx(0.6)


def test_one_client_or_one_seed_has_no_interval_and_is_no_win():
    for found in (
        paired(np.array([[0.9]]), np.array([[0.5]]), True),
        paired(np.ones((1, 9)), np.full((1, 9), 0.6), False),
    ):
        assert found.mean == pytest.approx(0.4)
        assert np.isnan([found.low, found.high]).all()
        assert (found.sign, found.n) == (0, 1)
    nobody = paired(np.array([[np.nan]]), np.array([[0.5]]), True)
    assert np.isnan(nobody[:3]).all()
    assert (nobody.sign, nobody.n) == (0, 0)


def test_it_is_said_how_many_were_resampled():
    a = np.random.default_rng(0).random((3, 20))
    assert paired(a, a / 2, fixed_split=True).n == 20
    assert paired(a, a / 2, fixed_split=False).n == 3


def test_many_clients_are_resampled_in_blocks(monkeypatch):
    a, b = np.random.default_rng(0).random((2, 1, 50))
    whole = paired(a, b, fixed_split=True)
    monkeypatch.setattr(
        "coterie.analysis.significance.BLOCK", 50 * 999
    )  # eleven blocks, the last smaller
    parts = paired(a, b, fixed_split=True)
    assert parts[:3] == pytest.approx(whole[:3], abs=0.01)


def test_a_spread_says_no_more_than_the_seeds_do():
    assert spread([1.0, 3.0]) == (2.0, 1.0, 3.0)
    assert np.isnan(spread([2.0])[1:]).all()
    assert spread([1.0, 2.0, 3.0])[1] == pytest.approx(2 - 4.302652730 / np.sqrt(3))


def signed_ranks(seed: int, n: int, sizes: int) -> np.ndarray:
    """Ranks of n gaps of so many sizes, with signs."""
    rng = np.random.default_rng(seed)
    gaps = rng.integers(1, sizes + 1, n) * rng.choice([-1, 1], n)
    return np.sign(gaps) * stats.rankdata(np.abs(gaps))


@calm
@given(st.integers(0, 10_000), st.integers(0, 12), st.integers(1, 20))
def test_p_is_the_share_of_all_signs_that_are_as_far_apart(seed, n, sizes):
    ranks = signed_ranks(seed, n, sizes)
    signs = np.array(list(itertools.product([-1, 1], repeat=n))).reshape(2**n, n)
    expected = (np.abs(signs @ np.abs(ranks)) >= abs(ranks.sum())).mean()
    assert wilcoxon(ranks) == pytest.approx(expected, abs=1e-12)


@calm
@given(st.integers(0, 10_000), st.integers(1, 25))
def test_p_is_scipys_exact_p_up_to_25_pairs(seed, n):
    rng = np.random.default_rng(seed)
    ranks = rng.permutation(np.arange(1.0, n + 1)) * rng.choice([-1, 1], n, p=[0.2, 0.8])
    assert wilcoxon(ranks) == pytest.approx(stats.wilcoxon(ranks, method="exact").pvalue)


@calm
@given(st.integers(0, 10_000), st.integers(26, 60), st.integers(1, 40))
def test_p_of_more_pairs_is_scipys_normal_p_with_its_tie_correction(seed, n, sizes):
    ranks = signed_ranks(seed, n, sizes)
    expected = stats.wilcoxon(ranks, method="asymptotic", correction=False).pvalue
    assert wilcoxon(ranks) == pytest.approx(expected)


def test_ties_of_twenty_pairs_are_exact_where_the_normal_p_is_not():
    """16 of 20 equal gaps are positive: a sign test, 2 * (1 + 20 + 190 + 1140 + 4845) / 2^20."""
    ranks = np.full(20, 10.5) * np.array([1] * 16 + [-1] * 4)
    assert wilcoxon(ranks) == pytest.approx(2 * 6196 / 2**20)
    found = rank_table({"a": 0.5 + np.sign(ranks) / 10, "b": np.full(20, 0.5)}, True)
    assert found.p[0, 1] == pytest.approx(2 * 6196 / 2**20)


def test_too_few_counts_only_the_clients_that_tell_two_methods_apart():
    """Eight clients could show a difference; five of them, of which all are won, cannot."""
    b = np.full(8, 0.5)
    gains = np.array([1, 2, 3, 4, 5, 0, 0, 0]) / 100
    found = rank_table({"a": b + gains, "b": b}, True)
    assert found.p[0, 1] == pytest.approx(2 / 2**5)
    assert found.note == (
        "8 clients, of which 5 tell two methods apart, cannot show a difference between 2 methods "
        "(a corrected p of 0.062 at best): it takes 6 clients that do"
    )
    assert rank_table({"a": b + gains + 0.01 * (gains == 0), "b": b}, True).note == ""
    equal = rank_table({"a": b, "b": b}, True).note
    assert equal.startswith("8 clients, of which none tell two methods apart, cannot show")
