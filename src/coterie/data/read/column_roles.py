"""Which column of a table holds the client and which the label, recognized by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from coterie.core.errors import BadInput
from coterie.core.files import path_exists
from coterie.data.messages import warn
from coterie.data.read.table_files import TABLE_SUFFIXES, kind_of, open_table

# what a column may be called beside "client" and "label"
CLIENTS = (
    *("client", "user", "person", "subject", "patient", "participant", "customer", "member"),
    *("site", "hospital", "clinic", "institution", "school", "store", "shop", "branch", "station"),
    *("center", "centre", "household", "device", "phone", "sensor", "writer", "author", "speaker"),
)
LABELS = (
    *("label", "target", "y", "class", "outcome", "diagnosis", "response", "activity"),
    "category",
)
ROLE_NAMES = {"client": CLIENTS, "label": LABELS}
ENDINGS = ("id", "ids", "name", "no", "nr", "number", "code", "key")
SHOWN = 12  # columns that a refusal lists


def has_columns(path: Path) -> bool:
    """Whether a path is a table whose columns can be looked at."""
    return path_exists(path) and path.is_file() and kind_of(path) in TABLE_SUFFIXES


def guess_columns(
    path: Path, said: Mapping[str, str | list[str]], separator: str = ""
) -> dict[str, str]:
    """{"client": column, "label": column} as far as they were not said; every guess is reported."""
    if len(said) == len(ROLE_NAMES):
        return {}
    columns = open_table(path, [], separator).frame.columns
    found: dict[str, str] = {}
    for option in (w for w in ROLE_NAMES if w not in said):
        if option in columns:
            continue  # it has the usual name
        names = (n for v in said.values() for n in ([v] if isinstance(v, str) else v))
        taken = {*names, *found.values()}
        fitting = [c for c in columns if c not in taken and _is_role_name(c, option)]
        if len(fitting) != 1:
            raise BadInput(_explain_unclear(path, option, fitting, columns))
        found[option] = fitting[0]
    if found:
        what = " and ".join(f"'{column}' as the {option}" for option, column in found.items())
        ways = " ".join(f"--{option} COLUMN" for option in found)
        warn(f"{path.name}: takes column {what}; {ways} names another")
    return found


def _is_role_name(column: str, option: str) -> bool:
    """Whether a column's name is one of the usual ones, alone or before or after id, name, ..."""
    parts = [p for p in re.split(r"[^a-z0-9]+", _to_snake_case(column)) if p]
    rest = [p for p in parts if p not in ENDINGS] or parts
    return len(rest) == 1 and (
        rest[0] in ROLE_NAMES[option] or rest[0].removesuffix("s") in ROLE_NAMES[option]
    )


def _to_snake_case(column: str) -> str:
    """patientID and PatientId as patient_id."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", column).lower()


def _explain_unclear(path: Path, option: str, fitting: list[str], columns: list[str]) -> str:
    none = ', or --client "" where rows have none' if option == "client" else ""
    way = f"name it with --{option} COLUMN{none}"
    if fitting:
        return f"{path.name}: {_format_columns(fitting)} may each hold the {option}: {way}"
    return (
        f"{path.name}: no column name says which holds the {option} ({_format_columns(columns)}): "
        f"{way}"
    )


def _format_columns(columns: list[str]) -> str:
    more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
    return ", ".join(columns[:SHOWN]) + more
