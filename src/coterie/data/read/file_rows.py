"""Pieces of a user's own data: what each file holds, checked, and all of them joined."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from coterie.core.errors import BadInput, format_value
from coterie.data.dataset import PUBLISHED_PARTS, Dataset
from coterie.data.messages import warn
from coterie.data.read.columns import (
    TEXT,
    Column,
    ParsedColumns,
    RowSource,
    check_no_missing,
    read_columns,
)
from coterie.data.read.number_forms import describe_forms, parse_form
from coterie.data.read.tokenizer import DEFAULT_OPTIONS, TokenizerOptions
from coterie.data.target import Label

SHOWN = 5  # names in a line


class UserData(NamedTuple):
    """A user's own data, with the names that stand behind their numbers."""

    data: Dataset  # the cells of a table are as `columns` says, not yet inputs of a model
    clients: list[str]  # the name of each number in data.users; empty without natural clients
    labels: list[str]  # the name of each class
    columns: list[Column] | None = None  # of a table
    cut: pl.Series | None = None  # [n] what rows are cut by, in time or in groups
    place: RowSource | None = None  # the files that the rows came from
    one_hot: int = 20  # categories with a column of their own
    remarks: tuple[str, ...] = ()  # how the files had to be read
    label: Label | None = None  # as written; None: the numbers in data.y say all
    texts: TokenizerOptions = DEFAULT_OPTIONS  # how a text column becomes numbers
    missing_values: tuple[str, ...] = ()  # texts that count as a blank cell

    @property
    def is_text(self) -> bool:
        """Whether rows are texts, which are read word by word."""
        return bool(self.columns) and self.columns is not None and self.columns[0].kind == TEXT


class FileRows(NamedTuple):
    """What one file holds; labels and clients are still as written there."""

    place: str
    x: np.ndarray  # [n, ...]
    y: np.ndarray  # [n] numbers or text; of several labels [n, labels] of 0 and 1
    clients: np.ndarray | None
    train: bool = True
    labels: list[str] | None = None  # names of the classes, where the file states them
    columns: list[str] | None = None  # the feature columns of a table
    frame: pl.DataFrame | None = None  # a table's cells as written; x has no columns then
    cut: pl.Series | None = None  # the column that rows are cut by
    remarks: Sequence[str] = ()  # how the file had to be read
    targets: tuple[str, ...] = ()  # the label columns of a table
    forms: tuple[str, ...] = ()  # how each spells numbers
    parts: np.ndarray | None = None  # [n] places in PUBLISHED_PARTS, where rows have parts
    kept: np.ndarray | None = None  # which rows of the file these are, [all] bool; None: all

    def keep(self, rows: np.ndarray) -> "FileRows":
        """The same without the rows that are False [n]."""
        owners, parts, frame, cut = self.clients, self.parts, self.frame, self.cut
        return self._replace(
            x=self.x[rows],
            y=self.y[rows],
            clients=None if owners is None else owners[rows],
            parts=None if parts is None else parts[rows],
            frame=None if frame is None else frame.filter(rows),
            cut=None if cut is None else cut.filter(pl.Series(rows)),
            kept=rows,
        )


def parse_parts(values: Sequence[object], place: str, what: str) -> np.ndarray:
    """Places in PUBLISHED_PARTS of the words that say in which part each row is."""
    known = {option: k for k, option in enumerate(PUBLISHED_PARTS)}
    for row, value in enumerate(values):
        if value not in known:
            raise BadInput(
                f"{place}: {what} is {format_value(value)} in row {row + 1:,}; a part is "
                f"{', '.join(PUBLISHED_PARTS)}"
            )
    return np.array([known[str(value)] for value in values])


