"""Which columns the models of a run use, as `explain` and `compare` have measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from coterie.core.files import read_text, write_text

EXPLAINED = "explained.json"


class ColumnImportance(NamedTuple):
    """How much worse models do where one column's cells change places, over clients."""

    name: str
    mean: float
    low: float  # quartiles
    high: float


class ExplainedColumns(NamedTuple):
    """The columns of a run, the most important first."""

    measure: str  # what is lost
    clients: int  # that were measured
    of: int  # that there are
    rows: int  # test rows
    columns: tuple[ColumnImportance, ...]
    sureness: tuple[str, ...] = ()  # how sure the models are, a sentence each; () if not measured


def write_explained(folder: Path, found: ExplainedColumns) -> None:
    """Into the run's folder, for its reports."""
    whole = found._asdict() | {"columns": [column._asdict() for column in found.columns]}
    write_text(folder / EXPLAINED, json.dumps(whole, indent=1))


def read_explained(folder: Path) -> ExplainedColumns | None:
    """What was measured; None where nothing was, or it cannot be read: it can be measured anew."""
    try:
        whole = json.loads(read_text(folder / EXPLAINED))
        columns = tuple(ColumnImportance(**one) for one in whole["columns"])
        return ExplainedColumns(
            **whole | {"columns": columns, "sureness": tuple(whole.get("sureness", ()))}
        )
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
