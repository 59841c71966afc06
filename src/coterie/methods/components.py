"""The common models that FedEM's clients mix, and how much of each a client's rows are from."""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Batch
from coterie.core.model import Descent, Model
from coterie.core.point import Leaves, Point, pick
from coterie.methods.declare import SupportedTasks

LEAST = 1e-30  # of a share in a logarithm, and of rows in a quotient
BY_PROBABILITY = SupportedTasks(
    lambda task: task.has_output_per_class or task.is_one_logit, "mixes class probabilities"
)


class EMCarry(NamedTuple):
    """A client at work."""

    sent: Point  # [M, ...], the received models
    pi: Tensor  # [M], of its last round
    mass: Tensor  # [M], sum of q over its rows
    go: tuple[Descent, ...]


def expect(model: Model, c: EMCarry, batch: Batch) -> Tensor:
    """q [B, M]: how likely a row is of each component."""
    outputs = [model.logits(pick(c.sent, m), batch) for m in range(len(c.go))]
    losses = torch.stack([model.goal.losses(out, batch.y) for out in outputs], dim=-1)
    return torch.softmax(c.pi.clamp(min=LEAST).log() - losses, dim=-1)


def share_rows(c: EMCarry) -> Tensor:
    """The new pi; a client without rows keeps its own."""
    rows = c.mass.sum()
    return torch.where(rows > 0, c.mass / rows.clamp(min=LEAST), c.pi)


def join_networks(pi: Tensor, sent: Point) -> Point:
    """The models and their shares as one network, a `Mixture`."""

    def name(leaves: Leaves) -> Leaves:
        return {f"nets.{m}.{k}": a[m] for m in range(pi.shape[-1]) for k, a in leaves.items()}

    return Point(name(sent.params), {"shares": pi} | name(sent.buffers))
