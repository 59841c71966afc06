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
from coterie.data.client_rows import ClientRows
from coterie.data.dataset import Public
from coterie.data.federation import PARTS, Federation
from coterie.data.partition.copies import find_copies
from coterie.data.partition.cuts import Shares, cut_at_points, halve_held
from coterie.data.prepare.preparation import FittedColumn, Preparation
from coterie.data.read.columns import CATEGORY, NUMBER, Column, RowSource, read_known_columns
from coterie.data.read.table_files import open_table
from coterie.data.read.user_data import SUFFIXES, parse_list, read_plain_file
from coterie.data.read.user_table import ColumnRoles, parse_table
from coterie.data.target import Label, Target, check_label
from coterie.deploy.config_files import DataShape
from coterie.deploy.disclosure import Unfit
from coterie.deploy.table_columns import CLIENT, join_books

Counts = Mapping[str, Sequence[int]]  # {part: rows of each client}


class SiteRows(NamedTuple):
    """All rows of one site, labels as the file writes them."""

    place: str
    x: torch.Tensor  # [n, ...] as read: float64 of a table, else float32
    y: np.ndarray  # [n] numbers or text, or [n, labels] of 0 and 1
    columns: str  # a digest of the feature columns and their order
    names: tuple[str, ...] = ()  # of the feature columns of a table
    labels: tuple[str, ...] = ()  # the label columns of a table
    books: tuple[Column, ...] = ()  # of a declared table: its columns and their texts


class SiteFile:
    """The file of a site, read as the experiment of a message says; what was read is kept."""

    def __init__(self, path: Path, label: str, features: str = "") -> None:
        self.path, self._label, self._features = path, label, features
        _check_file(path)
        self.digest = self._digest_file()
        self._read: tuple[tuple[str, ...], SiteRows] | None = None

    def _digest_file(self) -> str:
        """A short name of all rows, by which a change of them is noticed."""
        digest = hashlib.blake2b(f"{self._label}\x1f{self._features}".encode(), digest_size=16)
        with self.path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
        return digest.hexdigest()

    def rows(self, shape: DataShape) -> SiteRows:
        """Its rows; refused where they are others than when the site was started."""
        if self._read is None or self._read[0] != shape.table:
            if self._digest_file() != self.digest:
                raise Unfit(
                    f"{self.path} was changed since this site was started: start it again",
                    "its file was changed since it was started: start the site again",
                )
            self._read = (shape.table, read_rows(self.path, self._label, self._features, shape))
        return self._read[1]


def read_rows(
    path: Path, label: str, features: str = "", shape: DataShape | None = None
) -> SiteRows:
    """The rows of a file; pixels are brought to [0, 1].

    shape: of the deployment; the cells of a table that it declares may be texts, dates or missing.
    """
    _check_file(path)
    if shape is not None and shape.table:
        return _read_table_rows(path, label, parse_list(features), shape.table_columns)
    piece = read_plain_file(
        path, ColumnRoles(client="", label=label, features=parse_list(features), ignore=CLIENT)
    )
    x = piece.x.astype(np.float32) / 255 if piece.x.dtype == np.uint8 else piece.x
    return SiteRows(
        place=str(path),
        x=torch.from_numpy(np.ascontiguousarray(x)),
        y=piece.y,
        columns=_digest_names(piece.columns or []),
        names=tuple(piece.columns or ()),
        labels=piece.targets,
    )


def _check_file(path: Path) -> None:
    if not path.is_file() or path.suffix not in SUFFIXES:
        raise BadInput(
            f"{path}: there is no such file of kind {', '.join(SUFFIXES)}: give the site's data "
            "with --data"
        )


def _digest_names(names: Sequence[str]) -> str:
    return hashlib.blake2b("\x1f".join(names).encode(), digest_size=8).hexdigest()


