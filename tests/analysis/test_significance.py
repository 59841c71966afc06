"""Paired differences and signed ranks: what is resampled, what an interval and a p say."""

import itertools
from math import nan, sqrt

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from coterie.analysis import significance
from coterie.analysis.significance import (
    build_rank_table,
    paired_difference,
    seed_interval,
    wilcoxon,
)
from coterie.core.errors import BadInput


def test_a_constant_gain_has_an_interval_of_no_width():
    b = np.random.default_rng(0).random((3, 20))
    difference = paired_difference(b + 0.1, b, fixed_partition=True)
    assert difference[:3] == pytest.approx((0.1, 0.1, 0.1))
    assert difference.sign == 1
    assert difference.population == "clients"
    assert paired_difference(b, b + 0.1, fixed_partition=True).sign == -1


def test_seeds_are_averaged_for_each_client_when_the_split_is_fixed():
    """Noise between seeds that cancels for every client leaves no width; with new splits it
    does.
    """
    b = np.zeros((2, 10))
    a = np.vstack([np.full(10, 0.3), np.full(10, -0.1)])
    assert paired_difference(a, b, fixed_partition=True)[:3] == pytest.approx((0.1, 0.1, 0.1))
    loose = paired_difference(a, b, fixed_partition=False)
    assert (loose.low, loose.high) == pytest.approx((-0.1, 0.3))
    assert loose.population == "seeds"
    assert loose.sign == 0


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        d = paired_difference(rng.normal(0.5, 1, (1, 40)), np.zeros((1, 40)), fixed_partition=True)
        hits += d.low <= 0.5 <= d.high
    assert 0.88 <= hits / 200 <= 0.99


def test_a_client_without_a_number_does_not_count():
    a = np.array([[0.5, np.nan, 0.7]])
    assert paired_difference(a, np.zeros((1, 3)), fixed_partition=True).mean == pytest.approx(0.6)


def test_one_client_or_one_seed_has_no_interval_and_is_no_win():
    for found in (
        paired_difference(np.array([[0.9]]), np.array([[0.5]]), True),
        paired_difference(np.ones((1, 9)), np.full((1, 9), 0.6), False),
    ):
        assert found.mean == pytest.approx(0.4)
        assert np.isnan([found.low, found.high]).all()
        assert (found.sign, found.n) == (0, 1)
    nobody = paired_difference(np.array([[np.nan]]), np.array([[0.5]]), True)
    assert np.isnan(nobody[:3]).all()
    assert (nobody.sign, nobody.n) == (0, 0)


def test_it_is_said_how_many_were_resampled():
    a = np.random.default_rng(0).random((3, 20))
    assert paired_difference(a, a / 2, fixed_partition=True).n == 20
    assert paired_difference(a, a / 2, fixed_partition=False).n == 3


def test_many_clients_are_resampled_in_blocks(monkeypatch):
    a, b = np.random.default_rng(0).random((2, 1, 50))
    whole = paired_difference(a, b, fixed_partition=True)
    monkeypatch.setattr(
        "coterie.analysis.significance.BLOCK", 50 * 999
    )  # eleven blocks, the last smaller
    parts = paired_difference(a, b, fixed_partition=True)
    assert parts[:3] == pytest.approx(whole[:3], abs=0.01)


def test_a_spread_says_no_more_than_the_seeds_do():
    assert seed_interval([1.0, 3.0]) == (2.0, 1.0, 3.0)
    assert np.isnan(seed_interval([2.0])[1:]).all()
    assert seed_interval([1.0, 2.0, 3.0])[1] == pytest.approx(2 - 4.302652730 / np.sqrt(3))


calm = settings(deadline=None)  # no test may fail because the machine is busy


def test_interval_worked_by_hand():
    """t(.975, 2) = 4.3027; the deviation of 1, 2, 3 is 1."""
    assert significance.mean_interval([1, 2, 3]) == pytest.approx(
        (2, 2 - 4.3027 / sqrt(3), 2 + 4.3027 / sqrt(3), 3), abs=1e-4
    )
    one = significance.mean_interval([5])
    assert (one.mean, one.n) == (5, 1)
    assert np.isnan(one[1:3]).all()


@calm
@given(
    st.lists(st.floats(-10, 10), min_size=2, max_size=20), st.floats(0.1, 10), st.floats(-10, 10)
)
def test_an_interval_moves_with_its_values(values, scale, shift):
    found, moved = (
        significance.mean_interval(values),
        significance.mean_interval(scale * np.array(values) + shift),
    )
    assert moved[:3] == pytest.approx([scale * x + shift for x in found[:3]], abs=1e-6)
    assert found.low <= found.mean <= found.high


def test_holm_worked_by_hand():
    assert significance.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert significance.holm([0.6, 0.5]) == pytest.approx([1, 1])
    assert significance.holm([]).tolist() == []


@calm
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_lies_between_the_plain_p_and_bonferroni_and_keeps_the_order(p):
    found = significance.holm(p)
    assert (found >= np.array(p) - 1e-12).all()
    assert (found <= np.minimum(1, len(p) * np.array(p)) + 1e-12).all()
    assert (np.diff(found[np.argsort(p, kind="stable")]) >= 0).all()


def test_units_are_clients_of_a_fixed_split_and_else_seeds():
    given = {"a": [[0.2, 0.4, nan], [0.6, 0.8, nan]], "b": [[0.1, 0.1, 0.1], [0.3, nan, 0.1]]}
    assert significance.unit_values_of(given, fixed_partition=True) == pytest.approx(
        np.array([[0.4, 0.4], [0.2, 0.1]])
    )
    assert significance.unit_values_of(given, fixed_partition=False) == pytest.approx(
        np.array([[0.3, 0.6], [0.1, 0.3]])
    )


