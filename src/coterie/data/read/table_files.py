"""Table files as frames: which kinds are read, and how a CSV's separator and encoding are found."""

import codecs
import csv
import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import polars as pl
import pyarrow as pa
from pyarrow import ipc, parquet

from coterie.core.errors import BadInput, format_value

TEXT_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
TABLE_SUFFIXES = (*TEXT_SUFFIXES, ".parquet", ".arrow", ".xlsx")
SEPARATORS = (",", ";", "\t", "|")
# cells that mean "nothing was noted"; "none" and "-" are not here, as they may be answers
EMPTY = ["", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "?"]
ISO_DATE = r"^\d{4}-\d{2}-\d{2}([ T].*)?$"  # dates whose form needs no name
SNIFFED_LINES = 50  # lines that tell the separator
# what readers raise for files that are damaged, or of another kind than their name says
UNREADABLE = (
    pa.ArrowException,
    pl.exceptions.PolarsError,
    OSError,
    ValueError,
    EOFError,
    KeyError,
    zlib.error,
    zipfile.BadZipFile,
)
CHUNK = 2**20  # bytes decoded at once
FIRST_ROWS = 10_000  # of a CSV, which tell the types of its columns


class OpenedTable(NamedTuple):
    """A table as it is, and what had to be found out to read it."""

    frame: pl.DataFrame
    labels: Callable[[str], list[str] | None]  # the class names stated for a column
    remarks: list[str]  # what was found out about the file


def kind_of(path: Path) -> str:
    """The suffix of a file, with both parts of .csv.gz."""
    name = path.name.lower()
    return next((s for s in (".csv.gz", ".tsv.gz") if name.endswith(s)), path.suffix.lower())


def stem_of(path: Path) -> str:
    """The name of a file without its suffix."""
    return path.name[: len(path.name) - len(kind_of(path))]


def open_table(path: Path, text: list[str], separator: str) -> OpenedTable:
    """The file as a frame; the columns `text` of a CSV are kept as written (ids such as 007)."""
    if separator and (len(separator) > 1 or not separator.isascii() or separator in '\r\n"'):
        raise BadInput(f"separator = {format_value(separator)}: give one character, as ; or a tab")
    if path.stat().st_size == 0:
        raise BadInput(f"{path}: the file is empty; remove it or fill it")
    kind = kind_of(path)
    try:
        if kind in TEXT_SUFFIXES:
            return _open_text(path, text, separator)
        if kind == ".xlsx":
            return OpenedTable(_open_excel(path), _no_class_names_of, [])
        return _open_arrow(path, kind)
    except BadInput:
        raise
    except UNREADABLE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BadInput(
            f"{path}: this is no readable {kind} file ({reason}); write it again"
        ) from None


def _no_class_names_of(column: str) -> list[str] | None:
    return None


def _open_arrow(path: Path, kind: str) -> OpenedTable:
    """A .parquet or .arrow file, with the class names that Hugging Face writes into it."""
    if kind == ".parquet":
        table = parquet.read_table(path)
    else:
        with pa.OSFile(str(path)) as source:
            try:
                table = ipc.open_stream(source).read_all()
            except pa.ArrowInvalid:
                table = ipc.open_file(source).read_all()
    check_column_names(str(path), table.column_names)
    frame = pl.DataFrame(pl.from_arrow(table))
    return OpenedTable(frame, lambda column: _class_names_of(table.schema, column), [])


def _open_excel(path: Path) -> pl.DataFrame:
    """The first sheet of a workbook."""
    try:
        import openpyxl  # noqa: F401  # an extra: most tables are no workbooks
    except ImportError:
        raise BadInput(
            f"{path}: Excel files need one more package: pip install 'coterie[excel]'"
        ) from None
    return pl.read_excel(path, engine="openpyxl", infer_schema_length=None)


def _open_text(path: Path, text: list[str], separator: str) -> OpenedTable:
    """A CSV, plain or packed, in the encoding and with the separator that it has."""
    encoding = encoding_of(path)
    lines = read_first_lines(path, encoding)
    found = separator or separator_of(lines, kind_of(path))
    names = next(csv.reader(lines, delimiter=found), [])
    check_column_names(str(path), names)
    source: Path | io.BytesIO = path
    if encoding not in ("utf-8", "utf-8-sig"):
        with _open_binary(path) as file:
            source = io.BytesIO(file.read().decode(encoding).encode())
    known: dict[str, Any] = {name: pl.String for name in text if name in names}
    frame = _read_csv(source, found, known)
    odd = _find_odd_dates(frame, lines, found)
    if odd:  # they are read with their form, which later rows must have
        return _open_text(path, [*text, *odd], separator)
    lines_read, frame = frame.height, _drop_blank_lines(frame)
    usual = "\t" if ".tsv" in kind_of(path) else ","
    remarks = [f"columns are separated by {_format_separator(found)}"] if found != usual else []
    remarks += [f"text is {encoding}"] if not encoding.startswith("utf-8") else []
    if blank := lines_read - frame.height:
        remarks.append(f"{blank:,} blank lines: no rows, and not counted as such")
    return OpenedTable(
        frame.rename({n: n.strip() for n in frame.columns}), _no_class_names_of, remarks
    )


