"""Fairness: hand-worked values, bounds, and clients at the ends."""

from math import ceil, log, nan, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.analysis import fairness
from coterie.core.errors import BadInput

calm = settings(deadline=None)  # no test may fail because the machine is busy

positive = st.lists(st.floats(0.01, 100), min_size=1, max_size=30)

shares = st.lists(st.floats(0, 1), min_size=1, max_size=40)


def test_fairness_worked_by_hand():
    found = fairness.fairness([1, 3])
    assert found.variance == pytest.approx(1)
    assert found.cosine == pytest.approx(2 / sqrt(5))
    assert found.jain == pytest.approx(16 / 20)
    assert found.entropy == pytest.approx(0.25 * log(4) + 0.75 * log(4 / 3))
    assert found.evenness == pytest.approx(found.entropy / log(2))
    assert found.n == 2


def test_one_client_is_fair_and_zeros_are_nan():
    assert fairness.fairness([7.0]) == (0, 1, 1, 0, 1, 1)
    assert np.isnan(fairness.fairness([0.0, 0.0])[:5]).all()
    assert np.isnan(fairness.fairness([0.0])[:5]).all()
    assert np.isnan(fairness.fairness([])[:5]).all()


def test_gains_and_losses_are_measured_apart():
    up, down = fairness.gain_fairness([4, 7, 0, -2, -2, nan])
    assert up == fairness.fairness([4, 7])
    assert down == pytest.approx((0, 1, 1, log(2), 1, 2))


def test_a_negative_value_is_refused():
    for measure in (
        fairness.variance_of,
        fairness.cosine,
        fairness.jain,
        fairness.entropy,
        fairness.evenness,
    ):
        with pytest.raises(BadInput, match="-1"):
            measure([1, -1])


@calm
@given(positive)
def test_jain_is_the_square_of_the_cosine_to_ones(values):
    f = np.array(values)
    assert fairness.cosine(f) == pytest.approx(
        f @ np.ones(len(f)) / (np.linalg.norm(f) * sqrt(len(f)))
    )
    assert fairness.jain(f) == pytest.approx(fairness.cosine(f) ** 2)


@calm
@given(positive)
def test_fairness_stays_in_its_bounds(values):
    found, k = fairness.fairness(values), len(values)
    assert found.variance >= 0
    assert 1 / k - 1e-9 <= found.jain <= 1
    assert 1 / sqrt(k) - 1e-9 <= found.cosine <= 1
    assert -1e-9 <= found.entropy <= log(k) + 1e-9
    assert 0 <= found.evenness <= 1


@calm
@given(positive, st.sampled_from([1e-200, 1e-3, 7.0, 1e200]))
def test_shares_do_not_depend_on_the_unit(values, scale):
    f = np.array(values)
    for measure in (fairness.cosine, fairness.jain, fairness.entropy, fairness.evenness):
        assert measure(scale * f) == pytest.approx(measure(f), abs=1e-9)
    assert fairness.variance_of(3 * f) == pytest.approx(9 * fairness.variance_of(f), abs=1e-9)


@calm
@given(st.floats(0.01, 100), st.integers(2, 30))
def test_equal_values_are_as_fair_as_can_be(value, k):
    assert fairness.fairness([value] * k) == pytest.approx((0, 1, 1, log(k), 1, k), abs=1e-9)


def test_shares_of_clients_worked_by_hand():
    accuracy = np.array([0.9, 0.1, 0.5, 0.3, nan])
    assert fairness.worst(accuracy) == 0.1
    assert fairness.worst_share(accuracy, 0.5) == pytest.approx(0.2)
    assert fairness.worst_share(accuracy, 0.1) == 0.1
    assert fairness.top_share_by_size(accuracy, [10, 30, 20, 5, 99], 0.5) == pytest.approx(
        (0.1 * 30 + 0.5 * 20) / 50
    )
    assert fairness.deciles(np.arange(11) / 10) == pytest.approx(np.arange(11) / 10)


def test_seven_percent_of_a_hundred_clients_are_seven():
    assert 0.07 * 100 > 7
    assert fairness.worst_share(np.arange(100) / 100, 0.07) == pytest.approx(0.03)


def test_ends_of_no_clients_are_nan():
    assert np.isnan(
        [
            fairness.worst([]),
            fairness.worst_share([nan]),
            fairness.top_share_by_size([nan], [3]),
            *fairness.deciles([]),
        ]
    ).all()


def test_a_share_out_of_bounds_is_refused():
    for share in (0, 1.5):
        with pytest.raises(BadInput, match="share"):
            fairness.worst_share([0.5], share)


@calm
@given(shares, st.floats(0.01, 1))
def test_the_worst_share_lies_between_the_worst_client_and_the_mean(accuracy, share):
    found = fairness.worst_share(accuracy, share)
    assert fairness.worst(accuracy) - 1e-9 <= found <= np.mean(accuracy) + 1e-9
    assert fairness.worst_share(accuracy, 1) == pytest.approx(np.mean(accuracy))
    assert found == pytest.approx(
        sum(sorted(accuracy)[: ceil(share * len(accuracy) - 1e-9)])
        / ceil(share * len(accuracy) - 1e-9)
    )


@calm
@given(shares, st.integers(0, 99))
def test_the_top_share_of_all_is_the_weighted_mean(accuracy, seed):
    sizes = np.random.default_rng(seed).integers(1, 100, len(accuracy))
    assert fairness.top_share_by_size(accuracy, sizes, 1) == pytest.approx(
        np.average(accuracy, weights=sizes)
    )
    largest = np.array(accuracy)[sizes == sizes.max()]
    assert (
        largest.min() - 1e-9
        <= fairness.top_share_by_size(accuracy, sizes, 1e-3)
        <= largest.max() + 1e-9
    )


@calm
@given(shares)
def test_deciles_rise_from_the_worst_to_the_best(accuracy):
    found = fairness.deciles(accuracy)
    assert (np.diff(found) >= -1e-12).all()
    assert (found[0], found[5], found[-1]) == pytest.approx(
        (min(accuracy), np.median(accuracy), max(accuracy))
    )
