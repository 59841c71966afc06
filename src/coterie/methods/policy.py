"""What FedCP's clients carry: a network with a head of their own, the policy that shares features
between it and the common head, and how far features have moved from those of the received body.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Batch, Train
from coterie.core.model import Descent, begin
from coterie.core.point import Leaves, Point, merge, split
from coterie.core.split import Split
from coterie.networks.assembled import assemble_model

WIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels
SHORTEST = 1e-12  # length of a context that would be 0


class CPServer(NamedTuple):
    """The server's state, and what travels both ways."""

    w: Point  # body and head
    policy: Point


class CPCarry(NamedTuple):
    """A client at work."""

    go: Descent  # the body with the client's head
    policy: Descent
    sent: CPServer
    context: Tensor  # [d]


class PolicySplit:
    """A network cut before its head, where the policy stands."""

    def __init__(self, cut: Split) -> None:
        self.cut = cut
        self.whole = assemble_model(cut.model, f"policy:part={cut.part}:width={cut.width}")

    def start_policy(self, seed: int) -> Point:
        """A policy at random."""
        start = self.cut.name("policy.")
        found = self.whole.start(seed).params
        return Point({k.removeprefix(start): a for k, a in found.items() if k.startswith(start)})

    def find_context(self, own: Point) -> Tensor:
        """What a client's head looks at: the sum of its rows, of length 1."""
        looks = own.params[self.cut.name("weight")].sum(0)
        return looks / looks.square().sum().sqrt().clamp(min=SHORTEST)

    def open_round(self, own: Point, sent: CPServer, train: Train) -> CPCarry:
        """The received network with the client's head, about to descend."""
        w = merge(own, split(sent.w, self.cut.inside)[1], self.cut.model.shapes)
        return CPCarry(begin(w, train), begin(sent.policy, train), sent, self.find_context(own))

    def add_heads(
        self, own: Leaves, common: Leaves, mine: Tensor, z: Tensor, batch: Batch
    ) -> Tensor:
        """own(mine) + common(z - mine), as (own - common)(mine) + common(z) and the bias that is
        missing then: heads that are still equal leave the policy alone to the last bit, where an
        optimizer such as Adam would follow rounding."""
        apart = {k: a - common[k] for k, a in own.items() if self.cut.inside(k)}
        said = self.cut.head(apart, mine, batch) + self.cut.head(common, z, batch)
        return said + common[self.cut.name("bias")]

    def put_together(self, own: Point, sent: CPServer) -> Point:
        """The network that a client uses: the received one with its own head in it."""
        head, body = split(sent.w, self.cut.inside)
        part = self.cut.part
        names: dict[str, Leaves] = {"head": own.params, "common": head.params}
        params = {f"{part}.policy.{k}": a for k, a in sent.policy.params.items()}
        for place, leaves in names.items():
            params |= {f"{part}.{place}{k.removeprefix(part)}": a for k, a in leaves.items()}
        context = {self.cut.name("context"): self.find_context(own)}
        named = body.params | params
        return Point({k: named[k] for k in self.whole.shapes}, body.buffers | context)


def measure_discrepancy(a: Tensor, b: Tensor, batch: Batch) -> Tensor:
    """The squared maximum mean discrepancy of the rows of two matrices [B, d], with a sum of
    Gaussian kernels."""
    both = torch.cat([a, b])
    sign = torch.cat([batch.mask, -batch.mask]) / batch.mask.sum().clamp(min=1)
    squares = both.square().sum(-1)
    apart = squares.unsqueeze(-1) + squares - 2 * both @ both.T
    alike = torch.stack([torch.exp(-apart / (2 * width)) for width in WIDTHS]).sum(0)
    return (sign.unsqueeze(-1) * sign * alike).sum()
