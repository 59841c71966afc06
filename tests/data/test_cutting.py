"""How a client's rows become its parts."""

import numpy as np

from coterie.data.dataset import Dataset
from coterie.data.pipeline import build_federation
from helpers.datasets import features, rows_of

PARTS = ("train", "validation", "select", "test")


def test_shuffling_mixes_every_class_into_every_part():
    y = np.repeat([0, 1, 2], 100)
    base = features()._replace(y=y, users=np.zeros(300, int))
    got = build_federation(base)
    assert all(len(set(y[getattr(got, part)[0]])) == 3 for part in PARTS)


def test_order_trains_on_the_first_rows():
    got = build_federation(features(), cut="order", validation=0.1, test=0.3)
    for i in range(got.clients):
        rows = np.concatenate([getattr(got, part)[i] for part in PARTS])
        assert np.array_equal(rows, np.sort(rows))


def test_runs_are_cut_by_time_and_lose_the_row_at_each_cut():
    y = np.repeat([0, 1, 2, 0, 1, 2], [20, 15, 30, 20, 10, 25])
    base = Dataset(
        "recording",
        np.arange(120, dtype=np.float32)[:, None],
        y,
        3,
        np.ones(120, bool),
        np.zeros(120, int),
    )
    got = build_federation(base, cut="runs", scale="none")
    start = 0
    for length in (20, 15, 30, 20, 10, 25):
        run = np.arange(start, start + length)
        first, second = int(0.6 * length), int(0.8 * length)
        mine = {part: np.intersect1d(getattr(got, part)[0], run) for part in PARTS}
        assert np.array_equal(mine["train"], run[:first])
        held = np.concatenate([mine["validation"], mine["select"]])
        assert np.array_equal(held, run[first + 1 : second])  # the first of them for methods
        assert abs(len(mine["validation"]) - len(mine["select"])) <= 1
        assert np.array_equal(mine["test"], run[second + 1 :])
        start += length
    both = build_federation(base, cut="runs", validation=0, test=0.25, scale="none")
    assert len(rows_of(both, 0)) == 120 - 6
