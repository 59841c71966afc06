"""KT-pFL. Zhang, Guo, Ma, Wang, Xu, Wu: Parameterized Knowledge Transfer for Personalized Federated Learning. NeurIPS 2021,
Algorithms 1 (soft predictions, any architectures) and 2 (parameters, one architecture).

min_{w, c} sum_n D_n/D [ f_n(w^n) + lam KL(sum_m c[n,m] s_m || s_n) ] + rho |c - 1/N|^2  over the round's public rows, with
s_n = softmax(z_n / T). Each round: private training (5), distillation (6), then steps on c (7).

Readings taken. c[n,m] is what n takes from m, itself included; rows are kept on the simplex, else the KL is none. (7) takes one
step for each public mini-batch, on the uploaded predictions, with the mean over samples and without D_n/D, which would only
rescale row n's step (`literal_eq7` restores both). Of the clients S of a round, n is taught by c[n,S] / sum c[n,S]; only c[S,S]
moves, and each row keeps the mass it had on S.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, softmax

from coterie.core.errors import BadInput, nearest
from coterie.core.method import Exchange, Facts, Method, Pass, Train
from coterie.core.model import Model, sgd
from coterie.core.notes import Kind, Note
from coterie.core.point import blend, flat, mean
from coterie.methods.soft import Answers, Public, Server, over_predictions, refuse, soft

NORMS = ("project", "softmax5")
MIXES = ("learned", "similar", "topk")


COEFFICIENTS = {"c": Note("knowledge coefficients c", Kind.MATRIX)}


class Knowledge(NamedTuple):
    """What the server knows of who helps whom."""

    c: Tensor  # [N, N], rows sum to 1
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
    """Rows of c over the clients that spoke, scaled to sum 1; equal where they have no mass on them."""
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
    return 2 * (shares(c) @ gram - gram) / gram.diagonal().mean().clamp(min=torch.finfo(w.dtype).tiny)


def descend(
    c: Tensor, ids: Tensor, slopes: Iterable[Callable[[Tensor], Tensor]], rate: float, rho: float, row_norm: str
) -> Tensor:
    """Steps on c[S,S] (eq. 7, 11), projected after each, or (authors' code) softmax(5 row) after the last."""
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


def ktpfl(
    model: Model,
    train: Train,
    draw: int = 300,
    public_batch: int = 256,
    distil_epochs: int = 1,
    distil_rate: float = 0.0,
    temperature: float = 10.0,
    lam: float = 1.0,
    T2_scale: bool = False,
    rate_c: float = 0.01,
    rho: float = 0.6,
    row_norm: str = "project",
    literal_eq7: bool = False,
    mix: str = "learned",
    k: int = 5,
) -> Method:
    """Each client is taught by its own learned mixture of everyone's soft predictions on public rows.

    draw: public rows a round. distil_rate: 0 for the private rate. T2_scale: the distillation loss times T^2. rate_c: eta_3.
    literal_eq7: the sum over samples of (2) and the D_n/D of (7). mix: "learned", or a fixed rule on the round's predictions:
    "similar" (Sim-pFL), "topk" (TopK-pFL, the k most similar).
    """
    check_c(rate_c, rho, row_norm)
    refuse(k < 1, "k", k, "at least the client itself teaches: give 1 or more")
    if mix not in MIXES:
        raise BadInput(f"mix = '{mix}'{nearest(mix, MIXES)}")
    rules: dict[str, Callable[[Tensor], Tensor]] = {"similar": similar, "topk": partial(topk, k=k)}
    rule = rules.get(mix)

    def hear(server: Server, replies):
        ids, s, (c, data) = replies.ids, replies.upload, server.mix
        if rule:
            c = put(c, ids, c[ids][:, ids].sum(1, keepdim=True) * rule(s))
        return server._replace(mix=Knowledge(c, data), ids=ids, said=s)

    def teach(server: Server, i: int) -> Tensor:
        return torch.tensordot(shares(server.mix.c[i, server.ids]), server.said, dims=1)

    def learn(server: Server) -> Server:
        if rule:
            return server
        c, data = server.mix
        part = data[server.ids][:, None]
        slopes = [
            lambda block, s=s: lam * prediction_slope(block, s) * (part * s.shape[1] if literal_eq7 else 1)
            for s in server.said.split(public_batch, dim=1)
        ]
        return server._replace(mix=Knowledge(descend(c, server.ids, slopes, rate_c, rho, row_norm), data))

    match = soft(temperature, lam, T2_scale)
    public = Public(draw, public_batch, distil_epochs, distil_rate)
    method = over_predictions(model, train, match, public, Answers(uniform, hear, teach, learn))
    described = {**method.describes, **COEFFICIENTS}
    return method._replace(admit=admit, notes=lambda server: {"c": server.mix.c}, describes=described)


def sim_pfl(
    model: Model,
    train: Train,
    draw: int = 300,
    public_batch: int = 256,
    distil_epochs: int = 1,
    distil_rate: float = 0.0,
    temperature: float = 10.0,
    lam: float = 1.0,
    T2_scale: bool = False,
) -> Method:
    """KT-pFL that mixes by the cosine similarity of predictions (the authors' code: temperature 1)."""
    return ktpfl(model, train, draw, public_batch, distil_epochs, distil_rate, temperature, lam, T2_scale, mix="similar")


def topk_pfl(
    model: Model,
    train: Train,
    k: int = 5,
    draw: int = 300,
    public_batch: int = 256,
    distil_epochs: int = 1,
    distil_rate: float = 0.0,
    temperature: float = 10.0,
    lam: float = 1.0,
    T2_scale: bool = False,
) -> Method:
    """KT-pFL that takes the equal mean of the `k` clients with the most similar predictions, itself included."""
    return ktpfl(model, train, draw, public_batch, distil_epochs, distil_rate, temperature, lam, T2_scale, mix="topk", k=k)


def ktpfl_h(
    model: Model,
    train: Train,
    mu: float = 0.02,
    rate_c: float = 0.01,
    rho: float = 0.6,
    row_norm: str = "project",
) -> Method:
    """KT-pFL over parameters: w^n <- w^n - mu (w^n - wbar_n), wbar_n = sum_m c[n,m] w^m.

    mu = 2 eta_2 R: the distance (10) is the sum of squares, its mean over parameters would move nothing. The c step (11) uses
    distances from the mean model in units of their mean, so that it does not depend on the weights' scale.
    """
    check_c(rate_c, rho, row_norm)
    refuse(not 0 <= mu <= 1, "mu", mu, "give a mixing rate from 0 to 1")
    begin, step = sgd(model, train)

    def learn(server: Server, replies, rng):
        (c, data), ids, w = server.mix, server.ids, flat(server.said)
        c = descend(c, ids, [partial(model_slope, w=w)], rate_c, rho, row_norm)
        return server._replace(mix=Knowledge(c, data), ids=(), said=())

    return Method(
        init=lambda rng, facts: Server(torch.tensor(int(rng.integers(2**63))), uniform(facts)),
        join=lambda seed, rng: model.start(int(seed)),
        round=(
            Exchange(
                send=lambda server, i, rng: server.seed,
                start=lambda w, seed: begin(w),
                passes=(Pass(step, train.plan()),),
                finish=lambda c, w, seed: (c.w, c.w),
                receive=lambda server, replies, rng: server._replace(ids=replies.ids, said=replies.upload),
            ),
            Exchange(
                send=lambda server, i, rng: mean(server.said, shares(server.mix.c[i, server.ids])),
                start=lambda w, wbar: blend(w, wbar, mu),
                passes=(),
                finish=lambda w, old, wbar: (w, ()),
                receive=learn,
            ),
        ),
        personal=lambda w, seed: w,
        admit=admit,
        notes=lambda server: {"c": server.mix.c},
        describes=COEFFICIENTS,
    )


def check_c(rate_c: float, rho: float, row_norm: str) -> None:
    """Refuse options of the c step that cannot work."""
    refuse(rate_c < 0, "rate_c", rate_c, "give a rate of 0 or more")
    refuse(rho < 0, "rho", rho, "give a weight of 0 or more")
    if row_norm not in NORMS:
        raise BadInput(f"row_norm = '{row_norm}'{nearest(row_norm, NORMS)}")
