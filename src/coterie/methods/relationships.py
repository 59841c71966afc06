"""What APPLE's clients are to each other: core models, and how much of each a client takes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Replies
from coterie.core.model import Descent
from coterie.core.point import Point, Vector, mean, pick, tree_map


class AppleServer(NamedTuple):
    """The core models of the clients of the start."""

    models: Point  # [N, ...]
    share: Tensor  # [N], p_0
    hold: Tensor  # lambda(r)
    round: Tensor  # r


class ApplePayload(NamedTuple):
    """What goes down: N core models."""

    models: Point
    share: Tensor
    hold: Tensor
    place: Tensor  # of the client among them; N or more: none of them is its own

    @property
    def others(self) -> Tensor:
        """[N], 0 for the client itself."""
        return (torch.arange(len(self.share)) != self.place).to(self.share)


class AppleState(NamedTuple):
    """What a client keeps."""

    core: Point  # w_i
    p: Point  # "own": p_ii, "others" [N]: p_ij, and 0 for itself


class AppleCarry(NamedTuple):
    """A client at work."""

    core: Descent
    p: Descent
    sent: ApplePayload


def start_relationships(sent: ApplePayload) -> Point:
    """p_0; a client that is not in it counts as one of middle size."""
    others, n = sent.others, len(sent.share)
    inside = n - others.sum()  # 1 or 0
    scale = torch.where(inside > 0, 1.0, n / (n + 1))
    return Point(
        {"own": 1 - scale * (others * sent.share).sum(), "others": scale * others * sent.share}
    )


def start_client(sent: ApplePayload) -> AppleState:
    """A client at its first contact: its core model, or the mean of all as p_0 has it."""
    at, n = int(sent.place), len(sent.share)
    core = pick(sent.models, at) if at < n else mean(sent.models, sent.share)
    return AppleState(core, start_relationships(sent))


def mix_cores(core: Point, p: Point, sent: ApplePayload) -> Point:
    """v_i, with the running statistics of the client's own core model."""
    own, others = p.params["own"], p.params["others"]
    return Point(
        {
            k: own * w + torch.tensordot(others, sent.models.params[k], dims=1)
            for k, w in core.params.items()
        },
        core.buffers,
    )


def differentiate_relationships(
    core: Point, p: Point, sent: ApplePayload, g: Vector, mu: float
) -> Vector:
    """The gradient by p_i: <g, w_j> for each core model, g that of f_i at v_i, and the term that
    holds p_i to p_0."""
    each = [sent.models.params[k].flatten(1) @ a.reshape(-1, 1) for k, a in g.params.items()]
    gradients = {
        "own": core.as_vector().dot(g),
        "others": sent.others * torch.cat(each, 1).sum(1),
    }
    return Vector(gradients) + mu * sent.hold * (p - start_relationships(sent))


def keep_cores(server: AppleServer, replies: Replies, hold: float) -> AppleServer:
    """The server with the core models that came back."""
    inside = (replies.ids < len(server.share)).nonzero().flatten()
    ids, new = replies.ids[inside], pick(replies.upload, inside)
    models = tree_map(lambda old, one: old.index_copy(0, ids, one), server.models, new)
    return AppleServer(models, server.share, torch.tensor(hold), server.round + 1)
