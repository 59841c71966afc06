"""A file of new rows, a piece at a time, so that it may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import ipc, parquet

from coterie.core.errors import BadInput
from coterie.core.files import check_regular_file
from coterie.data.read.table_files import (
    TABLE_SUFFIXES,
    TEXT_SUFFIXES,
    UNREADABLE,
    check_column_names,
    encoding_of,
    kind_of,
    open_table,
    read_first_lines,
    separator_of,
)

ROWS_PER_CHUNK = 50_000  # per piece
BYTES_PER_CHUNK = 2**24  # of a CSV per piece


class RowChunk(NamedTuple):
    """Some rows of a file."""

    rows: pl.DataFrame | np.ndarray
    before: int  # rows that came earlier
    done: float  # share of the file that is read with these


def read_chunks(path: Path, separator: str = "", wide: int = 1) -> Iterator[RowChunk]:
    """The rows of a file in order; wide: numbers per row, of which a piece holds few enough."""
    if not path.exists():
        raise BadInput(f"there is no file {path}: give the rows to predict")
    kind = kind_of(check_regular_file(path))
    if kind == ".npz":
        return _read_npz(path)
    if kind not in TABLE_SUFFIXES:
        known = ", ".join((*TABLE_SUFFIXES, ".npz"))
        raise BadInput(f"{path}: files of kind '{path.suffix}' are not read; give {known}")
    if path.stat().st_size == 0:
        raise BadInput(f"{path}: the file is empty; remove it or fill it")
    return _number_chunks(
        path, kind, separator, max(1, min(ROWS_PER_CHUNK, BYTES_PER_CHUNK // (8 * wide)))
    )


def _number_chunks(path: Path, kind: str, separator: str, rows: int) -> Iterator[RowChunk]:
    """Pieces with their place in the file; whatever cannot be read is reported in one line."""
    before = 0
    try:
        if kind in TEXT_SUFFIXES:
            source = _read_csv(path, kind, separator)
        elif kind == ".parquet":
            source = _read_parquet(path, rows)
        elif kind == ".arrow":
            source = _read_arrow(path)
        else:
            source = iter([(open_table(path, [], separator).frame, 1.0)])
        for frame, done in source:
            yield RowChunk(frame, before, done)
            before += frame.height
    except BadInput:
        raise
    except UNREADABLE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BadInput(
            f"{path}: this is no readable {kind} file ({reason}); write it again"
        ) from None


def _read_csv(path: Path, kind: str, separator: str) -> Iterator[tuple[pl.DataFrame, float]]:
    """A CSV with every cell as it is written; what each means, training has said."""
    encoding = encoding_of(path)
    lines = read_first_lines(path, encoding)
    found = separator or separator_of(lines, kind)
    size = path.stat().st_size
    names = next(iter(_read_header(lines, found)), [])
    check_column_names(str(path), names)
    with path.open("rb") as file:
        stream = pa.CompressedInputStream(file, "gzip") if kind.endswith(".gz") else file
        reader = arrow_csv.open_csv(
            stream,
            read_options=arrow_csv.ReadOptions(
                block_size=BYTES_PER_CHUNK,
                encoding="utf8" if encoding.startswith("utf-8") else encoding,
                use_threads=False,
            ),
            parse_options=arrow_csv.ParseOptions(delimiter=found, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                null_values=[""],
            ),
        )
        for batch in reader:
            frame = pl.DataFrame(pl.from_arrow(pa.Table.from_batches([batch])))
            frame = frame.rename({n: n.strip() for n in frame.columns})
            yield frame, min(1.0, file.tell() / size)


def _read_header(lines: list[str], separator: str) -> Iterator[list[str]]:
    """The names of the columns, as they are written."""
    if lines:
        head = pl.read_csv(lines[0].encode(), separator=separator, infer_schema=False)
        yield head.columns


def _read_parquet(path: Path, rows: int) -> Iterator[tuple[pl.DataFrame, float]]:
    with parquet.ParquetFile(path) as file:
        check_column_names(str(path), file.schema_arrow.names)
        total, seen = max(1, file.metadata.num_rows), 0
        for batch in file.iter_batches(rows):
            seen += len(batch)
            yield pl.DataFrame(pl.from_arrow(batch)), seen / total


def _read_arrow(path: Path) -> Iterator[tuple[pl.DataFrame, float]]:
    size = path.stat().st_size
    with pa.memory_map(str(path)) as source:
        reader: Any
        try:
            reader = ipc.open_stream(source)
        except pa.ArrowInvalid:
            reader = ipc.open_file(source)
            reader = [reader.get_batch(k) for k in range(reader.num_record_batches)]
        for batch in reader:
            yield pl.DataFrame(pl.from_arrow(batch)), min(1.0, source.tell() / size)


def _read_npz(path: Path) -> Iterator[RowChunk]:
    """The array x of an .npz file."""
    try:
        with np.load(path) as store:
            x = store["x"]
    except Exception as error:  # a damaged zip raises many kinds; the user needs one line
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BadInput(f"{path}: there is no readable array 'x' in it ({reason})") from None
    for start in range(0, len(x), ROWS_PER_CHUNK):
        yield RowChunk(
            x[start : start + ROWS_PER_CHUNK], start, min(1.0, (start + ROWS_PER_CHUNK) / len(x))
        )
