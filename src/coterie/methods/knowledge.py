"""Who helps whom: the matrix c of KT-pFL, how it is learned, and the fixed rules of its variants.

c[n,m] is what client n takes from client m; see `ktpfl` for the objective and the readings taken.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, softmax

from coterie.core.method import Facts
from coterie.methods.soft import Server

RowNorm = Literal["project", "softmax5"]


class Knowledge(NamedTuple):
    """What the server knows of who helps whom."""

    c: Any  # [N, N], or Rows over few peers; rows sum to 1
    data: Tensor  # [N], D_n / D


def uniform(facts: Facts) -> Knowledge:
    """c_0 = 1/N."""
    n = facts.clients
    return Knowledge(torch.full((n, n), 1 / n), facts.sizes / facts.sizes.sum())


def admit(server: Server) -> Server:
    """Room for one more client: everyone takes 1/(N+1) from it, and it the same from all."""
    c, data = server.mix
    n = len(c)
    wider = torch.full((n + 1, n + 1), 1 / (n + 1))
    wider[:n, :n] = c * n / (n + 1)
    return server._replace(mix=Knowledge(wider, torch.cat([data, data.mean()[None]])))


def shares(rows: Tensor) -> Tensor:
    """Rows of c over the clients that spoke, scaled to sum 1; equal where they have no mass on
    them."""
    mass = rows.sum(-1, keepdim=True)
    return torch.where(mass > 0, rows / mass, 1 / rows.shape[-1])


def project(rows: Tensor, mass: Tensor) -> Tensor:
    """The nearest point to each row of {c >= 0, sum c = mass}; rows [n, m], mass [n, 1]."""
    high = rows.sort(descending=True).values
    excess = (high.cumsum(1) - mass) / torch.arange(1, rows.shape[1] + 1)
    positive = (high > excess).sum(1, keepdim=True).clamp(min=1)  # the largest so many stay above 0
    return (rows - excess.gather(1, positive - 1)).clamp(min=0)


def put(c: Tensor, ids: Tensor, block: Tensor) -> Tensor:
    """c with c[S,S] replaced."""
    new = c.clone()
    new[ids[:, None], ids] = block
    return new


def prediction_slope(c: Tensor, s: Tensor) -> Tensor:
    """g[n,m] = d/dc[n,m] of mean_x KL(p_n || s_n), p_n = sum_m c[n,m] s_m; s [m, x, K]."""
    tiny = torch.finfo(s.dtype).tiny
    p = torch.tensordot(c, s, dims=1)
    ratio = p.clamp(min=tiny).log() - s.clamp(min=tiny).log() + 1
    return torch.einsum("nxy,mxy->nm", ratio, s) / s.shape[1]


def model_slope(c: Tensor, w: Tensor) -> Tensor:
    """g[n,m] = 2 <wbar_n - w_n, w_m - wmean> / mean_k |w_k - wmean|^2; w [m, d]."""
    apart = w - w.mean(0)
    gram = apart @ apart.T
    return (
        2 * (shares(c) @ gram - gram) / gram.diagonal().mean().clamp(min=torch.finfo(w.dtype).tiny)
    )


def descend(
    c: Tensor,
    ids: Tensor,
    slopes: Iterable[Callable[[Tensor], Tensor]],
    rate: float,
    rho: float,
    row_norm: RowNorm,
) -> Tensor:
    """Steps on c[S,S] (eq. 7, 11), projected after each, or (authors' code) softmax(5 row) after
    the last."""
    block = c[ids][:, ids]
    mass = block.sum(1, keepdim=True)
    for slope in slopes:
        block = block - rate * (slope(block) + 2 * rho * (block - 1 / len(c)))
        if row_norm == "project":
            block = project(block, mass)
    if row_norm == "softmax5":
        block = mass * softmax(5 * block / mass, dim=1)
    return put(c, ids, block)


def similar(s: Tensor) -> Tensor:
    """Sim-pFL: cosines of predictions above the row's smallest, scaled to sum 1; s [m, x, K]."""
    cosines = _cosines(s)
    return shares(cosines - cosines.amin(1, keepdim=True))


def topk(s: Tensor, k: int) -> Tensor:
    """TopK-pFL: the k clients with the most similar predictions, itself included, count alike."""
    cosines = _cosines(s).fill_diagonal_(torch.inf)
    k = min(k, len(s))
    return torch.zeros_like(cosines).scatter(1, cosines.topk(k).indices, 1 / k)


def _cosines(s: Tensor) -> Tensor:
    rows = normalize(s.flatten(1))
    return rows @ rows.T
