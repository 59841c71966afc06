"""Data sets: one loader each, from canonical files to arrays; nothing is normalised here.

Files are looked for in `folder/<name>` and in `folder` itself, and downloaded when absent. A loader checks
that its files are whole; `whole=False` lets it take a cut-down copy.
"""

import inspect
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.core.errors import BadInput, nearest
from coterie.data import archives as files
from coterie.data import synthetic, text
from coterie.data.archives import Origin, Part


class Dataset(NamedTuple):
    """All rows of a data set, of all clients."""

    name: str
    x: np.ndarray  # [n, ...]: uint8 images [n, channels, height, width], float32 features, or int64 rows of `table`
    y: np.ndarray  # [n] int64 class labels; float32 targets when classes == 0
    classes: int  # 0 for the Gaussian (no classes)
    train: np.ndarray  # [n] bool, the official training part; all True where there is none
    users: np.ndarray | None  # [n] int, the natural client of each row, else None
    truth: np.ndarray | None = None  # [clients, 1], the means behind the Gaussian's observations
    table: np.ndarray | None = None  # [words + 1, dimension] float32 word vectors, row 0 zeros


def mirrors(file: str, check: str, *bases: str) -> Origin:
    return Origin(file, tuple(base + file for base in bases), f"md5:{check}")


def idx_homes(checks: dict[str, str], *bases: str) -> dict[str, Origin]:
    return {stem: mirrors(f"{stem}.gz", check, *bases) for stem, check in checks.items()}