def _read_table_rows(
    path: Path, label: str, features: Sequence[str], columns: Sequence[Column]
) -> SiteRows:
    """The declared columns of a table, and its label; its other columns are not read."""
    if path.suffix == ".npz":
        raise Unfit(
            f"{path} holds arrays, but this deployment works on a table: give a CSV with its "
            f"columns, {', '.join(c.name for c in columns)}",
            "its file holds arrays, but this deployment works on a table",
        )
    opened = open_table(path, [CLIENT, *_written_columns(columns)], "")
    _check_columns(path, opened.frame.columns, features, columns)
    frame = opened.frame
    piece = parse_table(str(path), opened, ColumnRoles("", label, [], ignore=CLIENT))
    read = read_known_columns(frame, columns, RowSource((str(path),), (frame.height,)))
    return SiteRows(
        place=str(path),
        x=torch.from_numpy(np.ascontiguousarray(read.x)),
        y=piece.y,
        columns=_digest_names([c.name for c in columns]),
        names=tuple(c.name for c in columns),
        labels=piece.targets,
        books=tuple(read.columns),
    )


def _written_columns(columns: Sequence[Column]) -> list[str]:
    """Those whose cells are read as they are written."""
    return [c.name for c in columns if c.kind == CATEGORY or c.form]


def _check_columns(
    path: Path, have: Sequence[str], features: Sequence[str], columns: Sequence[Column]
) -> None:
    """Refuse a file without a declared column, and features that say otherwise."""
    # those of a list have one source: that of 'signal[3]' is 'signal'
    wanted = [c.name if c.name in have else c.name.rpartition("[")[0] or c.name for c in columns]
    lacking = [name for name in wanted if name not in have]
    if lacking:
        what = f"has no column '{lacking[0]}', which this deployment works on"
        raise Unfit(f"{path} {what}: it has {', '.join(have[:20])}", f"its file {what}")
    if features and set(features) != set(wanted):
        odd = sorted(set(features) ^ set(wanted))[0]
        what = f"features in site.toml and the table of this deployment differ in '{odd}'"
        raise Unfit(f"{path}: {what}: leave features out", f"{what}")


def read_public(path: Path, label: str, shape: DataShape | None = None) -> SiteRows:
    """Rows that everyone may see; their labels are not used, and those of a table need none."""
    if shape is None or not shape.table:
        rows = read_rows(path, label)
        return rows._replace(x=rows.x.float())
    columns = shape.table_columns
    frame = open_table(path, _written_columns(columns), "").frame
    _check_columns(path, frame.columns, (), columns)
    read = read_known_columns(frame, columns, RowSource((str(path),), (frame.height,)))
    return SiteRows(
        place=str(path),
        x=torch.from_numpy(np.ascontiguousarray(read.x)),
        y=np.zeros(frame.height, np.int64),
        columns=_digest_names([c.name for c in columns]),
        books=tuple(read.columns),
    )


def to_public(rows: SiteRows) -> Public:
    """Rows as public ones, with a checksum that all sides compare."""
    texts = "\x1f".join(text for column in rows.books for text in (column.name, *column.values))
    extra = [np.frombuffer(texts.encode(), np.uint8)] if rows.books else []
    return Public(Path(rows.place).stem, rows.x, None, digest_of(rows.x.numpy(), *extra))


def attach_public(federation: Federation, rows: SiteRows | None) -> Federation:
    """The same federation with public rows; those of a table come under its code books."""
    if rows is None:
        return federation
    public, kept = to_public(rows), federation.preparation
    if not rows.books or kept is None:
        return federation._replace(public=public)
    mine = [Column(c.name, c.kind, c.categories, form=c.form) for c in kept.columns]
    (x, shown), books = join_books([federation.x.numpy(), rows.x.numpy()], [mine, rows.books])
    return federation._replace(
        x=torch.from_numpy(x),
        public=public._replace(x=torch.from_numpy(shown)),
        preparation=kept._replace(columns=_raw_columns(books)),
    )


