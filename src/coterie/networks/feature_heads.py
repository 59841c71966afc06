"""Heads that do more with features than one dense layer: with a memory of rows, with another head
beside them, or with a valve before them. What methods train is the functions beside the modules.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.model import first_output
from coterie.core.point import Leaves
from coterie.networks.probabilities import Near, blend_classes, vote_nearest


class Beside(nn.Module):
    """What stands in the place of a head and shows its attributes, for a network that asks for the
    type or the shape of its head's weight."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("head"), name)


class Memory(Beside):
    """A head beside stored features and labels of rows: class probabilities are those of the head,
    with a share of what the nearest rows in memory are labelled."""

    def __init__(self, head: nn.Module, rows: int, width: int, classes: int, near: Near) -> None:
        super().__init__()
        self.head, self.near = head, near
        self.features: Tensor
        self.labels: Tensor
        self.share: Tensor
        self.register_buffer("features", torch.zeros(rows, width))
        self.register_buffer("labels", torch.zeros(rows, classes))
        self.register_buffer("share", torch.zeros(()))

    def forward(self, z: Tensor) -> Tensor:
        votes = vote_nearest(z, self.features, self.labels, self.near)
        return blend_classes(first_output(self.head(z)), votes, self.share)


def normalize(a: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`nn.LayerNorm` over the last dimension, in operations that all devices round alike."""
    apart = a - a.mean(-1, keepdim=True)
    return apart / (apart.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


class PolicyNetwork(nn.Module):
    """The parameters of `split_features`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(width, 2 * width), nn.LayerNorm(2 * width)


def split_features(policy: Leaves, context: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Features [B, d] as two parts that sum to them, by a policy on the features in a context [d]:
    a dense layer, normalized, of two numbers for each feature, whose softmax are its shares."""
    dense = F.linear(z * context, policy["dense.weight"], policy["dense.bias"])
    scaled = normalize(dense, policy["norm.weight"], policy["norm.bias"])
    mine, other = scaled.relu().chunk(2, dim=-1)
    share = torch.sigmoid(mine - other)
    return share * z, (1 - share) * z


class PolicyHead(Beside):
    """Two heads, each given its part of the features; their outputs are added."""

    def __init__(self, head: nn.Module, width: int) -> None:
        super().__init__()
        self.policy, self.common = PolicyNetwork(width), copy.deepcopy(head)
        self.head = head
        self.context: Tensor
        self.register_buffer("context", torch.ones(width))

    def forward(self, z: Tensor) -> Tensor:
        mine, other = split_features(dict(self.policy.named_parameters()), self.context, z)
        return first_output(self.head(mine)) + first_output(self.common(other))


class Valve(nn.Module):
    """The parameters of `turn_features`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.scale_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.shift, self.shift_norm = nn.Linear(width, width), nn.LayerNorm(width)


def turn_features(valve: Leaves, context: Tensor, z: Tensor) -> Tensor:
    """Features [B, d] scaled and shifted as a context [d] says, by a dense layer for each, ReLU and
    normalization; then ReLU."""

    def say(word: str) -> Tensor:
        weight, bias = valve[f"{word}.weight"], valve[f"{word}.bias"]
        dense = (weight * context).sum(-1) + bias
        return normalize(dense.relu(), valve[f"{word}_norm.weight"], valve[f"{word}_norm.bias"])

    return (z * (1 + say("scale")) + say("shift")).relu()


class ValveHead(Beside):
    """A head that is given features as a valve turns them in a context."""

    def __init__(self, head: nn.Module, width: int) -> None:
        super().__init__()
        self.valve, self.head = Valve(width), head
        self.context: Tensor
        self.register_buffer("context", torch.zeros(width))

    def forward(self, z: Tensor) -> Tensor:
        valve: dict[str, Tensor] = dict(self.valve.named_parameters())
        return first_output(self.head(turn_features(valve, self.context, z)))
