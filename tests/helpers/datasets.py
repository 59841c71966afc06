"""Small data sets whose rows are known again wherever they went."""

import numpy as np

from coterie.data.dataset import Dataset

PARTS = ("train", "validation", "select", "test")


def coded(n=400, classes=4, side=4, channels=1, test=0):
    """Images whose first pixels spell their row number, so that a row is known again wherever it
    went.
    """
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n, channels, side, side)).astype(np.uint8)
    x[:, 0, 0, 0], x[:, 0, 0, 1] = np.arange(n) // 256, np.arange(n) % 256
    y = rng.permutation(np.arange(n) % classes)
    return Dataset("coded", x, y, classes, np.arange(n) < n - test, None)


def number(images):
    return images[:, 0, 0, 0].astype(int) * 256 + images[:, 0, 0, 1].astype(int)


def features(n=300, users=6, classes=3):
    rng = np.random.default_rng(1)
    return Dataset(
        "features",
        rng.normal(size=(n, 5)).astype(np.float32),
        rng.integers(0, classes, n),
        classes,
        np.ones(n, bool),
        np.sort(rng.integers(0, users, n)),
    )


def rows_of(federation, client):
    return np.concatenate([getattr(federation, part)[client] for part in PARTS])
