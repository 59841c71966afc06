"""A federation: one store of all rows, and the rows of each client's train, validation and test part."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.core.errors import BadInput, nearest
from coterie.core.rng import stream
from coterie.data import datasets, own, partition
from coterie.data.datasets import Dataset
from coterie.data.federation import Federation, as_tensor, blocks
from coterie.data.own import Own
from coterie.data.public import public_rows_of
from coterie.data.scaling import PERFEDAVG_A, SCALES, Look, affine_of, usual_scale

CUTS = ("shuffle", "order", "runs")


def build(
    data: str | Path | Own | Dataset = "digits",
    split: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    validation: float = 0.2,
    test: float = 0.2,
    scale: str | None = None,
    rotate: int = 1,
    permute: int = 1,
    rows: int | None = None,
    pool: str = "all",
    shared_test: int = 0,
    cut: str | None = None,
    channels: int | None = None,
    public: str | None = None,
    public_rows: int | None = None,
    labelled: bool = False,
    folder: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
) -> Federation:
    """Load a data set, deal its rows to clients and cut each client's rows in train, validation and test.

    split: a name of partition.SPLITS with its `options`; None is "user" where there are natural clients, else
        "classes".
    clients: None is what the split usually has (20 for most), or all natural clients.
    validation, test: shares of each client's rows; shared_test = N makes the first N official test rows
        everyone's test part.
    scale: "unit" [0, 1], "half" [-1, 1], "channel" and "pixel" standardised, "none"; None is the usual one.
    rotate, permute: groups of clients with images turned by 90, 180, 270, 0 degrees / with permuted labels.
    rows: a random subset of the pool; pool: "all" rows or the official "train" part.
    cut: "shuffle", "order" (first rows train) or "runs" (each run of one label by time, minus rows at cuts).
    public: the name of another image data set, or "held-out" for `public_rows` rows taken out of the pool.
    """
    source = read(data, folder, data_options or {})
    base = source.data
    kind = scale or usual_scale(base)
    _check_choices(base, validation, test, kind, rotate, permute, pool, shared_test, cut, channels)
    _check_values(base)
    split = split or ("classes" if base.users is None else "user")
    shared = np.flatnonzero(~base.train)[:shared_test]
    in_pool = np.full(len(base.y), True) if pool == "all" else base.train.copy()
    in_pool[shared] = False
    every = np.flatnonzero(in_pool)
    held_out, dealt = _draw_rows(every, base.name, seed, rows, public, public_rows)
    parts = _deal(base, dealt, split, clients, seed, dict(options or {}))
    users = [int(base.users[part[0]]) if base.users is not None and split == "user" else i for i, part in enumerate(parts)]
    names = [source.clients[u] if split == "user" and source.clients else str(u) for u in users]

    cut = cut or {"uci-har": "runs", "synthetic": "order"}.get(base.name if split == "user" else "", "shuffle")
    test = 0.0 if shared_test else test
    pieces = [cut_rows(part, base.y, cut, validation, test, stream(seed, "parts", i)) for i, part in enumerate(parts)]
    if shared_test:
        pieces = [(train, held, shared) for train, held, _ in pieces]
    _check_parts(pieces, names, validation)

    changes = _changes(base, seed, rotate, permute)
    if len(parts) < len(changes):
        raise BadInput(f"{len(parts)} clients cannot form rotate x permute = {len(changes)} groups; raise --clients")
    groups = np.arange(len(parts)) * len(changes) // len(parts)
    look = Look(affine_of(base.x, every, kind, base.name), channels)
    x, y, pieces = _store(base, pieces, groups, changes, look)
    if len(changes) == 1:
        groups = partition.groups_of(split, len(parts), len(np.unique(base.y[dealt])) if base.classes else 0)
    return Federation(
        base.name,
        as_tensor(x),
        as_tensor(y),
        base.classes,
        [piece[0] for piece in pieces],
        [piece[1] for piece in pieces],
        [piece[2] for piece in pieces],
        groups,
        names,
        public_rows_of(public, held_out, base, look, kind, x.shape[1:], seed, public_rows, labelled, folder),
        None if base.truth is None or split != "user" else torch.tensor(base.truth[users]),
        None if base.table is None else as_tensor(base.table),
        source.labels or None,
    )


def read(data: str | Path | Own | Dataset, folder: str | Path | None, options: Mapping[str, Any]) -> Own:
    """A data set by name, a user's own file or folder, or arrays already at hand."""
    if isinstance(data, (Own, Dataset)):
        if options:
            raise BadInput(f"data_options {', '.join(options)} belong to a named data set or a file; remove them")
        return data if isinstance(data, Own) else Own(data, [], [])
    if data in datasets.DATASETS or not (own.is_path(data) or Path(data).exists()):
        return Own(datasets.load(str(data), None if folder is None else Path(folder), **options), [], [])
    valid = [p.name for p in inspect.signature(own.read).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for key in options:
        if key not in valid:
            raise BadInput(f"your own data have no option '{key}'" + nearest(key, valid))
    return own.read(data, **options)


Piece = tuple[np.ndarray, np.ndarray, np.ndarray]  # train, validation and test rows of one client


class Change(NamedTuple):
    """What makes a group of clients differ from the others."""

    turns: int  # by 90 degrees
    relabel: np.ndarray | None  # [classes] the new label of each class


def _draw_rows(
    every: np.ndarray, name: str, seed: int, rows: int | None, public: str | None, public_rows: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """The rows held out as public data, and those of the rest that are dealt."""
    held_out = np.empty(0, np.int64)
    if public == "held-out":
        if public_rows is None or not 0 < public_rows < len(every):
            raise BadInput(f"public = 'held-out' needs public_rows of 1 to {len(every) - 1:,}, not {public_rows}")
        held_out = np.sort(stream(seed, "public").choice(every, public_rows, replace=False))
        every = np.setdiff1d(every, held_out, assume_unique=True)
    if rows is None:
        return held_out, every
    if not 0 < rows <= len(every):
        raise BadInput(f"rows = {rows:,}, but '{name}' has {len(every):,} rows to choose from; lower rows")
    return held_out, np.sort(stream(seed, "rows").choice(every, rows, replace=False))


def _deal(
    base: Dataset, rows: np.ndarray, split: str, clients: int | None, seed: int, options: dict[str, Any]
) -> list[np.ndarray]:
    if clients is not None and clients > len(rows):
        raise BadInput(
            f"clients = {clients:,}, but '{base.name}' has {len(rows):,} rows to deal: "
            f"at most {len(rows) // 10:,} clients of 10 rows; lower --clients or use a larger data set"
        )
    if split == "perfedavg" and base.name in PERFEDAVG_A:
        options.setdefault("a", PERFEDAVG_A[base.name])
    users = None if base.users is None else base.users[rows]
    dealt = partition.deal(split, base.y[rows], clients, stream(seed, "split"), users, **options)
    return [rows[part] for part in dealt]


def cut_rows(rows: np.ndarray, y: np.ndarray, how: str, validation: float, test: float, rng: np.random.Generator) -> Piece:
    """Train, validation and test rows of one client."""
    if how != "runs":
        rows = rng.permutation(rows) if how == "shuffle" else rows
        first, second = cut_points(len(rows), validation, test)
        return rows[:first], rows[first:second], rows[second:]
    # neighbouring windows of a recording overlap, so the one at each cut is dropped
    starts = np.flatnonzero(np.diff(y[rows])) + 1
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for run in np.split(rows, starts):
        first, second = cut_points(len(run), validation, test)
        parts[0].append(run[:first])
        parts[1].append(run[first + 1 : second])
        parts[2].append(run[second + 1 :])
    train, held, tested = (np.concatenate(part) for part in parts)
    return train, held, tested


def cut_points(n: int, validation: float, test: float) -> tuple[int, int]:
    """Where train and where validation end; the small number absorbs rounding of the shares."""
    return int(n * (1 - validation - test) + 1e-9), int(n * (1 - test) + 1e-9)


def _changes(base: Dataset, seed: int, rotate: int, permute: int) -> list[Change]:
    """One change a group, permutations all different; rotate = 4 turns by 90, 180, 270 and 0 degrees."""
    relabels: list[np.ndarray | None] = [] if permute > 1 else [None]
    seen: set[tuple[int, ...]] = set()
    while len(relabels) < permute:
        rng = stream(seed, "permute", len(relabels))
        order = rng.permutation(base.classes)
        while tuple(order) in seen:
            order = rng.permutation(base.classes)
        seen.add(tuple(order))
        relabels.append(order)
    return [Change(4 // rotate * (r + 1) % 4, relabel) for r in range(rotate) for relabel in relabels]


def _store(
    base: Dataset, pieces: list[Piece], groups: np.ndarray, changes: list[Change], look: Look
) -> tuple[np.ndarray, np.ndarray, list[Piece]]:
    """The rows in use as model inputs, group after group, and where each client finds its own.

    A row that several groups share (the official test images) is there once a group. Features that need no
    change are not copied: the loader's own array is the store.
    """
    if len(changes) == 1 and look.affine is None and look.channels is None and base.x.dtype in (np.float32, np.int64):
        return base.x, base.y, pieces
    stored = [
        np.unique(np.concatenate([rows for i in np.flatnonzero(groups == g) for rows in pieces[i]])) for g in range(len(changes))
    ]
    starts = np.cumsum([0, *(len(block) for block in stored)])
    sample = look(base.x[:1])
    x = np.empty((starts[-1], *sample.shape[1:]), sample.dtype)
    y = np.empty(starts[-1], base.y.dtype)
    for start, block, change in zip(starts, stored, changes, strict=False):
        for at in blocks(len(block)):
            image = look(base.x[block[at]])
            x[start + at.start : start + at.stop] = np.rot90(image, change.turns, (-2, -1)) if change.turns else image
        labels = base.y[block]
        y[start : start + len(block)] = labels if change.relabel is None else change.relabel[labels]
    moved = []
    for g, piece in zip(groups, pieces, strict=True):
        train, held, tested = (starts[g] + np.searchsorted(stored[g], rows) for rows in piece)
        moved.append((train, held, tested))
    return x, y, moved


def _check_choices(
    base: Dataset,
    validation: float,
    test: float,
    kind: str,
    rotate: int,
    permute: int,
    pool: str,
    shared_test: int,
    cut: str | None,
    channels: int | None,
) -> None:
    """Refuse what cannot work before any row is dealt."""
    shape = list(base.x.shape[1:])
    for word, value, valid in (
        ("scale", kind, SCALES),
        ("pool", pool, ("all", "train")),
        ("cut", cut or "order", CUTS),
    ):
        if value not in valid:
            raise BadInput(f"{word} = '{value}' is not known" + nearest(value, valid))
    if not 0 <= validation < 1 or not (0 < test < 1 or shared_test):
        raise BadInput(f"validation = {validation}, test = {test}: give shares of a client's rows, 0 or more and above 0")
    if validation + (0 if shared_test else test) > 1 - 1e-9:
        raise BadInput(f"validation = {validation} and test = {test} leave no train part; give less than 1 together")
    if kind in ("unit", "half", "channel") and base.x.dtype != np.uint8 and (kind != "channel" or len(shape) != 3):
        raise BadInput(f"scale = '{kind}' is for images, but '{base.name}' has rows of shape {shape}; use pixel or none")
    if (kind == "channel" and len(shape) != 3) or (kind == "pixel" and base.x.dtype == np.int64):
        raise BadInput(f"scale = '{kind}' does not fit rows of shape {shape} of '{base.name}'; use none")
    if rotate not in (1, 2, 4):
        raise BadInput(f"rotate = {rotate}: give 1 (none), 2 (180 and 0 degrees) or 4 (90, 180, 270 and 0)")
    if rotate > 1 and (len(shape) != 3 or (rotate == 4 and shape[1] != shape[2])):
        raise BadInput(f"rotate = {rotate} needs square images, but '{base.name}' has rows of shape {shape}")
    orders = 1
    for k in range(2, min(base.classes, 12) + 1):
        orders *= k
    if not 1 <= permute <= orders or (permute > 1 and base.classes == 0):
        raise BadInput(f"permute = {permute}: '{base.name}' has {base.classes} classes, so give 1 to {orders:,}")
    if shared_test < 0 or shared_test > (~base.train).sum():
        raise BadInput(
            f"shared_test = {shared_test:,}, but '{base.name}' has {(~base.train).sum():,} official test rows; "
            "lower it or give a share with test"
        )
    if pool == "train" and not base.train.any():
        raise BadInput(f"pool = 'train', but '{base.name}' has no training rows here; use pool = 'all'")
    if channels is not None and (len(shape) != 3 or shape[0] not in (1, channels) or channels < 1):
        raise BadInput(f"channels = {channels} repeats a grey image, but '{base.name}' has rows of shape {shape}")


def _check_values(base: Dataset) -> None:
    if len(base.y) == 0:
        raise BadInput(f"'{base.name}' has no rows")
    if base.x.dtype.kind == "f":
        for at in blocks(len(base.x)):
            good = np.isfinite(base.x[at].reshape(at.stop - at.start, -1)).all(1)
            if not good.all():
                row = at.start + int(np.flatnonzero(~good)[0])
                raise BadInput(f"'{base.name}' has NaN or infinity in row {row:,} (counted from 0); fill or remove it")
    if base.classes and (base.y.min() < 0 or base.y.max() >= base.classes):
        raise BadInput(
            f"'{base.name}' has labels {base.y.min()} to {base.y.max()}, but {base.classes} classes: "
            f"labels must be 0 to {base.classes - 1}"
        )


def _check_parts(pieces: list[Piece], names: list[str], validation: float) -> None:
    for client, (train, held, tested) in enumerate(pieces):
        wanted = (("train", train, True), ("validation", held, validation > 0), ("test", tested, True))
        for word, rows, needed in wanted:
            if needed and len(rows) == 0:
                total = len(train) + len(held) + len(tested)
                way = "validation = 0, " if word == "validation" else ""
                raise BadInput(
                    f"client {client} ('{names[client]}') has {total} rows, none of them in its {word} part; "
                    f"use {way}fewer clients, other shares or a split option such as smallest = 10"
                )
