"""From a data set to a federation: its rows are chosen, dealt to clients, cut and stored."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.core.errors import BadInput, nearest
from coterie.core.rng import stream
from coterie.data import datasets, own, partition
from coterie.data.changes import changes_of, store_rows
from coterie.data.choices import Choices, check_choices, check_values
from coterie.data.cutting import Cut, check_parts, cut_rows
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation, Public, as_tensor
from coterie.data.pieces import Own
from coterie.data.public import HELD_OUT, other_images, public_of
from coterie.data.scaling import Look, affine_of, usual_scale


class Rows(NamedTuple):
    """Which rows of a data set serve what."""

    pool: np.ndarray  # all that scaling may learn from
    dealt: np.ndarray  # those of the pool that clients get
    held_out: np.ndarray  # those of the pool that are public
    shared: np.ndarray  # everyone's test part; none where every client has a test part of its own


class Dealt(NamedTuple):
    """What the split made of the dealt rows."""

    split: str
    parts: list[np.ndarray]  # rows of each client
    natural: bool  # whether the clients are those of the data
    users: list[int]  # the number of each client in the data, if natural
    names: list[str]


def build(
    data: str | Path | Own | Dataset = "digits",
    split: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    *,
    folder: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    **choices: Any,
) -> Federation:
    """Load a data set, deal its rows to clients and cut each client's rows in three parts.

    data: a registered name, a file or folder of one's own, or data at hand; `data_options` are
        what its loader takes, `folder` is where its files lie.
    split: a registered name, with its `options`; None is the usual one of the data.
    clients: None is what the split usually has (20 for most), or all natural clients.
    choices: the fields of Choices, such as validation = 0.
    """
    chosen = Choices(**choices)
    whole = read(data, folder, data_options or {})
    base = whole.data
    check_choices(base, chosen)
    check_values(base)
    rows = _choose(base, chosen, seed)
    split = split or partition.usual_split(base.users is not None)
    dealt = _deal(whole, rows.dealt, split, clients, seed, options or {})
    cuts = _cut(base, dealt, rows.shared, chosen, seed)
    check_parts(cuts, dealt.names, chosen.validation)
    look = _look(base, rows.pool, chosen)
    x, y, cuts, groups = _store(base, dealt, cuts, look, chosen, seed)
    return Federation(
        name=base.name,
        x=as_tensor(x),
        y=as_tensor(y),
        classes=base.classes,
        train=[train for train, _, _ in cuts],
        validation=[validation for _, validation, _ in cuts],
        test=[test for _, _, test in cuts],
        groups=groups,
        names=dealt.names,
        public=_public(base, rows.held_out, look, chosen, seed, folder),
        truth=_truth(base, dealt),
        table=None if base.table is None else as_tensor(base.table),
        labels=whole.labels or None,
    )


def read(
    data: str | Path | Own | Dataset, folder: str | Path | None, options: Mapping[str, Any]
) -> Own:
    """A data set by name, a user's own file or folder, or arrays already at hand."""
    if isinstance(data, (Own, Dataset)):
        if options:
            raise BadInput(
                f"data_options {', '.join(options)} belong to a named data set or a file; "
                "remove them"
            )
        return data if isinstance(data, Own) else Own(data, [], [])
    if data in datasets.DATASETS or not (own.is_path(data) or Path(data).exists()):
        place = None if folder is None else Path(folder)
        return Own(datasets.load(str(data), place, **options), [], [])
    known = inspect.signature(own.read).parameters.values()
    valid = [p.name for p in known if p.kind is p.KEYWORD_ONLY]
    for key in options:
        if key not in valid:
            raise BadInput(f"your own data have no option '{key}'" + nearest(key, valid))
    return own.read(data, **options)


def _choose(base: Dataset, chosen: Choices, seed: int) -> Rows:
    """The rows that are dealt, and those that are public or everyone's test part instead."""
    shared = np.flatnonzero(~base.train)[: chosen.shared_test]
    in_pool = np.full(len(base.y), True) if chosen.pool == "all" else base.train.copy()
    in_pool[shared] = False
    pool = rest = np.flatnonzero(in_pool)
    held_out, wanted = np.empty(0, np.int64), chosen.public_rows
    if chosen.public == HELD_OUT:
        if wanted is None or not 0 < wanted < len(pool):
            raise BadInput(
                f"public = '{HELD_OUT}' needs public_rows of 1 to {len(pool) - 1:,}, not {wanted}"
            )
        held_out = np.sort(stream(seed, "public").choice(pool, wanted, replace=False))
        rest = np.setdiff1d(pool, held_out, assume_unique=True)
    if chosen.rows is not None:
        if not 0 < chosen.rows <= len(rest):
            raise BadInput(
                f"rows = {chosen.rows:,}, but '{base.name}' has {len(rest):,} rows "
                "to choose from; lower rows"
            )
        rest = np.sort(stream(seed, "rows").choice(rest, chosen.rows, replace=False))
    return Rows(pool, rest, held_out, shared)


