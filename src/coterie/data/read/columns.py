"""Columns of a table as numbers: what each cell says, before anything is learnt from it.

Numbers stay as they are, a missing cell is NaN, a date is its seconds since 1970, and a text is its
number in the list of all texts of its column. What these become for a model is fitted later, on
training rows alone (coterie.data.prepare.preparation).
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import polars as pl

from coterie.core.errors import BadInput, format_value
from coterie.data.read.number_forms import (
    COMMA,
    MIXED,
    OPEN,
    POINT,
    NumberForm,
    find_form,
    parse_form,
    parse_numbers,
    parse_plain_numbers,
    settle,
)
from coterie.data.read.table_files import EMPTY, ISO_DATE

NUMBER, BOOLEAN, CATEGORY, DATE = "number", "boolean", "category", "date"
TEXT = "text"  # sentences, which are read word by word
EXACT = 2**53  # whole numbers beyond are not kept exactly
MOSTLY = 0.5  # a column of texts with so many numbers is a column of numbers with mistakes
DATES = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y")
TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S%.f", "T%H:%M:%S", "T%H:%M:%S%.f")
ZONES = ("T%H:%M:%S%.f%#z", " %H:%M:%S%.f%#z")
TRUTHS = ("true", "false", "0", "1", "0.0", "1.0")


class Column(NamedTuple):
    """One column as it was found."""

    name: str
    kind: str
    values: tuple[str, ...] = ()  # the text behind each number of a category
    note: str = ""  # how it had to be read
    form: str = ""  # how its texts spell dates or numbers, as %d.%m.%Y and 1.234,5 kg


class ParsedColumns(NamedTuple):
    """Columns side by side."""

    x: np.ndarray  # [n, columns] float64
    columns: list[Column]


class RowSource(NamedTuple):
    """Which file a row of a joined table came from."""

    files: tuple[str, ...]
    sizes: tuple[int, ...]
    before: int = 0  # rows of the only file that were read earlier
    kept: np.ndarray | None = None  # [n] places of the rows among all of the files; None: all

    def of(self, row: int) -> tuple[str, int]:
        """The file of a row and its number there, counted from 1."""
        row = row if self.kept is None else int(self.kept[row])
        ends = np.cumsum(self.sizes)
        k = int(np.searchsorted(ends, row, side="right"))
        return self.files[k], row - int(ends[k] - self.sizes[k]) + 1 + self.before


def read_columns(
    frame: pl.DataFrame,
    categories: Collection[str],
    place: RowSource,
    texts: Collection[str] = (),
    decimal: str = "",
) -> ParsedColumns:
    """Every column of a frame as numbers, lists of numbers as one column each.

    categories: columns whose cells are names. texts: columns whose cells are sentences. decimal:
    the mark of fractions where cells such as 1,200 leave it open; "": that of other columns.
    """
    decimal = decimal or find_decimal(frame.drop(*categories, *texts, strict=False))
    found: list[tuple[np.ndarray, Column]] = []
    for series in frame.iter_columns():
        if series.dtype.base_type() in (pl.List, pl.Array):
            found += _expand_lists(series, place)
        elif series.name in texts:
            codes, column = _encode_texts(_to_names(series))
            found.append((codes, column._replace(kind=TEXT)))
        else:
            as_text = series.name in categories
            found.append(
                _encode_texts(_to_names(series))
                if as_text
                else _parse_column(series, place, decimal)
            )
    x = np.empty((frame.height, len(found)))
    for k, (values, _) in enumerate(found):
        x[:, k] = values
    return ParsedColumns(x, [column for _, column in found])


def _parse_column(series: pl.Series, place: RowSource, decimal: str) -> tuple[np.ndarray, Column]:
    """One column by its kind."""
    kind, name = series.dtype, series.name
    if kind == pl.Boolean:
        return series.cast(pl.Float64).to_numpy(), Column(name, BOOLEAN)
    if kind.is_numeric() or kind == pl.Null:
        return _parse_numbers(series, place)
    if kind in (pl.Date, pl.Datetime):
        return _to_seconds(series), Column(name, DATE)
    if kind in (pl.Duration, pl.Time):
        spent = series.cast(pl.Duration("us")) if kind == pl.Duration else series.cast(pl.Int64)
        unit = 1e6 if kind == pl.Duration else 1e9
        seconds = spent.cast(pl.Int64).cast(pl.Float64).to_numpy() / unit
        return seconds, Column(name, NUMBER, note="in seconds")
    if kind in (pl.String, pl.Categorical, pl.Enum):
        return _parse_texts(series.cast(pl.String), place, decimal)
    file, _ = place.of(0)
    raise BadInput(
        f"{file}: column '{name}' holds {kind}, which is not a number, a text or a date; "
        "list the others in features="
    )


def _parse_numbers(
    series: pl.Series, place: RowSource, note: str = ""
) -> tuple[np.ndarray, Column]:
    """Finite numbers and missing ones."""
    if series.dtype.is_integer() and series.len() > series.null_count():
        low, high = (int(str(end)) for end in (series.min(), series.max()))
        note = "beyond 2^53" if max(abs(low), abs(high)) > EXACT else note
    values = np.array(series.cast(pl.Float64).to_numpy(), dtype=np.float64)
    bad = np.flatnonzero(np.isinf(values))
    if len(bad):
        (file, row), cell = place.of(int(bad[0])), values[bad[0]]
        raise BadInput(
            f"{file}: column '{series.name}' is {cell} in row {row:,}, which is no finite number; "
            f"empty the cell (in a run say --missing-values={cell} if it means so)"
        )
    return values, Column(series.name, NUMBER, note=note)


def _to_seconds(series: pl.Series) -> np.ndarray:
    """Dates as seconds since 1970."""
    moments = series.cast(pl.Datetime("us")).cast(pl.Int64)
    return np.array(moments.cast(pl.Float64).to_numpy(), dtype=np.float64) / 1e6


def _to_names(series: pl.Series) -> pl.Series:
    """Names as text; 3.0 is the name 3, as gaps make whole numbers fractional."""
    if series.dtype.is_float():
        series = series.fill_nan(None)
        if bool((series.drop_nulls() % 1 == 0).all()):
            series = series.cast(pl.Int64, strict=False)
    return _trim(series.cast(pl.String))


def parse_client_names(cells: pl.Series) -> pl.Series:
    """Names of clients; where all texts are 3.0, 4.0, ..., they are 3, 4, ..., as gaps make whole
    numbers fractional.
    """
    if cells.dtype == pl.String and cells.drop_nulls().str.contains(r"^\s*-?\d+\.0\s*$").all():
        return cells.str.replace(r"\.0\s*$", "")
    return cells


def _trim(series: pl.Series) -> pl.Series:
    """Texts without blanks around them; those that mean nothing are missing."""
    cells = series.str.strip_chars()
    return cells.set(cells.is_in(EMPTY), None)


def _parse_texts(series: pl.Series, place: RowSource, decimal: str) -> tuple[np.ndarray, Column]:
    """Texts that spell numbers, truth values or dates as these, else as categories."""
    cells = _trim(series)
    filled = cells.len() - cells.null_count()
    if filled == 0:
        return _parse_numbers(cells.cast(pl.Float64), place)
    plain = parse_plain_numbers(cells)
    known = plain.len() - plain.null_count()
    if known == filled and decimal != COMMA:
        return _parse_numbers(plain, place, "numbers written as text")
    found = find_form(cells)
    form = settle(found, cells, decimal) if found else None
    numbers = (
        plain if form is None or (known == filled and not str(form)) else parse_numbers(cells, form)
    )
    if numbers.null_count() == cells.null_count():
        values, column = _parse_numbers(numbers, place, "numbers written as text")
        is_open = found is not None and found.shown == OPEN and not decimal
        return values, column._replace(note=OPEN if is_open else column.note, form=str(form or ""))
    if known >= MOSTLY * filled or form is not None:
        odd = int((numbers.is_null() & cells.is_not_null()).arg_max() or 0)
        file, row = place.of(odd)
        wanted = f"a number as {form}" if str(form or "") else "a number"
        raise BadInput(
            f"{file}: column '{series.name}' is '{cells[odd]}' in row {row:,}, not {wanted}; "
            f"empty the cell (in a run say --missing-values '{cells[odd]}' if it means so), or say "
            f"--categories {series.name} if its numbers are names"
        )
    lower = cells.str.to_lowercase()
    if set(lower.drop_nulls().unique()) <= {"true", "false"}:
        return (lower == "true").cast(pl.Float64).to_numpy(), Column(series.name, BOOLEAN)
    values, column = _parse_dates(cells) or _encode_texts(cells)
    if found and column.kind == CATEGORY:
        column = column._replace(note=MIXED + ", ".join(unit or "none" for unit in found.units))
    return values, column


def find_decimal(frame: pl.DataFrame, floats: bool = True) -> str:
    """The mark of fractions that the columns of a table show; "" where none does, or two do.

    floats: columns that were read as numbers already count too.
    """
    texts = [find_form(_trim(series)) for series in frame if series.dtype == pl.String]
    found = {one.shown for one in texts if one}
    if OPEN in found and floats:  # else nobody asks
        numbers = (s.drop_nulls().drop_nans() for s in frame if s.dtype.is_float())
        found |= {POINT} if any(bool((s % 1 != 0).any()) for s in numbers) else set()
    found &= {POINT, COMMA}
    return found.pop() if len(found) == 1 else ""


def parse_label_numbers(
    cells: pl.Series, frame: pl.DataFrame, decimal: str
) -> tuple[pl.Series, Column] | None:
    """Texts of a label that are numbers in a form of their own; None where one of them is not, or
    where they are plain: 007 is a name.

    frame: the table, whose other columns may show the mark of fractions.
    """
    if cells.dtype != pl.String:
        return None
    cells = _trim(cells)
    found = find_form(cells)
    if found is None or found.form is None:
        return None
    if found.shown == OPEN:
        decimal = decimal or find_decimal(frame)
    form = settle(found, cells, decimal) or NumberForm()
    numbers = parse_numbers(cells, form)
    if not str(form) or numbers.null_count() > cells.null_count():
        return None
    note = OPEN if found.shown == OPEN and not decimal else ""
    return numbers, Column(cells.name, NUMBER, note=note, form=str(form))


def _parse_dates(cells: pl.Series) -> tuple[np.ndarray, Column] | None:
    """Dates, in the first form that every cell has; else nothing."""
    first = cells.drop_nulls()[0]
    if not any(c.isdigit() for c in first) or len(first) < 6:
        return None
    for day in DATES:
        for time in TIMES:
            moments = _parse_moments(cells, day + time)
            if moments.null_count() == cells.null_count():
                form = day + time
                return _to_seconds(moments), Column(
                    name=cells.name, kind=DATE, note=f"read as {form}", form=form
                )
    return None


def _encode_texts(cells: pl.Series) -> tuple[np.ndarray, Column]:
    """Texts as numbers of a sorted list."""
    names = sorted(cells.drop_nulls().unique().to_list())
    codes = cells.cast(pl.Enum(names)).to_physical().cast(pl.Float64)
    return codes.to_numpy(), Column(cells.name, CATEGORY, tuple(names))


def _expand_lists(series: pl.Series, place: RowSource) -> list[tuple[np.ndarray, Column]]:
    """Lists of equally many numbers, and lists in lists, as one column per number."""
    rows, values = series.len(), series
    while values.dtype.base_type() in (pl.List, pl.Array):
        if values.dtype.base_type() == pl.Array:
            values = values.arr.to_list()
        lengths = values.list.len()
        if values.null_count():
            file, row = place.of(int(values.is_null().arg_max() or 0) * rows // values.len())
            raise BadInput(f"{file}: column '{series.name}' is empty in row {row:,}; fill it")
        if lengths.min() != lengths.max() or lengths.min() == 0:
            raise BadInput(
                f"{place.files[0]}: the lists in column '{series.name}' are empty or of unequal "
                "length; pad them first"
            )
        values = values.explode()
    if not values.dtype.is_numeric():
        raise BadInput(
            f"{place.files[0]}: column '{series.name}' holds lists of {values.dtype}, not numbers; "
            "list the others in features="
        )
    width = values.len() // rows
    kept = None if place.kept is None else np.repeat(place.kept * width, width)
    wide = RowSource(place.files, tuple(size * width for size in place.sizes), kept=kept)
    numbers, _ = _parse_numbers(values, wide)
    table = numbers.reshape(rows, width)
    return [(table[:, k], Column(f"{series.name}[{k}]", NUMBER)) for k in range(width)]


def blank_cells(frame: pl.DataFrame, texts: Collection[str]) -> pl.DataFrame:
    """Cells that are one of these texts, or the same number, become missing."""
    return frame.with_columns(_blank_column(s, texts) for s in frame) if texts else frame


def _blank_column(series: pl.Series, texts: Collection[str]) -> pl.Series:
    numbers, kind = _parse_texts_as_numbers(tuple(texts)), series.dtype
    if kind.is_numeric():
        as_float = series if kind.is_float() else series.cast(pl.Float64)
        gone = as_float.is_in(pl.Series(numbers, dtype=as_float.dtype).implode())
    elif kind in (pl.String, pl.Categorical, pl.Enum):
        series = series.cast(pl.String)
        cells = series.str.strip_chars()
        gone = cells.is_in(list(texts))
        gone |= cells.cast(pl.Float64, strict=False).is_in(numbers).fill_null(False)
    else:
        return series
    return series.set(gone.fill_null(False), None)


def is_blank(value: object, texts: Collection[str]) -> bool:
    """Whether one cell is among these texts, as `blank_cells` has it."""
    text = str(value).strip()
    if text in texts:
        return True
    try:
        return float(text) in _parse_texts_as_numbers(tuple(texts))
    except ValueError:
        return False


@lru_cache
def _parse_texts_as_numbers(texts: tuple[str, ...]) -> list[float]:
    """The numbers that are among texts, infinite ones too."""
    numbers = pl.Series(list(texts), dtype=pl.String).cast(pl.Float64, strict=False)
    return numbers.drop_nulls().drop_nans().to_list()


def read_known_columns(
    frame: pl.DataFrame, known: Sequence[Column], place: RowSource, blanks: Collection[str] = ()
) -> ParsedColumns:
    """Later rows, whose columns are of known kinds and spelled in known forms.

    blanks: texts that count as a blank cell.
    """
    names = list(dict.fromkeys(_source_of(column.name, frame.columns) for column in known))
    lacking = [name for name in names if name not in frame.columns]
    if lacking:
        raise BadInput(f"{place.files[0]}: there is no column '{lacking[0]}' as in training")
    frame = blank_cells(frame.select(names), blanks)
    odd = [name for name in names if frame[name].dtype in (pl.Object, pl.Struct, pl.Binary)]
    if odd:
        raise BadInput(
            f"{place.files[0]}: column '{odd[0]}' holds {frame[odd[0]].dtype}: a cell is one "
            "number, text or date"
        )
    for column in known:
        spelled = column.form or column.kind in (NUMBER, BOOLEAN, DATE)
        if spelled and column.name in frame and frame[column.name].dtype == pl.String:
            frame = frame.with_columns(_parse_known_form(frame[column.name], column, place))
    names, texts = ([c.name for c in known if c.kind == kind] for kind in (CATEGORY, TEXT))
    read = read_columns(frame, names, place, texts, POINT)
    if len(read.columns) != len(known):
        raise BadInput(
            f"{place.files[0]}: its lists hold {len(read.columns)} numbers in all, and "
            f"{len(known)} in training"
        )
    columns = [
        _match_kind(column, cells, want, place)
        for column, cells, want in zip(read.columns, read.x.T, known, strict=True)
    ]
    return ParsedColumns(read.x, columns)


def _match_kind(column: Column, cells: np.ndarray, want: Column, place: RowSource) -> Column:
    """A column as one of the kind that it had in training, if it can be one."""
    alike = column.kind == want.kind or {column.kind, want.kind} == {NUMBER, BOOLEAN}
    if not alike and not np.isnan(cells).all():
        raise BadInput(
            f"{place.files[0]}: column '{want.name}' holds a {column.kind}, but was a "
            f"{want.kind} in training"
        )
    return column._replace(kind=want.kind, form=want.form)


def _parse_known_form(series: pl.Series, column: Column, place: RowSource) -> pl.Series:
    """Texts as the dates or numbers that they spelled in training; others are refused."""
    cells = _trim(series)
    values = _parse_cells(cells, column)
    if values.null_count() > cells.null_count():
        odd = int((values.is_null() & cells.is_not_null()).arg_max() or 0)
        file, row = place.of(odd)
        form = DATES[0] if column.kind == DATE and not column.form else column.form
        kind = f"{column.kind}{' as' * (column.kind == NUMBER and bool(form))} {form}".rstrip()
        raise BadInput(
            f"{file}: column '{column.name}' is {format_value(cells[odd])} in row {row:,}, not a "
            f"{kind} as in training"
        )
    return values.alias(series.name)


def _parse_cells(cells: pl.Series, column: Column) -> pl.Series:
    """Cells in the form of training; what has another one is missing."""
    if column.kind == NUMBER:
        form = parse_form(column.form)
        return parse_numbers(cells, form) if form else parse_plain_numbers(cells)
    if column.kind == BOOLEAN:
        lower = cells.str.to_lowercase()
        known = lower.set(~lower.is_in(TRUTHS), None)
        return known.replace({"true": "1", "false": "0"}).cast(pl.Float64)
    if column.form:
        return _parse_moments(cells, column.form)
    return _parse_iso(cells.set(~cells.str.contains(ISO_DATE), None))


def _parse_iso(cells: pl.Series) -> pl.Series:
    """Dates that begin with year, month and day, each with any time; without a zone they are in
    UTC.
    """
    found = pl.Series(cells.name, [None] * cells.len(), pl.Datetime("us"))
    for time in (*TIMES, "T%H:%M"):
        found = found.fill_null(_parse_moments(cells, DATES[0] + time))
    for zone in ZONES:
        moments = cells.str.to_datetime(DATES[0] + zone, strict=False, time_unit="us")
        found = found.fill_null(moments.dt.convert_time_zone("UTC").dt.replace_time_zone(None))
    return found


def _parse_moments(cells: pl.Series, form: str) -> pl.Series:
    """Dates of one form; a year of two digits is none."""
    moments = cells.str.to_datetime(form, strict=False, time_unit="us")
    return moments.set((moments.dt.year() < 1000).fill_null(False), None)


def _source_of(name: str, columns: Collection[str]) -> str:
    """The column of the file that holds it: that of 'signal[3]' is 'signal'."""
    return name if name in columns else name.rpartition("[")[0] or name


def check_no_missing(read: ParsedColumns, place: RowSource) -> None:
    """Refuse a table with an empty cell, and name the first."""
    for column, values in zip(read.columns, read.x.T, strict=True):
        bad = np.flatnonzero(np.isnan(values))
        if len(bad):
            file, row = place.of(int(bad[0]))
            raise BadInput(
                f"{file}: column '{column.name}' is empty in row {row:,}; fill or remove the row"
            )


def to_plain_numbers(read: ParsedColumns, place: RowSource) -> np.ndarray:
    """The cells without any preparation [n, d] float64, where all are numbers."""
    check_no_missing(read, place)
    for column in read.columns:
        if column.kind not in (NUMBER, BOOLEAN):
            raise BadInput(
                f"{place.files[0]}: column '{column.name}' holds a {column.kind}, not numbers; "
                "encode it or list the other columns in features="
            )
    return read.x
