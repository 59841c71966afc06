"""From a data set to a federation: who holds which rows."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.federation import summarize_clients
from coterie.data.pipeline import build_federation
from helpers.datasets import coded, number, rows_of

DATA = Path(os.environ.get("COTERIE_DATA", "nowhere"))

PARTS = ("train", "validation", "select", "test")


def all_rows(federation):
    return np.concatenate([rows_of(federation, i) for i in range(federation.clients)])


def test_digits_by_default_are_20_clients_of_3_classes_cut_60_20_20():
    got = build_federation()
    assert (got.clients, got.classes, got.input_shape, got.names[-1]) == (20, 10, (1, 8, 8), "19")
    assert len(np.unique(all_rows(got))) == 1797
    for row in summarize_clients(got):
        n = row.train + row.validation + row.select + row.test
        assert row.classes == 3
        assert abs(row.train - 0.6 * n) < 1
        assert abs(row.validation + row.select - 0.2 * n) <= 1
        assert 0 <= row.validation - row.select <= 1
        assert abs(row.test - 0.2 * n) <= 1
    assert np.array_equal(got.sizes, [row.train for row in summarize_clients(got)])
    assert got.x.dtype == torch.float32
    assert got.y.dtype == torch.int64
    assert (got.x.min(), got.x.max()) == (0, 1)


@settings(max_examples=30, deadline=None)
@given(
    clients=st.integers(1, 30),
    validation=st.sampled_from([0.0, 0.1, 0.2, 0.3]),
    test=st.sampled_from([0.1, 0.25, 0.5]),
    seed=st.integers(0, 99),
)
def test_parts_are_disjoint_and_cover_the_clients_rows(clients, validation, test, seed):
    base = coded()
    got = build_federation(
        base, "iid", clients, seed, validation=validation, test=test, scale="none"
    )
    everything = all_rows(got)
    assert sorted(number(got.x.numpy())[everything]) == list(range(400))
    assert np.array_equal(got.y.numpy(), base.y[number(got.x.numpy())])
    for i in range(clients):
        n = len(rows_of(got, i))
        assert len(got.test[i]) == n - int((1 - test) * n + 1e-9)
        assert (len(got.validation[i]) > 0) == (validation > 0)


def test_rows_limits_the_pool_and_pool_train_leaves_the_test_part_out():
    got = build_federation(coded(test=100), "iid", 5, rows=120, scale="none")
    assert len(all_rows(got)) == len(got.x) == 120
    trained = build_federation(coded(test=100), "iid", 5, pool="train", scale="none")
    assert sorted(number(trained.x.numpy())) == list(range(300))


def test_synthetic_repeats_the_published_sizes():
    got = build_federation("synthetic", validation=0, test=0.25)
    assert got.clients == 100
    assert (got.sizes.sum(), sum(map(len, got.test))) == (154_314, 51_481)
    assert all(np.array_equal(rows, np.sort(rows)) for rows in got.train)


@pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="$COTERIE_DATA has no mnist")
def test_real_mnist_recipes():
    pairs = build_federation("mnist", "pairs", validation=0, test=0.25, scale="pixel")
    sizes = [len(rows_of(pairs, i)) for i in range(20)]
    assert (min(sizes), max(sizes), sum(sizes)) == (1556, 5112, 70_000)
    assert pairs.x.mean().abs() < 1e-3
    assert build_federation("mnist", "perfedavg").sizes.tolist()[0] == int(0.6 * 5 * 196)


@pytest.mark.skipif(not (DATA / "uci-har").is_dir(), reason="$COTERIE_DATA has no uci-har")
def test_real_uci_har_leaves_no_overlap_and_no_class_out():
    got = build_federation("uci-har")
    y = got.y.numpy()
    assert got.clients >= 21
    trained = got.x[np.concatenate(got.train)]  # vectors of features are standardised
    assert trained.mean(0).abs().max() < 1e-3
    for i in range(got.clients):
        assert all(len(set(y[getattr(got, part)[i]])) == 6 for part in PARTS)
        # rows of the data set, in the order of time, with their activity
        train = {got.rows[r]: y[r] for r in got.train[i]}
        held = np.concatenate([got.test[i], got.validation[i], got.select[i]])
        touching = [r for r in held if y[r] in (train.get(got.rows[r] + d) for d in (-1, 1))]
        assert not touching


def test_without_select_all_held_rows_are_for_methods():
    halved, whole = (
        build_federation("digits", num_clients=5, select=select) for select in (True, False)
    )
    assert [len(rows) for rows in whole.select] == [0] * 5
    for i in range(5):
        both = np.concatenate([halved.validation[i], halved.select[i]])
        assert np.array_equal(np.sort(both), np.sort(whole.validation[i]))
        assert np.array_equal(halved.train[i], whole.train[i])
