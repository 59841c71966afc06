"""A user's own data: one file a client, a table with a client column, a Hugging Face folder, NumPy arrays."""

import io
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, ipc, parquet

from coterie.core.errors import BadInput, nearest
from coterie.data.datasets import Dataset

SUFFIXES = (".csv", ".parquet", ".npz", ".arrow")


class Own(NamedTuple):
    data: Dataset
    clients: list[str]  # the name of each number in data.users; empty without natural clients
    labels: list[str]  # the name of each class


class Piece(NamedTuple):
    """What one file holds; labels and clients are still as written there."""

    place: str
    x: np.ndarray  # [n, ...]
    y: np.ndarray  # [n] whole numbers or text
    clients: np.ndarray | None
    train: bool = True
    labels: list[str] | None = None  # names of the classes, where the file states them
    columns: list[str] | None = None  # the feature columns of a table


def is_path(data: object) -> bool:
    """Whether `data` means a file or folder rather than the name of a known data set."""
    if isinstance(data, Path):
        return True
    return isinstance(data, str) and (data.endswith(SUFFIXES) or "/" in data or "\\" in data)


def read(
    path: str | Path,
    *,
    client: str = "client",
    label: str = "label",
    features: str | list[str] = "",
    separator: str = ",",
) -> Own:
    """Read a file or folder; client = "" means no natural clients, features = "" all other columns."""
    path = Path(path).expanduser()
    if not path.exists():
        raise BadInput(f"there is no file or folder {path}; give the path of your data or a data set's name")
    listed = features.split(",") if isinstance(features, str) else features
    wanted = [name.strip() for name in listed if name.strip()]
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise BadInput(f"{path}: files of kind '{path.suffix}' are not read; give {', '.join(SUFFIXES)}")
        return _join(path.name, [read_piece(path, client, label, wanted, separator)])
    saved = _saved(path)
    if saved:
        pieces: list[Piece] = []
        for file, train in saved:
            like = pieces[0] if pieces else None
            pieces.append(read_piece(file, client, label, wanted, separator, like=like)._replace(train=train))
        return _join(path.name + "/", pieces)
    return _join(path.name + "/", _one_file_a_client(path, client, label, wanted, separator))


def _one_file_a_client(path: Path, client: str, label: str, features: list[str], separator: str) -> list[Piece]:
    files = sorted((f for f in path.iterdir() if f.suffix in SUFFIXES), key=lambda f: _natural(f.name))
    if not files:
        raise BadInput(f"{path}: no {', '.join(SUFFIXES)} file in this folder; put one file a client there")
    stems = [f.stem for f in files]
    twice = next((s for s in stems if stems.count(s) > 1), None)
    if twice is not None:
        raise BadInput(f"{path}: two files are called '{twice}'; a file is a client: name each differently")
    pieces: list[Piece] = []
    for file in files:
        like = pieces[0] if pieces else None
        piece = read_piece(file, "", label, features, separator, ignore=client, like=like)
        pieces.append(piece._replace(clients=np.full(len(piece.y), file.stem)))
    return pieces


def from_arrays(x: Any, y: Any, clients: Any = None, name: str = "arrays") -> Own:
    """Own data from arrays: x [n, ...] numbers, y [n] whole numbers or text, clients [n] ids or names."""
    return _join(name, [_checked(name, np.asarray(x), np.asarray(y), None if clients is None else np.asarray(clients))])


def _saved(path: Path) -> list[tuple[Path, bool]]:
    """The files of a Hugging Face folder and whether each is training data; empty if it is no such folder."""
    if (path / "dataset_dict.json").is_file():
        splits = {part: sorted((path / part).glob("*.arrow")) for part in _json(path / "dataset_dict.json")["splits"]}
    elif (path / "state.json").is_file():
        splits = {"train": sorted(path.glob("*.arrow"))}
    elif (path / "data").is_dir():
        splits = {}
        for file in sorted((path / "data").glob("*.parquet")):
            splits.setdefault(file.stem.split("-")[0], []).append(file)
    else:
        return []
    files = [(file, part == "train" or "train" not in splits) for part, found in splits.items() for file in found]
    if not files:
        raise BadInput(f"{path}: a Hugging Face folder without .arrow or .parquet files; save the data set again")
    return files


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise BadInput(f"{path}: this is no JSON ({error}); save the data set again") from None


