"""MNIST, Fashion-MNIST, and MNIST by writer, in LeCun's idx files."""

from pathlib import Path

import numpy as np

from coterie.core.errors import BadInput
from coterie.data.dataset import Channels, Dataset, Source
from coterie.data.read.archives import FilePart
from coterie.data.read.downloads import Origin, collect_files
from coterie.data.read.formats import parse_idx
from coterie.data.read.sources.origins import check_labels, check_row_count, make_origin


def make_origins(checks: dict[str, str], *bases: str) -> dict[str, Origin]:
    """The homes of compressed idx files, by name and checksum."""
    return {stem: make_origin(f"{stem}.gz", check, *bases) for stem, check in checks.items()}


MNIST_FILES = make_origins(
    {
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FASHION_FILES = make_origins(
    {
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
WRITERS_FILES = make_origins(
    {"qmnist-train-labels-idx2-int": "0058f8dd561b90ffdd0f734c6a30e5e4"},
    "https://raw.githubusercontent.com/facebookresearch/qmnist/master/",
)


def mnist(folder: Path, whole: bool = True) -> Dataset:
    """MNIST (LeCun, Cortes, Burges): 60,000 + 10,000 handwritten digits.

    whole: refuse files with fewer rows than the published ones; no: take a cut-down copy.
    """
    return read_mnist_files("mnist", folder, MNIST_FILES, whole, balanced=False)


def fashion_mnist(folder: Path, whole: bool = True) -> Dataset:
    """Fashion-MNIST (Xiao, Rasul, Vollgraf): 60,000 + 10,000 pieces of clothing.

    whole: refuse files with fewer rows than the published ones; no: take a cut-down copy.
    """
    return read_mnist_files("fashion-mnist", folder, FASHION_FILES, whole, balanced=True)


def mnist_writers(folder: Path, whole: bool = True) -> Dataset:
    """MNIST's training images by writer, as QMNIST (Yadav, Bottou) traced them: 539 clients.

    whole: refuse files with fewer rows than the published ones; no: take a cut-down copy.
    """
    every = mnist(folder, whole)
    part = collect_files(folder, "mnist", WRITERS_FILES)["qmnist-train-labels-idx2-int"]
    columns = parse_idx(part, 2, 12)  # class, NIST series, writer, ...
    x, y = every.x[every.train], every.y[every.train]
    if columns.shape[1:] != (8,) or not np.array_equal(columns[:, 0], y):
        raise BadInput(
            f"{part.place} does not belong to these images; expected 8 columns, "
            f"the first with MNIST's {len(y):,} training labels"
        )
    return Dataset(
        name="mnist-writers",
        x=x,
        y=y,
        classes=10,
        train=np.ones(len(x), bool),
        users=columns[:, 2].astype(np.int64),
    )


def read_mnist_files(
    name: str, folder: Path, homes: dict[str, Origin], whole: bool, balanced: bool
) -> Dataset:
    """The four files of MNIST or of a data set in its form; `balanced` tells these apart."""
    got = collect_files(folder, name, homes)
    train, test = (
        read_labelled_images(
            got[f"{part}-images-idx3-ubyte"], got[f"{part}-labels-idx1-ubyte"], rows, 10, whole
        )
        for part, rows in (("train", 60_000), ("t10k", 10_000))
    )
    # MNIST and Fashion-MNIST share all file names; only the second has as many rows in every class
    uniform = len(set(np.bincount(train[1]))) == 1
    if len(train[1]) == 60_000 and uniform != balanced:
        place = got["train-labels-idx1-ubyte"].place
        raise BadInput(
            f"{place} has the labels of another data set; put those of {name} into {folder / name}"
        )
    x = np.concatenate([train[0], test[0]])[:, None]
    return Dataset(
        name=name,
        x=x,
        y=np.concatenate([train[1], test[1]]),
        classes=10,
        train=np.arange(len(x)) < len(train[0]),
        users=None,
    )


def read_labelled_images(
    images: FilePart, labels: FilePart, rows: int, classes: int, whole: bool
) -> tuple[np.ndarray, np.ndarray]:
    """An idx file of 28 x 28 images and the idx file of their labels."""
    x, y = parse_idx(images, 3), parse_idx(labels, 1)
    check_row_count(images, len(x), rows, whole)
    if x.shape[1:] != (28, 28):
        size = f"{x.shape[1]} x {x.shape[2]}"
        raise BadInput(f"{images.place}: images of {size} pixels, expected 28 x 28")
    if len(x) != len(y):
        raise BadInput(
            f"{labels.place}: {len(y):,} labels for the {len(x):,} images of {images.place}"
        )
    check_labels(labels, y, classes)
    return x, y.astype(np.int64)


MNIST = Source(
    mnist,
    channels=Channels((0.1307,), (0.3081,)),
    split_options={"perfedavg": {"a": 196}},
)
FASHION_MNIST = Source(fashion_mnist)
MNIST_WRITERS = Source(mnist_writers, natural=True)
