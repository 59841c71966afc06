"""The registry of data sets: one loader each, from canonical files to arrays, by name.

A loader is `(folder, **options) -> Dataset`. Files are looked for in `folder/<name>` and in
`folder` itself, and downloaded when absent. A loader checks that its files are whole;
`whole=False` lets it take a cut-down copy. Nothing is normalised here.
"""

import inspect
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput, nearest
from coterie.data.archives import data_folder
from coterie.data.dataset import PLAIN, Dataset, Source
from coterie.data.sources.cifar import CIFAR10, CIFAR100
from coterie.data.sources.digits import DIGITS
from coterie.data.sources.emnist import EMNIST, FEMNIST_LETTERS
from coterie.data.sources.gaussian import GAUSSIAN
from coterie.data.sources.leaf import LEAF
from coterie.data.sources.mnist import FASHION_MNIST, MNIST, MNIST_WRITERS
from coterie.data.sources.sent140 import SENT140
from coterie.data.sources.synthetic import SYNTHETIC
from coterie.data.sources.uci_har import UCI_HAR

DATASETS: dict[str, Source] = {
    "digits": DIGITS,
    "mnist": MNIST,
    "fashion-mnist": FASHION_MNIST,
    "emnist": EMNIST,
    "femnist-letters": FEMNIST_LETTERS,
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "uci-har": UCI_HAR,
    "mnist-writers": MNIST_WRITERS,
    "synthetic": SYNTHETIC,
    "gaussian": GAUSSIAN,
    "sent140": SENT140,
    "leaf": LEAF,
}
PUBLIC_IMAGES = (
    "mnist",
    "emnist",
    "cifar100",
)  # that often stand beside other images as public rows


def source_of(name: str) -> Source:
    """What is special about the data of this name; nothing, where they are not registered."""
    return DATASETS.get(name, PLAIN)


def load(name: str, folder: Path | None = None, **options: Any) -> Dataset:
    """A data set by name, from `folder`, else $COTERIE_DATA, else the user's cache folder."""
    if name not in DATASETS:
        raise BadInput(f"data set '{name}' is unknown{nearest(name, DATASETS)}")
    valid = set(inspect.signature(DATASETS[name].load).parameters) - {"folder"}
    for option in set(options) - valid:
        hint = nearest(option, valid) if valid else "; it has none"
        raise BadInput(f"data set '{name}' has no option '{option}'{hint}")
    return DATASETS[name].load(data_folder(folder), **options)


def load_part(name: str, folder: Path | None = None) -> Dataset:
    """A data set by name, or the cut-down copy that is there: public rows need not be all."""
    takes = name in DATASETS and "whole" in inspect.signature(DATASETS[name].load).parameters
    return load(name, folder, whole=False) if takes else load(name, folder)
