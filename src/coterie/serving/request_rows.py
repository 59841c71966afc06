"""Rows of a request: JSON, CSV or Arrow in, cells or inputs of a model out.

JSON is taken strictly, as the OpenAPI document says: numbers for numbers, texts for texts, and null
for a missing cell.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from pyarrow import ipc

from coterie.core.errors import BadInput, format_value
from coterie.data.prepare.inputs import InputBuilder
from coterie.data.prepare.preparation import (
    FittedColumn,
    Preparation,
    array_columns_of,
    prepare_rows,
)
from coterie.data.read.columns import (
    BOOLEAN,
    CATEGORY,
    DATE,
    NUMBER,
    TEXT,
    Column,
    RowSource,
    is_blank,
    read_known_columns,
)
from coterie.data.read.table_files import EMPTY

JSON, CSV, ARROW = "application/json", "text/csv", "application/vnd.apache.arrow.stream"
UNSEEN = "\0unseen"
LARGEST_NUMBER = 1e15  # of a number in a request
EMPTY_TEXTS = frozenset(EMPTY)


class RequestRows(NamedTuple):
    """Rows of a request: cells that are prepared together with others, or inputs already."""

    cells: np.ndarray | None  # [n, columns]
    x: np.ndarray | None  # [n, ...]

    @property
    def height(self) -> int:
        """How many they are."""
        found = self.cells if self.cells is not None else self.x
        return 0 if found is None else len(found)


class RowReader:
    """Reads the rows of requests for one run."""

    def __init__(self, intake: InputBuilder) -> None:
        self.intake, kept = intake, intake.preparation
        self.kept: Preparation | None = kept
        self.columns: list[Column] = []
        if kept is not None and intake.is_table:
            self.columns = [
                Column(name=c.name, kind=c.kind, values=(*c.categories, UNSEEN), form=c.form)
                for c in kept.columns
            ]
            self._places = [{v: k for k, v in enumerate(c.categories)} for c in kept.columns]
        elif kept is not None and kept.columns:
            self.columns = array_columns_of(np.empty((1, *kept.shape)))
        alone = kept is not None and any(c.buckets or c.tokens for c in kept.columns)
        self.joint = bool(self.columns) and not alone  # rows of requests are prepared together

    def prepare(self, cells: np.ndarray, owners: Sequence[str]) -> np.ndarray:
        """Inputs from the cells of many requests."""
        assert self.kept is not None
        return prepare_rows(self.kept, cells, self.columns, owners if self.kept.clients else None)

    def read(self, kind: str, body: bytes, client: str, most: int) -> RequestRows:
        """The rows of a body."""
        if kind == JSON:
            return self._from_json(body, client, most)
        frame = _read_csv(body) if kind == CSV else _read_arrow(body)
        if frame.height == 0:
            raise BadInput("the body has no rows")
        _check_count(frame.height, most)
        if not self.intake.is_table and kind == CSV:
            frame = _cast_numbers(frame)
        return RequestRows(None, self.intake._replace(client=client).inputs(frame, "body"))

    def _from_json(self, body: bytes, client: str, most: int) -> RequestRows:
        rows = _parse_json(body)
        _check_count(len(rows), most)
        if not self.intake.is_table:
            return self._read_arrays(rows, client)
        for row in rows:
            if not isinstance(row, dict):
                raise BadInput("a row is an object with one value per column")
        assert self.kept is not None
        blanks = self.kept.missing_values
        table = {c.name: _read_column(rows, c, blanks) for c in self.kept.columns}
        if not self.joint:
            frame = pl.DataFrame(
                [
                    pl.Series(c.name, _as_texts(table[c.name], c), _dtype_of(c))
                    for c in self.kept.columns
                ]
            )
            return RequestRows(None, self.intake._replace(client=client).inputs(frame, "body"))
        cells = np.empty((len(rows), len(table)))
        for k, column in enumerate(self.kept.columns):
            cells[:, k] = self._encode_column(table[column.name], column, k)
        return RequestRows(cells, None)

    def _encode_column(self, values: list[Any], column: FittedColumn, k: int) -> Any:
        """One column as numbers."""
        if column.kind == CATEGORY:
            places, other = self._places[k], len(column.categories)
            return [
                math.nan if (name := _trim(v)) is None else places.get(name, other) for v in values
            ]
        if column.kind == DATE:
            frame = pl.DataFrame([pl.Series(column.name, values, pl.String)])
            known = Column(name=column.name, kind=DATE, form=column.form)
            return read_known_columns(frame, [known], RowSource(("body",), (len(values),))).x[:, 0]
        return [math.nan if v is None else float(v) for v in values]

    def _read_arrays(self, rows: list[Any], client: str) -> RequestRows:
        """Rows that are lists of numbers, or lists of lists."""
        shape = self.intake.row_shape
        flat = [list(_flatten(row, shape)) for row in rows]
        array = np.array(flat, np.float32)  # as in training
        if self.joint:
            return RequestRows(array.astype(np.float64), None)
        x = array.reshape(len(rows), *shape)
        return RequestRows(None, self.intake._replace(client=client).inputs(x, "body"))


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise BadInput(f"{count:,} rows in one request: send at most {most:,}")


def _parse_json(body: bytes) -> list[Any]:
    """The rows of a JSON body."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise BadInput("the body is no JSON") from None
    if not isinstance(found, dict) or set(found) != {"rows"} or not isinstance(found["rows"], list):
        raise BadInput('the body must be {"rows": [...]}')
    if not found["rows"]:
        raise BadInput("rows is empty: send at least one")
    return found["rows"]


