"""What methods log while they run, and what it means: declared once, drawn by kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from coterie.core.errors import BadInput

GRID_CELL = re.compile(r"(.+)\[([^=\]]+)=([^,\]]+),([^=\]]+)=([^,\]]+)\]")
PAIR_SUFFIXES = ("_before", "_after")


class QuantityKind(StrEnum):
    """What a logged quantity holds, which decides how it is drawn; N is the number of clients."""

    MATRIX = "matrix"  # server, [N, N]: row i says from whom client i learns, and how much
    GROUPS = "groups"  # server [N] or client: clients of one number share a model; -1: none yet
    VECTORS = "vectors"  # server, [N, d]: what the server holds of each client
    COURSE = "course"  # server [N] or client: one number per client, as a mean by round
    SHARE = "share"  # server [N] or client: yes or no, as a share of the clients by round
    FINAL = "final"  # server [N] or client: one number per client, the latest, client by client
    SERVER = "server"  # server: one number by round
    PAIR = "pair"  # NAME is written as NAME_before and NAME_after: both by round
    GRID = "grid"  # client: NAME is written as NAME[a=1,b=2]: the mean over clients of every cell
    VIEW = "view"  # no quantity, but words for one of the method's views


class LoggedQuantity(NamedTuple):
    """The meaning of a logged quantity, for whoever reads a report."""

    label: str  # as in a title: "local steps"
    kind: QuantityKind
    unit: str = ""  # "%": written as a share of 1
    meaning: str = ""  # a sentence or two for the caption
    log: bool = False  # drawn as log10
    histogram: bool = False  # of a course: the clients of one round by its value, too


FROM_SERVER = (QuantityKind.MATRIX, QuantityKind.VECTORS, QuantityKind.SERVER)
FROM_CLIENTS = (QuantityKind.GRID,)
DIMENSIONS = {
    QuantityKind.MATRIX: 2,
    QuantityKind.VECTORS: 2,
    QuantityKind.SERVER: 0,
}  # of a server's quantity; 1 for the rest


def base_name(written: str) -> str:
    """The name under which a pair or a cell of a grid is declared."""
    cell = GRID_CELL.fullmatch(written)
    if cell:
        return cell[1]
    return next(
        (written.removesuffix(end) for end in PAIR_SUFFIXES if written.endswith(end)), written
    )


def find_declaration(
    written: str, describes: Mapping[str, LoggedQuantity]
) -> LoggedQuantity | None:
    """The declaration of a logged quantity that was written; None where there is none."""
    plain, joined = describes.get(written), describes.get(base_name(written))
    if plain and plain.kind not in (QuantityKind.PAIR, QuantityKind.GRID, QuantityKind.VIEW):
        return plain
    whole = QuantityKind.GRID if GRID_CELL.fullmatch(written) else QuantityKind.PAIR
    return joined if joined and base_name(written) != written and joined.kind is whole else None


def check_server_logged(
    notes: Mapping[str, Any], describes: Mapping[str, LoggedQuantity], clients: int
) -> None:
    """Refuse a logged quantity of the server that is not declared, or not of the declared kind."""
    for name, value in notes.items():
        note, shape = _require_declared(name, describes), tuple(value.shape)
        wanted = DIMENSIONS.get(note.kind, 1)
        fits = len(shape) == wanted or (note.kind is QuantityKind.PAIR and not shape)
        of_clients = shape[: 2 if note.kind is QuantityKind.MATRIX else 1]
        fits &= note.kind is QuantityKind.PAIR or all(n == clients for n in of_clients)
        if note.kind in FROM_CLIENTS or not fits:
            raise BadInput(
                f"the server's quantity '{name}' has the shape {list(shape)}, which is no "
                f"'{note.kind}' of {clients} clients: see coterie.core.quantities.QuantityKind "
                "for what a kind "
                "holds"
            )


def check_client_logged(names: Iterable[str], describes: Mapping[str, LoggedQuantity]) -> None:
    """Refuse a client's logged quantity that is not declared, or of a kind that servers write."""
    for name in names:
        if (note := _require_declared(name, describes)).kind in FROM_SERVER:
            raise BadInput(
                f"the logged quantity '{name}' is declared as '{note.kind}', which servers write, "
                "but a client wrote it"
            )


def _require_declared(name: str, describes: Mapping[str, LoggedQuantity]) -> LoggedQuantity:
    note = find_declaration(name, describes)
    if note is None:
        raise BadInput(
            f"the logged quantity '{name}' is not declared: add it to the method's `describes`, "
            f"as in describes={{'{base_name(name)}': LoggedQuantity('what it is', "
            "QuantityKind.COURSE)}"
        )
    return note


def merge_declarations(
    several: Iterable[Mapping[str, LoggedQuantity]],
) -> dict[str, LoggedQuantity]:
    """The declarations of all stages; a name has one meaning."""
    found: dict[str, LoggedQuantity] = {}
    for describes in several:
        for name, note in describes.items():
            if found.setdefault(name, note) != note:
                raise BadInput(
                    f"the logged quantity '{name}' is declared twice, and not alike: "
                    "give each stage's quantity its own name"
                )
    return found


def to_json(describes: Mapping[str, LoggedQuantity]) -> dict[str, dict[str, Any]]:
    """Declarations as they stand in run.json."""
    return {name: {**note._asdict(), "kind": str(note.kind)} for name, note in describes.items()}


def from_json(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, LoggedQuantity]:
    """Declarations from run.json."""
    found = {}
    for name, fields in settings.items():
        if fields["kind"] not in list(QuantityKind):
            raise BadInput(
                f"the logged quantity '{name}' is of the kind '{fields['kind']}', "
                "which this version does not know"
            )
        found[name] = LoggedQuantity(**{**fields, "kind": QuantityKind(fields["kind"])})
    return found
