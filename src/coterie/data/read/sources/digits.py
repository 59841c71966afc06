"""scikit-learn's handwritten digits, the data set that needs neither a file nor a network."""

from pathlib import Path

import numpy as np

from coterie.data.dataset import Dataset, Source


def digits(folder: Path) -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels with values 0 to 16."""
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    data = load_digits()
    x = data.images.astype(np.uint8)[:, None]
    y = data.target.astype(np.int64)
    return Dataset(name="digits", x=x, y=y, classes=10, train=np.ones(len(x), bool), users=None)


DIGITS = Source(digits, network_options={"hidden": 32}, scale="unit", top=16.0)