def join_sites(own: Sequence[Federation]) -> list[Federation]:
    """Federations of one site's table each, their cells under common code books."""
    kept = [f.preparation for f in own if f.preparation is not None]
    books = [[Column(c.name, c.kind, c.categories, form=c.form) for c in k.columns] for k in kept]
    cells, joined = join_books([f.x.numpy() for f in own], books)
    columns = _raw_columns(joined)
    return [
        f._replace(x=torch.from_numpy(x), preparation=k._replace(columns=columns))
        for f, x, k in zip(own, cells, kept, strict=True)
    ]


def _raw_columns(books: Sequence[Column]) -> tuple[FittedColumn, ...]:
    """The columns of cells, and their code books, before it is known what they become."""
    return tuple(FittedColumn(c.name, c.kind, form=c.form, categories=c.values) for c in books)


def count_parts(rows: SiteRows, shape: DataShape) -> dict[str, int]:
    """How many of a site's rows go to which part."""
    cut = _cut(rows, shape, None)
    return dict(zip(PARTS, map(len, cut), strict=True))


def _cut(
    rows: SiteRows, shape: DataShape, rng: np.random.Generator | None
) -> tuple[np.ndarray, ...]:
    """The rows of PARTS, shuffled where there is a generator; those of a table that are equal stay
    in one part.
    """
    every, shares = (
        ClientRows.pack(None, np.array([len(rows.y)])),
        Shares(shape.validation, shape.test),
    )
    same = find_copies(rows.x.numpy(), rows.y).row if rows.names else None
    train, held, test = (
        part[0] for part in cut_at_points(every, shares, None if rng is None else [rng], same)
    )
    fit, select = halve_held(held, None if same is None else same[held])
    return train, fit, select, test


def check_rows(rows: SiteRows, shape: DataShape) -> None:
    """Refuse rows that are not what the deployment works on."""
    have, want = list(rows.x.shape[1:]), list(shape.input_shape)
    if have != want:  # never of a table
        what = (
            f"rows of shape {have}, but this deployment works on {want}: choose the columns with "
        )
        raise _unfit(rows, f"has {what}features")
    for part, share in (("train", 1.0), ("validation", shape.validation), ("test", shape.test)):
        if share > 0 and count_parts(rows, shape)[part] == 0:
            what = f"has {len(rows.y)} rows, none of them in its {part} part: give more rows"
            raise _unfit(rows, what)
    learning_targets(rows, shape)


def _unfit(rows: SiteRows, what: str) -> Unfit:
    """What is wrong with a site's rows: with the file's path for its operator, without for
    others.
    """
    return Unfit(f"{rows.place} {what}", f"its file {what}")


def learning_targets(rows: SiteRows, shape: DataShape) -> torch.Tensor:
    """What is learnt of every row: its class, its number as written (float64), or its labels."""
    label = Label(rows.labels, None if rows.y.dtype.kind in "UO" else rows.y, bool(rows.labels))
    place = RowSource((rows.place,), (len(rows.y),))
    learnt, several = shape.learnt, rows.y.ndim == 2
    if learnt.several or not learnt.takes(max(1, len(rows.labels))):
        if not several or rows.labels != tuple(shape.labels):
            raise _unfit(
                rows,
                f"has the label {', '.join(rows.labels) or 'y'}, but this deployment learns "
                f"{', '.join(shape.labels) or shape.task}: name its columns with label in "
                "site.toml",
            )
        check_label(label, shape.task, shape.classes, place, rows.place)
        return torch.from_numpy(rows.y.astype(np.float32))
    try:
        check_label(label, shape.task, shape.classes, place, rows.place)
    except BadInput as problem:  # it names the cell
        shared = f"its label is not of task = {shape.task}: its own log names the row"
        raise Unfit(str(problem), shared) from None
    if learnt.is_number and not learnt.has_units:
        return torch.from_numpy(Target(shape.task).scale(rows.y.astype(np.float64)))
    if learnt.is_number:
        return torch.from_numpy(rows.y.astype(np.float64))
    return _number_classes(rows, shape)


