"""Scores of one client beyond its accuracy."""

import warnings
from math import nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.metrics import balanced_accuracy_score, f1_score

from coterie.analysis.scores import (
    NAMES,
    calibration_error,
    check_metric,
    score_classes,
    score_task,
    trivial_scores_of,
)
from coterie.core.errors import BadInput

calm = settings(deadline=None)  # no test may fail because the machine is busy

tasks = st.tuples(st.integers(0, 10_000), st.integers(1, 40), st.integers(2, 6))


def task(seed, n, classes):
    rng = np.random.default_rng(seed)
    held = rng.choice(classes, rng.integers(1, classes + 1), replace=False)
    return held[rng.integers(0, len(held), n)], rng.dirichlet(np.ones(classes), n)


def sure(guess, classes):
    return np.eye(classes)[np.asarray(guess)]


def test_scores_worked_by_hand():
    """Class 0: two of three found, none taken for it wrongly; class 1: both found, and a 0 taken
    for it; 2 is not held.
    """
    p = [[0.9, 0.1, 0], [0.8, 0.2, 0], [0.4, 0.6, 0], [0.3, 0.7, 0], [0.1, 0.9, 0]]
    found = score_classes([0, 0, 0, 1, 1], p)
    assert found["accuracy"] == pytest.approx(4 / 5)
    assert found["precision"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["recall"] == found["balanced_accuracy"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["f1"] == pytest.approx((4 / 5 + 4 / 5) / 2)
    # confidences .9 .8 .6 .7 .9 in bins of 1/15: {.9, .9} right, {.8} right, {.7} right, {.6} wrong
    assert found["calibration_error"] == pytest.approx((2 * 0.1 + 0.2 + 0.3 + 0.6) / 5)


def test_a_class_that_is_not_held_costs_recall_and_is_no_class_of_its_own():
    found = score_classes([0, 0, 1, 1], sure([0, 2, 1, 1], 3))
    assert found["precision"] == 1
    assert found["recall"] == pytest.approx(0.75)
    assert found["f1"] == pytest.approx((2 / 3 + 1) / 2)


def test_a_class_never_guessed_has_no_precision():
    found = score_classes([0, 1], sure([0, 0], 2))
    assert (found["precision"], found["recall"], found["f1"]) == pytest.approx((0.25, 0.5, 1 / 3))


def test_calibration_error_worked_by_hand():
    """Ten rows at .75, six of them right; an edge of a bin belongs to the bin below."""
    assert calibration_error([1] * 6 + [0] * 4, [0.75] * 10) == pytest.approx(0.15)
    assert calibration_error([1, 0], [1.0, 0.0]) == 0
    edge = 3 / 15
    assert calibration_error([1, 0], [edge, edge - 1e-6]) == pytest.approx(
        0.5 - edge, abs=1e-5
    )  # one bin
    assert calibration_error([1, 0], [edge, edge + 1e-6]) == pytest.approx(
        0.5, abs=1e-5
    )  # two: .8 and .2


def test_a_part_without_rows_has_no_scores():
    for probabilities in (np.zeros((0, 3)), np.zeros(0)):
        assert list(score_classes([], probabilities)) == list(NAMES)
        assert np.isnan(list(score_classes([], probabilities).values())).all()


def test_scores_of_class_one_are_those_of_both_probabilities():
    rng = np.random.default_rng(0)
    y, s = rng.integers(0, 2, 30), rng.random(30)
    assert (
        score_classes(y, s)
        == score_classes(y, np.stack([1 - s, s], 1))
        == score_classes(y, s[:, None])
    )


def test_a_model_that_diverged_has_no_calibration_and_no_crash():
    found = score_classes([0, 1], np.full((2, 2), nan))
    assert np.isnan(found["calibration_error"])
    assert found["accuracy"] == 0.5


def test_rows_must_match():
    with pytest.raises(BadInput, match="3 labels, but probabilities of 2 rows"):
        score_classes([0, 1, 1], np.ones((2, 2)) / 2)


@calm
@given(tasks)
def test_scores_stay_in_their_bounds(given_task):
    found = score_classes(*task(*given_task))
    assert tuple(found) == NAMES
    assert all(0 <= v <= 1 for v in found.values())


@calm
@given(tasks)
def test_scores_are_those_of_scikit_learn_on_the_classes_held(given_task):
    y, p = task(*given_task)
    found = score_classes(y, p)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, p.argmax(1)))
    assert found["f1"] == pytest.approx(
        f1_score(y, p.argmax(1), labels=np.unique(y), average="macro", zero_division=0)
    )