MNIST = idx_homes(
    {
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FASHION = idx_homes(
    {
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
WRITERS = idx_homes(
    {"qmnist-train-labels-idx2-int": "0058f8dd561b90ffdd0f734c6a30e5e4"},
    "https://raw.githubusercontent.com/facebookresearch/qmnist/master/",
)
EMNIST = mirrors(
    "gzip.zip",
    "58c8d27c78d21e728a6bc7b3cc06412e",
    "https://biometrics.nist.gov/cs_links/EMNIST/",
    "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/",
)
TORONTO = "https://www.cs.toronto.edu/~kriz/"
CIFAR10 = mirrors("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", TORONTO)
CIFAR100 = mirrors("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", TORONTO)
HAR_ZIPS = ("UCI HAR Dataset.zip", "human_activity_recognition_using_smartphones.zip")
HAR = Origin(
    "human+activity+recognition+using+smartphones.zip",
    ("https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",),
)


def expect_rows(part: Part, rows: int, expected: int, whole: bool) -> None:
    if whole and rows != expected:
        raise BadInput(f"{part.place}: {rows:,} rows, expected {expected:,}; whole=False takes a cut-down copy")


def expect_labels(part: Part, y: np.ndarray, classes: int, first: int = 0) -> None:
    if len(y) and not (first <= y.min() and y.max() < first + classes):
        raise BadInput(f"{part.place}: labels {y.min()} to {y.max()}, expected {first} to {first + classes - 1}")


def labelled_images(images: Part, labels: Part, rows: int, classes: int, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """An idx file of 28 x 28 images and the idx file of their labels."""
    x, y = files.idx(images, 3), files.idx(labels, 1)
    expect_rows(images, len(x), rows, whole)
    if x.shape[1:] != (28, 28):
        raise BadInput(f"{images.place}: images of {x.shape[1]} x {x.shape[2]} pixels, expected 28 x 28")
    if len(x) != len(y):
        raise BadInput(f"{labels.place}: {len(y):,} labels for the {len(x):,} images of {images.place}")
    expect_labels(labels, y, classes)
    return x, y.astype(np.int64)


def mnist_like(name: str, folder: Path, homes: dict[str, Origin], whole: bool, balanced: bool) -> Dataset:
    got = files.collect(folder, name, homes)
    train, test = (
        labelled_images(got[f"{part}-images-idx3-ubyte"], got[f"{part}-labels-idx1-ubyte"], rows, 10, whole)
        for part, rows in (("train", 60_000), ("t10k", 10_000))
    )
    # MNIST and Fashion-MNIST share all file names; only the second has as many rows in every class
    if len(train[1]) == 60_000 and (len(set(np.bincount(train[1]))) == 1) != balanced:
        place = got["train-labels-idx1-ubyte"].place
        raise BadInput(f"{place} has the labels of another data set; put those of {name} into {folder / name}")
    x = np.concatenate([train[0], test[0]])[:, None]
    return Dataset(name, x, np.concatenate([train[1], test[1]]), 10, np.arange(len(x)) < len(train[0]), None)


def mnist(folder: Path, whole: bool = True) -> Dataset:
    """MNIST (LeCun, Cortes, Burges): 60,000 + 10,000 handwritten digits."""
    return mnist_like("mnist", folder, MNIST, whole, balanced=False)


def fashion_mnist(folder: Path, whole: bool = True) -> Dataset:
    """Fashion-MNIST (Xiao, Rasul, Vollgraf): 60,000 + 10,000 pieces of clothing."""
    return mnist_like("fashion-mnist", folder, FASHION, whole, balanced=True)


def mnist_writers(folder: Path, whole: bool = True) -> Dataset:
    """MNIST's training images by writer, as QMNIST (Yadav, Bottou) traced them: 539 natural clients."""
    every = mnist(folder, whole)
    part = files.collect(folder, "mnist", WRITERS)["qmnist-train-labels-idx2-int"]
    columns = files.idx(part, 2, 12)  # class, NIST series, writer, ...
    x, y = every.x[every.train], every.y[every.train]
    if columns.shape[1:] != (8,) or not np.array_equal(columns[:, 0], y):
        raise BadInput(
            f"{part.place} does not belong to these images; expected 8 columns, the first with MNIST's {len(y):,} training labels"
        )
    return Dataset("mnist-writers", x, y, 10, np.ones(len(x), bool), columns[:, 2].astype(np.int64))


def present(
    folder: Path, name: str, parts: dict[str, list[str]], home: Origin, archives: Sequence[str] = ()
) -> dict[str, list[Part]]:
    """The files of each part (train, test) of which anything is there; if nothing is, both are downloaded."""
    stems = [stem for wanted in parts.values() for stem in wanted]
    got = files.look(folder, name, stems, [home.file, *archives])
    got = got or files.collect(folder, name, dict.fromkeys(stems, home))
    chosen = {part: wanted for part, wanted in parts.items() if any(stem in got for stem in wanted)}
    for part, wanted in chosen.items():
        for stem in wanted:
            if stem not in got:
                raise BadInput(f"{name}: the {part} part lacks {stem}; {files.way_out(home, name, folder)}")
    return {part: [got[stem] for stem in wanted] for part, wanted in chosen.items()}


def emnist(folder: Path, whole: bool = True) -> Dataset:
    """EMNIST byclass (Cohen, Afshar, Tapson, van Schaik): 62 signs; whichever of its two parts are there."""
    stems = {
        part: [f"emnist-byclass-{part}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")] for part in ("train", "test")
    }
    rows = {"train": 697_932, "test": 116_323}
    got = {
        part: labelled_images(images, labels, rows[part], 62, whole)
        for part, (images, labels) in present(folder, "emnist", stems, EMNIST).items()
    }
    y = np.concatenate([labels for _, labels in got.values()])
    train = np.concatenate([np.full(len(labels), part == "train") for part, (_, labels) in got.items()])
    x = np.empty((len(y), 1, 28, 28), np.uint8)
    for part, (images, _) in got.items():
        x[train == (part == "train"), 0] = images.transpose(0, 2, 1)  # the files hold every image transposed
    return Dataset("emnist", x, y, 62, train, None)


def femnist_letters(folder: Path, whole: bool = True, outputs: int = 62) -> Dataset:
    """EMNIST's letters a to j, both cases as one: labels 0 to 9.

    FedProx's FEMNIST has 62 `outputs` although ten labels occur; KT-pFL's EMNIST has 10.
    """
    if outputs < 10:
        raise BadInput(f"outputs = {outputs}: 'femnist-letters' has ten letters; give 10, or 62 as FedProx has")
    every = emnist(folder, whole)
    order = string.digits + string.ascii_uppercase + string.ascii_lowercase
    letter = np.array(["abcdefghij".find(sign.lower()) for sign in order])[every.y]
    keep = letter >= 0
    return Dataset("femnist-letters", every.x[keep], letter[keep], outputs, every.train[keep], None)


def cifar(name: str, folder: Path, home: Origin, rows: dict[str, int], key: str, whole: bool) -> Dataset:
    """CIFAR's batches, binary (label bytes, then 3,072 pixels, a row) or pickled by Python."""
    classes, head = (10, 1) if key == "labels" else (100, 2)  # CIFAR-100 has a coarse label before the fine one
    binary = {f"{stem}.bin": home for stem in rows}
    got = files.look(folder, name, list(binary), [home.file])
    if len(got) < len(rows):
        pickled = files.look(folder, name, list(rows), [home.file.replace("binary", "python")])
        got = pickled if len(pickled) == len(rows) else files.collect(folder, name, binary)
    images, labels = [], []
    for stem, expected in rows.items():
        part = got.get(f"{stem}.bin") or got[stem]
        if f"{stem}.bin" in got:
            if len(part.data) % (head + 3072):
                size = f"{expected:,} rows of {head + 3072:,} bytes"
                raise BadInput(f"{part.place}: {len(part.data):,} bytes, expected {size}")
            table = np.frombuffer(part.data, np.uint8).reshape(-1, head + 3072)
            pixels, y = table[:, head:], table[:, head - 1].astype(np.int64)
        else:
            content = files.unpickle(part)
            pixels, y = np.asarray(content.get("data")), np.asarray(content.get(key), np.int64)
            if pixels.dtype != np.uint8 or pixels.shape != (y.size, 3072):
                raise BadInput(f"{part.place}: expected 'data' of rows of 3,072 bytes, and as many '{key}'")
        expect_rows(part, len(y), expected, whole)
        expect_labels(part, y, classes)
        images.append(pixels)
        labels.append(y)
    x, y = np.concatenate(images).reshape(-1, 3, 32, 32), np.concatenate(labels)
    return Dataset(name, x, y, classes, np.arange(len(y)) < len(y) - len(labels[-1]), None)


def cifar10(folder: Path, whole: bool = True) -> Dataset:
    """CIFAR-10 (Krizhevsky): 50,000 + 10,000 colour images."""
    rows = {f"data_batch_{i}": 10_000 for i in range(1, 6)} | {"test_batch": 10_000}
    return cifar("cifar10", folder, CIFAR10, rows, "labels", whole)


def cifar100(folder: Path, whole: bool = True) -> Dataset:
    """CIFAR-100 (Krizhevsky): 50,000 + 10,000 colour images, with their fine labels."""
    return cifar("cifar100", folder, CIFAR100, {"train": 50_000, "test": 10_000}, "fine_labels", whole)


def numbers(part: Part, columns: int) -> np.ndarray:
    """[n, columns] float32 from a text file of numbers between blanks."""
    try:
        table = np.loadtxt(part.data.decode("ascii").splitlines(), np.float32, ndmin=2)
    except ValueError as error:
        raise BadInput(f"{part.place}: expected {columns} numbers a line ({error})") from error
    if table.shape[1] != columns:
        raise BadInput(f"{part.place}: {table.shape[1]} numbers a line, expected {columns}")
    return table


def uci_har(folder: Path, whole: bool = True) -> Dataset:
    """UCI HAR (Anguita et al.): 561 features of windows that overlap by half, by person, in time order."""
    stems = {part: [f"{kind}_{part}.txt" for kind in ("X", "y", "subject")] for part in ("train", "test")}
    rows = {"train": 7_352, "test": 2_947}
    xs, ys, users, train = [], [], [], []
    for part, (windows, activities, people) in present(folder, "uci-har", stems, HAR, HAR_ZIPS).items():
        x, y, who = numbers(windows, 561), numbers(activities, 1), numbers(people, 1)
        expect_rows(windows, len(x), rows[part], whole)
        for other, length in ((activities, len(y)), (people, len(who))):
            if length != len(x):
                raise BadInput(f"{other.place}: {length:,} lines for the {len(x):,} windows of {windows.place}")
        expect_labels(activities, y, 6, first=1)
        xs.append(x)
        ys.append(y[:, 0].astype(np.int64) - 1)
        users.append(who[:, 0].astype(np.int64))
        train.append(np.full(len(x), part == "train"))
    return Dataset("uci-har", np.concatenate(xs), np.concatenate(ys), 6, np.concatenate(train), np.concatenate(users))


def digits(folder: Path) -> Dataset:
    """scikit-learn's 1,797 handwritten digits 8 x 8, values 0 to 16; needs no file."""
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    data = load_digits()
    x = data.images.astype(np.uint8)[:, None]
    return Dataset("digits", x, data.target.astype(np.int64), 10, np.ones(len(x), bool), None)


def leaf(folder: Path) -> Dataset:
    """LEAF's FEMNIST with its writers (Caldas et al.); pixels as LEAF stores them: dark ink, white paper."""
    xs, ys, users, train = [], [], [], []
    order: dict[str, int] = {}
    for owned in text.leaf_users(folder, "leaf"):
        try:
            x, y = np.asarray(owned.x, np.float32).reshape(len(owned.y), 784), np.asarray(owned.y, np.int64)
        except (ValueError, TypeError) as error:
            raise BadInput(f"{owned.place}: user {owned.user}: expected rows of 784 pixels") from error
        part = Part(b"", f"{owned.place}, user {owned.user}")
        expect_labels(part, y, 62)
        if len(x) and not (x.min() >= 0 and x.max() <= 1):
            raise BadInput(f"{part.place}: pixels {x.min():g} to {x.max():g}, expected 0 to 1")
        xs.append(np.rint(x * 255).astype(np.uint8))
        ys.append(y)
        users.append(np.full(len(y), order.setdefault(owned.user, len(order))))
        train.append(np.full(len(y), owned.train))
    images = np.concatenate(xs).reshape(-1, 1, 28, 28)
    return Dataset("leaf", images, np.concatenate(ys), 62, np.concatenate(train), np.concatenate(users))


def sent140(folder: Path, length: int = 25, dimension: int = 300, lower: bool = True) -> Dataset:
    """Sentiment140 by account, as LEAF prepares it: the first tokens of a tweet as rows of a GloVe table."""
    got = text.sent140(folder, length, dimension, lower)
    return Dataset("sent140", got.x, got.y, 2, got.train, got.users, table=got.table)


def drawn(name: str, got: synthetic.Drawn, classes: int) -> Dataset:
    return Dataset(name, got.x, got.y, classes, np.ones(len(got.x), bool), got.users, got.truth)


def synthetic_labels(
    folder: Path,
    alpha: float = 0.5,
    beta: float = 0.5,
    clients: int = 100,
    seed: int = 0,
    sizes: str = "pfedme",
    draws: str = "legacy",
) -> Dataset:
    """FedProx's Synthetic(alpha, beta): 60 features, 10 classes, a labelling rule for each client."""
    return drawn("synthetic", synthetic.synthetic(alpha, beta, clients, seed, sizes, draws), synthetic.CLASSES)


def gaussian(
    folder: Path,
    clients: int = 20,
    theta0: float = 1.6,
    case: int = 1,
    s0sq: float | None = None,
    sizes: Sequence[int] | None = None,
    seed: int = 0,
) -> Dataset:
    """Self-FL's two-level Gaussian: observations around each client's own mean, which `truth` holds."""
    return drawn("gaussian", synthetic.gaussian(clients, theta0, case, s0sq, sizes, seed), 0)


DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "emnist": emnist,
    "femnist-letters": femnist_letters,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "uci-har": uci_har,
    "mnist-writers": mnist_writers,
    "synthetic": synthetic_labels,
    "gaussian": gaussian,
    "sent140": sent140,
    "leaf": leaf,
}


def load(name: str, folder: Path | None = None, **options: Any) -> Dataset:
    """A data set by name, from `folder`, else $COTERIE_DATA, else the user's cache folder."""
    if name not in DATASETS:
        raise BadInput(f"data set '{name}' is unknown{nearest(name, DATASETS)}")
    valid = set(inspect.signature(DATASETS[name]).parameters) - {"folder"}
    for option in set(options) - valid:
        hint = nearest(option, valid) if valid else "; it has none"
        raise BadInput(f"data set '{name}' has no option '{option}'{hint}")
    return DATASETS[name](files.data_folder(folder), **options)


def load_part(name: str, folder: Path | None = None) -> Dataset:
    """A data set by name, or the cut-down copy that is there: rows to draw public data from need not be all."""
    takes = name in DATASETS and "whole" in inspect.signature(DATASETS[name]).parameters
    return load(name, folder, whole=False) if takes else load(name, folder)
