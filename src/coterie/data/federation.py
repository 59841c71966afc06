"""A federation: one store of all rows, and which of them each client trains and is tested on."""

import hashlib
from collections.abc import MutableMapping, Sequence
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from coterie.core.html import format_html_table
from coterie.data.arrays import digest_of, update_digest
from coterie.data.client_rows import ClientRows, counts_of
from coterie.data.dataset import Public
from coterie.data.lazy_rows import generator_of
from coterie.data.partition.cuts import half_of
from coterie.data.prepare.preparation import Preparation
from coterie.data.read.columns import RowSource
from coterie.data.target import Target, default_target_of

PARTS = ("train", "validation", "select", "test")
SHOWN = 50  # clients listed in a notebook


class _InputDigest:
    """The digest of an array, computed in a thread of its own while other things are made."""

    def __init__(self, array: np.ndarray):
        self._digest = hashlib.blake2b(digest_size=16)
        self._thread = Thread(target=update_digest, args=(self._digest, array), daemon=True)
        self._thread.start()

    def get(self) -> Any:
        """A digest that has read all of it and can go on."""
        self._thread.join()
        return self._digest.copy()


# of inputs that nobody changes
INPUT_DIGESTS: MutableMapping[torch.Tensor, _InputDigest] = WeakTensorKeyDictionary()
# the columns of label_counts
COUNTS_SCHEMA = pa.schema(
    [("client", pa.int32()), ("part", pa.string()), ("label", pa.int32()), ("rows", pa.int64())]
)


# the columns of row_numbers
ROWS_SCHEMA = pa.schema(
    [
        ("client", pa.int32()),
        ("name", pa.string()),
        ("part", pa.string()),
        ("file", pa.string()),
        ("row", pa.int64()),
    ]
)


class Newcomers(NamedTuple):
    """Clients that come after training; their rows lie in the store of the federation."""

    train: Sequence[np.ndarray]
    validation: Sequence[np.ndarray]
    select: Sequence[np.ndarray]
    test: Sequence[np.ndarray]
    groups: np.ndarray
    names: list[str]


class Federation(NamedTuple):
    """The data of all clients, partitioned."""

    name: str
    x: torch.Tensor  # [n, ...] float32, or int64 rows of `table`; all rows of all clients
    y: torch.Tensor  # [n] int64 labels; float32 targets when classes == 0
    classes: int
    train: Sequence[np.ndarray]  # rows of each client, int64
    validation: Sequence[np.ndarray]  # what methods and tuning may choose on; empty: there is none
    test: Sequence[np.ndarray]
    groups: np.ndarray  # [clients] int64: rotation, permutation or classes; zeros for no groups
    names: list[str]  # what each client is called
    public: Public | None = None
    truth: torch.Tensor | None = None  # [clients, 1], the means that were drawn for the clients
    table: torch.Tensor | None = None  # [words + 1, dimension] word vectors
    labels: list[str] | None = None  # [classes] names of the classes, where they have any
    rows: np.ndarray | None = None  # [n] which row of the data set each one is; None: not known
    place: RowSource | None = None  # the files that the rows of a user's data came from
    preparation: Preparation | None = None  # how cells and pixels became inputs
    select: Sequence[np.ndarray] = ()  # rows that choose rounds and methods; (): nobody has any
    newcomers: Newcomers | None = None  # clients that are kept out of training

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.train)

    @property
    def sizes(self) -> np.ndarray:
        """[clients] how many training rows each has."""
        return counts_of(self.train)

    @property
    def target(self) -> Target:
        """What is learnt of the labels."""
        known = self.preparation.target if self.preparation else None
        return known or default_target_of(self.classes)

    @property
    def words(self) -> int:
        """How many different words texts have; 0 where rows are no texts."""
        text = self.preparation.text if self.preparation else None
        return text.vocabulary if text else 0

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return tuple(self.x.shape[1:])

    @property
    def black(self) -> torch.Tensor | None:
        """What a black image is as an input [c, h, w]; None where rows are no images."""
        shape = self.input_shape
        if len(shape) != 3:
            return None
        affine = self.preparation.affine if self.preparation else None
        if affine is None:
            return torch.zeros(shape)
        centre, spread = (np.asarray(part, np.float32) for part in affine)
        return torch.from_numpy(np.broadcast_to((0 - centre) / spread, shape).copy())

    def _repr_html_(self) -> str:
        """Who holds how much, for notebooks; the first clients of many."""
        rows = summarize_clients(self)
        more = f", the first {SHOWN} shown" if len(rows) > SHOWN else ""
        caption = f"{self.name}: {self.clients:,} clients, {self.sizes.sum():,} training rows{more}"
        return format_html_table(ClientSummary._fields, rows[:SHOWN], caption)


def train_on_validation(federation: Federation) -> Federation:
    """The same clients with their validation rows among those they train on."""
    pairs = zip(federation.train, federation.validation, strict=True)
    return federation._replace(
        train=ClientRows.of([np.concatenate(both) for both in pairs]),
        validation=ClientRows.none(federation.clients),
    )


def part_of(federation: Federation, part: str) -> Sequence[np.ndarray]:
    """The rows that each client has in a part: one of PARTS."""
    if part == "select" and not len(federation.select):
        return ClientRows.none(federation.clients)
    rows: Sequence[np.ndarray] = getattr(federation, part)
    return rows


