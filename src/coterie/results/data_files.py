"""What a run did with its data: which rows are in which part (rows.parquet), and how cells became
inputs (preparation.json).
"""

from __future__ import annotations

import json
from pathlib import Path

from coterie.core.errors import BadInput
from coterie.core.files import write_text
from coterie.data.federation import Federation, list_rows
from coterie.data.prepare.preparation import Preparation, preparation_from_dict
from coterie.results.folder import write_table

PREPARATION, ROWS = "preparation.json", "rows.parquet"


def write_inputs(folder: Path, federation: Federation) -> None:
    """Both files, once; a federation made by hand, or of real sites, has neither."""
    if federation.rows is not None and not (folder / ROWS).exists():
        write_table(list_rows(federation), folder / ROWS)
    if federation.preparation is not None and not (folder / PREPARATION).exists():
        write_text(folder / PREPARATION, json.dumps(federation.preparation.words(), indent=1))


def read_preparation(folder: Path) -> Preparation:
    """How a run made inputs of its rows."""
    try:
        return preparation_from_dict(json.loads((folder / PREPARATION).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise BadInput(
            f"{folder} has no {PREPARATION}: its data were dealt by hand or lie on real sites"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{folder / PREPARATION} is damaged: restore it, or run again") from None
