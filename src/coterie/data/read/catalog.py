"""The registry of data sets: one loader each, from canonical files to arrays, by name.

A loader is `(folder, **options) -> Dataset`. Files are looked for in `folder/<name>` and in
`folder` itself, and downloaded when absent. A loader checks that its files are whole;
`whole=False` lets it take a cut-down copy. Nothing is normalised here.
"""

import inspect
from pathlib import Path
from typing import Any, get_type_hints

from coterie.core.errors import BadInput, format_value, suggest_name
from coterie.core.functions import find_function
from coterie.core.option_names import add_guesses
from coterie.core.plugins import PLUGINS
from coterie.data.dataset import UNREGISTERED, Dataset, Source
from coterie.data.read.archives import data_folder
from coterie.data.read.sources.cifar import CIFAR10, CIFAR100
from coterie.data.read.sources.digits import DIGITS
from coterie.data.read.sources.emnist import EMNIST, FEMNIST_LETTERS
from coterie.data.read.sources.fed_heart_disease import FED_HEART
from coterie.data.read.sources.fed_tcga_brca import FED_TCGA_BRCA
from coterie.data.read.sources.gaussian import GAUSSIAN
from coterie.data.read.sources.leaf import LEAF
from coterie.data.read.sources.mnist import FASHION_MNIST, MNIST, MNIST_WRITERS
from coterie.data.read.sources.sent140 import SENT140
from coterie.data.read.sources.synthetic import SYNTHETIC
from coterie.data.read.sources.uci_har import UCI_HAR

# data sets that come with the package or are drawn, and those of files in another one's folder
BUILT_IN = ("digits", "fed-heart", "synthetic", "gaussian")
ELSEWHERE = {"femnist-letters": ("emnist", "*"), "mnist-writers": ("mnist", "qmnist-train-*")}

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
    "fed-heart": FED_HEART,
    "fed-tcga-brca": FED_TCGA_BRCA,
    "synthetic": SYNTHETIC,
    "gaussian": GAUSSIAN,
    "sent140": SENT140,
    "leaf": LEAF,
}
add_guesses(
    {
        "fashion-mnist": "fmnist fashion",
        "cifar10": "cifar",
        "uci-har": "har",
        "fed-heart": "heart heartdisease fedheartdisease",
        "emnist": "femnist",
    }
)
PUBLIC_IMAGES = (
    "mnist",
    "emnist",
    "cifar100",
)  # that often stand beside other images as public rows


def source_of(name: str) -> Source:
    """What is special about the data of this name; nothing, where they are not registered."""
    return DATASETS.get(name, UNREGISTERED)


def add_own_dataset(name: str) -> None:
    """Make a data set of a plugin known as module:name: a Source, or a loader like those here; it
    gets the folder of data if it asks for it.
    """
    module, _, option = name.partition(":")
    found = getattr(PLUGINS[module].module, option, None)
    source = found if isinstance(found, Source) else Source(find_function(name, "dataset"))
    make, signature = source.load, inspect.signature(source.load)

    def load(folder: Path, **options: Any) -> Dataset:
        own = {"folder": folder} if "folder" in signature.parameters else {}
        made = make(**own, **options)
        if not isinstance(made, Dataset):
            raise BadInput(
                f"data set '{name}' is {format_value(made)}: give a coterie.data.dataset.Dataset"
            )
        return made._replace(name=name)

    options = [p for p in signature.parameters.values() if p.name != "folder"]
    first = inspect.signature(load).parameters["folder"]
    vars(load)["__signature__"] = inspect.Signature([first, *options])
    load.__annotations__ = {k: v for k, v in get_type_hints(make).items() if k != "folder"}
    load.__module__, load.__doc__ = make.__module__, make.__doc__
    DATASETS[name] = source._replace(load=load, lazily=None)


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
