"""Mini-batches: which rows each client takes in each step, drawn before the steps run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.method import Batch, BatchPlan
from coterie.core.rng import stream
from coterie.data.federation import PARTS, Federation, Public, part_of
from coterie.engines.base import Moment
from coterie.engines.local.stacks import channels_last
from coterie.engines.public import public_draw, public_rows

FULL = 1024  # rows per step when a plan asks for whole parts
Counts = Mapping[int, int] | None  # steps of each client, where the method decides on them
At = Callable[[int], tuple[Batch, Tensor | None]]  # step -> (batch, who is active; None: everyone)


class Draw(NamedTuple):
    """A client's batches: positions in its part, -1 for padding."""

    places: np.ndarray  # [steps, batches, B]
    key: int  # seeds dropout


def batch_rows(plan: BatchPlan, largest: int) -> int:
    """The rows that a batch is padded to, the same for all clients: at most those of the largest
    part.
    """
    return max(1, min(plan.batch or FULL, largest))


def count_steps(plan: BatchPlan, n: int) -> int:
    """The number of steps that a client with n rows takes."""
    if n == 0:
        return 0
    if plan.steps:
        return plan.steps
    n = max(1, int(n * plan.share))
    return -(-plan.epochs * -(-n // (plan.batch or FULL)) // plan.batches)


def draw(
    plan: BatchPlan, n: int, rows: int, rng: np.random.Generator, steps: int | None = None
) -> Draw:
    """Batches of at most `plan.batch` rows, padded to `rows`.

    Every epoch is shuffled anew, and its last batch may be short.
    """
    key = int(rng.integers(2**40))
    steps = count_steps(plan, n) if steps is None else steps
    part = np.arange(n)
    if plan.share < 1.0:
        part = np.sort(rng.choice(n, max(1, int(n * plan.share)), replace=False))
    size = min(plan.batch or FULL, rows)
    per_epoch = -(-len(part) // size) if len(part) else 1
    needed = steps * plan.batches
    out = np.full((max(needed, 1), rows), -1, dtype=np.int64)
    for first in range(0, needed, per_epoch):
        order = rng.permutation(part) if plan.shuffle else part
        epoch = np.full(per_epoch * size, -1, dtype=np.int64)
        epoch[: len(order)] = order
        last = min(first + per_epoch, needed)
        out[first:last, :size] = epoch.reshape(per_epoch, size)[: last - first]
    return Draw(out[:needed].reshape(steps, plan.batches, rows), key)


class Part(NamedTuple):
    """One part (train, validation, select, test, public) of all clients as one list of rows."""

    rows: Tensor  # [total]
    first: np.ndarray  # [N]
    counts: np.ndarray  # [N]
    largest: int

    @classmethod
    def of(cls, lists: Sequence[np.ndarray]) -> Part:
        counts = np.array([len(rows) for rows in lists], dtype=np.int64)
        rows = np.concatenate(lists) if len(lists) else np.zeros(0, dtype=np.int64)
        index = torch.as_tensor(rows, dtype=torch.int64)
        return cls(index, np.cumsum(counts) - counts, counts, int(counts.max(initial=0)))

    def of_client(self, client: int) -> Tensor:
        """The rows of one client."""
        return self.rows[self.first[client] : self.first[client] + self.counts[client]]


class Feed(NamedTuple):
    """The rows of all clients, and the batches that they take of them."""

    x: Tensor
    y: Tensor
    parts: dict[str, Part]
    public: Public | None
    seed: int

    @classmethod
    def of(cls, federation: Federation, seed: int) -> Feed:
        dtype = torch.get_default_dtype()
        return cls(
            x=federation.x.to(dtype) if federation.x.is_floating_point() else federation.x,
            y=federation.y.to(dtype) if federation.y.is_floating_point() else federation.y,
            parts={name: Part.of(part_of(federation, name)) for name in PARTS},
            public=federation.public,
            seed=seed,
        )

    def training_rows(self, client: int) -> Tensor:
        """How many training rows a client has, as methods are told it."""
        return torch.tensor(int(self.parts["train"].counts[client]))

    def steps(self, plan: BatchPlan, client: int, counts: Counts) -> int:
        """The number of steps that a client takes in a pass."""
        if plan.adaptive and counts is not None:
            return counts[client]
        if plan.part == "public":
            return count_steps(plan, plan.draw or len(self.public.x) if self.public else 0)
        return count_steps(plan, int(self.parts[plan.part].counts[client]))

    def batches(
        self,
        plan: BatchPlan,
        label: str,
        when: Moment,
        chunk: list[int],
        counts: Counts = None,
        stacked: bool = True,
    ) -> tuple[At, list[int]]:
        """The batch of step s for every client of the chunk, and how many steps each takes."""
        x, y, part, sizes = self.source(plan, when, chunk)
        rows = batch_rows(plan, part.largest)
        draws = []
        for i, n in zip(chunk, sizes, strict=True):
            rng = stream(self.seed, when.kind, when.stage, when.round, label, i)
            steps = self.steps(plan, i, counts) if plan.adaptive else None
            draws.append(draw(plan, int(n), rows, rng, steps))
        each = [len(d.places) for d in draws]
        where = _aligned(draws, plan, rows)
        first = torch.as_tensor(part.first if plan.part == "public" else part.first[chunk])
        first = first.reshape(-1, *(1,) * (1 if plan.batches == 1 else 2))
        keys = torch.tensor([d.key for d in draws])
        # A key for each of several batches per step.
        several = keys[:, None] * plan.batches + torch.arange(plan.batches)
        each_tensor, shortest = torch.tensor(each), min(each, default=0)
        outside = plan.draw or part.largest
        dtype = torch.get_default_dtype()

        def at(s: int) -> tuple[Batch, Tensor | None]:
            if plan.batches == 1:
                place, key = where[:, s, 0], keys + s
            else:
                place, key = where[:, s], several + s * plan.batches
            real = place >= 0
            index = place.clamp(min=0)
            if len(part.rows):
                index = part.rows[first + index]
            if not stacked:
                index, real, place, key = index[0], real[0], place[0], key[0]
            flat = index.reshape(-1)
            batch = Batch(
                x=x.index_select(0, flat).reshape(*index.shape, *x.shape[1:]),
                y=y.index_select(0, flat).reshape(*index.shape, *y.shape[1:]),
                mask=real.to(dtype),
                place=torch.where(real, place, outside),
                key=key,
            )
            active = None if s < shortest else each_tensor > s
            return batch if stacked else channels_last(batch), active

        return at, each

    def source(
        self, plan: BatchPlan, when: Moment, chunk: list[int]
    ) -> tuple[Tensor, Tensor, Part, np.ndarray]:
        """The inputs, the labels, the part that a plan draws from, and its size for each client."""
        if plan.part != "public":
            part = self.parts[plan.part]
            return self.x, self.y, part, part.counts[chunk]
        assert self.public is not None
        picked = public_draw(self.public, self.seed, when.stage, when.round, plan.draw)
        size = len(picked)
        part = Part(torch.as_tensor(picked), np.zeros(1, dtype=np.int64), np.array([size]), size)
        dtype = self.x.dtype if self.x.is_floating_point() else torch.get_default_dtype()
        return *public_rows(self.public, dtype), part, np.full(len(chunk), size)


def _aligned(draws: list[Draw], plan: BatchPlan, rows: int) -> Tensor:
    """[clients, steps, batches, rows]: who has fewer steps is padded with -1."""
    longest = max((len(d.places) for d in draws), default=0)
    places = np.full((len(draws), longest, plan.batches, rows), -1, dtype=np.int32)
    for k, d in enumerate(draws):
        places[k, : len(d.places)] = d.places
    return torch.from_numpy(places).long()