def _read_csv(source: Path | io.BytesIO, separator: str, text: dict[str, Any]) -> pl.DataFrame:
    """A plain CSV; types are those of its first rows, which takes a twentieth of the time, or of
    all of them where a later row disagrees or the first ones say nothing of a column.
    """
    read = partial(pl.read_csv, separator=separator, schema_overrides=text, try_parse_dates=True)
    try:
        frame = read(source, infer_schema_length=FIRST_ROWS)
        open_texts = [n for n, kind in frame.schema.items() if kind == pl.String and n not in text]
        if not any(frame[n].head(FIRST_ROWS).is_null().all() for n in open_texts):
            return frame
        del frame
    except pl.exceptions.PolarsError:
        pass
    if isinstance(source, io.BytesIO):
        source.seek(0)
    return read(source, infer_schema_length=None)  # a column may turn fractional in its last row


def _drop_blank_lines(frame: pl.DataFrame) -> pl.DataFrame:
    """The same without lines of empty cells only, which the end of an export may have."""
    return frame.filter(~pl.all_horizontal(pl.all().is_null())) if frame.width > 1 else frame


def _find_odd_dates(frame: pl.DataFrame, lines: list[str], separator: str) -> list[str]:
    """The columns of dates whose first cells are not all written as year-month-day."""
    sample = list(csv.reader(lines, delimiter=separator))[1:]
    odd = []
    for k, (name, dtype) in enumerate(frame.schema.items()):
        cells = [row[k].strip() for row in sample if k < len(row)]
        known = [cell for cell in cells if cell not in EMPTY]
        plain = known and all(re.match(ISO_DATE, cell) for cell in known)
        if dtype in (pl.Date, pl.Datetime) and not plain:
            odd.append(name)
    return odd


def _format_separator(separator: str) -> str:
    return {"\t": "tabs", " ": "blanks"}.get(separator, f"'{separator}'")


def _open_binary(path: Path) -> IO[bytes]:
    """The bytes of a file, unpacked."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb")


def encoding_of(path: Path) -> str:
    """UTF-8 if all of the file is, UTF-16 if it says so, else the one of old Windows programs."""
    with _open_binary(path) as file:
        head = file.read(4)
        if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            decoder.decode(head)
            while block := file.read(CHUNK):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8-sig" if head.startswith(codecs.BOM_UTF8) else "utf-8"


def read_first_lines(path: Path, encoding: str) -> list[str]:
    """The lines that tell how a file is written."""
    with _open_binary(path) as file:
        text = io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="")
        lines = [line for line, _ in zip(text, range(SNIFFED_LINES), strict=False)]
    return [line for line in lines if line.strip()]


def separator_of(lines: list[str], kind: str) -> str:
    """The separator that cuts most lines into as many cells as the first."""
    usual = "\t" if ".tsv" in kind else ","
    best, most = usual, (0.0, 1)
    for candidate in sorted(SEPARATORS, key=lambda s: s != usual):
        widths = [len(cells) for cells in csv.reader(lines, delimiter=candidate)]
        if not widths or widths[0] < 2:
            continue
        alike = sum(width == widths[0] for width in widths) / len(widths)
        if (alike, widths[0]) > most:
            best, most = candidate, (alike, widths[0])
    return best


def check_column_names(place: str, names: list[str]) -> None:
    """Refuse columns without a name of their own."""
    stripped = [name.strip() for name in names]
    seen: set[str] = set()
    for name in stripped:
        if not name or name in seen:
            what = f"two columns are called '{name}'" if name else "a column has no name"
            raise BadInput(f"{place}: {what}; name every column once")
        seen.add(name)


def _class_names_of(schema: pa.Schema, label: str) -> list[str] | None:
    """The class names that a Hugging Face file states for its label column."""
    try:
        info = json.loads((schema.metadata or {})[b"huggingface"])
        return list(info["info"]["features"][label]["names"])
    except (KeyError, TypeError, ValueError):
        return None
