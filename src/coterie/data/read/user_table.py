"""One table of a user's own data: its columns checked, labels and clients told from features."""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from coterie.core.errors import BadInput, suggest_name
from coterie.data.read.columns import (
    CATEGORY,
    RowSource,
    blank_cells,
    check_no_missing,
    find_decimal,
    parse_client_names,
    parse_label_numbers,
    read_columns,
)
from coterie.data.read.file_rows import FileRows, parse_names, parse_parts
from coterie.data.read.number_forms import COMMA, describe_forms
from coterie.data.read.table_files import (
    EMPTY,
    TEXT_SUFFIXES,
    OpenedTable,
    check_column_names,
    kind_of,
    open_table,
)

LABEL_HINT = ", or leave out all rows without a label by --drop-missing-labels"


class ColumnRoles(NamedTuple):
    """Which columns of a table mean what."""

    client: str  # "" where the rows have no natural clients
    label: str  # several have commas between them
    features: list[str]  # empty: all that have no other meaning
    separator: str = ""  # of a CSV; "": found out
    ignore: str = ""  # a column that is not a feature
    cut: str = ""  # the column that rows are cut by
    part: str = ""  # the column that says train, validation or test
    categories: tuple[str, ...] = ()  # columns whose numbers are names
    text: str = ""  # the only feature, a column of texts
    drop: tuple[str, ...] = ()  # columns that are no features
    missing_values: tuple[str, ...] = ()  # texts that count as a blank cell
    # whether rows without a label are left out; None: refused, where there is no such option
    drop_missing_labels: bool | None = None
    keep_ids: bool = False  # whether columns that number the rows are features
    decimal: str = ""  # the mark of fractions where 1,200 leaves it open; "": found out

    def labels(self, names: list[str]) -> list[str]:
        """The label columns of a table; a name that holds a comma is one column."""
        if self.label in names or "," not in self.label:
            return [self.label]
        return [name.strip() for name in self.label.split(",") if name.strip()]


def read_table(path: Path, columns: ColumnRoles, like: FileRows | None = None) -> FileRows:
    """One file as a piece; `like` is a file whose columns it must share."""
    text = [columns.client or columns.ignore, *columns.categories, columns.text]
    opened = open_table(path, text, columns.separator)
    if kind_of(path) in TEXT_SUFFIXES:  # where a comma is the mark of fractions, 1.200 is 1200
        floats = [series.name for series in opened.frame if series.dtype.is_float()]
        if floats and (columns.decimal or find_decimal(opened.frame, floats=False)) == COMMA:
            opened = open_table(path, [*text, *floats], columns.separator)
    return parse_table(str(path), opened, columns, like)


def parse_table(
    place: str, opened: OpenedTable, columns: ColumnRoles, like: FileRows | None = None
) -> FileRows:
    """A frame as a piece, if it has the columns that are asked for."""
    frame = opened.frame
    check_column_names(place, frame.columns)
    _check_wanted(place, frame.columns, columns)
    if frame.height == 0:
        raise BadInput(f"{place}: the file has no rows; remove it or fill it")
    used = _select_features(place, frame.columns, columns, like)
    labels = columns.labels(frame.columns)
    blanked = blank_cells(frame, columns.missing_values)
    frame = blanked.with_columns(
        _blank_labels(blanked[name], frame[name], columns) for name in labels
    )
    labelled = frame.select(~pl.any_horizontal(pl.col(labels).is_null())).to_series().to_numpy()
    if columns.drop_missing_labels and not labelled.all():
        if not labelled.any():
            raise BadInput(f"{place}: no row has a label in column '{labels[0]}'; name another")
        # the others are read as the first with one, until they are left out
        frame = frame[np.where(labelled, np.arange(frame.height), labelled.argmax())]
        return _parse_rows(place, opened._replace(frame=frame), columns, used).keep(labelled)
    return _parse_rows(place, opened._replace(frame=frame), columns, used)