def read_piece(
    path: Path,
    client: str,
    label: str,
    features: list[str],
    separator: str,
    ignore: str = "",
    like: Piece | None = None,
) -> Piece:
    """One file as arrays; `ignore` is a column that is no feature, `like` a file with the same columns."""
    place = str(path)
    if path.suffix == ".npz":
        return _arrays(path, client)
    table = _table(path, client or ignore, separator)
    names = table.column_names
    for column in names:
        if not column.strip() or names.count(column) > 1:
            raise BadInput(f"{place}: the column name '{column}' is empty or used twice; name every column once")
    for column in [*([client] if client else []), label, *features]:
        if column not in names:
            raise BadInput(f"{place}: there is no column '{column}'{_near(column, names)}{_hint(column, client, label)}")
    if table.num_rows == 0:
        raise BadInput(f"{place}: the file has no rows; remove it or fill it")
    used = features or [c for c in names if c not in (client, label, ignore) and not c.startswith("__index_level_")]
    if not used:
        raise BadInput(f"{place}: there is no feature column beside '{label}'; add the inputs of the model")
    if like is not None and like.columns is not None:
        odd = sorted(set(used) ^ set(like.columns))
        if odd:
            raise BadInput(f"{place}: column '{odd[0]}' is not in both this file and {like.place}; give all the same")
        used = like.columns  # files may order their columns differently
    return Piece(
        place,
        _features(table, used, place),
        _values(table, label, place),
        _values(table, client, place).astype(str) if client else None,
        labels=_class_names(table.schema, label),
        columns=used,
    )


def _near(column: str, names: list[str]) -> str:
    near = nearest(column, names)
    return near if len(near) < 120 else f"; it has {len(names)} columns, '{names[0]}' to '{names[-1]}'"


def _hint(column: str, client: str, label: str) -> str:
    if column == client:
        return ' (name it with client=, or client="" for rows without natural clients)'
    return " (name it with label=)" if column == label else " (named in features=)"


def _table(path: Path, text: str, separator: str) -> pa.Table:
    """A .csv, .parquet or .arrow file; the column `text` of a CSV is kept as written (ids such as 007)."""
    if path.stat().st_size == 0:
        raise BadInput(f"{path}: the file is empty; remove it or fill it")
    try:
        if path.suffix == ".csv":
            convert = csv.ConvertOptions(column_types={text: pa.string()})
            return csv.read_csv(path, parse_options=csv.ParseOptions(delimiter=separator), convert_options=convert)
        if path.suffix == ".parquet":
            return parquet.read_table(path)
        with pa.OSFile(str(path)) as source:
            try:
                return ipc.open_stream(source).read_all()
            except pa.ArrowInvalid:
                return ipc.open_file(source).read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{path}: this is no readable {path.suffix} file ({reason}); write it again") from None


def _arrays(path: Path, client: str) -> Piece:
    try:
        with np.load(path) as store:
            held = {key: store[key] for key in store.files}
    except Exception as error:  # a damaged zip raises many kinds; the user needs one line
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BadInput(f"{path}: this is no readable .npz file ({reason}); write it with numpy.savez") from None
    for key in ("x", "y", *(["clients"] if client else [])):
        if key not in held:
            raise BadInput(
                f"{path}: there is no array '{key}', only {', '.join(held) or 'nothing'}; "
                'save x, y and, in a single file, clients (or read it with client="")'
            )
    return _checked(str(path), held["x"], held["y"], held["clients"] if client else None)


