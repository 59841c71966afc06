"""What a run did with its data: which rows are in which part (rows.parquet), and how cells became
inputs (preparation.json).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from coterie.core.errors import BadInput
from coterie.core.files import digest, digest_text, read_text, write_text
from coterie.data.federation import Federation, list_rows
from coterie.data.prepare.preparation import Preparation, preparation_from_dict
from coterie.results.about import CHECKSUMS
from coterie.results.folder import read_about, write_table

PREPARATION, ROWS = "preparation.json", "rows.parquet"


def write_inputs(folder: Path, federation: Federation) -> None:
    """Both files; a federation made by hand, or of real sites, has neither."""
    if federation.rows is not None:
        write_table(list_rows(federation), folder / ROWS)
    if federation.preparation is not None and find_damaged(folder, checksums_of(federation)):
        write_text(folder / PREPARATION, _format_preparation(federation.preparation))


def _format_preparation(preparation: Preparation) -> str:
    return json.dumps(preparation.to_dict(), indent=1)


def checksums_of(federation: Federation) -> dict[str, str]:
    """{file: checksum} of what decides predictions beside the models and run.json."""
    if federation.preparation is None:
        return {}
    return {PREPARATION: digest_text(_format_preparation(federation.preparation))}


def find_damaged(folder: Path, known: Mapping[str, str]) -> str:
    """The first file that is missing or not as it was written, and why; "" where all are whole."""
    for name, checksum in known.items():
        try:
            if digest(folder / name) != checksum:
                return f"{folder / name} is damaged (it is not as it was written)"
        except FileNotFoundError:
            return f"{folder / name} is missing"
        except (BadInput, OSError) as problem:
            return str(problem)
    return ""


def read_preparation(folder: Path) -> Preparation:
    """How a run made inputs of its rows, if that is as it was written."""
    try:
        text = read_text(folder / PREPARATION)
        known = read_about(folder).get(CHECKSUMS, {})
        damage = find_damaged(folder, {k: v for k, v in known.items() if k == PREPARATION})
        if damage:
            raise BadInput(f"{damage}: restore it, or `coterie resume {folder}`")
        return preparation_from_dict(json.loads(text))
    except BadInput:
        raise
    except FileNotFoundError:
        raise BadInput(
            f"{folder} has no {PREPARATION}: its data were partitioned by hand or lie on real sites"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{folder / PREPARATION} is damaged: restore it, or run again") from None
