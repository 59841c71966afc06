"""Mini-batches: which rows each client takes in each step, drawn before the steps run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.augmentation import draw_moves, move_images
from coterie.core.device import CPU, to_default_device
from coterie.core.method import Batch, BatchPlan
from coterie.core.rng import Rng, streams
from coterie.core.schedules import CONSTANT, compute_shares
from coterie.data.arrays import as_tensor
from coterie.data.client_rows import ClientRows
from coterie.data.dataset import Public
from coterie.data.federation import PARTS, Federation, part_of
from coterie.data.lazy_rows import RowGenerator, generator_of
from coterie.engines.base import TRAINING, Moment
from coterie.engines.local.stacks import to_channels_last
from coterie.engines.public_batches import draw_public_rows, public_tensors

FULL_BATCH = 1024  # rows per step when a plan asks for whole parts
StepCounts = Mapping[int, int] | None  # steps of each client, where the method decides on them
ROWS_AT_ONCE = 2**17  # rows that are made at once where everybody's are read
LOOKUP_ROWS = 2**18  # rows whose numbers and labels are looked up at once


def padded_batch_size(plan: BatchPlan, largest: int) -> int:
    """The rows that a batch is padded to, the same for all clients: at most those of the largest
    part.
    """
    return max(1, min(plan.batch_size or FULL_BATCH, largest))


def count_steps(plan: BatchPlan, n: int) -> int:
    """The number of steps that a client with n rows takes."""
    if n == 0:
        return 0
    if plan.steps:
        return plan.steps
    n = max(1, int(n * plan.share))
    return -(-plan.epochs * -(-n // (plan.batch_size or FULL_BATCH)) // plan.batches)


def draw_batches(
    plan: BatchPlan, sizes: Sequence[int], steps: Sequence[int], rows: int, rngs: Iterable[Rng]
) -> tuple[np.ndarray, list[int]]:
    """The batches of clients of these sizes, [clients, steps, batches, rows], and a key of each
    client, which seeds dropout.

    A batch has positions in the client's part; -1 is padding.
    """
    size = min(plan.batch_size or FULL_BATCH, rows)
    shape = len(steps), max(steps, default=0), plan.batches, size
    places = np.full(shape, -1, dtype=np.int64)
    numbers, keys = np.arange(max(sizes, default=0)), []
    for mine, n, count, rng in zip(places, sizes, steps, rngs, strict=True):
        keys.append(int(rng.integers(2**40)))
        part = numbers[:n]
        if plan.share < 1.0:
            part = np.sort(rng.choice(n, max(1, int(n * plan.share)), replace=False))
        _fill_epochs(mine[:count].reshape(-1), part, size, rng if plan.shuffle else None)
    if rows > size:
        places = np.pad(places, [(0, 0)] * 3 + [(0, rows - size)], constant_values=-1)
    return places, keys


def _fill_epochs(places: np.ndarray, part: np.ndarray, rows: int, rng: Rng | None) -> None:
    """Epoch after epoch, each shuffled anew; the last batch of an epoch may be short."""
    n = len(part)
    span = rows * max(1, -(-n // rows))
    for first in range(0, len(places), span):
        epoch = places[first : first + n]
        if len(epoch) == n:
            epoch[:] = part
            if rng is not None:
                rng.shuffle(epoch)
        else:  # the steps end within it
            epoch[:] = (part if rng is None else rng.permutation(part))[: len(epoch)]


class Part(NamedTuple):
    """One part (train, validation, select, test, public) of all clients as one list of rows."""

    rows: Tensor  # [total]
    first: np.ndarray  # [N]
    counts: np.ndarray  # [N]
    largest: int

    @classmethod
    def of(cls, lists: Sequence[np.ndarray]) -> Part:
        held = ClientRows.of(lists)
        held = held.map_rows(lambda rows: rows) if held.rows is None else held
        return cls.number(held, held.rows)

    @classmethod
    def number(cls, held: ClientRows, rows: np.ndarray | None) -> Part:
        """The part with its rows; None: they are made elsewhere, and only counts matter."""
        index = to_default_device(as_tensor(np.zeros(0, np.int64) if rows is None else rows))
        return cls(index, held.first, held.counts, int(held.counts.max(initial=0)))

    def of_client(self, client: int) -> Tensor:
        """The rows of one client."""
        return self.rows[self.first[client] : self.first[client] + self.counts[client]]

    def of_clients(self, clients: Sequence[int]) -> Tensor:
        """The rows of some clients, one client after another."""
        counts = self.counts[clients]
        before = np.cumsum(counts) - counts  # rows of the clients before
        if len(clients) and np.array_equal(self.first[clients] - self.first[clients[0]], before):
            start = self.first[clients[0]]  # they lie one after another
            return self.rows[start : start + counts.sum()]
        index = np.repeat(self.first[clients] - before, counts) + np.arange(counts.sum())
        return self.rows[torch.as_tensor(index)]


class Batches:
    """The batches of a pass, step by step; what is small is looked up for many steps at once."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        part: Part,
        first: Tensor,  # [m, 1, 1, 1] or [1, 1, 1, 1], where a client's rows begin
        places: Tensor,  # [m, steps, batches, B], -1 for padding
        keys: Tensor,  # [m]
        each: list[int],  # steps of each client
        plan: BatchPlan,
        stacked: bool,
        pace: Tensor | None = None,  # [m, steps] of the learning rate; None: without a schedule
        moves: Tensor | None = None,  # [m, steps, batches, B, 3] of images; None: as they are
        border: Tensor | None = None,  # [...] a black image, for moves
    ):
        self.x, self.y, self.part, self.first = x, y, part, first
        self.places, self.keys, self.each = places, keys, each
        self.plan, self.stacked, self.pace = plan, stacked, pace
        self.moves, self.border = moves, border
        self._shortest, self._each = min(each, default=0), torch.tensor(each)
        self._together = max(1, LOOKUP_ROWS // max(1, places[:, :1].numel()))
        self._number, self._block = -1, Batch(*[torch.zeros(0)] * 5)

    def __call__(self, s: int) -> tuple[Batch, Tensor | None]:
        """The batch of a step, and who is active in it (None: everyone)."""
        return self.of_first(s, len(self.each)), self.active(s)

    def active(self, s: int) -> Tensor | None:
        """Who takes a step; None: everyone."""
        return None if s < self._shortest else self._each > s

    def of_first(self, s: int, width: int, moved: bool = True) -> Batch:
        """The batch of a step for the first clients of the chunk; its images are as they are
        stored unless they are to be `moved`.
        """
        number, k = divmod(s, self._together)
        if number != self._number:
            self._number, self._block = number, self._look_up(number * self._together)
        rows = self._block.x[k, :width] if self.stacked else self._block.x[k, 0]
        small = (f[k, :width] if self.stacked else f[k, 0] for f in self._block[1:5])
        x = self.x.index_select(0, rows.reshape(-1))
        if self.moves is not None and self.border is not None and moved:
            x = move_images(x, self.moves[:width, s].reshape(-1, 3), self.border)
        batch = Batch(x.reshape(*rows.shape, *self.x.shape[1:]), *small)
        if self.pace is not None:
            batch = batch._replace(pace=self.pace[:width, s] if self.stacked else self.pace[0, s])
        images = max(batch.x.dim(), batch.y.dim()) >= 4
        return to_channels_last(batch) if images and not self.stacked else batch

    def _look_up(self, start: int) -> Batch:
        """The batches of some steps, with the numbers of rows instead of their inputs."""
        places = self.places[:, start : start + self._together]
        real = places >= 0
        index = places.clamp(min=0)
        if len(self.part.rows):
            index = self.part.rows[self.first + index]
        several = self.plan.batches
        numbers = torch.arange(start * several, (start + places.shape[1]) * several)
        # A key for each of several batches per step.
        keys = (self.keys[:, None] * several + numbers).reshape(places.shape[:3])
        outside = self.plan.draw or self.part.largest
        looked_up = Batch(
            x=index,
            y=self.y[index],
            mask=real.to(torch.get_default_dtype()),
            place=torch.where(real, places, outside),
            key=keys,
        )
        turned = (f.transpose(0, 1).contiguous() for f in looked_up[:5])
        return Batch(*(f.squeeze(2) if several == 1 else f for f in turned))


class LazyRows(NamedTuple):
    """How the rows of clients are made that are not stored."""

    maker: RowGenerator
    owner: np.ndarray  # [N] the number that each client has there
    held: dict[str, ClientRows]
    whole: tuple[Tensor, Tensor] | None = None  # where all rows are kept once they are made

    @classmethod
    def of(cls, federation: Federation) -> LazyRows | None:
        """None where all rows are stored."""
        maker = generator_of(federation.x)
        if maker is None:
            return None
        held = {name: ClientRows.of(part_of(federation, name)) for name in PARTS}
        owner = np.searchsorted(maker.ends, held["train"].firsts(), side="right")
        usual = torch.get_default_device() == CPU
        usual &= federation.x.dtype in (torch.get_default_dtype(), torch.int64)
        return cls(maker, owner, held, maker.whole() if usual else None)


class Feed(NamedTuple):
    """The rows of all clients, and the batches that they take of them."""

    x: Tensor
    y: Tensor
    parts: dict[str, Part]
    public: Public | None
    seed: int
    making: LazyRows | None = None
    border: Tensor | None = None  # a black image; None: rows are no images

    @classmethod
    def of(cls, federation: Federation, seed: int) -> Feed:
        dtype, making = torch.get_default_dtype(), LazyRows.of(federation)
        held = {name: part_of(federation, name) for name in PARTS}
        kept = making.whole if making else None
        x, y = kept or to_default_device((federation.x, federation.y))
        return cls(
            x=_to_dtype(dtype, x),
            y=_to_dtype(dtype, y),
            parts={name: Part.of(part) for name, part in held.items()}
            if making is None or kept
            else {name: Part.number(part, None) for name, part in making.held.items()},
            public=federation.public,
            seed=seed,
            making=making,
            border=None
            if federation.black is None
            else _to_dtype(dtype, to_default_device(federation.black)),
        )

    @property
    def together(self) -> int:
        """Clients whose rows are held at once where everybody's are read."""
        if self.making is None or self.making.whole:
            return len(self.parts["train"].counts)
        return max(1, int(ROWS_AT_ONCE / self.making.maker.counts.mean()))

    def near(self, chunk: Sequence[int]) -> tuple[Feed, Sequence[int]]:
        """A feed that has the rows of these clients, and their numbers in it; rows that are not
        stored are made here.
        """
        if self.making is None:
            return self, chunk
        maker, owner, held, whole = self.making
        theirs = owner[np.asarray(chunk)]
        if whole:
            maker.make(theirs)
            return self, chunk
        counts = maker.counts[theirs]
        moved = maker.ends[theirs] - np.cumsum(counts)  # from numbers of all rows to those here
        x, y = (
            _to_dtype(torch.get_default_dtype(), to_default_device(rows))
            for rows in maker.of(theirs)
        )
        parts = {}
        for name, every in held.items():
            some = every.only(chunk)
            rows = some.concatenate() - np.repeat(moved, some.counts)
            made = Part.of(ClientRows.pack(rows, some.counts))
            parts[name] = made._replace(largest=self.parts[name].largest)
        return self._replace(x=x, y=y, parts=parts, making=None), range(len(chunk))

    def training_rows(self, client: int) -> Tensor:
        """How many training rows a client has, as methods see it."""
        return torch.tensor(int(self.parts["train"].counts[client]))

    def steps(self, plan: BatchPlan, client: int, counts: StepCounts) -> int:
        """The number of steps that a client takes in a pass."""
        if plan.adaptive and counts is not None:
            return counts[client]
        if plan.part == "public":
            return count_steps(plan, plan.draw or len(self.public.x) if self.public else 0)
        return count_steps(plan, int(self.parts[plan.part].counts[client]))

    def steps_of(self, plan: BatchPlan, clients: Sequence[int], counts: StepCounts) -> list[int]:
        """The numbers of steps of many clients."""
        if plan.part == "public" or (plan.adaptive and counts is not None):
            return [self.steps(plan, i, counts) for i in clients]
        sizes = self.parts[plan.part].counts[clients].tolist()
        known = {n: count_steps(plan, n) for n in set(sizes)}
        return [known[n] for n in sizes]

    def count_all_steps(self, plan: BatchPlan, clients: np.ndarray) -> int:
        """The steps of many clients together, where no method decides on them."""
        if plan.part == "public":
            return len(clients) * self.steps(plan, 0, None)
        sizes, times = np.unique(self.parts[plan.part].counts[clients], return_counts=True)
        return sum(count_steps(plan, int(n)) * int(k) for n, k in zip(sizes, times, strict=True))

    def batches(
        self,
        plan: BatchPlan,
        label: str,
        when: Moment,
        chunk: list[int],
        counts: StepCounts = None,
        stacked: bool = True,
    ) -> tuple[Batches, list[int]]:
        """The batch of step s for every client of the chunk, and how many steps each takes."""
        near, places = self.near(chunk)
        x, y, part, sizes = near.source(plan, when, places)
        rows = padded_batch_size(plan, part.largest)
        taken = self.steps_of(plan, chunk, counts)
        rngs = streams(self.seed, (when.kind, when.stage, when.round, label), chunk)
        drawn, keys = draw_batches(plan, sizes.tolist(), taken, rows, rngs)
        first = part.first if plan.part == "public" else part.first[places]
        # newcomers, and models made for use after training, train at the rate itself
        schedule = plan.schedule if when.kind == TRAINING or not plan.schedule else CONSTANT
        moves = self._draw_moves(plan, label, when, chunk, drawn)
        batches = Batches(
            x=x,
            y=y,
            part=part,
            first=torch.as_tensor(first).reshape(-1, 1, 1, 1),
            places=torch.as_tensor(drawn),
            keys=torch.tensor(keys, dtype=torch.int64),
            each=taken,
            plan=plan,
            stacked=stacked,
            pace=compute_shares(schedule, when.round, taken) if schedule else None,
            moves=moves,
            border=self.border,
        )
        return batches, batches.each

    def _draw_moves(
        self, plan: BatchPlan, label: str, when: Moment, chunk: list[int], places: np.ndarray
    ) -> Tensor | None:
        """How the images of training batches are augmented; None: they are not."""
        if not plan.augment or plan.part != "train":
            return None
        rngs = streams(self.seed, ("augment", when.kind, when.stage, when.round, label), chunk)
        return torch.as_tensor(draw_moves(plan.augment, places, rngs))

    def source(
        self, plan: BatchPlan, when: Moment, chunk: Sequence[int]
    ) -> tuple[Tensor, Tensor, Part, np.ndarray]:
        """The inputs, the labels, the part that a plan draws from, and its size for each client."""
        if plan.part != "public":
            part = self.parts[plan.part]
            return self.x, self.y, part, part.counts[chunk]
        assert self.public is not None
        picked = draw_public_rows(self.public, self.seed, when.stage, when.round, plan.draw)
        size = len(picked)
        part = Part(torch.as_tensor(picked), np.zeros(1, dtype=np.int64), np.array([size]), size)
        dtype = self.x.dtype if self.x.is_floating_point() else torch.get_default_dtype()
        return *public_tensors(self.public, dtype), part, np.full(len(chunk), size)


def _to_dtype(dtype: torch.dtype, rows: Tensor) -> Tensor:
    """Rows in the run's precision; labels and words stay whole numbers."""
    return rows.to(dtype) if rows.is_floating_point() and rows.dtype != dtype else rows