def test_accuracies_of_other_shapes_are_refused():
    with pytest.raises(BadInput, match="shapes"):
        significance.unit_values_of({"a": [0.1, 0.2], "b": [0.1]}, True)
    with pytest.raises(BadInput, match="at least one"):
        significance.unit_values_of({}, True)


def test_rank_table_worked_by_hand():
    """Ten clients, a over b by steps of one sign: p = 2 / 2^10; c equals b, and three pairs are
    corrected.
    """
    b = np.full(10, 0.5)
    found = significance.build_rank_table(
        {"c": b, "a": b + np.arange(1, 11) / 100, "b": b}, fixed_partition=True
    )
    assert found.methods == ("a", "c", "b")
    assert found.rank.tolist() == [1, 2.5, 2.5]
    assert found.mean == pytest.approx([0.555, 0.5, 0.5])
    smallest = 3 * 2 / 2**10
    assert found.p == pytest.approx(
        np.array([[1, smallest, smallest], [smallest, 1, 1], [smallest, 1, 1]])
    )
    assert found.beats("a", "b")
    assert not found.beats("b", "a")
    assert not found.beats("b", "c")
    assert (found.population, found.n, found.note) == ("clients", 10, "")


def test_three_seeds_cannot_show_a_difference_and_it_is_said():
    a = np.array([[0.9, 0.8], [0.85, 0.8], [0.95, 0.9]])
    found = significance.build_rank_table({"a": a, "b": a / 2}, fixed_partition=False)
    assert found.p[0, 1] == pytest.approx(0.25)
    assert (found.population, found.n) == ("seeds", 3)
    assert (
        found.note
        == "3 seeds cannot show a difference between 2 methods (a corrected p of 0.25 at best): "
        "it takes 6 seeds"
    )


@pytest.mark.parametrize(("methods", "need"), [(2, 6), (3, 7), (5, 9)])
def test_as_many_units_as_the_note_asks_for_can_show_a_difference(methods, need):
    gaps = np.arange(1, need + 1) / 1000
    names = [f"m{i}" for i in range(methods)]
    assert (
        significance.build_rank_table({m: i * gaps for i, m in enumerate(names)}, True).p.min()
        < 0.05
    )
    few = significance.build_rank_table({m: i * gaps[:-1] for i, m in enumerate(names)}, True)
    assert few.p.min() >= 0.05
    assert f"it takes {need} clients" in few.note


def test_nothing_measured_is_refused():
    with pytest.raises(BadInput, match="nothing can be ranked"):
        significance.build_rank_table({"a": [nan, 0.1], "b": [0.1, nan]}, True)


@calm
@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 20), st.booleans())
def test_a_rank_table_is_symmetric_and_ranks_add_up(seed, m, n, ties):
    values = np.random.default_rng(seed).random((m, n)).round(1 if ties else 9)
    found = significance.build_rank_table({f"m{i}": row for i, row in enumerate(values)}, True)
    assert found.rank.mean() == pytest.approx((m + 1) / 2)
    assert (np.diff(found.rank) >= 0).all()
    assert (found.p == found.p.T).all()
    assert ((found.p > 0) & (found.p <= 1)).all()
    assert (np.diag(found.p) == 1).all()


@calm
@given(st.integers(0, 10_000), st.integers(1, 20))
def test_p_of_two_methods_is_that_of_scipy(seed, n):
    gaps = np.random.default_rng(seed).normal(0.01, 0.05, n).round(9)
    assume(len(set(np.abs(gaps)) - {0.0}) == n)
    p = significance.build_rank_table({"a": 0.5 + gaps, "b": np.full(n, 0.5)}, True).p[0, 1]
    assert p == pytest.approx(stats.wilcoxon(gaps).pvalue)


def test_p_with_ties_and_zeros_worked_by_hand():
    """Gaps 1, 1, 1, 1, -2 of ranks 2.5 and 5 have the signed sum 5; 24 of 32 choices of signs have
    5 or more; zeros drop out.
    """
    b = np.full(7, 0.5)
    assert significance.build_rank_table(
        {"a": b + np.array([1, 1, 0, 1, 1, -2, 0]) / 100, "b": b}, True
    ).p[0, 1] == pytest.approx(24 / 32)
    tied = [0.01] * 8 + [-0.02]
    expected = stats.wilcoxon(tied, method=stats.PermutationMethod(n_resamples=1000)).pvalue
    assert significance.build_rank_table({"a": 0.5 + np.array(tied), "b": np.full(9, 0.5)}, True).p[
        0, 1
    ] == pytest.approx(expected)


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
    found = build_rank_table({"a": 0.5 + np.sign(ranks) / 10, "b": np.full(20, 0.5)}, True)
    assert found.p[0, 1] == pytest.approx(2 * 6196 / 2**20)


def test_too_few_counts_only_the_clients_that_tell_two_methods_apart():
    """Eight clients could show a difference; five of them, of which all are won, cannot."""
    b = np.full(8, 0.5)
    gains = np.array([1, 2, 3, 4, 5, 0, 0, 0]) / 100
    found = build_rank_table({"a": b + gains, "b": b}, True)
    assert found.p[0, 1] == pytest.approx(2 / 2**5)
    assert found.note == (
        "8 clients, of which 5 tell two methods apart, cannot show a difference between 2 methods "
        "(a corrected p of 0.062 at best): it takes 6 clients that do"
    )
    assert build_rank_table({"a": b + gains + 0.01 * (gains == 0), "b": b}, True).note == ""
    equal = build_rank_table({"a": b, "b": b}, True).note
    assert equal.startswith("8 clients, of which none tell two methods apart, cannot show")
