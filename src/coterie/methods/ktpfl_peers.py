"""KT-pFL over the nearest peers of each client, where c [N, N] would be too large.

Row n of c has places for n itself and for m others, each with 1 / (m + 1) at first. When n speaks,
its free places go to those who speak with it and are nearest to it, by sketches of what they say;
they stay for good, so that c is learned as before, on fewer columns.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softmax

from coterie.core.method import Facts
from coterie.methods.knowledge import Knowledge, RowNorm, project, shares
from coterie.methods.peers import Rows, blocks, mixed, nearest
from coterie.methods.soft import Server

FREE = -1  # the id in a place that nobody has taken
NEVER = -1e9  # stands for an absent entry where rows are projected
# (c [b, m], what peers said [b, m, x], what one said oneself [b, x]) -> slope [b, m]
Slope = Callable[[Tensor, Tensor, Tensor], Tensor]


class Step(NamedTuple):
    """One step on c."""

    said: Tensor  # [a, x], of those who spoke
    slope: Slope
    scale: float | Tensor  # of the slope; [a, 1] or a number


class Pace(NamedTuple):
    """How c is learned."""

    rate: float
    rho: float
    row_norm: RowNorm


def uniform_few(facts: Facts, m: int) -> Knowledge:
    """c_0 = 1 / (m + 1) in every place."""
    n = facts.clients
    ids = torch.full((n, m + 1), FREE)
    ids[:, 0] = torch.arange(n)
    return Knowledge(
        Rows(ids, torch.full((n, m + 1), 1 / (m + 1))), facts.sizes / facts.sizes.sum()
    )


def admit_few(server: Server) -> Server:
    """Room for one more client, whose places are free."""
    (ids, weights), data = server.mix
    mine = torch.full((1, ids.shape[1]), FREE)
    mine[0, 0] = len(ids)
    more = torch.full(mine.shape, 1 / ids.shape[1], dtype=weights.dtype)
    rows = Rows(torch.cat([ids, mine]), torch.cat([weights, more]))
    return server._replace(mix=Knowledge(rows, torch.cat([data, data.mean()[None]])))


def fill(c: Rows, ids: Tensor, points: Tensor) -> Rows:
    """c after free places of the clients `ids` [a], in order, went to the nearest of them by
    `points` [a, s]."""
    waiting = (c.ids[ids] == FREE).any(1).nonzero().flatten()
    if not len(waiting) or len(ids) == 1:
        return c
    found = nearest(points[waiting], points, waiting, c.ids.shape[1] - 1)
    mine, made = c.ids[ids[waiting]], []
    for block in blocks(len(mine), mine.shape[1] ** 2):
        made.append(_filled(mine[block], ids[found.ids[block]], found.there[block]))
    return c._replace(ids=c.ids.index_copy(0, ids[waiting], torch.cat(made)))


def _filled(row: Tensor, near: Tensor, there: Tensor) -> Tensor:
    """Rows of ids [b, m + 1] whose free places are taken by those of `near` [b, m] that are not in
    them, the nearest first."""
    new = there & ~(near[:, :, None] == row[:, None]).any(2)
    order = (~new).long().argsort(dim=1, stable=True)
    free = row == FREE
    turn = free.cumsum(1) - 1
    taken = free & (turn < new.sum(1, keepdim=True))
    at = turn.clamp(0, near.shape[1] - 1)
    return torch.where(taken, near.gather(1, order).gather(1, at), row)


def places(row: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Where the clients of rows stand among those who spoke (`ids`, in order), and whether they
    do."""
    at = torch.searchsorted(ids, row).clamp(max=len(ids) - 1)
    return at, ids[at] == row


def heard_by(c: Rows, i: int, ids: Tensor) -> Rows:
    """The shares of client i in what the clients `ids` said: its row over them, or equal ones."""
    at, there = places(c.ids[i], ids)
    if not there.any():
        return Rows(torch.arange(len(ids))[None], shares(torch.zeros(1, len(ids))))
    return Rows(at[None], shares(torch.where(there, c.weights[i], 0.0))[None])


def taught(c: Rows, i: int, ids: Tensor, said: Tensor) -> Tensor:
    """Client i's mixture of what was said."""
    return mixed(said, heard_by(c, i, ids))[0]


def descend_few(c: Rows, ids: Tensor, steps: Iterable[Step], pace: Pace) -> Rows:
    """Steps on the entries of c between those who spoke, as in `knowledge.descend`."""
    at, there = places(c.ids[ids], ids)
    old = c.weights[ids]
    block = torch.where(there, old, 0.0)
    mass = block.sum(1, keepdim=True)
    for said, slope, scale in steps:
        g = torch.empty_like(block)
        for some in blocks(len(block), at.shape[1] * said.shape[1]):
            g[some] = slope(block[some], said[at[some]], said[some])
        block = block - pace.rate * (scale * g + 2 * pace.rho * (block - 1 / at.shape[1]))
        if pace.row_norm == "project":
            block = project(torch.where(there, block, NEVER), mass)
        else:
            block = torch.where(there, block, 0.0)
    if pace.row_norm == "softmax5":
        block = mass * softmax(torch.where(there, 5 * block / mass, -torch.inf), dim=1)
    return c._replace(weights=c.weights.index_copy(0, ids, torch.where(there, block, old)))


def prediction_slope_few(c: Tensor, peers: Tensor, own: Tensor) -> Tensor:
    """`knowledge.prediction_slope` over peers, summed over rows, from flat predictions."""
    tiny = torch.finfo(own.dtype).tiny
    p = torch.bmm(c[:, None], peers)[:, 0]
    ratio = p.clamp(min=tiny).log() - own.clamp(min=tiny).log() + 1
    return torch.bmm(peers, ratio[:, :, None])[:, :, 0]


def model_slope_few(c: Tensor, peers: Tensor, own: Tensor) -> Tensor:
    """`knowledge.model_slope` over peers, from models less their mean; their mean square is not
    divided by yet."""
    apart = torch.bmm(shares(c)[:, None], peers)[:, 0] - own
    return 2 * torch.bmm(peers, apart[:, :, None])[:, :, 0]


def visible(c: Rows) -> Rows:
    """Rows without free places, for notes."""
    free = c.ids == FREE
    return Rows(c.ids.clamp(min=0), torch.where(free, 0.0, c.weights))
