"""Reads what methods logged: clients in the table of a run, servers in files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open

from coterie.core.quantities import (
    GRID_CELL,
    LoggedQuantity,
    QuantityKind,
    base_name,
    find_declaration,
)
from coterie.reports.evidence import RunRecord

MAX_FRAMES = 20  # rounds at most that are shown as matrices
MAX_CURVE_ROUNDS = 200  # rounds at most of a server's curve
T = TypeVar("T")
Frame = tuple[int, np.ndarray]  # round, what was logged after it


def space_evenly(items: Sequence[T], most: int) -> list[T]:
    """At most so many of the items, evenly spaced, with the first and the last."""
    at = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[k] for k in np.unique(at)]


def list_log_files(folder: Path) -> list[Path]:
    """The server's logged quantities, a file per round."""
    return sorted(p for p in (folder / "notes").glob("round-*.safetensors") if p.is_file())


def list_server_logged(folder: Path) -> list[str]:
    """What the server logged in any of its rounds; a damaged file counts as none."""
    found: dict[str, None] = {}
    for file in space_evenly(list_log_files(folder), MAX_FRAMES):
        try:
            with safe_open(file, "np") as notes:
                found |= dict.fromkeys(notes.keys())
        except (SafetensorError, OSError):
            continue
    return list(found)


def read_server_frames(folder: Path, name: str, most: int = MAX_FRAMES) -> list[Frame]:
    """A logged quantity of the server, at most so many rounds evenly spaced, with the last."""
    found = []
    for file in space_evenly(list_log_files(folder), most):
        try:
            with safe_open(file, "np") as notes:
                value = np.asarray(notes.get_tensor(name), dtype=float)
        except (SafetensorError, OSError):  # damaged, or of a stage that does not log this
            continue
        found.append((int(file.stem.partition("-")[2]), value))
    return [(number, value) for number, value in found if value.shape == found[-1][1].shape]


def find_logged(record: RunRecord) -> dict[str, LoggedQuantity]:
    """The declaration of every quantity that the run wrote, by the name in the file."""
    names = dict.fromkeys([*record.notes, *list_server_logged(record.run.folder)])
    found = {name: find_declaration(name, record.describes) for name in names}
    return {name: note for name, note in found.items() if note}


def find_declared(record: RunRecord) -> dict[str, LoggedQuantity]:
    """The same by the name under which it is declared: a pair or a grid once."""
    names = {
        base_name(name) if note.kind in (QuantityKind.PAIR, QuantityKind.GRID) else name: note
        for name, note in find_logged(record).items()
    }
    return {name: note for name, note in record.describes.items() if name in names}


def values_by_round(record: RunRecord, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(rounds [R], values [R, n]) of a logged quantity: a value per client, or as many as the
    server has.
    """
    if name in record.notes:
        return record.block(name)
    frames = read_server_frames(record.run.folder, name, MAX_CURVE_ROUNDS)
    if not frames:
        return np.zeros(0, dtype=int), np.zeros((0, 1))
    return np.array([number for number, _ in frames]), np.stack([v.ravel() for _, v in frames])


def latest_values(record: RunRecord, name: str) -> np.ndarray:
    """[N] every client's latest value; NaN where it has none."""
    if name in record.notes:
        return record.last(name)
    frames = read_server_frames(record.run.folder, name)
    fits = frames and frames[-1][1].shape == (record.clients,)
    return frames[-1][1] if fits else np.full(record.clients, np.nan)


def read_square_frames(record: RunRecord, name: str, note: LoggedQuantity) -> list[Frame]:
    """[N, N] who learns from whom, of a matrix or of groups; only rounds with a change."""
    n = record.clients
    if note.kind is QuantityKind.MATRIX:
        found = [f for f in read_server_frames(record.run.folder, name) if f[1].shape == (n, n)]
    else:
        found = [
            (number, build_group_matrix(group)) for number, group in _read_groups(record, name)
        ]
    return [f for k, f in enumerate(found) if not k or not np.array_equal(f[1], found[k - 1][1])]


def _read_groups(record: RunRecord, name: str) -> list[Frame]:
    """[N] the group of every client; -1 for a client that is in none yet."""
    frames = read_server_frames(record.run.folder, name)
    if frames:
        return [f for f in frames if f[1].shape == (record.clients,)]
    rounds, block = record.block(name)
    for k in range(1, len(block)):  # who was not asked stays where it was
        block[k] = np.where(np.isnan(block[k]), block[k - 1], block[k])
    rows = list(zip(rounds.tolist(), np.nan_to_num(block, nan=-1), strict=True))
    return space_evenly(rows, MAX_FRAMES)


def build_group_matrix(group: np.ndarray) -> np.ndarray:
    """[N, N] equal weights on all clients of one's own group."""
    same = (group[:, None] == group[None]) & (group[:, None] >= 0)
    return np.asarray(same / np.maximum(same.sum(1, keepdims=True), 1))


def find_cells(record: RunRecord, name: str) -> dict[tuple[str, str], str]:
    """{(row, column): the quantity's name} of a grid."""
    found = {m[0]: m for note in record.notes if (m := GRID_CELL.fullmatch(note)) and m[1] == name}
    return {(m[3], m[5]): note for note, m in found.items()}


def find_cell_axes(record: RunRecord, name: str) -> tuple[str, str]:
    """What the rows and columns of a grid are called."""
    m = next(m for note in record.notes if (m := GRID_CELL.fullmatch(note)) and m[1] == name)
    return m[2], m[4]
