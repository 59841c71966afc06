"""CIFAR-10 and CIFAR-100, in their binary and in their pickled version."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from coterie.core.errors import BadInput
from coterie.data.dataset import Channels, Dataset, Source
from coterie.data.read.archives import FilePart, find_parts
from coterie.data.read.downloads import Origin, collect_files
from coterie.data.read.formats import unpickle
from coterie.data.read.sources.origins import check_labels, check_row_count, make_origin

PIXELS = 3072


class CifarLayout(NamedTuple):
    """How the files of one of the two data sets are laid out."""

    home: Origin
    rows: dict[str, int]  # of each batch; the last one is the test part
    key: str  # of the labels in a pickle
    classes: int
    head: int  # label bytes before the pixels of a binary row; the last of them is the label


TORONTO = "https://www.cs.toronto.edu/~kriz/"


def cifar10(folder: Path, whole: bool = True) -> Dataset:
    """CIFAR-10 (Krizhevsky): 50,000 + 10,000 colour images.

    whole: refuse files with fewer rows than the published ones; no: take a cut-down copy.
    """
    return read_cifar("cifar10", folder, CIFAR10_LAYOUT, whole)


def cifar100(folder: Path, whole: bool = True) -> Dataset:
    """CIFAR-100 (Krizhevsky): 50,000 + 10,000 colour images, with their fine labels.

    whole: refuse files with fewer rows than the published ones; no: take a cut-down copy.
    """
    return read_cifar("cifar100", folder, CIFAR100_LAYOUT, whole)


def read_cifar(name: str, folder: Path, form: CifarLayout, whole: bool) -> Dataset:
    """All batches of a CIFAR data set, from whichever version is there."""
    got = find_batches(name, folder, form)
    images, labels = [], []
    for stem, expected in form.rows.items():
        part = got.get(f"{stem}.bin") or got[stem]
        read = read_binary if f"{stem}.bin" in got else read_pickled
        pixels, y = read(part, form, expected)
        check_row_count(part, len(y), expected, whole)
        check_labels(part, y, form.classes)
        images.append(pixels)
        labels.append(y)
    y = np.concatenate(labels)
    return Dataset(
        name=name,
        x=np.concatenate(images).reshape(-1, 3, 32, 32),
        y=y,
        classes=form.classes,
        train=np.arange(len(y)) < len(y) - len(labels[-1]),
        users=None,
    )


def find_batches(name: str, folder: Path, form: CifarLayout) -> dict[str, FilePart]:
    """The binary batches, else the pickled ones, else the binary ones as downloaded."""
    wanted = {f"{stem}.bin": form.home for stem in form.rows}
    got = find_parts(folder, name, list(wanted), [form.home.file])
    if len(got) == len(wanted):
        return got
    archive = form.home.file.replace("binary", "python")
    got = find_parts(folder, name, list(form.rows), [archive])
    return got if len(got) == len(form.rows) else collect_files(folder, name, wanted)


def read_binary(part: FilePart, form: CifarLayout, expected: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels of a binary batch: label bytes, then 3,072 pixels, per row."""
    width = form.head + PIXELS
    if len(part.data) % width:
        size = f"{expected:,} rows of {width:,} bytes"
        raise BadInput(f"{part.place}: {len(part.data):,} bytes, expected {size}")
    table = np.frombuffer(part.data, np.uint8).reshape(-1, width)
    return table[:, form.head :], table[:, form.head - 1].astype(np.int64)


def read_pickled(part: FilePart, form: CifarLayout, expected: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels of a batch that Python pickled."""
    content = unpickle(part)
    pixels = np.asarray(content.get("data"))
    y = np.asarray(content.get(form.key), np.int64)
    if pixels.dtype != np.uint8 or pixels.shape != (y.size, PIXELS):
        raise BadInput(
            f"{part.place}: expected 'data' of rows of 3,072 bytes, and as many '{form.key}'"
        )
    return pixels, y


CIFAR10_LAYOUT = CifarLayout(
    home=make_origin("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", TORONTO),
    rows={f"data_batch_{i}": 10_000 for i in range(1, 6)} | {"test_batch": 10_000},
    key="labels",
    classes=10,
    head=1,
)
CIFAR100_LAYOUT = CifarLayout(
    home=make_origin("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", TORONTO),
    rows={"train": 50_000, "test": 10_000},
    key="fine_labels",
    classes=100,
    head=2,  # a coarse label stands before the fine one
)
CIFAR10 = Source(
    cifar10,
    channels=Channels((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    split_options={"perfedavg": {"a": 68}},
)
CIFAR100 = Source(cifar100)
