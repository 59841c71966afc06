"""UCI HAR: what people do, from the motion of the phone they wear."""

from pathlib import Path

import numpy as np

from coterie.core.errors import BadInput
from coterie.data.dataset import Dataset, Source
from coterie.data.read.archives import FilePart
from coterie.data.read.downloads import Origin
from coterie.data.read.sources.origins import check_labels, check_row_count, collect_present

OTHER_ZIPS = ("UCI HAR Dataset.zip", "human_activity_recognition_using_smartphones.zip")
UCI_ZIP = Origin(
    "human+activity+recognition+using+smartphones.zip",
    (
        "https://archive.ics.uci.edu/static/public/240/"
        "human+activity+recognition+using+smartphones.zip",
    ),
)


def uci_har(folder: Path, whole: bool = True) -> Dataset:
    """UCI HAR (Anguita et al.): 561 features per window, by person, in time order.

    Neighbouring windows overlap by half.

    whole: refuse files with fewer rows than the published ones; no: take a cut-down copy.
    """
    stems = {
        part: [f"{kind}_{part}.txt" for kind in ("X", "y", "subject")] for part in ("train", "test")
    }
    rows = {"train": 7_352, "test": 2_947}
    xs, ys, users, train = [], [], [], []
    for part, (windows, activities, people) in collect_present(
        folder, "uci-har", stems, UCI_ZIP, OTHER_ZIPS
    ).items():
        x, y, who = (
            parse_numbers(windows, 561),
            parse_numbers(activities, 1),
            parse_numbers(people, 1),
        )
        check_row_count(windows, len(x), rows[part], whole)
        for other, length in ((activities, len(y)), (people, len(who))):
            if length != len(x):
                raise BadInput(
                    f"{other.place}: {length:,} lines for the {len(x):,} windows of {windows.place}"
                )
        check_labels(activities, y, 6, first=1)
        xs.append(x)
        ys.append(y[:, 0].astype(np.int64) - 1)
        users.append(who[:, 0].astype(np.int64))
        train.append(np.full(len(x), part == "train"))
    return Dataset(
        name="uci-har",
        x=np.concatenate(xs),
        y=np.concatenate(ys),
        classes=6,
        train=np.concatenate(train),
        users=np.concatenate(users),
    )


def parse_numbers(part: FilePart, columns: int) -> np.ndarray:
    """[n, columns] float32 from a text file of numbers between blanks."""
    try:
        table = np.loadtxt(part.data.decode("ascii").splitlines(), np.float32, ndmin=2)
    except ValueError as error:
        raise BadInput(f"{part.place}: expected {columns} numbers per line ({error})") from error
    if table.shape[1] != columns:
        raise BadInput(f"{part.place}: {table.shape[1]} numbers per line, expected {columns}")
    return table


UCI_HAR = Source(uci_har, natural=True, cut="runs", scale="standard")
