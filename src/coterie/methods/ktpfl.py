"""KT-pFL. Zhang, Guo, Ma, Wang, Xu, Wu: Parameterized Knowledge Transfer for Personalized Federated
Learning. NeurIPS 2021, Algorithms 1 (soft predictions, any architectures) and 2 (parameters, one
architecture).

min_{w, c} sum_n D_n/D [ f_n(w^n) + lam KL(sum_m c[n,m] s_m || s_n) ] + rho |c - 1/N|^2
over the round's public rows, with s_n = softmax(z_n / T).
Each round: private training (5), distillation (6), then steps on c (7).

Readings taken. c[n,m] is what n takes from m, itself included; rows are kept on the simplex, else
the KL is none. (7) takes one step for each public mini-batch, on the uploaded predictions, with the
mean over samples and without D_n/D, which would only rescale row n's step (`literal_eq7` restores
both). Of the clients S of a round, n is taught by c[n,S] / sum c[n,S]; only c[S,S] moves, and each
row keeps the mass it had on S.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from coterie.core.method import Exchange, Method, Newcomer, Pass, Replies, Train
from coterie.core.model import Model, sgd
from coterie.core.notes import Kind, Note
from coterie.core.point import blend, flat, mean
from coterie.core.rng import Rng
from coterie.core.values import Count, NonNegative, Positive, Share
from coterie.methods.declare import Tasks, method, variant
from coterie.methods.knowledge import (
    Knowledge,
    RowNorm,
    admit,
    descend,
    model_slope,
    prediction_slope,
    put,
    shares,
    similar,
    topk,
    uniform,
)
from coterie.methods.soft import Answers, Public, Server, over_predictions, soft

LEARNING = ("rate_c", "rho", "row_norm", "literal_eq7")  # options of the steps on c
COEFFICIENTS = {"c": Note("knowledge coefficients c", Kind.MATRIX)}


@method(
    when="networks differ, or weights may not leave; few clients",
    without=("weighting",),
    tasks=Tasks(("classes",), "mixes class probabilities"),
)
def ktpfl(
    model: Model,
    train: Train,
    draw: Count = 300,
    public_batch: Count = 256,
    distil_epochs: Count = 1,
    distil_rate: NonNegative = 0.0,
    temperature: Positive = 10.0,
    lam: NonNegative = 1.0,
    T2_scale: bool = False,
    rate_c: NonNegative = 0.01,
    rho: NonNegative = 0.6,
    row_norm: RowNorm = "project",
    literal_eq7: bool = False,
    mix: Literal["learned", "similar", "topk"] = "learned",
    k: Count = 5,
) -> Method:
    """Each client is taught by its own learned mixture of everyone's soft predictions on public
    rows.

    draw: public rows per round. distil_rate: 0 for the private rate. T2_scale: the distillation
    loss times T^2. rate_c: eta_3. literal_eq7: the sum over samples of (2) and the D_n/D of (7).
    mix: "learned", or a fixed rule on the round's predictions: "similar" (Sim-pFL), "topk"
    (TopK-pFL, the k most similar).
    """
    rules: dict[str, Callable[[Tensor], Tensor]] = {"similar": similar, "topk": partial(topk, k=k)}
    rule = rules.get(mix)

    def hear(server: Server, replies: Replies) -> Server:
        ids, s, (c, data) = replies.ids, replies.upload, server.mix
        if rule:
            c = put(c, ids, c[ids][:, ids].sum(1, keepdim=True) * rule(s))
        return server._replace(mix=Knowledge(c, data), ids=ids, said=s)

    def teach(server: Server, i: int) -> Tensor:
        target: Tensor = torch.tensordot(shares(server.mix.c[i, server.ids]), server.said, dims=1)
        return target

    def learn(server: Server) -> Server:
        if rule:
            return server
        c, data = server.mix
        part = data[server.ids][:, None]
        slopes = [
            lambda block, s=s: (
                lam * prediction_slope(block, s) * (part * s.shape[1] if literal_eq7 else 1)
            )
            for s in server.said.split(public_batch, dim=1)
        ]
        return server._replace(
            mix=Knowledge(descend(c, server.ids, slopes, rate_c, rho, row_norm), data)
        )

    match = soft(model, temperature, lam, T2_scale)
    public = Public(draw, public_batch, distil_epochs, distil_rate)
    method = over_predictions(model, train, match, public, Answers(uniform, hear, teach, learn))
    described = {**method.describes, **COEFFICIENTS}
    return method._replace(
        admit=admit, notes=lambda server: {"c": server.mix.c}, describes=described
    )


sim_pfl = variant(
    ktpfl,
    "sim_pfl",
    "KT-pFL that mixes by the cosine similarity of predictions (the authors' code: temperature 1).",
    when="as ktpfl with fixed weights by similarity",
    mix="similar",
    without=(*LEARNING, "k"),
)
topk_pfl = variant(
    ktpfl,
    "topk_pfl",
    "KT-pFL by the equal mean of the `k` clients with the nearest predictions, itself included.",
    when="as ktpfl with the k most similar clients",
    mix="topk",
    without=LEARNING,
)


@method(when="as ktpfl over weights, for one network", without=("weighting",))
def ktpfl_h(
    model: Model,
    train: Train,
    mu: Share = 0.02,
    rate_c: NonNegative = 0.01,
    rho: NonNegative = 0.6,
    row_norm: RowNorm = "project",
) -> Method:
    """KT-pFL over parameters: w^n <- w^n - mu (w^n - wbar_n), wbar_n = sum_m c[n,m] w^m.

    mu = 2 eta_2 R: the distance (10) is the sum of squares, its mean over parameters would move
    nothing. The c step (11) uses distances from the mean model in units of their mean, so that it
    does not depend on the weights' scale.
    """
    begin, step = sgd(model, train)

    def learn(server: Server, replies: Replies, rng: Rng) -> Server:
        (c, data), ids, w = server.mix, server.ids, flat(server.said)
        c = descend(c, ids, [partial(model_slope, w=w)], rate_c, rho, row_norm)
        return server._replace(mix=Knowledge(c, data))

    return Method(
        init=lambda rng, facts: Server(torch.tensor(int(rng.integers(2**63))), uniform(facts)),
        join=lambda seed, rng: model.start(int(seed)),
        round=(
            Exchange(
                send=lambda server, i, rng: server.seed,
                start=lambda w, seed: begin(w),
                passes=(Pass(step, train.plan()),),
                finish=lambda c, w, seed: (c.w, c.w),
                receive=lambda server, replies, rng: server._replace(
                    ids=replies.ids, said=replies.upload
                ),
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
        newcomer=Newcomer("trains, held to the mean of the clients' last models", rounds="all"),
        notes=lambda server: {"c": server.mix.c},
        describes=COEFFICIENTS,
    )