def _checked(place: str, x: np.ndarray, y: np.ndarray, clients: np.ndarray | None) -> Piece:
    """Arrays as a piece, if they fit together and hold numbers."""
    if x.ndim < 2 or len(x) == 0:
        raise BadInput(f"{place}: x has shape {list(x.shape)}; give at least one row and one feature, [n, ...]")
    for key, array in (("y", y), ("clients", clients)):
        if array is not None and array.shape != (len(x),):
            raise BadInput(f"{place}: {key} has shape {list(array.shape)}, but x has {len(x):,} rows; give one each")
    if x.dtype.kind not in "biuf":
        raise BadInput(f"{place}: x holds {x.dtype}, not numbers; convert it first")
    if x.dtype == np.uint8 and x.ndim in (3, 4):  # images, with their channels last, first or left out
        x = x[:, None] if x.ndim == 3 else np.moveaxis(x, 3, 1) if x.shape[3] in (1, 3) and x.shape[1] > 3 else x
    else:
        x = x.astype(np.float32, copy=False)
        bad = np.argwhere(~np.isfinite(x))
        if len(bad):
            where = ", ".join(str(i) for i in bad[0][1:])
            raise BadInput(f"{place}: x is {x[tuple(bad[0])]} in row {bad[0][0] + 1:,}, column {where}; remove it")
    owners = None if clients is None else _whole(clients, place, "clients").astype(str)
    return Piece(place, x, _whole(y, place, "y"), owners)


def _values(table: pa.Table, column: str, place: str) -> np.ndarray:
    """A label or client column as whole numbers or text, no cell empty."""
    cells = table[column].combine_chunks()
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if not (pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type) or pa.types.is_boolean(cells.type)):
        try:
            cells = cells.cast(pa.string())
        except pa.ArrowException:
            raise BadInput(f"{place}: column '{column}' holds {cells.type}; give whole numbers or text") from None
        cells = pc.if_else(pc.equal(pc.utf8_trim_whitespace(cells), ""), pa.scalar(None, pa.string()), cells)
    if cells.null_count:
        raise BadInput(_missing(cells, column, place))
    return _whole(cells.to_numpy(zero_copy_only=False), place, f"column '{column}'")


def _whole(values: np.ndarray, place: str, what: str) -> np.ndarray:
    """Labels as int64 or as text; numbers with a fraction are no classes."""
    if values.dtype.kind == "f":
        bad = np.flatnonzero(values != np.floor(values))  # NaN is not equal to itself either
        bad = bad if len(bad) else np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise BadInput(f"{place}: {what} is {values[bad[0]]} in row {bad[0] + 1:,}; a class is whole or text")
    if values.dtype.kind in "biuf":
        return values.astype(np.int64)
    for row, value in enumerate(values if values.dtype.kind == "O" else ()):
        if value is None or value != value:
            raise BadInput(f"{place}: {what} is {value} in row {row + 1:,}; fill or remove the row")
    return values.astype(str)


def _missing(cells: pa.Array, column: str, place: str) -> str:
    row = int(np.flatnonzero(cells.is_null().to_numpy(zero_copy_only=False))[0]) + 1
    return f"{place}: column '{column}' is empty in row {row:,}; fill or remove the row"


def _features(table: pa.Table, columns: list[str], place: str) -> np.ndarray:
    """The feature columns side by side [n, d], or the one image column [n, channels, height, width]."""
    kinds = [table.schema.field(column).type for column in columns]
    if len(columns) == 1 and pa.types.is_struct(kinds[0]):
        return _images(table[columns[0]], columns[0], place)
    return np.concatenate([_feature(table[column], column, place) for column in columns], axis=1)