def _parse_rows(place: str, opened: OpenedTable, columns: ColumnRoles, used: list[str]) -> FileRows:
    """The same, once it is known which columns are features."""
    frame, client, labels = opened.frame, columns.client, columns.labels(opened.frame.columns)
    hint = "" if columns.drop_missing_labels is None else LABEL_HINT
    numbers = [parse_label_numbers(frame[name], frame, columns.decimal) for name in labels]
    frame = frame.with_columns(found[0] for found in numbers if found)
    spelled = [found[1] for found in numbers if found]
    piece = FileRows(
        place=place,
        x=np.empty((frame.height, 0)),
        y=_parse_targets(frame.select(labels), place, hint),
        clients=_parse_values(parse_client_names(frame[client]), place).astype(str)
        if client
        else None,
        labels=opened.labels(labels[0]),
        columns=used,
        remarks=[*opened.remarks, *describe_forms(spelled)],
        targets=tuple(labels),
        forms=tuple(found[1].form if found else "" for found in numbers),
        parts=_parse_part_column(frame[columns.part], place) if columns.part else None,
    )
    if len(used) == 1 and isinstance(frame[used[0]].dtype, pl.Struct):
        return piece._replace(x=_decode_images(frame[used[0]], place))
    cut = frame[columns.cut] if columns.cut else None
    return piece._replace(frame=frame.select(used), cut=cut)


def _blank_labels(cells: pl.Series, written: pl.Series, columns: ColumnRoles) -> pl.Series:
    """A label column; where texts in it count as blank cells, what is left may be numbers."""
    if cells.dtype != pl.String:
        return cells.fill_nan(None) if cells.dtype.is_float() else cells
    if columns.drop_missing_labels:
        cells = cells.set(cells.str.strip_chars().is_in(EMPTY), None)
    if cells.null_count() == written.null_count():
        return cells
    for kind in (pl.Int64, pl.Float64):
        numbers = cells.str.strip_chars().cast(kind, strict=False)
        if numbers.null_count() == cells.null_count():
            return numbers
    return cells


def _check_wanted(place: str, names: list[str], columns: ColumnRoles) -> None:
    """Refuse a table that lacks a wanted column."""
    client, labels = columns.client, columns.labels(names)
    wanted = [client, *labels, *columns.features, columns.cut, columns.part]
    wanted += [*columns.categories, columns.text, *columns.drop]
    for column in filter(None, wanted):
        if column not in names:
            near, hint = _suggest_column(column, names), _hint_of(column, columns)
            raise BadInput(f"{place}: there is no column '{column}'{near}{hint}")
    if client in labels:
        raise BadInput(f"{place}: column '{client}' cannot be both client and label")
    if len(set(labels)) < len(labels):
        raise BadInput(f"{place}: label = '{columns.label}' names a column twice")


def _select_features(
    place: str, names: list[str], columns: ColumnRoles, like: FileRows | None
) -> list[str]:
    """The feature columns, in the order of `like`, because files may order theirs differently."""
    labels = columns.labels(names)
    roles = {columns.ignore: "client", columns.client: "client", **dict.fromkeys(labels, "label")}
    roles |= {columns.cut: "cut_column", columns.part: "part_column"}
    for column in columns.drop:
        if column in roles:
            raise BadInput(
                f"{place}: drop = {column} has no effect, as '{column}' is the {roles[column]}, no "
                "input anyway: leave it out of --drop"
            )
        if column in columns.categories:
            raise BadInput(
                f"{place}: column '{column}' is in drop and in categories: leave it out of one"
            )
    others = (columns.client, *labels, columns.ignore, columns.cut, columns.part, *columns.drop)
    used = [columns.text] if columns.text else columns.features
    used = used or [c for c in names if c not in others and not c.startswith("__index_level_")]
    for column in filter(None, (columns.client, *labels, columns.part)):
        if column in used and column != columns.text:  # the label of a language model is its text
            option = "text" if columns.text else "features"
            raise BadInput(f"{place}: column '{column}' is no feature; leave it out of {option}=")
    if not used:
        raise BadInput(
            f"{place}: there is no feature column beside '{columns.label}'; "
            "add the inputs of the model"
        )
    if like is None or like.columns is None:
        return used
    odd = sorted(set(used) ^ set(like.columns))
    if odd:
        raise BadInput(
            f"{place}: column '{odd[0]}' is not in both this file and {like.place}; "
            "give all the same"
        )
    return like.columns


def _suggest_column(column: str, names: list[str]) -> str:
    """The column that is nearest, or how many there are where these are too many to list."""
    near = suggest_name(column, names)
    return (
        near if len(near) < 120 else f"; it has {len(names)} columns, '{names[0]}' to '{names[-1]}'"
    )


