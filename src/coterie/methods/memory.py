"""What kNN-Per's clients remember: features and labels of their own rows, and their share."""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Batch
from coterie.core.point import Point
from coterie.core.split import Split
from coterie.methods.prototypes import count_classes, mark_classes
from coterie.networks.assembled import assemble_model
from coterie.networks.probabilities import Near, blend_classes, vote_nearest

LEVELS = 11  # values of lam that are tried, from 0 to 1
UNKNOWN = 0.5  # lam of a client without validation rows


class MemoryCarry(NamedTuple):
    """A client that fills its memory, and tries how much it shall count."""

    w: Point
    kept: Tensor  # [R], the places of the rows that are remembered
    features: Tensor  # [R, d]
    labels: Tensor  # [R, K], 1 at the class of a row
    losses: Tensor  # [LEVELS], sums over validation rows
    seen: Tensor  # validation rows


class RowMemory:
    """A memory of so many rows beside the head of a network."""

    def __init__(self, split: Split, rows: int, near: Near, lam: float) -> None:
        self.split, self.rows, self.near, self.lam = split, rows, near, lam
        self.model, self.classes = split.model, count_classes(split.model)
        sizes = f"rows={rows}:width={split.width}:classes={self.classes}"
        votes = f"neighbours={near.voters}:reach={near.reach}"
        self.whole = assemble_model(split.model, f"memory:part={split.part}:{sizes}:{votes}")

    def start(self, rows: Tensor, w: Point) -> MemoryCarry:
        """An empty memory of a client with so many training rows: all of them are kept, or some
        that are evenly spaced."""
        kept = (torch.arange(self.rows) * rows.clamp(min=self.rows) / self.rows).floor().long()
        return MemoryCarry(
            w=w,
            kept=kept,
            features=torch.zeros(self.rows, self.split.width),
            labels=torch.zeros(self.rows, self.classes),
            losses=torch.zeros(LEVELS),
            seen=torch.zeros(()),
        )

    def add(self, c: MemoryCarry, batch: Batch) -> MemoryCarry:
        """The memory with the rows of a batch that are kept."""
        hot = (c.kept.unsqueeze(-1) == batch.place).to(batch.mask) * batch.mask
        return c._replace(
            features=c.features + hot @ self.split.features(c.w, batch),
            labels=c.labels + hot @ mark_classes(batch, self.classes),
        )

    def weigh(self, c: MemoryCarry, batch: Batch) -> MemoryCarry:
        """The losses of every lam on the validation rows of a batch."""
        z, own = self.split.features(c.w, batch), self.model.logits(c.w, batch)
        votes = vote_nearest(z, c.features, c.labels, self.near)
        said = [blend_classes(own, votes, level / (LEVELS - 1)) for level in range(LEVELS)]
        losses = [(self.model.goal.losses(out, batch.y) * batch.mask).sum() for out in said]
        return c._replace(losses=c.losses + torch.stack(losses), seen=c.seen + batch.mask.sum())

    def put_inside(self, c: MemoryCarry, rows: Tensor) -> Point:
        """The network with its memory, which counts nothing where a client has no rows."""
        best = torch.where(c.seen > 0, c.losses.argmin() / (LEVELS - 1), UNKNOWN)
        share = best if self.lam < 0 else torch.full_like(best, self.lam)
        own = {"features": c.features, "labels": c.labels, "share": share * (rows > 0)}
        buffers = c.w.buffers | {self.split.name(k): a for k, a in own.items()}
        return Point({self._rename(k): a for k, a in c.w.params.items()}, buffers)

    def _rename(self, name: str) -> str:
        """A parameter's name in the network whose head has a memory."""
        part = self.split.part
        return f"{part}.head{name.removeprefix(part)}" if self.split.inside(name) else name
