"""Partitions that somebody has published: files that list row numbers by client and part.

Read are .npz (arrays `train0`, `test0`, ... or one array per client), .json (of clients, of parts,
or lists in the order of clients) and .csv (columns client, row and part). Rows count from 0. A file
that names no parts says who holds which rows, and these are cut as usual.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from coterie.core.errors import BadInput, format_value
from coterie.core.files import check_regular_file, expand_home, path_exists, read_text
from coterie.data.dataset import PUBLISHED_PARTS
from coterie.data.read.archives import data_folder
from coterie.data.read.file_rows import natural_key_of

SUFFIXES = (".npz", ".json", ".csv")
PART_AND_CLIENT = re.compile(rf"({'|'.join(PUBLISHED_PARTS)})[_-]?(.+)")
FORMS = (
    'arrays train0, test0, ... (.npz), {"0": {"train": [...], "test": [...]}, ...} (.json) or '
    "columns client, part, row (.csv)"
)


class ListedRows(NamedTuple):
    """Some rows of one client."""

    client: str
    part: str  # one of PUBLISHED_PARTS; "": the file names none
    rows: np.ndarray


class RowOwners(NamedTuple):
    """Whose every row of a data set is."""

    clients: list[str]  # in natural order of their names
    owner: np.ndarray  # [n] places in clients; -1: nobody's
    part: np.ndarray | None  # [n] places in PUBLISHED_PARTS; None: the file names no parts


def is_index_file(split: object) -> bool:
    """Whether a split is a file that lists rows rather than the name of a rule."""
    return isinstance(split, str) and split.lower().endswith(SUFFIXES)


def find_index_file(split: str, folder: str | Path | None = None) -> Path:
    """An index file by its path, or by its path in the folder of data sets."""
    path = expand_home(split)
    if path_exists(path) or path.is_absolute():
        return path
    return data_folder(None if folder is None else Path(folder)) / split


def read_row_owners(
    split: str, rows: int, data: str, folder: str | Path | None = None
) -> RowOwners:
    """Whose each of so many rows is, by an index file."""
    path = find_index_file(split, folder)
    if not path_exists(path):
        raise BadInput(
            f"there is no index file {split}, nor {path}; give its path, or a split's name"
        )
    listed = list(READERS[path.suffix.lower()](path))
    named = {one.part for one in listed}
    if not listed:
        raise BadInput(f"{path}: it lists no rows; give {FORMS}")
    if "" in named and len(named) > 1:
        raise BadInput(f"{path}: some rows have a part and some have none; give all of them one")
    _check_rows(path, listed, rows, data)
    clients = sorted({one.client for one in listed}, key=natural_key_of)
    owner, part = np.full(rows, -1), np.full(rows, -1)
    for one in listed:
        owner[one.rows] = clients.index(one.client)
        part[one.rows] = PUBLISHED_PARTS.index(one.part) if one.part else -1
    if "" in named:
        return RowOwners(clients, owner, None)
    for option in ("train", "test"):
        held = {one.client for one in listed if one.part == option and len(one.rows)}
        lacking = [name for name in clients if name not in held]
        if lacking:
            raise BadInput(
                f"{path}: client '{lacking[0]}' has no {option} rows; every client needs train and "
                "test rows: add them, or leave the client out"
            )
    return RowOwners(clients, owner, part)


def _check_rows(path: Path, listed: list[ListedRows], rows: int, data: str) -> None:
    """Refuse rows that the data do not have, and rows that are listed twice."""
    every = np.concatenate([one.rows for one in listed])
    outside = np.flatnonzero((every < 0) | (every >= rows))
    if len(outside):
        ends = np.cumsum([len(one.rows) for one in listed])
        one = listed[int(np.searchsorted(ends, outside[0], side="right"))]
        raise BadInput(
            f"{path}: client '{one.client}' lists row {every[outside[0]]:,}, but '{data}' has "
            f"{rows:,} rows: give 0 to {rows - 1:,}"
        )
    values, counts = np.unique(every, return_counts=True)
    if (counts == 1).all():
        return
    row = int(values[counts > 1][0])
    holders = [one for one in listed for _ in range(int((one.rows == row).sum()))]
    first, second = (f"{one.part or 'row'} of client '{one.client}'" for one in holders[:2])
    raise BadInput(
        f"{path}: row {row:,} is listed twice, as {first} and as {second}; a row has one place"
    )


def _to_rows(values: Any, path: Path, what: str) -> np.ndarray:
    """Row numbers as int64."""
    try:
        found = np.asarray(values if len(values) else np.zeros(0, np.int64))
    except (TypeError, ValueError):  # no list, or lists of unequal length
        found = np.zeros(1, object)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise BadInput(f"{path}: {what} is no list of whole row numbers; give {FORMS}")
    return found.astype(np.int64)


def _read_npz(path: Path) -> Iterator[ListedRows]:
    try:
        with np.load(check_regular_file(path)) as store:
            held = {key: store[key] for key in store.files}
    except Exception as error:  # a damaged zip raises many kinds; the user needs one line
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BadInput(f"{path}: this is no readable .npz file ({reason})") from None
    names = {key: PART_AND_CLIENT.fullmatch(key) for key in held}
    in_parts = all(names.values())
    for key, values in held.items():
        match = names[key]
        part, client = match.groups() if in_parts and match else ("", key)
        yield ListedRows(client, part, _to_rows(values, path, f"array '{key}'"))


def _read_json(path: Path) -> Iterator[ListedRows]:
    try:
        found = json.loads(read_text(path))
    except BadInput:
        raise
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: this is no JSON ({error})") from None
    table = _to_table(found)
    if table is None:
        raise BadInput(f"{path}: it lists no rows by client; give {FORMS}")
    if set(table) <= set(PUBLISHED_PARTS):  # part by part
        pairs = [(part, _to_table(rest) or {}) for part, rest in table.items()]
        table = {}
        for part, rest in pairs:
            for client, rows in rest.items():
                table.setdefault(client, {})[part] = rows
    for client, held in table.items():
        parts = held if isinstance(held, dict) else {"": held}
        for part, rows in parts.items():
            _check_part(part, f"{path}: client '{client}'")
            yield ListedRows(client, part, _to_rows(rows, path, f"{part} of client '{client}'"))


def _to_table(found: object) -> dict[str, Any] | None:
    """{client or part: what it holds}; a list is in the order of clients."""
    if isinstance(found, list):
        return {str(k): rows for k, rows in enumerate(found)}
    return dict(found) if isinstance(found, Mapping) and found else None


def _read_csv(path: Path) -> Iterator[ListedRows]:
    try:
        frame = pl.read_csv(path, schema_overrides={"client": pl.String, "part": pl.String})
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{path}: this is no readable .csv file ({reason})") from None
    for column in ("client", "row"):
        if column not in frame.columns:
            raise BadInput(f"{path}: there is no column '{column}'; give client, row and part")
    if frame["row"].dtype != pl.Int64 or frame["row"].null_count():
        raise BadInput(f"{path}: column 'row' holds no whole numbers; give rows counted from 0")
    names = ["client", "part"] if "part" in frame.columns else ["client"]
    for (client, *part), some in frame.group_by(names, maintain_order=True):
        if part:
            _check_part(part[0], f"{path}: client '{client}'")
        yield ListedRows(str(client), str(part[0]) if part else "", some["row"].to_numpy())


def _check_part(part: object, place: str) -> None:
    """Refuse a part that nobody knows."""
    if part and part not in PUBLISHED_PARTS:
        raise BadInput(
            f"{place} has rows in part {format_value(part)}; a part is {', '.join(PUBLISHED_PARTS)}"
        )


READERS = {".npz": _read_npz, ".json": _read_json, ".csv": _read_csv}