@calm
@given(tasks)
def test_f1_is_one_for_a_perfect_client_and_no_other(given_task):
    y, p = task(*given_task)
    perfect = score_classes(y, sure(y, p.shape[1]))
    assert perfect == {name: float(name != "calibration_error") for name in NAMES}
    assert (score_classes(y, p)["f1"] == 1) == bool((p.argmax(1) == y).all())


@calm
@given(tasks, st.integers(0, 99))
def test_scores_do_not_depend_on_the_order_of_rows_or_names_of_classes(given_task, seed):
    y, p = task(*given_task)
    rng = np.random.default_rng(seed)
    rows, names = rng.permutation(len(y)), rng.permutation(p.shape[1])
    assert score_classes(y[rows], p[rows]) == pytest.approx(score_classes(y, p))
    assert score_classes(np.argsort(names)[y], p[:, names]) == pytest.approx(score_classes(y, p))


@calm
@given(st.integers(1, 14), st.integers(1, 50), st.integers(0, 50))
def test_calibration_error_of_one_bin_is_its_gap(place, n, right):
    confidence, hits = (place + 0.5) / 15, np.arange(n) < right
    assert calibration_error(hits, np.full(n, confidence)) == pytest.approx(
        abs(hits.mean() - confidence)
    )


def _chances(classes, rows=60, seed=0):
    """Labels and probabilities with ties, as a model of few different outputs gives them."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    p = rng.random((rows, classes)).round(1) + 0.05 + 0.3 * np.eye(classes)[y]
    return y, p / p.sum(1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_ranked_scores_are_those_of_scikit_learn(classes):
    y, p = _chances(classes)
    found = score_task("classes", y, p)
    one = p[:, 1] if classes == 2 else p
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(y, one, multi_class="ovr"))
    yes = y if classes == 2 else np.eye(classes)[y]
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(yes, one))
    assert found["log_loss"] == pytest.approx(metrics.log_loss(y, p))
    assert found["balanced_accuracy"] == pytest.approx(
        metrics.balanced_accuracy_score(y, p.argmax(1))
    )


def test_scores_of_numbers_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    truth, said = rng.normal(50, 9, 40), rng.normal(50, 9, 40)
    found = score_task("regression", truth, said)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(truth, said))
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(truth, said))
    assert found["r2"] == pytest.approx(metrics.r2_score(truth, said))
    assert found["pinball"] == pytest.approx(metrics.mean_pinball_loss(truth, said, alpha=0.5))
    assert np.isnan(score_task("regression", truth[:1], said[:1])["r2"])


def test_scores_of_several_labels_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    truth = rng.random((50, 3)) < 0.4
    said = np.clip(rng.random((50, 3)).round(1) + 0.3 * truth, 0.01, 0.99)
    found = score_task("multilabel", truth.astype(float), said)
    assert found["accuracy"] == pytest.approx(1 - metrics.hamming_loss(truth, said > 0.5))
    assert found["f1"] == pytest.approx(metrics.f1_score(truth, said > 0.5, average="macro"))
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(truth, said))
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(truth, said))


def test_who_knows_nothing_guesses_the_most_frequent_class_the_mean_or_the_median():
    train, truth = np.array([0, 0, 0, 1, 2]), np.array([0, 1, 2, 0])
    found = trivial_scores_of("classes", train, truth, 3)
    assert found["accuracy"] == 0.5
    assert found["auc"] == 0.5
    numbers, later = np.array([1.0, 2.0, 9.0]), np.array([2.0, 5.0])
    found = trivial_scores_of("regression", numbers, later, 0)
    assert found["mae"] == pytest.approx(1.5)  # by the median, 2
    assert found["rmse"] == pytest.approx(np.sqrt((2**2 + 1**2) / 2))  # by the mean, 4


def test_a_model_that_diverged_has_no_ranked_score():
    y, p = _chances(3)
    p[4] = np.nan
    found = score_task("classes", y, p, ("auc", "average_precision", "log_loss"))
    assert all(np.isnan(value) for value in found.values())


def test_a_measure_of_another_task_is_refused_with_those_there_are():
    check_metric("", "regression")
    check_metric("r2", "regression")
    with pytest.raises(BadInput, match=r"metric = 'auc' .* regression.*choose from mae, rmse"):
        check_metric("auc", "regression")
    with pytest.raises(BadInput, match="metric = 'r2'"):
        check_metric("r2", "classes")
