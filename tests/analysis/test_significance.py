"""Paired differences: what is resampled, and what the interval says."""

import numpy as np
import pytest

from coterie.analysis.significance import paired, spread


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