def _hint_of(column: str, columns: ColumnRoles) -> str:
    """Which option names the column."""
    if column == columns.client:
        return ' (name it with --client COLUMN or client=; "" for rows without natural clients)'
    if column in columns.labels([]):
        return " (name it with --label COLUMN or label=)"
    option = "features" if column in columns.features else "categories"
    option = "text" if column == columns.text else option
    option = "part_column" if column == columns.part else option
    option = "drop" if column in columns.drop else option
    return f" (named in {'cut_column' if column == columns.cut else option}=)"


def _parse_part_column(cells: pl.Series, place: str) -> np.ndarray:
    return parse_parts(cells.to_list(), place, f"column '{cells.name}'")


def _parse_targets(frame: pl.DataFrame, place: str, hint: str) -> np.ndarray:
    """The label column; or several of 0 and 1, or a time and whether its event was seen."""
    columns = [_parse_values(s, place, fractions=True, hint=hint) for s in frame.iter_columns()]
    if len(columns) == 1:
        return columns[0]
    has_time = len(columns) == 2 and columns[0].dtype.kind in "if"  # TASKS tells what it is
    for name, values in list(zip(frame.columns, columns, strict=True))[has_time:]:
        if values.dtype.kind != "i" or not np.isin(values, (0, 1)).all():
            odd = next(v for v in values.tolist() if v not in (0, 1))
            raise BadInput(
                f"{place}: column '{name}' is {odd!r}, but several labels are 0 or 1 each; "
                "name one with --label"
            )
    return np.stack(columns, axis=1)


def _parse_values(
    cells: pl.Series, place: str, fractions: bool = False, hint: str = ""
) -> np.ndarray:
    """A label or client column as numbers or text, no cell empty; only labels have fractions.

    hint: what else can be done about an empty cell.
    """
    kind = cells.dtype
    if not (kind.is_integer() or kind.is_float() or kind == pl.Boolean):
        if kind.is_nested() or kind == pl.Binary:
            raise BadInput(
                f"{place}: column '{cells.name}' holds {kind}; give whole numbers or text"
            )
        cells = cells.cast(pl.String)
        cells = cells.set(cells.str.strip_chars() == "", None)
    if cells.null_count():
        row = int(cells.is_null().arg_max() or 0) + 1
        raise BadInput(
            f"{place}: column '{cells.name}' is empty in row {row:,}; fill or remove the row{hint}"
        )
    if kind == pl.Int128:  # NumPy has no such numbers
        cells = cells.cast(pl.String)
    return parse_names(cells.to_numpy(), place, f"column '{cells.name}'", fractions)


def parse_cut_column(series: pl.Series, place: RowSource, how: str) -> np.ndarray:
    """The column that rows are cut by, as numbers: moments for `time`, else names of groups."""
    names = [series.name] if how == "groups" else []
    if how == "groups":
        series = series.cast(pl.String)
    read = read_columns(series.to_frame(), names, place)
    check_no_missing(read, place)
    if how == "time" and read.columns[0].kind == CATEGORY:
        raise BadInput(
            f"{place.files[0]}: column '{series.name}' holds neither dates nor numbers, "
            "so rows cannot be cut by time; use --cut groups, or dates such as 2024-01-31"
        )
    return read.x[:, 0]


def _decode_images(cells: pl.Series, place: str) -> np.ndarray:
    """Encoded images (a struct with bytes, as the Hugging Face hub stores them) as uint8."""
    images: list[np.ndarray] = []
    for row, cell in enumerate(cells.to_list()):
        source = io.BytesIO(cell["bytes"]) if cell and cell.get("bytes") else None
        at = f"{place}: column '{cells.name}' in row {row + 1:,}"
        images.append(decode_image(source, at))
        check_same_size(images, at)
    return np.stack(images)


def decode_image(source: io.BytesIO | Path | None, place: str) -> np.ndarray:
    """One encoded image as uint8 [channels, height, width], grey ones with one channel."""
    from PIL import Image, UnidentifiedImageError  # only images need it

    try:
        if source is None:
            raise OSError
        with Image.open(source) as image:
            grey = image.mode in ("1", "L")
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
    except (UnidentifiedImageError, OSError, ValueError):
        raise BadInput(f"{place} holds no readable image") from None
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def check_same_size(images: list[np.ndarray], place: str) -> None:
    """Refuse an image of another size than the first."""
    if images[-1].shape != images[0].shape:
        raise BadInput(
            f"{place} is an image of shape {list(images[-1].shape)}, the first has "
            f"{list(images[0].shape)}; bring all to one size"
        )
