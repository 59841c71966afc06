"""Outputs that say mixtures of class probabilities: of several networks, or of a network and of the
rows that are near.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

FAR = 1e18  # added to the distance of rows that are none, or were found already
LEAST = 1e-12  # of a probability, so that its logarithm is finite


def mix_classes(outputs: Tensor, shares: Tensor) -> Tensor:
    """Outputs [B, K] that say the mean, by shares [M], of the class probabilities of M outputs
    [M, B, K]; one output tells two classes apart."""
    alone = outputs.shape[-1] == 1
    logs = F.log_softmax(F.pad(outputs, (1, 0)) if alone else outputs, dim=-1)
    mixed = torch.logsumexp(logs + shares.log()[:, None, None], dim=0)
    return mixed[..., 1:] - mixed[..., :1] if alone else mixed


class Near(NamedTuple):
    """How the rows near to one vote."""

    voters: int
    reach: float  # the distance at which a vote has fallen to 1 / e


def vote_nearest(z: Tensor, features: Tensor, labels: Tensor, near: Near) -> Tensor:
    """[B, K], the votes of the rows [R, d] in memory that are nearest to rows [B, d], each of
    exp(-distance / reach), as shares; a row in memory whose labels [R, K] are 0 is none. The
    nearest are found one after another, as no sorting is known to machine code."""
    squares = z.square().sum(-1, keepdim=True) + features.square().sum(-1) - 2 * z @ features.T
    left = squares.clamp(min=0).sqrt() + FAR * (1 - labels.sum(-1))
    least, votes = -(-left).amax(-1, keepdim=True), torch.zeros_like(left)
    numbers = torch.arange(features.shape[0], device=z.device)
    for _ in range(min(near.voters, features.shape[0])):
        first = (numbers == (-left).argmax(-1, keepdim=True)).to(left)
        votes = votes + first * torch.exp((least - left) / near.reach)
        left = left + FAR * first
    counted = votes @ labels
    return counted / counted.sum(-1, keepdim=True).clamp(min=LEAST)


def blend_classes(outputs: Tensor, others: Tensor, share: Tensor | float) -> Tensor:
    """Outputs [B, K] that say a share of the probabilities `others` and the rest of their own."""
    alone = outputs.shape[-1] == 1
    own = F.softmax(F.pad(outputs, (1, 0)) if alone else outputs, dim=-1)
    logs = (own + share * (others - own)).clamp(min=LEAST).log()
    return logs[..., 1:] - logs[..., :1] if alone else logs
