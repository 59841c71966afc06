"""The papers' recipes deal as many rows as the papers' own digits say."""

import numpy as np
import pytest

from coterie.comparison.plan import plan_of
from coterie.data.dataset import Dataset
from coterie.data.pipeline import build_federation
from coterie.experiment.config import read_toml
from coterie.experiment.recipes import find_config

MNIST = (  # rows of each digit in the official training and test part
    (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
)
EVEN = ((6000,) * 10, (1000,) * 10)  # Fashion-MNIST
CIFAR = ((5000,) * 10, (1000,) * 10)
# Table of the authors' files: test rows of each user on MNIST DS-3
DS3 = [935, 914, 871, 933, 824, 1283, 1206, 1100, 1193, 1244]


def dealt(recipe, sizes):
    """The federation of a recipe on images without content, with the data set's class sizes."""
    experiment = next(iter(plan_of(read_toml(find_config(recipe))).experiments.values()))
    y = np.concatenate([np.repeat(np.arange(10), part) for part in sizes])
    train = np.arange(len(y)) < sum(sizes[0])
    blank = Dataset("blank", np.zeros((len(y), 1, 1, 1), np.uint8), y, 10, train, None)
    settings = {
        k: v for k, v in experiment.dataset.items() if k not in ("name", "seed", "num_clients")
    }
    settings |= {"scale": "none", "public": None, "channels": None, "augmented_once": False}
    split = dict(experiment.partition)
    return build_federation(
        blank, split.pop("name"), experiment.dataset["num_clients"], options=split, **settings
    )


def test_persfl_ds1_has_600_rows_of_two_digits_per_user():
    federation = dealt("persfl-mnist-ds1", MNIST)
    for parts in zip(federation.train, federation.validation, federation.test, strict=True):
        assert [len(part) for part in parts] == [360, 120, 120]
        digits = np.bincount(federation.y[np.concatenate(parts)])
        assert sorted(digits[digits > 0]) == [300, 300]
    assert dealt("persfl-mnist-ds1-raw", MNIST).sizes.tolist() == [360] * 10


def test_persfl_ds3_has_the_authors_test_sizes():
    federation = dealt("persfl-mnist-ds3", MNIST)
    assert [len(rows) for rows in federation.test] == DS3
    whole = [np.concatenate(parts) for parts in zip(*federation[4:7], strict=True)]
    assert sum(map(len, whole)) == 52_515  # 75 % of 70,000
    for user, rows in enumerate(whole):
        first = 2 * user % 10
        assert np.unique(federation.y[rows]).tolist() == [first, first + 1]


@pytest.mark.parametrize(
    ("recipe", "sizes", "test_rows"),
    [("persfl-mnist-ds2", MNIST, 11_717), ("persfl-cifar10-ds2", CIFAR, 10_003)],
)
def test_persfl_ds2_has_the_training_part(recipe, sizes, test_rows):
    federation = dealt(recipe, sizes)
    # shares are rounded user by user
    assert abs(sum(len(rows) for rows in federation.test) - test_rows) <= 5


def test_persfl_ds1_on_cifar10_has_1000_test_rows_per_user():
    assert [len(rows) for rows in dealt("persfl-cifar10-ds1", CIFAR).test] == [1000] * 10


def test_ktpfl_has_the_rows_of_its_appendix():
    """B.1: 450 rows of five classes and 150 of the others; B.1's second case: 300 of two."""
    federation = dealt("ktpfl-fashion-n1", EVEN)
    for client, parts in enumerate(zip(federation.train, federation.test, strict=True)):
        assert [len(part) for part in parts] == [2250, 750]
        counts = np.bincount(federation.y[np.concatenate(parts)]).tolist()
        assert counts == ([450] * 5 + [150] * 5 if client < 10 else [150] * 5 + [450] * 5)
    federation = dealt("ktpfl-fashion-n2", EVEN)
    for parts in zip(federation.train, federation.test, strict=True):
        assert [len(part) for part in parts] == [450, 150]
        counts = np.bincount(federation.y[np.concatenate(parts)])
        assert sorted(counts[counts > 0]) == [300, 300]