def _deal(
    whole: Own,
    rows: np.ndarray,
    split: str,
    clients: int | None,
    seed: int,
    options: Mapping[str, Any],
) -> Dealt:
    """The rows of each client, and what it is called."""
    base = whole.data
    if clients is not None and clients > len(rows):
        raise BadInput(
            f"clients = {clients:,}, but '{base.name}' has {len(rows):,} rows to deal: "
            f"at most {len(rows) // 10:,} clients of 10 rows; "
            "lower --clients or use a larger data set"
        )
    usual = datasets.source_of(base.name).split_options.get(split, {})
    given = {**usual, **{k: v for k, v in options.items() if v is not None}}
    owners = None if base.users is None else base.users[rows]
    found = partition.deal(split, base.y[rows], clients, stream(seed, "split"), owners, **given)
    parts = [rows[part] for part in found]
    natural = base.users is not None and partition.SPLITS[split].natural
    users = list(range(len(parts)))
    if base.users is not None and natural:
        users = [int(base.users[part[0]]) for part in parts]
    names = [whole.clients[u] if natural and whole.clients else str(u) for u in users]
    return Dealt(split=split, parts=parts, natural=natural, users=users, names=names)


def _cut(base: Dataset, dealt: Dealt, shared: np.ndarray, chosen: Choices, seed: int) -> list[Cut]:
    """The three parts of each client; the shared rows are the test part where there are any."""
    usual = datasets.source_of(base.name).cut if dealt.natural else "shuffle"
    how, test = chosen.cut or usual, 0.0 if chosen.shared_test else chosen.test
    cuts = [
        cut_rows(part, base.y, how, chosen.validation, test, stream(seed, "parts", i))
        for i, part in enumerate(dealt.parts)
    ]
    return [(train, held, shared) for train, held, _ in cuts] if chosen.shared_test else cuts


def _store(
    base: Dataset, dealt: Dealt, cuts: list[Cut], look: Look, chosen: Choices, seed: int
) -> tuple[np.ndarray, np.ndarray, list[Cut], np.ndarray]:
    """Inputs and labels as the clients see them, where each finds its own, and their groups."""
    clients = len(dealt.parts)
    changes = changes_of(base, seed, chosen.rotate, chosen.permute)
    if clients < len(changes):
        raise BadInput(
            f"{clients} clients cannot form rotate x permute = {len(changes)} groups; "
            "raise --clients"
        )
    groups = np.arange(clients) * len(changes) // clients
    x, y, cuts = store_rows(base, cuts, groups, changes, look)
    if len(changes) == 1:
        kinds = len(np.unique(base.y[np.concatenate(dealt.parts)])) if base.classes else 0
        groups = partition.groups_of(dealt.split, clients, kinds)
    return x, y, cuts, groups


def _look(base: Dataset, pool: np.ndarray, chosen: Choices) -> Look:
    """How a row becomes an input, as learnt from the rows of the pool."""
    kind, source = chosen.scale or usual_scale(base), datasets.source_of(base.name)
    return Look(affine_of(base.x, pool, kind, source), chosen.channels)


def _public(
    base: Dataset,
    held_out: np.ndarray,
    look: Look,
    chosen: Choices,
    seed: int,
    folder: str | Path | None,
) -> Public | None:
    """The public rows, where any were asked for."""
    if chosen.public is None:
        return None
    if chosen.public == HELD_OUT:
        x, y = look(base.x[held_out]), base.y[held_out]
    else:
        kind, shape = chosen.scale or usual_scale(base), look(base.x[:1]).shape[1:]
        place = None if folder is None else Path(folder)
        x, y = other_images(chosen.public, chosen.public_rows, shape, kind, seed, place)
    return public_of(chosen.public, x, y, chosen.labelled)


def _truth(base: Dataset, dealt: Dealt) -> torch.Tensor | None:
    """The true means of the clients, where the data know them."""
    if base.truth is None or not dealt.natural:
        return None
    return torch.tensor(base.truth[dealt.users])
