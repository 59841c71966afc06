"""The registry of data sets: one loader each, from canonical files to arrays, by name.

A loader is `(folder, **options) -> Dataset`. Files are looked for in `folder/<name>` and in
`folder` itself, and downloaded when absent. A loader checks that its files are whole;
`whole=False` lets it take a cut-down copy. Nothing is normalised here.
"""

import inspect
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput, suggest_name
from coterie.data.dataset import UNREGISTERED, Dataset, Source
from coterie.data.read.archives import data_folder
from coterie.data.read.sources.cifar import CIFAR10, CIFAR100
from coterie.data.read.sources.digits import DIGITS
from coterie.data.read.sources.emnist import EMNIST, FEMNIST_LETTERS
from coterie.data.read.sources.gaussian import GAUSSIAN
from coterie.data.read.sources.leaf import LEAF
from coterie.data.read.sources.mnist import FASHION_MNIST, MNIST, MNIST_WRITERS
from coterie.data.read.sources.sent140 import SENT140
from coterie.data.read.sources.synthetic import SYNTHETIC
from coterie.data.read.sources.uci_har import UCI_HAR

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
    return DATASETS.get(name, UNREGISTERED)


def load_dataset(name: str, folder: Path | None = None, **options: Any) -> Dataset:
    """A data set by name, from `folder`, else $COTERIE_DATA, else the user's cache folder."""
    if name not in DATASETS:
        raise BadInput(f"data set '{name}' is unknown{suggest_name(name, DATASETS)}")
    valid = set(inspect.signature(DATASETS[name].load).parameters) - {"folder"}
    for option in set(options) - valid:
        hint = suggest_name(option, valid) if valid else "; it has none"
        raise BadInput(f"data set '{name}' has no option '{option}'{hint}")
    return DATASETS[name].load(data_folder(folder), **options)


def load_available(name: str, folder: Path | None = None) -> Dataset:
    """A data set by name, or the cut-down copy that is there: public rows need not be all."""
    takes = name in DATASETS and "whole" in inspect.signature(DATASETS[name].load).parameters
    return load_dataset(name, folder, whole=False) if takes else load_dataset(name, folder)
