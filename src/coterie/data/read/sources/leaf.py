"""LEAF's JSON files, and the FEMNIST that LEAF makes of them (Caldas et al.)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.core.errors import BadInput
from coterie.data.dataset import Dataset, Source
from coterie.data.read import archives
from coterie.data.read.archives import FilePart
from coterie.data.read.sources.origins import check_labels


class UserRows(NamedTuple):
    """What one user of a LEAF file owns."""

    user: str
    train: bool
    x: list[Any]
    y: list[Any]
    place: Path


def leaf(folder: Path) -> Dataset:
    """LEAF's FEMNIST by writer; pixels are as LEAF stores them: dark ink on white paper."""
    xs, ys, users, train = [], [], [], []
    order: dict[str, int] = {}
    for owned in read_leaf_users(folder, "leaf"):
        try:
            x, y = (
                np.asarray(owned.x, np.float32).reshape(len(owned.y), 784),
                np.asarray(owned.y, np.int64),
            )
        except (ValueError, TypeError) as error:
            raise BadInput(
                f"{owned.place}: user {owned.user}: expected rows of 784 pixels"
            ) from error
        part = FilePart(b"", f"{owned.place}, user {owned.user}")
        check_labels(part, y, 62)
        if len(x) and not (x.min() >= 0 and x.max() <= 1):
            raise BadInput(f"{part.place}: pixels {x.min():g} to {x.max():g}, expected 0 to 1")
        xs.append(np.rint(x * 255).astype(np.uint8))
        ys.append(y)
        users.append(np.full(len(y), order.setdefault(owned.user, len(order))))
        train.append(np.full(len(y), owned.train))
    images = np.concatenate(xs).reshape(-1, 1, 28, 28)
    return Dataset(
        name="leaf",
        x=images,
        y=np.concatenate(ys),
        classes=62,
        train=np.concatenate(train),
        users=np.concatenate(users),
    )


def read_leaf_users(folder: Path, name: str) -> Iterator[UserRows]:
    """The users of LEAF's JSON files, file by file."""
    for path, train in find_leaf_files(folder, name).items():
        try:
            content = json.loads(archives.read_file(path).data)
            users = [(user, content["user_data"][user]) for user in content["users"]]
            owned = [UserRows(user, train, data["x"], data["y"], path) for user, data in users]
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(
                f"{path} is damaged or not of LEAF's format ({error!r}); "
                "expected users, and user_data with x and y"
            ) from error
        for one in owned:
            if len(one.x) != len(one.y):
                raise BadInput(
                    f"{path}: user {one.user} has {len(one.x)} x but {len(one.y)} y; "
                    "expected as many"
                )
        yield from owned


def find_leaf_files(folder: Path, name: str) -> dict[Path, bool]:
    """{file: is it training data}, from train/ and test/, else from all_data/, else loose."""

    def found(place: Path) -> list[Path]:
        return sorted(
            path for wrap in ("", *archives.DECOMPRESSORS) for path in place.glob(f"*.json{wrap}")
        )

    for place in (folder / name, folder / name / "data", folder):
        train, test = found(place / "train"), found(place / "test")
        if train and test:
            return dict.fromkeys(train, True) | dict.fromkeys(test, False)
        every = found(place / "all_data") or found(place)
        if every:
            return dict.fromkeys(every, True)
    raise BadInput(
        f"{name}: no LEAF file (all_data/*.json, or train/*.json and test/*.json) "
        f"in {folder / name} or {folder}: "
        "make them with preprocess.sh of https://github.com/TalwalkarLab/leaf and put its data "
        "folder there, or set COTERIE_DATA or --data-dir to the folder that holds them"
    )


LEAF = Source(leaf, natural=True)
