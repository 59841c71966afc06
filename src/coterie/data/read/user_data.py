"""A user's own data, from files, folders and arrays.

They are a table with a client column, a folder with one file per client, a Hugging Face folder,
partitions of flwr-datasets, or NumPy arrays.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import polars as pl

from coterie.core.errors import BadInput, format_value, suggest_name
from coterie.core.files import check_regular_file, expand_home, path_exists, read_text
from coterie.core.options import NonNegativeInt
from coterie.data.messages import log
from coterie.data.read.columns import RowSource, to_plain_numbers
from coterie.data.read.file_rows import (
    FileRows,
    UserData,
    cells_of,
    check_arrays,
    format_names,
    merge_files,
    natural_key_of,
    parse_parts,
    stack_frames,
)
from coterie.data.read.flower_partitions import find_saved_partitions, partitions_of
from coterie.data.read.id_columns import find_ids
from coterie.data.read.number_forms import COMMA, POINT
from coterie.data.read.table_files import TABLE_SUFFIXES, OpenedTable, kind_of, stem_of
from coterie.data.read.tokenizer import (
    DEFAULT_OPTIONS,
    TokenizerOptions,
    Tokens,
    Vocabulary,
    guess_text,
)
from coterie.data.read.user_table import (
    ColumnRoles,
    check_same_size,
    decode_image,
    parse_cut_column,
    parse_table,
    read_table,
)

SUFFIXES = (
    ".csv",
    ".parquet",
    ".npz",
    *(kind for kind in TABLE_SUFFIXES if kind not in (".csv", ".parquet")),
)
LARGE = 2**26  # bytes of a file that takes seconds to read
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
MissingRule = Literal["impute", "refuse"]


def is_path(data: object) -> bool:
    """Whether `data` means a file or folder rather than the name of a known data set."""
    if isinstance(data, Path):
        return True
    return isinstance(data, str) and (
        data.lower().endswith(SUFFIXES) or "/" in data or "\\" in data
    )


def read_user_data(
    path: str | Path,
    *,
    client: str = "client",
    label: str | list[str] = "label",
    features: str | list[str] = "",
    drop: str | list[str] = "",
    categories: str | list[str] = "",
    missing: MissingRule = "impute",
    missing_values: str | list[str] = "",
    drop_missing_labels: bool = False,
    decimal: str = "",
    keep_ids: bool = False,
    one_hot: NonNegativeInt = 20,
    cut_column: str = "",
    part_column: str = "",
    separator: str = "",
    text: str = "",
    vocabulary: Vocabulary = DEFAULT_OPTIONS.vocabulary,
    tokens: Tokens = DEFAULT_OPTIONS.tokens,
    tokenizer: str = "",
) -> UserData:
    """Read a file or folder.

    client: the column that names the client of a row; empty: the rows have no natural clients.
    label: the column to predict; several, separated by commas, are 0 or 1 each.
    features: the columns to predict from; empty: all others.
    drop: columns that are left out.
    categories: columns whose numbers are names.
    missing: missing values: "impute" by medians of the training rows, or "refuse".
    missing_values: texts that count as a blank cell in any column, separated by commas, such as
        "-,none,-999"; a number counts however it is written.
    drop_missing_labels: rows without a label are left out instead of refused.
    keep_ids: columns whose values are others in every row stay inputs; else they are left out.
    decimal: the mark of fractions, . or , where cells such as 1,200 leave it open; empty: found
        out.
    one_hot: most categories of a text column that are one-hot encoded; beyond, they are hashed.
    cut_column: the column that cut = time and cut = groups cut by; it is no feature unless named as
        one.
    part_column: the column that says train, validation or test of every row.
    separator: the separator of a CSV file; empty: found out.
    text: the column of texts that are read word by word, the only feature then.
    vocabulary: most words of the training texts that have a number of their own.
    tokens: tokens of a text that are used.
    tokenizer: folder of the pretrained network whose tokenizer reads the texts; empty: that of
        --model hf:FOLDER, else one is fitted on the words of the training texts.
    """
    path = expand_home(path)
    if not path_exists(path):
        raise BadInput(
            f"there is no file or folder {format_value(str(path))}; "
            "give the path of your data or a data set's name"
        )
    columns = _build_roles(
        client, label, features, drop, categories, cut_column, part_column, text, separator
    )
    columns = _add_cell_rules(columns, missing_values, drop_missing_labels, decimal, keep_ids)
    name = path.name + "/" if path.is_dir() else path.name
    if path.is_file() and (size := path.stat().st_size) >= LARGE:
        log(f"{name}: {size / 1e6:,.0f} MB are read")
    data = _merge_rows(name, _read_path(path, columns), columns, missing)
    return data._replace(one_hot=one_hot, texts=_token_options(vocabulary, tokens, tokenizer))


def _token_options(vocabulary: int, tokens: int, tokenizer: str) -> TokenizerOptions:
    """How texts become numbers; an option that has no effect beside another is refused."""
    if tokenizer and vocabulary != DEFAULT_OPTIONS.vocabulary:
        raise BadInput(
            f"vocabulary = {vocabulary} has no effect, as the tokenizer of {tokenizer} has its own"
        )
    return TokenizerOptions(vocabulary, tokens, tokenizer)


def _build_roles(
    client: str,
    label: str | list[str],
    features: str | list[str],
    drop: str | list[str],
    categories: str | list[str],
    cut_column: str,
    part_column: str,
    text: str,
    separator: str = "",
) -> ColumnRoles:
    """What the columns are for; options that have no effect beside a text column are refused."""
    columns = ColumnRoles(
        client=client,
        label=label if isinstance(label, str) else ",".join(label),
        features=parse_list(features),
        separator=separator,
        cut=cut_column,
        part=part_column,
        categories=tuple(parse_list(categories)),
        text=text,
        drop=tuple(parse_list(drop)),
    )
    if columns.drop and (columns.features or text):
        chosen = "text" if text else "features"
        raise BadInput(
            f"drop = {','.join(columns.drop)} has no effect beside {chosen}, which chooses the "
            "columns: leave one out"
        )
    for option, names in (("features", columns.features), ("categories", columns.categories)):
        if text and set(names) - {text}:
            raise BadInput(
                f"text = '{text}' reads that column alone: leave out {option} = {','.join(names)}, "
                "or text"
            )
    return columns


def _add_cell_rules(
    columns: ColumnRoles,
    missing_values: str | list[str],
    drop_missing_labels: bool,
    decimal: str,
    keep_ids: bool,
) -> ColumnRoles:
    """The same with what counts as a blank cell, what becomes of rows without a label, what 1,200
    is, and whether ids are inputs.
    """
    if keep_ids and (columns.features or columns.text):
        raise BadInput("keep_ids has no effect beside features or text, which choose the columns")
    if decimal not in ("", POINT, COMMA):
        raise BadInput(f"decimal = {format_value(decimal)}: give . or ,")
    return columns._replace(
        missing_values=tuple(parse_list(missing_values)),
        drop_missing_labels=drop_missing_labels,
        decimal=decimal,
        keep_ids=keep_ids,
    )


def _merge_rows(
    name: str, pieces: list[FileRows], columns: ColumnRoles, missing: MissingRule
) -> UserData:
    """All pieces as one data set, with the column that rows are cut by."""
    if missing not in get_args(MissingRule):
        raise BadInput(
            f"missing = '{missing}' is not known{suggest_name(missing, get_args(MissingRule))}"
        )
    asked = {
        k: getattr(columns, k)
        for k in ("missing_values", "drop_missing_labels", "decimal", "keep_ids")
    }
    for option in (k for k, v in asked.items() if v and pieces[0].columns is None):
        raise BadInput(f"{option} is for tables, {pieces[0].place} is none: leave it out")
    pieces, text, remarks = _select_text(pieces, columns)
    data = merge_files(name, pieces, missing, columns.categories, text, columns.decimal)
    data = data._replace(remarks=(*data.remarks, *remarks), missing_values=columns.missing_values)
    if not (columns.keep_ids or columns.features or text):
        data = _leave_out_ids(data, columns.categories)
    if columns.cut:
        series = [piece.cut for piece in pieces if piece.cut is not None]
        if len(series) < len(pieces):
            raise BadInput(f"cut_column = '{columns.cut}' is for tables, {pieces[0].place} is none")
        data = data._replace(cut=stack_frames([s.to_frame() for s in series]).to_series())
    return data


def _leave_out_ids(data: UserData, named: tuple[str, ...]) -> UserData:
    """The same without columns that number the rows, and a line that says so."""
    columns = data.columns or []
    ids = [k for k in find_ids(columns, data.data.x) if columns[k].name not in named]
    if not ids or len(ids) == len(columns):
        return data
    kept = np.setdiff1d(np.arange(len(columns)), ids)
    names = format_names([columns[k].name for k in ids])
    line = f"{names} left out: another value in every row, as ids have; --keep-ids keeps them"
    return data._replace(
        data=data.data._replace(x=data.data.x[:, kept]),
        columns=[columns[k] for k in kept],
        remarks=(*data.remarks, line),
    )


def _select_text(
    pieces: list[FileRows], columns: ColumnRoles
) -> tuple[list[FileRows], str, list[str]]:
    """The pieces, with the column of texts alone where one was named or is all there is."""
    frames = [piece.frame for piece in pieces if piece.frame is not None]
    if columns.text and len(frames) < len(pieces):
        raise BadInput(f"text = '{columns.text}' is for tables, {pieces[0].place} is none")
    if columns.text or columns.features or columns.categories or not frames:
        return pieces, columns.text, []
    text = guess_text(stack_frames(frames))
    if not text:
        return pieces, "", []
    pieces = [
        piece._replace(frame=frame.select(text), columns=[text])
        for piece, frame in zip(pieces, frames, strict=True)
    ]
    said = f"'{text}' is the only column of use, and free text: read word by word"
    return pieces, text, [f"{said}; --categories {text} if its texts are names"]


def _read_path(path: Path, columns: ColumnRoles) -> list[FileRows]:
    """What a file or the files of a folder hold."""
    if not path.is_dir():
        check_regular_file(path)
        if kind_of(path) not in SUFFIXES:
            raise BadInput(
                f"{path}: files of kind '{path.suffix}' are not read; give {', '.join(SUFFIXES)}"
            )
        return [_read_file(path, columns)]
    saved = _find_saved_files(path)
    if saved:
        pieces: list[FileRows] = []
        for file, train in saved:
            like = pieces[0] if pieces else None
            pieces.append(_read_file(file, columns, like)._replace(train=train))
        return pieces
    folders = find_saved_partitions(path)
    if folders:
        return _read_client_folders(folders, columns)
    return _read_image_folders(path) or _read_client_files(path, columns)


def _read_client_folders(folders: list[Path], columns: ColumnRoles) -> list[FileRows]:
    """Saved data sets, each the rows of the client that its folder is called after."""
    alone = columns._replace(client="", ignore=columns.client)
    pieces: list[FileRows] = []
    for folder in folders:
        for file, train in _find_saved_files(folder):
            piece = _read_file(file, alone, pieces[0] if pieces else None)
            owner = np.full(len(piece.y), folder.name)
            pieces.append(piece._replace(clients=owner, train=train))
    return pieces


def is_frame(data: object) -> bool:
    """Whether `data` is a pandas or polars frame."""
    if isinstance(data, pl.DataFrame | pl.LazyFrame):
        return True
    return type(data).__name__ == "DataFrame" and type(data).__module__.startswith("pandas")


def from_frame(
    frame: Any,
    *,
    client: str = "client",
    label: str | list[str] = "label",
    features: str | list[str] = "",
    drop: str | list[str] = "",
    categories: str | list[str] = "",
    missing: MissingRule = "impute",
    missing_values: str | list[str] = "",
    drop_missing_labels: bool = False,
    decimal: str = "",
    keep_ids: bool = False,
    one_hot: NonNegativeInt = 20,
    cut_column: str = "",
    part_column: str = "",
    text: str = "",
    vocabulary: Vocabulary = DEFAULT_OPTIONS.vocabulary,
    tokens: Tokens = DEFAULT_OPTIONS.tokens,
    tokenizer: str = "",
    name: str = "frame",
) -> UserData:
    """Own data from a pandas or polars frame; the options are those of `read`."""
    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    if not isinstance(frame, pl.DataFrame):
        frame = pl.from_pandas(frame)
    columns = _build_roles(client, label, features, drop, categories, cut_column, part_column, text)
    columns = _add_cell_rules(columns, missing_values, drop_missing_labels, decimal, keep_ids)
    piece = parse_table(name, OpenedTable(frame, lambda column: None, []), columns)
    data = _merge_rows(name, [piece], columns, missing)
    return data._replace(one_hot=one_hot, texts=_token_options(vocabulary, tokens, tokenizer))


def from_partitions(
    data: Any,
    *,
    label: str | list[str] = "label",
    features: str | list[str] = "",
    drop: str | list[str] = "",
    categories: str | list[str] = "",
    missing: MissingRule = "impute",
    missing_values: str | list[str] = "",
    drop_missing_labels: bool = False,
    decimal: str = "",
    keep_ids: bool = False,
    one_hot: NonNegativeInt = 20,
    cut_column: str = "",
    part_column: str = "",
    text: str = "",
    vocabulary: Vocabulary = DEFAULT_OPTIONS.vocabulary,
    tokens: Tokens = DEFAULT_OPTIONS.tokens,
    tokenizer: str = "",
    name: str = "partitions",
) -> UserData:
    """Own data from a FederatedDataset or Partitioner of flwr-datasets, or from a list of Hugging
    Face data sets, one per client; the options are those of `read`.
    """
    columns = _build_roles("", label, features, drop, categories, cut_column, part_column, text)
    columns = _add_cell_rules(columns, missing_values, drop_missing_labels, decimal, keep_ids)
    pieces: list[FileRows] = []
    for one in partitions_of(data):
        place = f"{name}: client {one.client}"
        piece = parse_table(place, one.opened, columns, pieces[0] if pieces else None)
        owner = np.full(len(piece.y), one.client)
        pieces.append(piece._replace(clients=owner, train=one.train))
    whole = _merge_rows(name, pieces, columns, missing)
    return whole._replace(one_hot=one_hot, texts=_token_options(vocabulary, tokens, tokenizer))


def from_arrays(
    x: Any,
    y: Any,
    clients: Any = None,
    name: str = "arrays",
    cut_by: Any = None,
    parts: Any = None,
) -> UserData:
    """Own data from arrays: x [n, ...] numbers, y [n] numbers or text, clients [n] names.

    cut_by: [n] moments or groups, for `cut = time` and `cut = groups`. parts: [n] train,
    validation or test.
    """
    owners = None if clients is None else _to_array(clients, "clients")
    piece = check_arrays(name, _to_array(x, "x"), _to_array(y, "y"), owners)
    if parts is not None:
        piece = piece._replace(parts=_check_part_array(_to_array(parts, "parts"), piece))
    data = merge_files(name, [piece])
    if cut_by is None:
        return data
    series = pl.Series("cut_by", cut_by)
    if series.len() != len(data.data.y):
        raise BadInput(f"{name}: cut_by has {series.len()} values, but x {len(data.data.y)} rows")
    return data._replace(cut=series)


def _check_part_array(parts: np.ndarray, piece: FileRows) -> np.ndarray:
    if parts.shape != (len(piece.y),):
        raise BadInput(
            f"{piece.place}: parts has shape {list(parts.shape)}, but x has {len(piece.y):,} rows; "
            "give one each"
        )
    return parse_parts(parts.tolist(), piece.place, "parts")


def cut_numbers_of(own: UserData, how: str) -> np.ndarray:
    """What the rows are cut by, as numbers."""
    name = own.data.name
    if own.cut is None:
        raise BadInput(
            f"cut = '{how}' needs the column that '{name}' is cut by; name it with --cut-column"
        )
    place = own.place or RowSource((name,), (len(own.data.y),))
    return parse_cut_column(own.cut, place, how)


def _to_array(values: Any, what: str) -> np.ndarray:
    """Values as an array; a generator is read, lists of unequal length are refused."""
    try:
        return np.asarray(list(values) if isinstance(values, Iterator) else values)
    except (ValueError, TypeError, RuntimeError) as problem:
        why = " ".join(str(problem).split())
        raise BadInput(f"{what} is no array: {why[:200]}") from None


def parse_list(features: str | list[str]) -> list[str]:
    """Names of columns, from a list or from text with commas between them."""
    names = features.split(",") if isinstance(features, str) else features
    return [name.strip() for name in names if name.strip()]


def _read_client_files(path: Path, columns: ColumnRoles) -> list[FileRows]:
    """The files of a folder, each the rows of the client that it is called after."""
    files = sorted(
        (f for f in path.iterdir() if kind_of(f) in SUFFIXES and not f.name.startswith(".")),
        key=lambda f: natural_key_of(f.name),
    )
    if not files:
        raise BadInput(
            f"{path}: no {', '.join(SUFFIXES)} file in this folder (one per client), no "
            "client/class/image.png and no saved data set"
        )
    stems = [stem_of(f) for f in files]
    twice = next((s for s in stems if stems.count(s) > 1), None)
    if twice is not None:
        raise BadInput(
            f"{path}: two files are called '{twice}'; a file is a client: name each differently"
        )
    pieces: list[FileRows] = []
    for file in files:
        like = pieces[0] if pieces else None
        piece = _read_file(file, columns._replace(client="", ignore=columns.client), like)
        pieces.append(piece._replace(clients=np.full(len(piece.y), stem_of(file))))
    return pieces


def _find_saved_files(path: Path) -> list[tuple[Path, bool]]:
    """The files of a Hugging Face folder and whether each is training data; else nothing."""
    if (path / "dataset_dict.json").is_file():
        names = _read_split_names(path / "dataset_dict.json")
        splits = {part: sorted((path / part).glob("*.arrow")) for part in names}
    elif (path / "state.json").is_file():
        splits = {"train": sorted(path.glob("*.arrow"))}
    elif (path / "data").is_dir():
        splits = {}
        for file in sorted((path / "data").glob("*.parquet")):
            splits.setdefault(file.stem.split("-")[0], []).append(file)
    else:
        return []
    files = [
        (file, part == "train" or "train" not in splits)
        for part, found in splits.items()
        for file in found
    ]
    if not files:
        raise BadInput(
            f"{path}: a Hugging Face folder without .arrow or .parquet files; "
            "save the data set again"
        )
    return files


def _read_split_names(path: Path) -> list[str]:
    """The names of the parts that a JSON file lists; a part is a folder beside it."""
    try:
        found = json.loads(read_text(path))
    except BadInput:
        raise
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: this is no JSON ({error}); save the data set again") from None
    names = found.get("splits") if isinstance(found, dict) else None
    if not isinstance(names, list) or not all(
        isinstance(n, str) and n == Path(n).name and "\0" not in n for n in names
    ):
        raise BadInput(f"{path}: it names no splits; save the data set again")
    return names


def _read_arrays(path: Path, client: str, part: str) -> FileRows:
    """The arrays of an .npz file; part: the one that says train, validation or test."""
    try:
        with np.load(check_regular_file(path)) as store:
            held = {key: store[key] for key in store.files}
    except Exception as error:  # a damaged zip raises many kinds; the user needs one line
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BadInput(
            f"{path}: this is no readable .npz file ({reason}); write it with numpy.savez"
        ) from None
    for key in ("x", "y", *(["clients"] if client else []), *([part] if part else [])):
        if key not in held:
            raise BadInput(
                f"{path}: there is no array '{key}', only {', '.join(held) or 'nothing'}; "
                'save x, y and, in a single file, clients (or read it with client="")'
            )
    piece = check_arrays(str(path), held["x"], held["y"], held["clients"] if client else None)
    return piece if not part else piece._replace(parts=_check_part_array(held[part], piece))


def _read_file(path: Path, columns: ColumnRoles, like: FileRows | None = None) -> FileRows:
    """One file; `like` is a file whose columns it must share."""
    if path.suffix == ".npz":
        return _read_arrays(path, columns.client, columns.part)
    return read_table(path, columns, like)


def read_plain_file(path: Path, columns: ColumnRoles, like: FileRows | None = None) -> FileRows:
    """One file as arrays of plain numbers, without preparation: a table of all else is refused."""
    piece = _read_file(path, columns, like)
    if piece.frame is None:
        return piece
    place = RowSource((piece.place,), (len(piece.y),))
    return piece._replace(x=to_plain_numbers(cells_of([piece], "refuse"), place), frame=None)


def _read_image_folders(path: Path) -> list[FileRows]:
    """A folder with a folder per client, in each a folder per class; else nothing."""
    pieces: list[FileRows] = []
    first: list[np.ndarray] = []
    for owner in filter(Path.is_dir, _list_folder(path)):
        files = [
            file
            for kind in sorted(filter(Path.is_dir, _list_folder(owner)), key=lambda f: f.name)
            for file in _list_folder(kind)
            if file.suffix.lower() in IMAGES
        ]
        if not files:
            continue
        images = list[np.ndarray]()
        for file in files:
            images.append(decode_image(file, str(file)))
            first = first or images
            check_same_size([first[0], images[-1]], str(file))
        names = np.array([file.parent.name for file in files])
        clients = np.full(len(files), owner.name)
        pieces.append(FileRows(str(owner), np.stack(images), names, clients))
    return pieces


def _list_folder(folder: Path) -> list[Path]:
    """What lies in a folder, in natural order; nothing where it may not be read."""
    try:
        return sorted(folder.iterdir(), key=lambda f: natural_key_of(f.name))
    except OSError:
        return []
