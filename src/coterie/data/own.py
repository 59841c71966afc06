"""A user's own data, from files, folders and arrays.

They are a table with a client column, a folder with one file per client, a Hugging Face folder, or
NumPy arrays.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import BadInput
from coterie.data.pieces import Own, Piece, checked, join, natural
from coterie.data.tables import Columns, read_table

SUFFIXES = (".csv", ".parquet", ".npz", ".arrow")


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
    """Read a file or folder; client = "": no natural clients, features = "": all other columns."""
    path = Path(path).expanduser()
    if not path.exists():
        raise BadInput(
            f"there is no file or folder {path}; give the path of your data or a data set's name"
        )
    columns = Columns(client=client, label=label, features=listed(features), separator=separator)
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise BadInput(
                f"{path}: files of kind '{path.suffix}' are not read; give {', '.join(SUFFIXES)}"
            )
        return join(path.name, [read_piece(path, columns)])
    saved = _saved(path)
    if saved:
        pieces: list[Piece] = []
        for file, train in saved:
            like = pieces[0] if pieces else None
            pieces.append(read_piece(file, columns, like)._replace(train=train))
        return join(path.name + "/", pieces)
    return join(path.name + "/", _one_file_per_client(path, columns))


def from_arrays(x: Any, y: Any, clients: Any = None, name: str = "arrays") -> Own:
    """Own data from arrays: x [n, ...] numbers, y [n] whole numbers or text, clients [n] names."""
    owners = None if clients is None else np.asarray(clients)
    return join(name, [checked(name, np.asarray(x), np.asarray(y), owners)])


def listed(features: str | list[str]) -> list[str]:
    """Names of columns, from a list or from text with commas between them."""
    names = features.split(",") if isinstance(features, str) else features
    return [name.strip() for name in names if name.strip()]


def _one_file_per_client(path: Path, columns: Columns) -> list[Piece]:
    """The files of a folder, each the rows of the client that it is called after."""
    files = sorted(
        (f for f in path.iterdir() if f.suffix in SUFFIXES), key=lambda f: natural(f.name)
    )
    if not files:
        raise BadInput(
            f"{path}: no {', '.join(SUFFIXES)} file in this folder; put one file per client there"
        )
    stems = [f.stem for f in files]
    twice = next((s for s in stems if stems.count(s) > 1), None)
    if twice is not None:
        raise BadInput(
            f"{path}: two files are called '{twice}'; a file is a client: name each differently"
        )
    pieces: list[Piece] = []
    for file in files:
        like = pieces[0] if pieces else None
        piece = read_piece(file, columns._replace(client="", ignore=columns.client), like)
        pieces.append(piece._replace(clients=np.full(len(piece.y), file.stem)))
    return pieces


def _saved(path: Path) -> list[tuple[Path, bool]]:
    """The files of a Hugging Face folder and whether each is training data; else nothing."""
    if (path / "dataset_dict.json").is_file():
        names = _json(path / "dataset_dict.json")["splits"]
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


def _json(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise BadInput(f"{path}: this is no JSON ({error}); save the data set again") from None


def _arrays(path: Path, client: str) -> Piece:
    """The arrays of an .npz file."""
    try:
        with np.load(path) as store:
            held = {key: store[key] for key in store.files}
    except Exception as error:  # a damaged zip raises many kinds; the user needs one line
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BadInput(
            f"{path}: this is no readable .npz file ({reason}); write it with numpy.savez"
        ) from None
    for key in ("x", "y", *(["clients"] if client else [])):
        if key not in held:
            raise BadInput(
                f"{path}: there is no array '{key}', only {', '.join(held) or 'nothing'}; "
                'save x, y and, in a single file, clients (or read it with client="")'
            )
    return checked(str(path), held["x"], held["y"], held["clients"] if client else None)


def read_piece(path: Path, columns: Columns, like: Piece | None = None) -> Piece:
    """One file as arrays; `like` is a file whose columns it must share."""
    if path.suffix == ".npz":
        return _arrays(path, columns.client)
    return read_table(path, columns, like)
