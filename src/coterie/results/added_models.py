"""Models that a finished run got later: of clients that came, and newer versions of those it had.

They lie beside the models of training, each in a file of its own, and later.json lists them; what
training wrote stays as it was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.errors import BadInput
from coterie.core.files import digest_text, read_text, write_text
from coterie.results.about import CHECKSUM

FILE = "later.json"


class AddedModel(NamedTuple):
    """One model that came after training."""

    client: str
    version: int  # 1 of a client that came; training's own models are version 1 too
    file: str  # in the folder of the models
    how: str  # the rule by which it was made, in plain words
    date: str
    architecture: int
    rows: dict[str, int]  # by part
    measured: list[dict[str, Any]]  # as on a card
    drift: str = ""  # what was reported of the rows before an update
    scale: list[list[float]] | None = None  # its own centres and spreads, where clients have them


def read_added(models: Path) -> list[AddedModel]:
    """The models that came later, in the order in which they came."""
    path = models / FILE
    if not path.exists():
        return []
    try:
        known = json.loads(read_text(path))
        entries = known if isinstance(known, list) else known["models"]  # a list until 0.2
        whole = known is entries or known[CHECKSUM] == _checksum_of(entries)
        found = [AddedModel(**entry) for entry in entries]
    except (ValueError, TypeError, KeyError):
        whole = False
    if not whole:
        raise BadInput(f"{path} is damaged (it is not as it was written): restore it from a copy")
    return found


def append_added(models: Path, entry: AddedModel) -> None:
    """One more model, whose file lies there already; no entry is ever changed."""
    known = read_added(models)
    if any((e.client, e.version) == (entry.client, entry.version) for e in known):
        raise BadInput(f"{models / FILE} has version {entry.version} of '{entry.client}' already")
    entries = [e._asdict() for e in [*known, entry]]
    content = {CHECKSUM: _checksum_of(entries), "models": entries}
    write_text(models / FILE, json.dumps(content, indent=1))


def _checksum_of(entries: list[dict[str, Any]]) -> str:
    return digest_text(json.dumps(entries))


def select_newest(entries: Sequence[AddedModel]) -> dict[str, AddedModel]:
    """The newest model of each client that has any."""
    found: dict[str, AddedModel] = {}
    for entry in entries:
        if entry.client not in found or entry.version > found[entry.client].version:
            found[entry.client] = entry
    return found


def list_clients(trained: Sequence[str], entries: Sequence[AddedModel]) -> list[str]:
    """The clients of a run, those that came later at the end."""
    known = set(trained)
    return [*trained, *(n for n in dict.fromkeys(e.client for e in entries) if n not in known)]
