"""The rows of a site as its client in the federation, and what the server knows of them instead:
how many there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from coterie.core.errors import BadInput
from coterie.core.rng import stream
from coterie.data.arrays import digest_of
from coterie.data.dataset import Public
from coterie.data.federation import PARTS, Federation
from coterie.data.partition.cuts import cut_points, cut_rows, half_of
from coterie.data.prepare.preparation import FittedColumn, Preparation
from coterie.data.read.columns import NUMBER, RowSource
from coterie.data.read.user_data import SUFFIXES, parse_list, read_plain_file
from coterie.data.read.user_table import ColumnRoles
from coterie.data.target import Label, Target, check_label
from coterie.deploy.config_files import DataShape

CLIENT = "client"  # a column that is not a feature, as in a folder of one file per client
Counts = Mapping[str, Sequence[int]]  # {part: rows of each client}


class SiteRows(NamedTuple):
    """All rows of one site, labels as the file writes them."""

    place: str
    x: torch.Tensor  # [n, ...] as read: float64 of a table, else float32
    y: np.ndarray  # [n] numbers or text, or [n, labels] of 0 and 1
    columns: str  # a digest of the feature columns and their order
    names: tuple[str, ...] = ()  # of the feature columns of a table
    labels: tuple[str, ...] = ()  # the label columns of a table


def read_rows(path: Path, label: str, features: str = "") -> SiteRows:
    """The rows of a file; pixels are brought to [0, 1]."""
    if not path.is_file() or path.suffix not in SUFFIXES:
        raise BadInput(
            f"{path}: there is no such file of kind {', '.join(SUFFIXES)}: give the site's data "
            "with --data"
        )
    piece = read_plain_file(
        path, ColumnRoles(client="", label=label, features=parse_list(features), ignore=CLIENT)
    )
    x = piece.x.astype(np.float32) / 255 if piece.x.dtype == np.uint8 else piece.x
    columns = hashlib.blake2b("\x1f".join(piece.columns or []).encode(), digest_size=8).hexdigest()
    return SiteRows(
        place=str(path),
        x=torch.from_numpy(np.ascontiguousarray(x)),
        y=piece.y,
        columns=columns,
        names=tuple(piece.columns or ()),
        labels=piece.targets,
    )


def read_public(path: Path, label: str) -> Public:
    """Rows that everyone may see; their labels are not used."""
    x = read_rows(path, label).x.float()
    return Public(path.stem, x, None, digest_of(x.numpy()))


def count_parts(rows: int, shape: DataShape) -> dict[str, int]:
    """How many of a site's rows go to which part."""
    first, second = cut_points(rows, shape.validation, shape.test)
    fit = half_of(second - first)
    return {
        "train": first,
        "validation": fit,
        "select": second - first - fit,
        "test": rows - second,
    }


def check_rows(rows: SiteRows, shape: DataShape) -> None:
    """Refuse rows that are not what the deployment works on."""
    have, want = list(rows.x.shape[1:]), list(shape.input_shape)
    if have != want:
        raise BadInput(
            f"{rows.place} has rows of shape {have}, but this deployment works on {want}: choose "
            "the columns with features"
        )
    for part, share in (("train", 1.0), ("validation", shape.validation), ("test", shape.test)):
        if share > 0 and count_parts(len(rows.y), shape)[part] == 0:
            raise BadInput(
                f"{rows.place} has {len(rows.y)} rows, none of them in its {part} part: give more "
                "rows"
            )
    learning_targets(rows, shape)


def learning_targets(rows: SiteRows, shape: DataShape) -> torch.Tensor:
    """What is learnt of every row: its class, its number as written (float64), or its labels."""
    label = Label(rows.labels, None if rows.y.dtype.kind in "UO" else rows.y, bool(rows.labels))
    place = RowSource((rows.place,), (len(rows.y),))
    several = rows.y.ndim == 2
    if several or shape.learnt.several:
        if not several or rows.labels != tuple(shape.labels):
            raise BadInput(
                f"{rows.place} has the label {', '.join(rows.labels) or 'y'}, but this deployment "
                f"learns {', '.join(shape.labels) or shape.task}: name its columns with label in "
                "site.toml"
            )
        return torch.from_numpy(rows.y.astype(np.float32))
    check_label(label, shape.task, shape.classes, place, rows.place)
    if shape.learnt.is_number:
        return torch.from_numpy(rows.y.astype(np.float64))
    return _number_classes(rows, shape)