def _number_classes(rows: SiteRows, shape: DataShape) -> torch.Tensor:
    """The class of every row, numbered as the deployment does."""
    known = list(shape.labels) or [str(k) for k in range(shape.classes)]
    values, inverse = np.unique(rows.y.astype(str), return_inverse=True)
    strange = [v for v in values if v not in known]
    if strange:
        shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        what = f"which this deployment does not know: its classes are {shown}"
        raise Unfit(
            f"{rows.place} has the label '{strange[0]}', {what}", f"its file has a label {what}"
        )
    return torch.tensor([known.index(v) for v in values])[torch.from_numpy(inverse.reshape(-1))]


def site_federation(
    rows: SiteRows,
    shape: DataShape,
    name: str,
    number: int,
    clients: int,
    public: SiteRows | None,
) -> Federation:
    """The federation as one site sees it: everybody has a number, only this one has rows.

    The rows are cut as in a simulation over a folder with a file for each client, so both hold the
    same parts.
    """
    check_rows(rows, shape)
    none, y = np.zeros(0, np.int64), learning_targets(rows, shape)
    cut = _cut(rows, shape, stream(shape.seed, "parts", number))
    train, validation, select, test = (
        [part if i == number else none for i in range(clients)] for part in cut
    )
    names = [name if i == number else "" for i in range(clients)]
    exact = shape.scale == "standard" or shape.table
    federation = Federation(
        "federation",
        rows.x if exact else rows.x.to(torch.get_default_dtype()),
        y,
        shape.classes,
        train,
        validation,
        test,
        np.zeros(clients, np.int64),
        names,
        labels=_class_names(shape),
        preparation=_build_preparation(rows, shape, cut[0]),
        select=select,
    )
    return attach_public(federation, public)


def _class_names(shape: DataShape) -> list[str] | None:
    return list(shape.labels) if shape.classes and shape.labels else None


def _build_preparation(rows: SiteRows, shape: DataShape, train: np.ndarray) -> Preparation:
    """How cells become inputs, before it is known how they are scaled.

    A cell that is missing in later rows becomes the median of this site's own training rows.
    """
    target = Target(shape.task, shape.columns or rows.labels)
    if rows.books:
        return Preparation(scale=shape.scale, columns=_raw_columns(rows.books), target=target)
    if not rows.names:
        return Preparation(scale=shape.scale, target=target)
    middle_of = np.median(rows.x.numpy()[train], axis=0)
    columns = tuple(
        FittedColumn(name, NUMBER, fill=float(fill))
        for name, fill in zip(rows.names, middle_of, strict=True)
    )
    return Preparation(scale=shape.scale, columns=columns, target=target)


def server_federation(
    names: Sequence[str], rows: Counts, shape: DataShape, public: SiteRows | None
) -> Federation:
    """The federation as the server sees it: how many rows every site has, and none of them."""
    # no memory is taken: how many there are is what a site says of itself
    train, validation, select, test = (
        [np.broadcast_to(np.int64(0), n) for n in rows[part]] for part in PARTS
    )
    groups = np.zeros(len(names), np.int64)
    x = torch.zeros((0, *shape.input_shape), dtype=torch.float64 if shape.table else None)
    y = torch.zeros(0, dtype=torch.int64 if shape.classes else torch.float32)
    if shape.columns:
        y = torch.zeros((0, len(shape.columns)))
    columns = _raw_columns(shape.table_columns)
    federation = Federation(
        name="federation",
        x=x,
        y=y,
        classes=shape.classes,
        train=train,
        validation=validation,
        test=test,
        groups=groups,
        names=list(names),
        labels=_class_names(shape),
        preparation=Preparation(
            scale=shape.scale, columns=columns, target=Target(shape.task, shape.columns)
        ),
        select=select,
    )
    return attach_public(federation, public)
