"""EMNIST byclass, and the ten letters of it that FedProx uses."""

import string
from pathlib import Path

import numpy as np

from coterie.core.errors import BadInput
from coterie.core.options import PositiveInt
from coterie.data.dataset import Dataset, Source
from coterie.data.read.sources.mnist import read_labelled_images
from coterie.data.read.sources.origins import collect_present, make_origin

EMNIST_ZIP = make_origin(
    "gzip.zip",
    "58c8d27c78d21e728a6bc7b3cc06412e",
    "https://biometrics.nist.gov/cs_links/EMNIST/",
    "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/",
)


def emnist(folder: Path, whole: bool = True) -> Dataset:
    """EMNIST byclass (Cohen, Afshar, Tapson, van Schaik): 62 signs, of the parts that are there.

    whole: refuse files with fewer rows than the published ones; no: take a cut-down copy.
    """
    stems = {
        part: [f"emnist-byclass-{part}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
        for part in ("train", "test")
    }
    rows = {"train": 697_932, "test": 116_323}
    got = {
        part: read_labelled_images(images, labels, rows[part], 62, whole)
        for part, (images, labels) in collect_present(folder, "emnist", stems, EMNIST_ZIP).items()
    }
    y = np.concatenate([labels for _, labels in got.values()])
    train = np.concatenate(
        [np.full(len(labels), part == "train") for part, (_, labels) in got.items()]
    )
    x = np.empty((len(y), 1, 28, 28), np.uint8)
    for part, (images, _) in got.items():
        x[train == (part == "train"), 0] = images.transpose(
            0, 2, 1
        )  # the files hold every image transposed
    return Dataset(name="emnist", x=x, y=y, classes=62, train=train, users=None)


def femnist_letters(folder: Path, whole: bool = True, outputs: PositiveInt = 62) -> Dataset:
    """EMNIST's letters a to j in either case: labels 0 to 9.

    whole: refuse files with fewer rows than the published ones; no: take a cut-down copy.
    outputs: outputs of the network: FedProx's FEMNIST has 62 although ten labels occur, KT-pFL's
        EMNIST has 10.
    """
    if outputs < 10:
        raise BadInput(
            f"outputs = {outputs}: 'femnist-letters' has ten letters; give 10, or 62 as FedProx has"
        )
    every = emnist(folder, whole)
    order = string.digits + string.ascii_uppercase + string.ascii_lowercase
    letter = np.array(["abcdefghij".find(sign.lower()) for sign in order])[every.y]
    keep = letter >= 0
    return every._replace(
        name="femnist-letters",
        x=every.x[keep],
        y=letter[keep],
        classes=outputs,
        train=every.train[keep],
    )


EMNIST = Source(emnist)
FEMNIST_LETTERS = Source(femnist_letters)