def _feature(cells: pa.ChunkedArray, column: str, place: str) -> np.ndarray:
    """One column of numbers, or of lists of equally many numbers, as [n, width]."""
    rows, values = len(cells), cells.combine_chunks()
    while pa.types.is_list(values.type) or pa.types.is_large_list(values.type) or pa.types.is_fixed_size_list(values.type):
        lengths = pc.list_value_length(values)
        if values.null_count:
            raise BadInput(_missing(values, column, place))
        if pc.min(lengths) != pc.max(lengths) or pc.min(lengths).as_py() == 0:
            raise BadInput(f"{place}: the lists in column '{column}' are empty or of unequal length; pad them first")
        values = pc.list_flatten(values)
    width = len(values) // rows
    if values.null_count:
        bad = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise BadInput(f"{place}: column '{column}' is empty in row {bad // width + 1:,}; fill or remove the row")
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        numbers = _parsed(values, column, place)
    elif pa.types.is_decimal(values.type) or pa.types.is_boolean(values.type):
        numbers = values.cast(pa.int8() if pa.types.is_boolean(values.type) else pa.float64()).to_numpy()
    elif pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        numbers = values.to_numpy(zero_copy_only=False)
    else:
        raise BadInput(f"{place}: column '{column}' holds {values.type}, not numbers; list the others in features=")
    numbers = numbers.astype(np.float32).reshape(rows, width)
    bad_rows = np.flatnonzero(~np.isfinite(numbers).all(1))
    if len(bad_rows):
        raise BadInput(f"{place}: column '{column}' is not finite in row {bad_rows[0] + 1:,}; fill or remove the row")
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
    from PIL import Image, UnidentifiedImageError

    images = []
    for row, cell in enumerate(cells.to_pylist()):
        try:
            picture = Image.open(io.BytesIO(cell["bytes"]))
            grey = picture.mode in ("1", "L")
            pixels = np.asarray(picture.convert("L" if grey else "RGB"))
        except (TypeError, KeyError, UnidentifiedImageError, OSError):
            raise BadInput(f"{place}: column '{column}' holds no readable image in row {row + 1:,}") from None
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


def _join(name: str, pieces: list[Piece]) -> Own:
    """One data set of all files; labels and clients become numbers, in natural order of their names."""
    first = pieces[0]
    for piece in pieces:
        if piece.x.shape[1:] != first.x.shape[1:]:
            raise BadInput(
                f"{piece.place}: a row has shape {list(piece.x.shape[1:])}, but in {first.place} "
                f"{list(first.x.shape[1:])}; give every file the same columns"
            )
    sizes = [len(piece.y) for piece in pieces]
    y, labels = _numbered([piece.y for piece in pieces], first.labels, first.place)
    users, clients = None, list[str]()
    if first.clients is not None:
        users, clients = _numbered([p.clients for p in pieces if p.clients is not None], None, first.place)
    x = first.x if len(pieces) == 1 else np.concatenate([piece.x for piece in pieces])
    train = np.repeat([piece.train for piece in pieces], sizes)
    return Own(Dataset(name, x, y, len(labels), train, users), clients, labels)


def _numbered(pieces: list[np.ndarray], names: list[str] | None, place: str) -> tuple[np.ndarray, list[str]]:
    """Numbers 0..K-1 for the values of all pieces, and the name of each number."""
    if names is not None and all(piece.dtype.kind == "i" for piece in pieces):
        numbers = np.concatenate(pieces)
        if numbers.min() < 0 or numbers.max() >= len(names):
            raise BadInput(
                f"{place}: labels {numbers.min()} to {numbers.max()}, but {len(names)} classes are named; remove unlabelled rows"
            )
        return numbers, names
    if any(piece.dtype.kind != "i" for piece in pieces):
        pieces = [piece.astype(str) for piece in pieces]
    values, numbers = np.unique(np.concatenate(pieces), return_inverse=True)
    if values.dtype.kind == "i":
        return numbers.astype(np.int64), [str(v) for v in values]
    order = sorted(range(len(values)), key=lambda i: _natural(str(values[i])))
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    return rank[numbers], [str(values[i]) for i in order]


def _natural(text: str) -> list[Any]:
    """Sorts 'site2' before 'site10'."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]
