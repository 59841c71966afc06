"""One table of a user's own data (.csv, .parquet, .arrow) as arrays, its columns checked."""

import io
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, ipc, parquet

from coterie.core.errors import BadInput, nearest
from coterie.data.pieces import Piece, whole


class Columns(NamedTuple):
    """Which columns of a table mean what."""

    client: str  # "" where the rows have no natural clients
    label: str
    features: list[str]  # empty: all that have no other meaning
    separator: str = ","  # of a CSV
    ignore: str = ""  # a column that is no feature


def read_table(path: Path, columns: Columns, like: Piece | None = None) -> Piece:
    """One table as arrays; `like` is a file whose columns it must share."""
    place = str(path)
    client, label = columns.client, columns.label
    table = _open(path, client or columns.ignore, columns.separator)
    _check_names(place, table.column_names, columns)
    if table.num_rows == 0:
        raise BadInput(f"{place}: the file has no rows; remove it or fill it")
    used = _used(place, table.column_names, columns, like)
    return Piece(
        place=place,
        x=_features(table, used, place),
        y=_values(table, label, place),
        clients=_values(table, client, place).astype(str) if client else None,
        labels=_class_names(table.schema, label),
        columns=used,
    )


def _check_names(place: str, names: list[str], columns: Columns) -> None:
    """Refuse columns without a name of their own, and a table that lacks a wanted one."""
    client, label = columns.client, columns.label
    for column in names:
        if not column.strip() or names.count(column) > 1:
            raise BadInput(
                f"{place}: the column name '{column}' is empty or used twice; "
                "name every column once"
            )
    for column in [*([client] if client else []), label, *columns.features]:
        if column not in names:
            near, hint = _near(column, names), _hint(column, client, label)
            raise BadInput(f"{place}: there is no column '{column}'{near}{hint}")


def _used(place: str, names: list[str], columns: Columns, like: Piece | None) -> list[str]:
    """The feature columns, in the order of `like`, because files may order theirs differently."""
    others = (columns.client, columns.label, columns.ignore)
    used = columns.features or [
        c for c in names if c not in others and not c.startswith("__index_level_")
    ]
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


def _near(column: str, names: list[str]) -> str:
    """The column that is nearest, or how many there are where these are too many to list."""
    near = nearest(column, names)
    return (
        near if len(near) < 120 else f"; it has {len(names)} columns, '{names[0]}' to '{names[-1]}'"
    )


def _hint(column: str, client: str, label: str) -> str:
    """Which word names the column."""
    if column == client:
        return ' (name it with client=, or client="" for rows without natural clients)'
    return " (name it with label=)" if column == label else " (named in features=)"


def _open(path: Path, text: str, separator: str) -> pa.Table:
    """The file as it is; the column `text` of a CSV is kept as written (ids such as 007)."""
    if path.stat().st_size == 0:
        raise BadInput(f"{path}: the file is empty; remove it or fill it")
    try:
        if path.suffix == ".csv":
            convert = csv.ConvertOptions(column_types={text: pa.string()})
            parse = csv.ParseOptions(delimiter=separator)
            return csv.read_csv(path, parse_options=parse, convert_options=convert)
        if path.suffix == ".parquet":
            return parquet.read_table(path)
        with pa.OSFile(str(path)) as source:
            try:
                return ipc.open_stream(source).read_all()
            except pa.ArrowInvalid:
                return ipc.open_file(source).read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(
            f"{path}: this is no readable {path.suffix} file ({reason}); write it again"
        ) from None


def _values(table: pa.Table, column: str, place: str) -> np.ndarray:
    """A label or client column as whole numbers or text, no cell empty."""
    cells = table[column].combine_chunks()
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    if not any(kind(cells.type) for kind in kinds):
        try:
            cells = cells.cast(pa.string())
        except pa.ArrowException:
            raise BadInput(
                f"{place}: column '{column}' holds {cells.type}; give whole numbers or text"
            ) from None
        blank = pc.equal(pc.utf8_trim_whitespace(cells), "")
        cells = pc.if_else(blank, pa.scalar(None, pa.string()), cells)
    if cells.null_count:
        raise BadInput(_missing(cells, column, place))
    return whole(cells.to_numpy(zero_copy_only=False), place, f"column '{column}'")