def with_select(federation: Federation) -> Federation:
    """A federation made by hand, the second half of its validation rows kept for choosing unless it
    says itself which rows choose.
    """
    if len(federation.select):
        return federation
    held = ClientRows.of(federation.validation)
    first = half_of(held.counts)
    return federation._replace(
        validation=ClientRows(held.rows, held.first, first),
        select=ClientRows(held.rows, held.first + first, held.counts - first),
    )


class ClientSummary(NamedTuple):
    """What one client holds, for printing."""

    client: int
    name: str
    train: int
    validation: int
    select: int
    test: int
    classes: int  # how many classes it holds
    group: int


def count_classes(federation: Federation) -> np.ndarray:
    """[clients, classes] rows of each class that a client holds in all its parts."""
    kinds = federation.classes
    found = np.zeros((federation.clients, kinds), np.int64)
    y = federation.y.numpy()
    for part in PARTS if kinds else ():
        held = ClientRows.of(part_of(federation, part))
        owned = held.owners() * kinds + y[held.concatenate()]
        found += np.bincount(owned, minlength=found.size).reshape(found.shape)
    return found


def count_labels(federation: Federation) -> pa.Table:
    """One row per class that a client holds in a part, in the order of parts and clients.

    There are no rows where there are no classes.
    """
    found = [COUNTS_SCHEMA.empty_table()]
    y, kinds = federation.y.numpy(), federation.classes
    for part in PARTS if kinds else ():
        held = ClientRows.of(part_of(federation, part))
        counts = np.bincount(held.owners() * kinds + y[held.concatenate()])
        owned = np.flatnonzero(counts)
        client, label = np.divmod(owned, kinds)
        columns = [client, pa.repeat(part, len(owned)), label, counts[owned]]
        found.append(pa.table(columns, names=COUNTS_SCHEMA.names).cast(COUNTS_SCHEMA))
    return pa.concat_tables(found)


def list_rows(federation: Federation) -> pa.Table:
    """Which row of which file is in which part of which client; rows are counted from 0.

    A data set that is not a file of the user's has its own name as file. There are no rows where
    the federation was made by hand.
    """
    found = [ROWS_SCHEMA.empty_table()]
    place = federation.place or RowSource((federation.name,), (np.iinfo(np.int64).max,))
    ends = np.cumsum(place.sizes)
    names, called = pa.array(place.files, pa.string()), pa.array(federation.names, pa.string())
    for part in PARTS if federation.rows is not None else ():
        held = ClientRows.of(part_of(federation, part))
        row = np.asarray(federation.rows)[held.concatenate()]
        row = row if place.kept is None else place.kept[row]
        file = np.searchsorted(ends, row, side="right")
        inside = row - (ends - np.array(place.sizes))[file]
        owners = pa.array(held.owners())
        whose = called.take(owners)
        columns = [owners, whose, pa.repeat(part, len(row)), names.take(pa.array(file)), inside]
        found.append(pa.table(columns, names=ROWS_SCHEMA.names).cast(ROWS_SCHEMA))
    return pa.concat_tables(found)


def summarize_clients(federation: Federation) -> list[ClientSummary]:
    """One row per client."""
    classes = (count_classes(federation) > 0).sum(1)
    parts = zip(*(counts_of(part_of(federation, part)).tolist() for part in PARTS), strict=True)
    return [
        ClientSummary(
            client=i,
            name=federation.names[i],
            train=train,
            validation=validation,
            select=select,
            test=test,
            classes=int(classes[i]),
            group=int(federation.groups[i]),
        )
        for i, (train, validation, select, test) in enumerate(parts)
    ]


def checksum_of(federation: Federation) -> str:
    """A digest of all that a run can depend on: rows, labels, owners, names and public data."""
    sizes = [counts_of(part_of(federation, part)) for part in PARTS]
    # a server of real sites has none of their rows, and may be told of more than memory holds
    held = PARTS if len(federation.x) else ()
    parts = [ClientRows.of(part_of(federation, part)) for part in held]
    public = federation.public.checksum if federation.public else ""
    text = "\x1f".join([*federation.names, str(federation.classes), public])
    late = federation.newcomers
    if late is not None:
        theirs = [ClientRows.of(getattr(late, part)).concatenate() for part in PARTS]
        text = "\x1f".join([text, *late.names, digest_of(late.groups, *theirs)])
    words = np.frombuffer(text.encode(), np.uint8)
    maker = generator_of(federation.x)
    if maker is not None:
        made = np.frombuffer(maker.digest.encode(), np.uint8)
        return digest_of(made, federation.groups, *(part.first for part in parts), *sizes, words)
    rows = [part.concatenate() for part in parts]
    digest = _digest_inputs(federation.x)
    for array in (federation.y.numpy(), federation.groups, *rows, *sizes, words):
        update_digest(digest, array)
    return str(digest.hexdigest())


def cache_digest(federation: Federation) -> Federation:
    """The same federation, of which checksum reads the inputs once while they exist, from now on:
    only for inputs that nobody can change.
    """
    if generator_of(federation.x) is None and federation.x not in INPUT_DIGESTS:
        INPUT_DIGESTS[federation.x] = _InputDigest(federation.x.numpy())
    return federation


def _digest_inputs(x: torch.Tensor) -> Any:
    """A digest that has read the inputs and can go on."""
    known = INPUT_DIGESTS.get(x) or _InputDigest(x.numpy())
    return known.get()
