"""False accepts at a threshold."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.analysis import detection
from coterie.core.errors import BadInput

calm = settings(deadline=None)  # no test may fail because the machine is busy


def test_false_accepts_worked_by_hand():
    """The baseline at .5 rejects 1 of 4 words and accepts 2 of 4 noises; the model accepts 1 noise
    at the same rejects.
    """
    labels = [1, 1, 1, 1, 0, 0, 0, 0]
    base = [0.9, 0.8, 0.6, 0.3, 0.7, 0.65, 0.2, 0.1]
    model = [0.9, 0.8, 0.7, 0.1, 0.75, 0.6, 0.5, 0.4]
    assert detection.false_accepts(labels, model, base) == pytest.approx((0.5, 1, 0.7))


def test_of_two_equally_close_thresholds_the_one_with_fewer_rejects_counts():
    """FR_0 = 1/2 lies between 0 and 1 for scores that accept all words or none."""
    found = detection.false_accepts([1, 1, 0, 0], [0.6, 0.6, 0.7, 0.2], [0.9, 0.1, 0.8, 0.2])
    assert found == pytest.approx((1, 0, 0.6))


def test_relative_false_accepts_of_a_perfect_baseline():
    perfect = [0.9, 0.8, 0.2, 0.1]
    assert detection.false_accepts([1, 1, 0, 0], perfect, perfect)[:2] == (1, 1)
    assert detection.false_accepts([1, 1, 0, 0], [0.9, 0.1, 0.2, 0.3], perfect)[0] == inf


def test_one_class_and_scores_that_are_no_numbers_are_refused():
    with pytest.raises(BadInput, match="both classes"):
        detection.false_accepts([1, 1], [0.5, 0.6], [0.5, 0.6])
    for pair in (([0.5, nan], [0.5, 0.6]), ([0.5, 0.6], [nan, 0.6])):
        with pytest.raises(BadInput, match="some scores are NaN"):
            detection.false_accepts([1, 0], *pair)


@calm
@given(st.integers(0, 10_000), st.integers(2, 20), st.floats(0.05, 0.95))
def test_a_model_beside_itself_accepts_no_more_in_any_monotone_unit(seed, n, threshold):
    rng = np.random.default_rng(seed)
    labels, base, model = (
        np.arange(2 * n) % 2,
        rng.random(2 * n).round(2),
        rng.random(2 * n).round(2),
    )
    itself = detection.false_accepts(labels, base, base, threshold)
    assert 0 <= itself.relative_fa <= 1
    assert itself.relative_fr == pytest.approx(1)
    assert detection.false_accepts(labels, 3 * base + 7, base, threshold)[:2] == itself[:2]
    found = detection.false_accepts(labels, model, base, threshold)
    assert detection.false_accepts(labels, np.exp(model), base, threshold)[:2] == found[:2]


def test_the_threshold_has_the_rates_it_is_given_for():
    rng = np.random.default_rng(2)
    labels = np.arange(400) % 2
    base, model = rng.normal(labels, 1), rng.normal(1.5 * labels, 1)
    found = detection.false_accepts(labels, model, base, 0.5)
    accepted = model >= found.threshold
    assert found.relative_fa == pytest.approx(
        accepted[labels == 0].mean() / (base >= 0.5)[labels == 0].mean()
    )
    assert found.relative_fr == pytest.approx(
        (~accepted)[labels == 1].mean() / (base < 0.5)[labels == 1].mean()
    )
    assert found.relative_fr == pytest.approx(1, abs=0.01)
    assert found.relative_fa < 0.8