def _read_column(
    rows: list[dict[str, Any]], column: FittedColumn, blanks: Collection[str]
) -> list[Any]:
    """The values of one column, each of its kind or one of those that count as missing."""
    name, kind = column.name, column.kind
    values = []
    for k, row in enumerate(rows):
        if name not in row:
            raise BadInput(f"row {k + 1} has no column '{name}'")
        value = None if blanks and is_blank(row[name], blanks) else row[name]
        if value is not None and not _fits(value, kind):
            raise BadInput(f"column '{name}' is {format_value(value)} in row {k + 1}, not a {kind}")
        values.append(value)
    return values


def _fits(value: Any, kind: str) -> bool:
    """Whether a JSON value can be a cell of a kind."""
    if kind == BOOLEAN:
        return isinstance(value, bool)
    if kind == NUMBER:
        return _is_number(value)
    if kind in (DATE, TEXT):
        return isinstance(value, str)
    return isinstance(value, str | int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -LARGEST_NUMBER <= value <= LARGEST_NUMBER
    )


def _dtype_of(column: FittedColumn) -> Any:
    """The type of a column of a request that is prepared alone."""
    return {NUMBER: pl.Float64, BOOLEAN: pl.Boolean}.get(column.kind, pl.String)


def _as_texts(values: list[Any], column: FittedColumn) -> list[Any]:
    """Names that are numbers as text."""
    if column.kind not in (CATEGORY, TEXT):
        return values
    texts = [None if v is None else str(v) for v in values]
    try:
        "".join(t for t in texts if t).encode()
    except UnicodeEncodeError:
        raise BadInput(f"column '{column.name}' holds half a character") from None
    return texts


def _trim(value: Any) -> str | None:
    """A text as training read it."""
    text = "" if value is None else str(value).strip()
    return None if text in EMPTY_TEXTS else text


def _flatten(row: Any, shape: tuple[int, ...]) -> list[Any]:
    """The numbers of a row of the shape, in order; a flat row may stand for it."""
    size = math.prod(shape)
    if isinstance(row, list) and len(row) == size and all(_is_number(v) for v in row):
        return row
    return _flatten_nested(row, shape)


def _flatten_nested(row: Any, shape: tuple[int, ...]) -> list[Any]:
    """The numbers of lists in lists, in order."""
    if not isinstance(row, list) or len(row) != shape[0]:
        raise BadInput(f"a row must be a list of {' x '.join(map(str, shape))} numbers")
    if len(shape) > 1:
        return [v for part in row for v in _flatten_nested(part, shape[1:])]
    if not all(_is_number(v) for v in row):
        raise BadInput("a row must hold finite numbers")
    return row


def _read_csv(body: bytes) -> pl.DataFrame:
    try:
        return pl.read_csv(io.BytesIO(body), infer_schema=False, raise_if_empty=False)
    except Exception as problem:  # polars raises many kinds; the client needs one line
        raise BadInput(f"the body is no CSV: {_first_line(problem)}") from None


def _read_arrow(body: bytes) -> pl.DataFrame:
    try:
        with ipc.open_stream(pa.BufferReader(body)) as stream:
            table = stream.read_all()
        table.validate(full=True)
        return pl.DataFrame(pl.from_arrow(table))
    except Exception as problem:
        raise BadInput(f"the body is no Arrow stream: {_first_line(problem)}") from None


def _first_line(problem: Exception) -> str:
    return (str(problem) or type(problem).__name__).splitlines()[0][:200]


def _cast_numbers(frame: pl.DataFrame) -> pl.DataFrame:
    try:
        return frame.cast(pl.Float64)
    except pl.exceptions.PolarsError as problem:
        raise BadInput(f"rows are arrays of numbers here: {_first_line(problem)}") from None