def check_arrays(place: str, x: np.ndarray, y: np.ndarray, clients: np.ndarray | None) -> FileRows:
    """Arrays as a piece, if they fit together and hold numbers."""
    if x.ndim < 2 or len(x) == 0:
        raise BadInput(
            f"{place}: x has shape {list(x.shape)}; give at least one row and one feature, [n, ...]"
        )
    for key, array in (("y", y), ("clients", clients)):
        if array is not None and array.shape != (len(x),):
            raise BadInput(
                f"{place}: {key} has shape {list(array.shape)}, but x has {len(x):,} rows; "
                "give one each"
            )
    if x.dtype.kind not in "biuf":
        raise BadInput(f"{place}: x holds {x.dtype}, not numbers; convert it first")
    if x.dtype == np.uint8 and x.ndim in (
        3,
        4,
    ):  # images, with their channels last, first or left out
        last = x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] > 3
        x = x[:, None] if x.ndim == 3 else np.moveaxis(x, 3, 1) if last else x
    else:
        x = x.astype(np.float32, copy=False)
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            where = ", ".join(str(i) for i in bad[0][1:])
            value, row = x[tuple(bad[0])], bad[0][0] + 1
            raise BadInput(f"{place}: x is {value} in row {row:,}, column {where}; remove it")
    owners = None if clients is None else parse_names(clients, place, "clients").astype(str)
    return FileRows(place, x, parse_names(y, place, "y", fractions=True), owners)


def parse_names(values: np.ndarray, place: str, what: str, fractions: bool = False) -> np.ndarray:
    """Names as int64 or as text; numbers with a fraction are labels only, as float64."""
    if values.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            value, row = values[bad[0]], bad[0] + 1
            raise BadInput(
                f"{place}: {what} is {value} in row {row:,}; fill or remove the row (a class is "
                "whole or text, a number finite)"
            )
        odd = np.flatnonzero(values != np.floor(values))
        if len(odd) and fractions:
            return values.astype(np.float64)
        if len(odd):
            value, row = values[odd[0]], odd[0] + 1
            raise BadInput(f"{place}: {what} is {value} in row {row:,}; a class is whole or text")
    if values.dtype.kind in "biuf":
        large = np.flatnonzero(np.abs(values.astype(np.float64)) >= 2.0**63)
        if len(large):
            value, row = values[large[0]], large[0] + 1
            raise BadInput(
                f"{place}: {what} is {value} in row {row:,}; write so large ones as text"
            )
        return values.astype(np.int64)
    for row, value in enumerate(values if values.dtype.kind == "O" else ()):
        if value is None or value != value:
            raise BadInput(f"{place}: {what} is {value} in row {row + 1:,}; fill or remove the row")
    return values.astype(str)


def merge_files(
    name: str,
    pieces: list[FileRows],
    missing: str = "impute",
    categories: tuple[str, ...] = (),
    text: str = "",
    decimal: str = "",
) -> UserData:
    """One data set of all files; labels and clients get numbers in natural order of names."""
    first = pieces[0]
    sizes = [len(piece.y) for piece in pieces]
    place = _source_of(pieces)
    _check_shapes(pieces)
    y, labels, label = _merge_labels(pieces)
    users, clients = None, list[str]()
    if first.clients is not None:
        users, clients = _encode_names(
            [p.clients for p in pieces if p.clients is not None], None, first.place
        )
    columns = None
    if first.frame is None:
        x = first.x if len(pieces) == 1 else np.concatenate([piece.x for piece in pieces])
    else:
        x, columns = cells_of(pieces, missing, categories, text, decimal)
    train = np.repeat([piece.train for piece in pieces], sizes)
    in_parts = [piece.parts for piece in pieces if piece.parts is not None]
    parts = np.concatenate(in_parts) if in_parts else None
    train = train if parts is None else parts == 0
    data = Dataset(name, x, y, len(labels), train, users, parts=parts)
    remarks = tuple(dict.fromkeys(line for piece in pieces for line in piece.remarks))
    remarks += tuple(describe_forms(columns or ()))
    if place.kept is not None:
        lost = sum(place.sizes) - len(y)
        warn(f"{name}: {lost:,} of {sum(place.sizes):,} rows have no label: left out")
    return UserData(
        data=data,
        clients=clients,
        labels=labels,
        columns=columns,
        place=place,
        remarks=remarks,
        label=label,
    )


def _source_of(pieces: list[FileRows]) -> RowSource:
    """The files of all rows, and which rows of them are in use where some are left out."""
    masks = [np.full(len(p.y), True) if p.kept is None else p.kept for p in pieces]
    every = np.concatenate(masks)
    kept = None if every.all() else np.flatnonzero(every)
    return RowSource(tuple(p.place for p in pieces), tuple(len(m) for m in masks), kept=kept)