def _number_classes(rows: SiteRows, shape: DataShape) -> torch.Tensor:
    """The class of every row, numbered as the deployment does."""
    known = list(shape.labels) or [str(k) for k in range(shape.classes)]
    values, inverse = np.unique(rows.y.astype(str), return_inverse=True)
    strange = [v for v in values if v not in known]
    if strange:
        shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        raise BadInput(
            f"{rows.place} has the label '{strange[0]}', which this deployment does not know: its "
            f"classes are {shown}"
        )
    return torch.tensor([known.index(v) for v in values])[torch.from_numpy(inverse.reshape(-1))]


def site_federation(
    rows: SiteRows, shape: DataShape, name: str, number: int, clients: int, public: Public | None
) -> Federation:
    """The federation as one site sees it: everybody has a number, only this one has rows.

    The rows are cut as in a simulation over a folder with a file for each client, so both hold the
    same parts.
    """
    check_rows(rows, shape)
    none, y = np.zeros(0, np.int64), learning_targets(rows, shape)
    pieces = cut_rows(
        np.arange(len(rows.y)),
        rows.y,
        "shuffle",
        shape.validation,
        shape.test,
        stream(shape.seed, "parts", number),
    )
    fit = half_of(len(pieces[1]))
    cut = (pieces[0], pieces[1][:fit], pieces[1][fit:], pieces[2])
    train, validation, select, test = (
        [part if i == number else none for i in range(clients)] for part in cut
    )
    names = [name if i == number else "" for i in range(clients)]
    return Federation(
        "federation",
        rows.x if shape.scale == "standard" else rows.x.to(torch.get_default_dtype()),
        y,
        shape.classes,
        train,
        validation,
        test,
        np.zeros(clients, np.int64),
        names,
        public,
        labels=_class_names(shape),
        preparation=_build_preparation(rows, shape, cut[0]),
        select=select,
    )


def _class_names(shape: DataShape) -> list[str] | None:
    return list(shape.labels) if shape.classes and shape.labels else None


def _build_preparation(rows: SiteRows, shape: DataShape, train: np.ndarray) -> Preparation:
    """How cells become inputs, before it is known how they are scaled.

    A cell that is missing in later rows becomes the median of this site's own training rows.
    """
    target = Target(shape.task, shape.columns or rows.labels)
    if not rows.names:
        return Preparation(scale=shape.scale, target=target)
    middle_of = np.median(rows.x.numpy()[train], axis=0)
    columns = tuple(
        FittedColumn(name, NUMBER, fill=float(fill))
        for name, fill in zip(rows.names, middle_of, strict=True)
    )
    return Preparation(scale=shape.scale, columns=columns, target=target)


def server_federation(
    names: Sequence[str], rows: Counts, shape: DataShape, public: Public | None
) -> Federation:
    """The federation as the server sees it: how many rows every site has, and none of them."""
    # no memory is taken: how many there are is what a site says of itself
    train, validation, select, test = (
        [np.broadcast_to(np.int64(0), n) for n in rows[part]] for part in PARTS
    )
    groups = np.zeros(len(names), np.int64)
    x = torch.zeros((0, *shape.input_shape))
    y = torch.zeros(0, dtype=torch.int64 if shape.classes else torch.float32)
    if shape.columns:
        y = torch.zeros((0, len(shape.columns)))
    return Federation(
        name="federation",
        x=x,
        y=y,
        classes=shape.classes,
        train=train,
        validation=validation,
        test=test,
        groups=groups,
        names=list(names),
        public=public,
        labels=_class_names(shape),
        preparation=Preparation(scale=shape.scale, target=Target(shape.task, shape.columns)),
        select=select,
    )
