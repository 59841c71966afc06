"""Who helps whom: the matrix c of KT-pFL, how it is learned, and the fixed rules of its variants.

c[n,m] is what client n takes from client m; see `ktpfl` for the objective and how it was
interpreted. Over few peers row n of c has places for n itself and for m others, each with 1 / (m +
1) at first. When n speaks, its free places go to those who speak with it and are nearest to it, by
sketches of what they say; they stay for good, so that c is learned as before, on fewer columns.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, softmax

from coterie.core.method import Facts
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.methods.bounds import Room, check_room
from coterie.methods.distillation import DistillationServer
from coterie.methods.mixing import FREE, Mixing, find_places, scale_rows, start_equal
from coterie.methods.peers import cut_blocks, find_nearest, sketch

RowNorm = Literal["project", "softmax5"]
PEERS = "give --peers 50 to learn from the 50 nearest, or fewer clients"
COEFFICIENTS = {"c": LoggedQuantity("knowledge coefficients c", QuantityKind.MATRIX)}
NEVER = -1e9  # stands for an absent entry where rows are projected


class Knowledge(NamedTuple):
    """What the server knows of who helps whom."""

    c: Mixing  # rows sum to 1
    data: Tensor  # [N], D_n / D


def start(name: str, facts: Facts, peers: int, said: int, way: str = PEERS) -> Knowledge:
    """c_0, once the server is known to have room for it and for `said` numbers per client."""
    each = 4 * 4 * said * facts.rate
    room = Room(pair=28, entry=24, client=each, client_of_few=each)
    check_room(name, facts.clients, peers, room, way)
    return Knowledge(start_equal(facts.clients, peers), facts.sizes / facts.sizes.sum())


def admit(server: DistillationServer) -> DistillationServer:
    """Room for one more client."""
    c, data = server.mix
    return server._replace(mix=Knowledge(c.admit_equal(), torch.cat([data, data.mean()[None]])))


def describe(server: DistillationServer) -> dict[str, Tensor]:
    """c for reports."""
    found: dict[str, Tensor] = server.mix.c.describe("c")
    return found


class Part(NamedTuple):
    """The entries of c between the clients S that spoke."""

    values: Tensor  # [a, a]; over few peers [a, m + 1]
    at: Any = ()  # over few peers: their places in S
    there: Any = ()  # over few peers: whether they are in S; the value is 0 where they are not

    @property
    def sparse(self) -> bool:
        return isinstance(self.at, Tensor)

    def mask(self, values: Tensor, absent: float) -> Tensor:
        """Values with `absent` where there is no entry."""
        return torch.where(self.there, values, absent) if self.sparse else values

    def chain(self, said: Tensor, gradient: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The gradient in c[n,m] of F(p_n, s_n), p_n = sum_m c[n,m] s_m, by that of F in p_n: <F',
        s_m>; said [a, x]."""
        if not self.sparse:
            p = torch.tensordot(self.values, said, dims=1)
            return torch.einsum("nx,mx->nm", gradient(p, said), said)
        g = torch.empty_like(self.values)
        for some in cut_blocks(len(g), g.shape[1] * said.shape[1]):
            peers = said[self.at[some]]
            p = torch.bmm(self.values[some, None], peers)[:, 0]
            g[some] = torch.bmm(peers, gradient(p, said[some])[:, :, None])[:, :, 0]
        return g


# A step on c: (the entries between those who spoke) -> gradient
Gradient = Callable[[Part], Tensor]


def take_part(c: Mixing, ids: Tensor) -> Part:
    """The entries of c between the clients `ids`, in order."""
    if not c.sparse:
        return Part(c.weights[ids][:, ids])
    at, there = find_places(c.ids[ids], ids)
    return Part(torch.where(there, c.weights[ids], 0.0), at, there)


def put_part(c: Mixing, ids: Tensor, part: Part) -> Mixing:
    """c with other entries between the clients `ids`."""
    if c.sparse:
        new = torch.where(part.there, part.values, c.weights[ids])
        return c._replace(weights=c.weights.index_copy(0, ids, new))
    weights = c.weights.clone()
    weights[ids[:, None], ids] = part.values
    return Mixing(weights)


def project_to_simplex(rows: Tensor, mass: Tensor) -> Tensor:
    """The nearest point to each row of {c >= 0, sum c = mass}; rows [n, m], mass [n, 1]."""
    high = rows.sort(descending=True).values
    excess = (high.cumsum(1) - mass) / torch.arange(1, rows.shape[1] + 1)
    positive = (high > excess).sum(1, keepdim=True).clamp(min=1)  # the largest so many stay above 0
    return (rows - excess.gather(1, positive - 1)).clamp(min=0)