def _merge_labels(pieces: list[FileRows]) -> tuple[np.ndarray, list[str], Label]:
    """Labels as classes 0..K-1 and the name of each; where they cannot be classes, as numbers."""
    first, targets = pieces[0], [piece.y for piece in pieces]
    kinds = {y.dtype.kind for y in targets}
    if kinds <= {"i", "f"} and first.labels is None:
        numbers = np.concatenate(targets).astype(np.float64)
        forms = _common_forms(pieces)
        label = Label(first.targets, numbers, table=first.frame is not None, forms=forms)
        if numbers.ndim > 1 or "f" in kinds:
            return numbers.astype(np.float32), [], label
    else:
        label = Label(first.targets, None)
    y, names = _encode_names(targets, first.labels, first.place)
    return y, names, label


def _common_forms(pieces: list[FileRows]) -> tuple[str, ...]:
    """How the labels are written in all files; refused where their units differ."""
    first = pieces[0]
    for piece in pieces:
        for name, mine, theirs in zip(first.targets, first.forms, piece.forms, strict=False):
            units = [form.unit if (form := parse_form(text)) else "" for text in (mine, theirs)]
            if units[0] != units[1]:
                raise BadInput(
                    f"{piece.place}: column '{name}' is in '{units[1]}', but in {first.place} in "
                    f"'{units[0]}'; write one unit in all files"
                )
    return next((p.forms for p in pieces if any(p.forms)), first.forms)


def _check_shapes(pieces: list[FileRows]) -> None:
    """Refuse files whose rows are not alike."""
    first = pieces[0]
    for piece in pieces:
        have, want = (
            (len(p.columns or []),) if p.frame is not None else p.x.shape[1:]
            for p in (piece, first)
        )
        if have != want or (piece.frame is None) != (first.frame is None):
            raise BadInput(
                f"{piece.place}: a row has shape {list(have)}, but in {first.place} "
                f"{list(want)}; give every file the same columns"
            )


def cells_of(
    pieces: list[FileRows],
    missing: str,
    categories: tuple[str, ...] = (),
    text: str = "",
    decimal: str = "",
) -> ParsedColumns:
    """The cells of all files as numbers; what a text means is decided for all files together."""
    place = _source_of(pieces)
    frame = stack_frames([p.frame for p in pieces if p.frame is not None])
    read = read_columns(frame, categories, place, [text] if text else [], decimal)
    if missing == "refuse":
        check_no_missing(read, place)
    return read


def stack_frames(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Frames one below another; a column that is text in one of them is text in all."""
    if len(frames) == 1:
        return frames[0]
    text = [
        name
        for name in frames[0].columns
        if len(kinds := {frame[name].dtype for frame in frames}) > 1
        and not all(kind.is_numeric() for kind in kinds)
    ]
    return pl.concat(
        [frame.with_columns(pl.col(text).cast(pl.String)) if text else frame for frame in frames],
        how="vertical_relaxed",
    )


def _encode_names(
    pieces: list[np.ndarray], names: list[str] | None, place: str
) -> tuple[np.ndarray, list[str]]:
    """Numbers 0..K-1 for the values of all pieces, and the name of each number."""
    if names is not None and all(piece.dtype.kind == "i" for piece in pieces):
        numbers = np.concatenate(pieces)
        if numbers.min() < 0 or numbers.max() >= len(names):
            raise BadInput(
                f"{place}: labels {numbers.min()} to {numbers.max()}, "
                f"but {len(names)} classes are named; remove unlabelled rows"
            )
        return numbers, names
    if any(piece.dtype.kind != "i" for piece in pieces):
        pieces = [piece.astype(str) for piece in pieces]
    values, numbers = np.unique(np.concatenate(pieces), return_inverse=True)
    if values.dtype.kind == "i":
        return numbers.astype(np.int64), [str(v) for v in values]
    order = sorted(range(len(values)), key=lambda i: natural_key_of(str(values[i])))
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    return rank[numbers], [str(values[i]) for i in order]


def format_names(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def natural_key_of(text: str) -> list[Any]:
    """A key that sorts 'site2' before 'site10'."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]
