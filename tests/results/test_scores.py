"""Scores of one client and false accepts of a run: values worked by hand, scikit-learn beside them,
bounds.
"""

import warnings
from dataclasses import replace
from math import nan

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import balanced_accuracy_score, f1_score
from torch import nn

import coterie
from coterie.analysis.detection import false_accepts
from coterie.analysis.scores import NAMES, calibration_error, scores
from coterie.core.errors import BadInput
from coterie.data.dealing import build
from coterie.data.federation import COUNTS, label_counts
from coterie.data.own import from_arrays
from coterie.results.false_accepts import (
    SCORES,
    false_accepts_by_group,
    read_scores,
    relative_false_accepts,
)
from helpers.federations import tiny

calm = settings(deadline=None)  # no test may fail because the machine is busy
tasks = st.tuples(st.integers(0, 10_000), st.integers(1, 40), st.integers(2, 6))


def task(seed, n, classes):
    rng = np.random.default_rng(seed)
    held = rng.choice(classes, rng.integers(1, classes + 1), replace=False)
    return held[rng.integers(0, len(held), n)], rng.dirichlet(np.ones(classes), n)


def sure(guess, classes):
    return np.eye(classes)[np.asarray(guess)]


# One client


def test_scores_worked_by_hand():
    """Class 0: two of three found, none taken for it wrongly; class 1: both found, and a 0 taken
    for it; 2 is not held.
    """
    p = [[0.9, 0.1, 0], [0.8, 0.2, 0], [0.4, 0.6, 0], [0.3, 0.7, 0], [0.1, 0.9, 0]]
    found = scores([0, 0, 0, 1, 1], p)
    assert found["accuracy"] == pytest.approx(4 / 5)
    assert found["precision"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["recall"] == found["balanced_accuracy"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["f1"] == pytest.approx((4 / 5 + 4 / 5) / 2)
    # confidences .9 .8 .6 .7 .9 in bins of 1/15: {.9, .9} right, {.8} right, {.7} right, {.6} wrong
    assert found["calibration_error"] == pytest.approx((2 * 0.1 + 0.2 + 0.3 + 0.6) / 5)


def test_a_class_that_is_not_held_costs_recall_and_is_no_class_of_its_own():
    found = scores([0, 0, 1, 1], sure([0, 2, 1, 1], 3))
    assert found["precision"] == 1
    assert found["recall"] == pytest.approx(0.75)
    assert found["f1"] == pytest.approx((2 / 3 + 1) / 2)


def test_a_class_never_guessed_has_no_precision():
    found = scores([0, 1], sure([0, 0], 2))
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
        assert list(scores([], probabilities)) == list(NAMES)
        assert np.isnan(list(scores([], probabilities).values())).all()


def test_scores_of_class_one_are_those_of_both_probabilities():
    rng = np.random.default_rng(0)
    y, s = rng.integers(0, 2, 30), rng.random(30)
    assert scores(y, s) == scores(y, np.stack([1 - s, s], 1)) == scores(y, s[:, None])


def test_a_model_that_diverged_has_no_calibration_and_no_crash():
    found = scores([0, 1], np.full((2, 2), nan))
    assert np.isnan(found["calibration_error"])
    assert found["accuracy"] == 0.5


def test_rows_must_match():
    with pytest.raises(BadInput, match="3 labels, but probabilities of 2 rows"):
        scores([0, 1, 1], np.ones((2, 2)) / 2)


@calm
@given(tasks)
def test_scores_stay_in_their_bounds(given_task):
    found = scores(*task(*given_task))
    assert tuple(found) == NAMES
    assert all(0 <= v <= 1 for v in found.values())


@calm
@given(tasks)
def test_scores_are_those_of_scikit_learn_on_the_classes_held(given_task):
    y, p = task(*given_task)
    found = scores(y, p)
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
    perfect = scores(y, sure(y, p.shape[1]))
    assert perfect == {name: float(name != "calibration_error") for name in NAMES}
    assert (scores(y, p)["f1"] == 1) == bool((p.argmax(1) == y).all())


@calm
@given(tasks, st.integers(0, 99))
def test_scores_do_not_depend_on_the_order_of_rows_or_names_of_classes(given_task, seed):
    y, p = task(*given_task)
    rng = np.random.default_rng(seed)
    rows, names = rng.permutation(len(y)), rng.permutation(p.shape[1])
    assert scores(y[rows], p[rows]) == pytest.approx(scores(y, p))
    assert scores(np.argsort(names)[y], p[:, names]) == pytest.approx(scores(y, p))


@calm
@given(st.integers(1, 14), st.integers(1, 50), st.integers(0, 50))
def test_calibration_error_of_one_bin_is_its_gap(place, n, right):
    confidence, hits = (place + 0.5) / 15, np.arange(n) < right
    assert calibration_error(hits, np.full(n, confidence)) == pytest.approx(
        abs(hits.mean() - confidence)
    )


# False accepts of a run


def net() -> nn.Module:
    return nn.Linear(8, 2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods on tumours: four clients of two device types, the second of which measures
    everything the other way round.
    """
    folder = tmp_path_factory.mktemp("scores")
    x, y = load_breast_cancer(return_X_y=True)
    x, y, owner = (
        ((x - x.mean(0)) / x.std(0)).astype(np.float32)[:320, 2:10],
        y[:320],
        np.arange(320) % 4,
    )
    x[owner > 1] *= -1
    devices = build(from_arrays(x, y, owner, name="tumours"))._replace(
        groups=np.array([0, 0, 1, 1])
    )
    words = {
        "rounds": 4,
        "rate": 0.5,
        "path": "vectorized",
        "width": 4,
        "compile": "no",
        "threads": 1,
    }
    return {
        name: coterie.run(name, data=devices, model=net, out=folder / name, **words)
        for name in ("fedavg", "local")
    }


def test_models_of_their_own_accept_fewer_false_tumours_than_one_for_both_devices(runs):
    mine, base = (read_scores(runs[name].folder) for name in ("local", "fedavg"))
    found = relative_false_accepts(runs["local"], runs["fedavg"])
    assert found == false_accepts(mine["label"], mine["score"], base["score"])
    assert found.relative_fa < 0.7
    assert relative_false_accepts(runs["fedavg"], runs["fedavg"]).relative_fa <= 1
    assert relative_false_accepts(runs["local"], runs["fedavg"], threshold=0.9) != found


def test_false_accepts_of_a_group_are_those_of_its_clients_rows(runs):
    mine, base = (read_scores(runs[name].folder) for name in ("local", "fedavg"))
    found = false_accepts_by_group(runs["local"], runs["fedavg"])
    assert list(found) == [0, 1]
    for group, clients in ((0, (0, 1)), (1, (2, 3))):
        rows = np.isin(mine["client"], clients)
        assert found[group] == false_accepts(
            mine["label"][rows], mine["score"][rows], base["score"][rows]
        )


def test_the_scores_of_a_run_give_the_accuracy_of_its_table(runs):
    for run in runs.values():
        rows = read_scores(run.folder)
        for client, accuracy in enumerate(run.accuracy()):
            mine = rows["client"] == client
            assert mine.sum() == run.rows[client]
            assert scores(rows["label"][mine], rows["score"][mine])["accuracy"] == pytest.approx(
                accuracy
            )


def copied(run, folder, **columns):
    """The run with other scores."""
    folder.mkdir()
    pq.write_table(pa.table(read_scores(run.folder) | columns), folder / SCORES)
    return replace(run, folder=folder)


def test_a_group_of_one_class_has_no_false_accepts(runs, tmp_path):
    label = np.where(
        read_scores(runs["local"].folder)["client"] < 2,
        1,
        read_scores(runs["local"].folder)["label"],
    )
    one, two = (copied(runs[name], tmp_path / name, label=label) for name in ("local", "fedavg"))
    found = false_accepts_by_group(one, two)
    assert np.isnan(found[0]).all()
    assert not np.isnan(found[1]).any()


def test_the_order_in_which_clients_were_scored_does_not_matter(runs, tmp_path):
    rows = read_scores(runs["local"].folder)
    order = np.argsort(-rows["client"], kind="stable")
    turned = copied(
        runs["local"], tmp_path / "turned", **{name: column[order] for name, column in rows.items()}
    )
    assert relative_false_accepts(turned, runs["fedavg"]) == relative_false_accepts(
        runs["local"], runs["fedavg"]
    )


def test_runs_on_other_rows_are_refused(runs, tmp_path):
    label = 1 - read_scores(runs["local"].folder)["label"]
    with pytest.raises(
        BadInput, match="scored different test rows: compare runs on the same data, split and seed"
    ):
        relative_false_accepts(
            copied(runs["local"], tmp_path / "other", label=label), runs["fedavg"]
        )


def test_a_folder_without_scores_or_with_damaged_ones_is_refused(tmp_path):
    with pytest.raises(
        BadInput,
        match=r"has no scores\.parquet: scores are written at the end of a run on data of two "
        r"classes",
    ):
        read_scores(tmp_path)
    (tmp_path / SCORES).write_bytes(b"PAR1 none")
    with pytest.raises(BadInput, match=r"scores\.parquet cannot be read"):
        read_scores(tmp_path)


# The split as a table


def test_label_counts_are_the_rows_of_every_class_a_client_holds():
    federation = tiny(clients=3)
    found = label_counts(federation)
    assert found.schema == COUNTS
    expected = {}
    for part in ("train", "validation", "test"):
        for client, rows in enumerate(getattr(federation, part)):
            for row in rows:
                key = (client, part, int(federation.y[row]))
                expected[key] = expected.get(key, 0) + 1
    assert {(r["client"], r["part"], r["label"]): r["rows"] for r in found.to_pylist()} == expected
    assert found.num_rows == len(expected)  # none twice, and none of no rows


def test_label_counts_of_parts_without_rows_and_of_no_classes_are_empty():
    federation = tiny(validation=0)
    assert set(label_counts(federation)["part"].to_pylist()) == {"train", "test"}
    assert label_counts(federation._replace(classes=0, y=federation.y.float())).num_rows == 0