def _missing(cells: pa.Array, column: str, place: str) -> str:
    """What to say of the first empty cell."""
    row = int(np.flatnonzero(cells.is_null().to_numpy(zero_copy_only=False))[0]) + 1
    return f"{place}: column '{column}' is empty in row {row:,}; fill or remove the row"


def _features(table: pa.Table, columns: list[str], place: str) -> np.ndarray:
    """The feature columns side by side [n, d], or the one column of images [n, c, h, w]."""
    kinds = [table.schema.field(column).type for column in columns]
    if len(columns) == 1 and pa.types.is_struct(kinds[0]):
        return _images(table[columns[0]], columns[0], place)
    return np.concatenate([_feature(table[column], column, place) for column in columns], axis=1)


def _feature(cells: pa.ChunkedArray, column: str, place: str) -> np.ndarray:
    """One column of numbers, or of lists of equally many numbers, as [n, width]."""
    rows, values = len(cells), _flattened(cells.combine_chunks(), column, place)
    width = len(values) // rows
    if values.null_count:
        bad = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise BadInput(
            f"{place}: column '{column}' is empty in row {bad // width + 1:,}; "
            "fill or remove the row"
        )
    numbers = _numbers(values, column, place).astype(np.float32).reshape(rows, width)
    bad_rows = np.flatnonzero(~np.isfinite(numbers).all(1))
    if len(bad_rows):
        raise BadInput(
            f"{place}: column '{column}' is not finite in row {bad_rows[0] + 1:,}; "
            "fill or remove the row"
        )
    return numbers


def _flattened(values: pa.Array, column: str, place: str) -> pa.Array:
    """The numbers of lists, and of lists in lists, one after another."""
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    while any(kind(values.type) for kind in kinds):
        lengths = pc.list_value_length(values)
        if values.null_count:
            raise BadInput(_missing(values, column, place))
        if pc.min(lengths) != pc.max(lengths) or pc.min(lengths).as_py() == 0:
            raise BadInput(
                f"{place}: the lists in column '{column}' are empty or of unequal length; "
                "pad them first"
            )
        values = pc.list_flatten(values)
    return values


def _numbers(values: pa.Array, column: str, place: str) -> np.ndarray:
    """Whatever spells numbers, as numbers."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _parsed(values, column, place)
    if pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
        values = values.cast(pa.int8() if pa.types.is_boolean(kind) else pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise BadInput(
            f"{place}: column '{column}' holds {kind}, not numbers; list the others in features="
        )
    numbers: np.ndarray = values.to_numpy(zero_copy_only=False)
    return numbers


def _parsed(values: pa.Array, column: str, place: str) -> np.ndarray:
    """Text that spells numbers; the first cell that does not is named."""
    numbers = np.empty(len(values))
    for row, text in enumerate(values.to_pylist()):
        try:
            numbers[row] = float(text)
        except ValueError:
            what = f"is '{text}'" if text.strip() else "is empty"
            raise BadInput(
                f"{place}: column '{column}' {what} in row {row + 1:,}, not a number; "
                "encode it or list the other columns in features="
            ) from None
    return numbers


def _images(cells: pa.ChunkedArray, column: str, place: str) -> np.ndarray:
    """Encoded images (a struct with bytes, as the Hugging Face hub stores them) as uint8."""
    from PIL import Image, UnidentifiedImageError  # only images need it

    images = []
    for row, cell in enumerate(cells.to_pylist()):
        try:
            picture = Image.open(io.BytesIO(cell["bytes"]))
            grey = picture.mode in ("1", "L")
            pixels = np.asarray(picture.convert("L" if grey else "RGB"))
        except (TypeError, KeyError, UnidentifiedImageError, OSError):
            raise BadInput(
                f"{place}: column '{column}' holds no readable image in row {row + 1:,}"
            ) from None
        images.append(pixels[None] if grey else pixels.transpose(2, 0, 1))
        if images[-1].shape != images[0].shape:
            raise BadInput(
                f"{place}: the image in row {row + 1:,} is {list(images[-1].shape)}, "
                f"the first {list(images[0].shape)}; bring all to one size"
            )
    return np.stack(images)


def _class_names(schema: pa.Schema, label: str) -> list[str] | None:
    """The class names that a Hugging Face file states for its label column."""
    try:
        info = json.loads((schema.metadata or {})[b"huggingface"])
        return list(info["info"]["features"][label]["names"])
    except (KeyError, TypeError, ValueError):
        return None
