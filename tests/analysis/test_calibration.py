"""Laws of calibration and of conformal sets and intervals."""

import numpy as np
import pytest

from coterie.analysis.calibration import (
    calibration_gap,
    class_scores,
    conformal_quantile,
    fit_temperature,
    least_rows,
    prediction_sets,
    reliability_curve,
    scale_probabilities,
)
from coterie.analysis.explanation import partial_dependence, permutation_importance


def calibrated(rows, classes=3, seed=0):
    """Probabilities, and labels that are drawn by them."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(classes), rows)
    return p, (rng.random((rows, 1)) > p.cumsum(1)).sum(1).clip(0, classes - 1)


def test_the_temperature_of_a_calibrated_model_is_1_and_that_of_a_sharpened_one_undoes_it():
    p, y = calibrated(20_000)
    assert fit_temperature(p, y) == pytest.approx(1, abs=0.03)
    assert fit_temperature(scale_probabilities(p, 0.5), y) == pytest.approx(2, abs=0.06)


def test_a_temperature_changes_no_answer_and_keeps_probabilities():
    p, _ = calibrated(200)
    scaled = scale_probabilities(p, 3.0)
    assert (scaled.argmax(1) == p.argmax(1)).all()
    assert (scaled.max(1) < p.max(1)).all()  # a temperature above 1 is less sure
    assert scaled.sum(1) == pytest.approx(np.ones(200))
    assert scale_probabilities(p, 1.0) == pytest.approx(p)


def test_a_calibrated_model_has_no_gap_and_an_overconfident_one_has():
    p, y = calibrated(20_000)
    curve = reliability_curve(p, y)
    assert sum(one.rows for one in curve) == len(y)
    assert calibration_gap(curve) < 0.02
    assert calibration_gap(reliability_curve(scale_probabilities(p, 0.3), y)) > 0.1


@pytest.mark.parametrize("confidence", [0.8, 0.9])
def test_intervals_cover_exchangeable_rows_as_often_as_they_say(confidence):
    rng, n, hits = np.random.default_rng(1), 39, []
    for _ in range(4000):
        strange = np.abs(rng.standard_cauchy(n + 1))  # heavy tails: the law needs no form
        hits.append(strange[-1] <= conformal_quantile(strange[:-1], confidence))
    # exactly ceil((n + 1) confidence) / (n + 1)
    assert np.mean(hits) == pytest.approx(confidence, abs=0.02)


def test_sets_cover_as_often_as_they_say_however_wrong_the_probabilities():
    p, y = calibrated(40_000)
    wrong = scale_probabilities(p, 0.3)
    quantile = conformal_quantile(class_scores(wrong[:2000], y[:2000]), 0.9)
    inside = prediction_sets(wrong[2000:], quantile)
    assert inside[np.arange(len(y) - 2000), y[2000:]].mean() == pytest.approx(0.9, abs=0.02)


def test_too_few_rows_have_no_finite_quantile():
    assert least_rows(0.9) == 9
    assert np.isinf(conformal_quantile(np.ones(8), 0.9))
    assert conformal_quantile(np.arange(9.0), 0.9) == 8


def score(x):
    return -float(np.abs(x[:, 0] - np.arange(len(x))).mean())


def test_a_constant_column_and_an_unused_one_are_of_no_importance_and_a_used_one_is():
    x = np.stack([np.arange(50.0), np.full(50, 3.0), np.arange(50.0)], 1)
    found = [permutation_importance(score, x, [k], 5, np.random.default_rng(0)) for k in range(3)]
    assert found[1] == found[2] == 0
    assert found[0] > 1
    assert score(x) == 0  # nothing is changed in place


def test_dependence_on_a_column_of_an_additive_model_is_its_own_part():
    x = np.random.default_rng(0).normal(size=(30, 2))
    found = partial_dependence(
        lambda rows: 2 * rows[:, 0] + rows[:, 1] ** 2, x, [0], np.array([[0.0], [1.0]])
    )
    assert found[1] - found[0] == pytest.approx(2)
    assert found[0] == pytest.approx((x[:, 1] ** 2).mean())