def descend_knowledge(
    c: Mixing,
    ids: Tensor,
    gradients: Iterable[Gradient],
    rate: float,
    rho: float,
    row_norm: RowNorm,
) -> Mixing:
    """Steps on c[S,S] (eq. 7, 11), projected after each, or (authors' code) softmax(5 row) after
    the last."""
    part, even = take_part(c, ids), 1 / c.weights.shape[1]
    mass = part.values.sum(1, keepdim=True)
    for gradient in gradients:
        values = part.values - rate * (gradient(part) + 2 * rho * (part.values - even))
        if row_norm == "project":
            part = part._replace(values=project_to_simplex(part.mask(values, NEVER), mass))
        else:
            part = part._replace(values=part.mask(values, 0.0))
    if row_norm == "softmax5":
        sharp = part.mask(5 * part.values / mass, -torch.inf)
        part = part._replace(values=mass * softmax(sharp, dim=1))
    return put_part(c, ids, part)


def prediction_gradient(part: Part, s: Tensor, lam: float, data: Tensor | None = None) -> Tensor:
    """g[n,m] = d/dc[n,m] of lam mean_x KL(p_n || s_n), p_n = sum_m c[n,m] s_m; s [a, x, K]. With
    `data` [a, 1], D_n / D, of that times the sum over x."""
    tiny, rows = torch.finfo(s.dtype).tiny, s.shape[1]

    def gradient(p: Tensor, own: Tensor) -> Tensor:
        return p.clamp(min=tiny).log() - own.clamp(min=tiny).log() + 1

    g = part.chain(s.flatten(1), gradient)
    if part.sparse:
        return lam * (1 / rows if data is None else data) * g
    return lam * (g / rows) * (1 if data is None else data * rows)


def model_gradient(part: Part, w: Tensor) -> Tensor:
    """g[n,m] = 2 <wbar_n - w_n, w_m - wmean> / mean_k |w_k - wmean|^2; w [a, d]."""
    apart, tiny = w - w.mean(0), torch.finfo(w.dtype).tiny
    shares = part._replace(values=scale_rows(part.values))
    if part.sparse:
        unit = apart.square().sum(1).mean().clamp(min=tiny)
        return (1 / unit) * (2 * shares.chain(apart, lambda wbar, own: wbar - own))
    gram = apart @ apart.T
    return 2 * (shares.values @ gram - gram) / gram.diagonal().mean().clamp(min=tiny)


def fill(c: Mixing, ids: Tensor, said: Iterable[Tensor]) -> Mixing:
    """c after free places of the clients `ids` [a], in order, went to the nearest of them by what
    they said, in parts [a, ...]."""
    if not c.sparse:
        return c
    waiting = (c.ids[ids] == FREE).any(1).nonzero().flatten()
    if not len(waiting) or len(ids) == 1:
        return c
    points = sketch(said)
    found = find_nearest(points[waiting], points, waiting, c.ids.shape[1] - 1)
    mine = c.ids[ids[waiting]]
    rows = [
        _fill_rows(mine[block], ids[found.ids[block]], found.there[block])
        for block in cut_blocks(len(mine), mine.shape[1] ** 2)
    ]
    return c._replace(ids=c.ids.index_copy(0, ids[waiting], torch.cat(rows)))


def _fill_rows(row: Tensor, near: Tensor, there: Tensor) -> Tensor:
    """Rows of ids [b, m + 1] whose free places are taken by those of `near` [b, m] that are not in
    them, the nearest first."""
    new = there & ~(near[:, :, None] == row[:, None]).any(2)
    order = (~new).long().argsort(dim=1, stable=True)
    free = row == FREE
    turn = free.cumsum(1) - 1
    taken = free & (turn < new.sum(1, keepdim=True))
    at = turn.clamp(0, near.shape[1] - 1)
    return torch.where(taken, near.gather(1, order).gather(1, at), row)


def follow(c: Mixing, ids: Tensor, rows: Tensor) -> Mixing:
    """c where the clients `ids` share what they take from each other by rows that sum to 1."""
    part = take_part(c, ids)
    return put_part(c, ids, Part(part.values.sum(1, keepdim=True) * rows))


def weigh_similar(s: Tensor) -> Tensor:
    """Sim-pFL: cosines of predictions above the row's smallest, scaled to sum 1; s [m, x, K]."""
    cosines = _compare(s)
    return scale_rows(cosines - cosines.amin(1, keepdim=True))


def weigh_top(s: Tensor, k: int) -> Tensor:
    """TopK-pFL: the k clients with the most similar predictions, itself included, count alike."""
    cosines = _compare(s).fill_diagonal_(torch.inf)
    k = min(k, len(s))
    return torch.zeros_like(cosines).scatter(1, cosines.topk(k).indices, 1 / k)


def _compare(s: Tensor) -> Tensor:
    rows = normalize(s.flatten(1))
    return rows @ rows.T
