"""Tables that a page brings: kept in the folder of runs, and looked at as `coterie data` does."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput, format_value
from coterie.core.files import catch_write_errors, move_into_place
from coterie.data.federation import PARTS, summarize_clients
from coterie.data.inspection import find_problems, summarize_columns
from coterie.data.messages import DataWarning
from coterie.data.read.table_files import open_table
from coterie.experiment.build import federation_of, user_data_of
from coterie.experiment.column_roles import with_columns
from coterie.experiment.config import Experiment, change_options

FOLDER = "uploads"  # in the folder of runs
MAX_UPLOAD = 2**26  # bytes of a table
SUFFIXES = (".csv", ".tsv", ".parquet")
MAX_SHOWN = 100  # columns and clients in a preview
MAX_NAME = 100  # characters of a file's name


def keep_upload(root: Path, name: str, content: bytes) -> Path:
    """Write a table under its own name, numbered where that is taken; nothing is overwritten."""
    plain = re.sub(r"[^\w.-]+", "_", Path(name.replace("\\", "/")).name)[-MAX_NAME:].lstrip(".")
    if Path(plain).suffix.lower() not in SUFFIXES:
        raise BadInput(f"{format_value(name)} is no table: bring a file in {', '.join(SUFFIXES)}")
    if not content:
        raise BadInput(f"{format_value(name)} is empty: bring a table with rows")
    folder = root / FOLDER
    if folder.is_symlink():
        raise BadInput(f"{FOLDER} is a link: coterie ui writes only into the folder itself")
    with catch_write_errors(root):
        folder.mkdir(parents=True, exist_ok=True)
        target, k = folder / plain, 2
        while target.exists():
            target, k = folder / f"{Path(plain).stem}-{k}{Path(plain).suffix}", k + 1
        temporary = target.with_name(target.name + ".part")
        temporary.write_bytes(content)
        move_into_place(temporary, target)
    return target


def preview_table(root: Path, asked: Mapping[str, str]) -> dict[str, Any]:
    """What an uploaded table holds, what becomes of it, and what looks wrong; a line in "problem"
    where it cannot be read with these columns.
    """
    path = root / FOLDER / Path(asked.get("name", "")).name
    if not path.is_file() or path.is_symlink():
        raise BadInput(f"there is no table {format_value(asked.get('name', ''))} here: upload it")
    settings = {option: asked[option] for option in ("client", "label") if asked.get(option)}
    columns = list(open_table(path, [], "").frame.columns)
    found: dict[str, Any] = {"path": str(path), "columns": columns, "problem": ""}
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", DataWarning)
            experiment = with_columns(
                change_options(Experiment(method=""), {"dataset": str(path), **settings})
            )
            found |= _describe_table(experiment)
        found["remarks"] = [str(one.message) for one in said if one.category is DataWarning]
    except BadInput as problem:
        found["problem"] = str(problem).replace(str(path), path.name)
    return found


def _describe_table(experiment: Experiment) -> dict[str, Any]:
    whole = user_data_of(experiment)
    assert whole is not None, "an uploaded table is a file of one's own"
    federation = federation_of(experiment, whole)
    prepared, clients = federation.preparation, summarize_clients(federation)
    described = summarize_columns(whole, prepared) if whole.columns and prepared else []
    roles = {option: experiment.dataset.get(option) or option for option in ("client", "label")}
    return {
        **roles,
        "rows": len(whole.data.x),
        "inputs": len(prepared.outputs) if prepared else 0,
        "described": [column._asdict() for column in described[:MAX_SHOWN]],
        "clients": [
            {"name": row.name, "rows": sum(int(getattr(row, part)) for part in PARTS)}
            for row in clients[:MAX_SHOWN]
        ],
        "all_clients": len(clients),
        "wrong": find_problems(whole),
    }
