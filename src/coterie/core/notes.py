"""What methods note while they run, and what it means: declared once, drawn by kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from coterie.core.errors import BadInput

CELL = re.compile(r"(.+)\[([^=\]]+)=([^,\]]+),([^=\]]+)=([^,\]]+)\]")
ENDS = ("_before", "_after")


class Kind(StrEnum):
    """What a note holds, which decides how it is drawn; N is the number of clients."""

    MATRIX = "matrix"  # server, [N, N]: row i says from whom client i learns, and how much
    GROUPS = "groups"  # server [N] or client: clients of one number share a model; -1: none yet
    VECTORS = "vectors"  # server, [N, d]: what the server holds of each client
    COURSE = "course"  # server [N] or client: one number per client, as a mean by round
    SHARE = "share"  # server [N] or client: yes or no, as a share of the clients by round
    FINAL = "final"  # server [N] or client: one number per client, the latest, client by client
    SERVER = "server"  # server: one number by round
    PAIR = "pair"  # NAME is written as NAME_before and NAME_after: both by round
    GRID = "grid"  # client: NAME is written as NAME[a=1,b=2]: the mean over clients of every cell
    VIEW = "view"  # no note, but words for one of the method's views


class Note(NamedTuple):
    """The meaning of a note, for whoever reads a report."""

    label: str  # as in a title: "local steps"
    kind: Kind
    unit: str = ""  # "%": written as a share of 1
    meaning: str = ""  # a sentence or two for the caption
    log: bool = False  # drawn as log10
    histogram: bool = False  # of a course: the clients of one round by its value, too


FROM_SERVER = (Kind.MATRIX, Kind.VECTORS, Kind.SERVER)
FROM_CLIENTS = (Kind.GRID,)
DIMENSIONS = {Kind.MATRIX: 2, Kind.VECTORS: 2, Kind.SERVER: 0}  # of a server's note; 1 for the rest


def stem(written: str) -> str:
    """The name under which a pair or a cell of a grid is declared."""
    cell = CELL.fullmatch(written)
    if cell:
        return cell[1]
    return next((written.removesuffix(end) for end in ENDS if written.endswith(end)), written)


def declared(written: str, describes: Mapping[str, Note]) -> Note | None:
    """The declaration of a note that was written; None where there is none."""
    plain, joined = describes.get(written), describes.get(stem(written))
    if plain and plain.kind not in (Kind.PAIR, Kind.GRID, Kind.VIEW):
        return plain
    whole = Kind.GRID if CELL.fullmatch(written) else Kind.PAIR
    return joined if joined and stem(written) != written and joined.kind is whole else None


def check_server_notes(
    notes: Mapping[str, Any], describes: Mapping[str, Note], clients: int
) -> None:
    """Refuse a note of the server that is not declared, or not of the declared kind."""
    for name, value in notes.items():
        note, shape = _known(name, describes), tuple(value.shape)
        wanted = DIMENSIONS.get(note.kind, 1)
        fits = len(shape) == wanted or (note.kind is Kind.PAIR and not shape)
        of_clients = shape[: 2 if note.kind is Kind.MATRIX else 1]
        fits &= note.kind is Kind.PAIR or all(n == clients for n in of_clients)
        if note.kind in FROM_CLIENTS or not fits:
            raise BadInput(
                f"the server's note '{name}' has the shape {list(shape)}, which is no "
                f"'{note.kind}' of {clients} clients: see coterie.core.notes.Kind for what a kind "
                "holds"
            )


def check_client_notes(names: Iterable[str], describes: Mapping[str, Note]) -> None:
    """Refuse a note of a client that is not declared, or of a kind that servers write."""
    for name in names:
        if (note := _known(name, describes)).kind in FROM_SERVER:
            raise BadInput(
                f"the note '{name}' is declared as '{note.kind}', which servers write, "
                "but a client wrote it"
            )


def _known(name: str, describes: Mapping[str, Note]) -> Note:
    note = declared(name, describes)
    if note is None:
        raise BadInput(
            f"the note '{name}' is written but not declared: add it to the method's `describes`, "
            f"as in describes={{'{stem(name)}': Note('what it is', Kind.COURSE)}}"
        )
    return note


def merge(several: Iterable[Mapping[str, Note]]) -> dict[str, Note]:
    """The declarations of all stages; a name has one meaning."""
    found: dict[str, Note] = {}
    for describes in several:
        for name, note in describes.items():
            if found.setdefault(name, note) != note:
                raise BadInput(
                    f"the note '{name}' is declared twice, and not alike: "
                    "give each stage's note its own name"
                )
    return found


def to_words(describes: Mapping[str, Note]) -> dict[str, dict[str, Any]]:
    """Declarations as they stand in run.json."""
    return {name: {**note._asdict(), "kind": str(note.kind)} for name, note in describes.items()}


def from_words(words: Mapping[str, Mapping[str, Any]]) -> dict[str, Note]:
    """Declarations from run.json."""
    found = {}
    for name, fields in words.items():
        if fields["kind"] not in list(Kind):
            raise BadInput(
                f"the note '{name}' is of the kind '{fields['kind']}', "
                "which this version does not know"
            )
        found[name] = Note(**{**fields, "kind": Kind(fields["kind"])})
    return found
