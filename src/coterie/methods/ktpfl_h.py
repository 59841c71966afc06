"""KT-pFL over parameters. Zhang, Guo, Ma, Wang, Xu, Wu: Parameterized Knowledge Transfer for
Personalized Federated Learning. NeurIPS 2021, Algorithm 2 (one architecture). arXiv:2111.02862.

The objective of `ktpfl` with |wbar_n - w^n|^2, wbar_n = sum_m c[n,m] w^m, in the place of the KL.
    w^n <- w^n - mu (w^n - wbar_n)  (10)

Each round: private training (5), the step (10), then a step on c (11).

Interpretations. mu = 2 eta_2 R: the distance (10) is the sum of squares, its mean over parameters
would move nothing. The c step (11) uses distances from the mean model in units of their mean, so
that it does not depend on the weights' scale. Rows of c are kept on the simplex, and of the clients
S of a round only c[S,S] moves, as in `ktpfl`. With `peers` a row of c has m + 1 entries
(`knowledge`), for servers that cannot keep N x N numbers.
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Exchange, Facts, Method, Newcomer, Pass, Replies, Train
from coterie.core.model import Model, optimize
from coterie.core.options import NonNegative, NonNegativeInt, Share
from coterie.core.point import Point, blend, flatten
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.core.rng import Rng
from coterie.methods import knowledge
from coterie.methods.declare import SEVERAL_OPTIMIZERS, method
from coterie.methods.distillation import DistillationServer
from coterie.methods.knowledge import Knowledge, RowNorm

BEFORE_MIXING = {
    "before_mixing": LoggedQuantity(
        "after private training, before it takes from others", QuantityKind.VIEW
    )
}


class Client(NamedTuple):
    """A client's state."""

    w: Point  # its own model
    before: Point  # the same after private training, before the round's mixing


@method(
    when="as ktpfl over weights, for one network",
    without=("weighting",),
    refuses={"keep_optimizer": SEVERAL_OPTIMIZERS},
)
def ktpfl_h(
    model: Model,
    train: Train,
    mu: Share = 0.02,
    lr_c: NonNegative = 0.01,
    rho: NonNegative = 0.6,
    row_norm: RowNorm = "project",
    peers: NonNegativeInt = 0,
) -> Method:
    """KT-pFL over parameters: w^n <- w^n - mu (w^n - wbar_n), wbar_n = sum_m c[n,m] w^m.

    mu: how far a client moves to its mixture; 0: not at all, 1: all the way.
    lr_c: eta_3, the learning rate of c; 0 keeps c at 1/N.
    rho: weight of the term that regularizes c towards 1/N.
    row_norm: how rows of c stay distributions: "project" onto the simplex after each step, or
        "softmax5" (the authors' code) at the end.
    peers: how many others a client takes from, those of the nearest models when it is first active;
        0: all.
    """
    begin, step = optimize(model, train)

    def learn(server: DistillationServer, replies: Replies, rng: Rng) -> DistillationServer:
        (c, data), w = server.mix, flatten(server.said)
        steps = [partial(knowledge.model_gradient, w=w)]
        c = knowledge.descend_knowledge(c, server.ids, steps, lr_c, rho, row_norm)
        return server._replace(mix=Knowledge(c, data))

    def init(rng: Rng, facts: Facts) -> DistillationServer:
        seed = torch.tensor(int(rng.integers(2**63)))
        return DistillationServer(seed, knowledge.start("ktpfl-h", facts, peers, model.size))

    def join(seed: Tensor, rng: Rng) -> Client:
        w = model.start(int(seed))
        return Client(w, w)

    def hear(server: DistillationServer, replies: Replies, rng: Rng) -> DistillationServer:
        ids, w, (c, data) = replies.ids, replies.upload, server.mix
        c = knowledge.fill(c, ids, w.params.values())
        return server._replace(mix=Knowledge(c, data), ids=ids, said=w)

    def answer(server: DistillationServer, i: int, rng: Rng) -> Point:
        wbar: Point = server.mix.c.mix_among(server.said, i, server.ids)
        return wbar

    return Method(
        init=init,
        join=join,
        round=(
            Exchange(
                send=lambda server, i, rng: server.seed,
                start=lambda state, seed: begin(state.w),
                passes=(Pass(step, train.plan()),),
                finish=lambda c, state, seed: (Client(c.w, c.w), c.w),
                receive=hear,
            ),
            Exchange(
                send=answer,
                start=lambda state, wbar: blend(state.w, wbar, mu),
                passes=(),
                finish=lambda w, state, wbar: (state._replace(w=w), ()),
                receive=learn,
            ),
        ),
        personal=lambda state, seed: state.w,
        views={"before_mixing": lambda state, seed: state.before},
        admit=knowledge.admit,
        newcomer=Newcomer(
            "trains, regularized towards the mean of the clients' last models", rounds="all"
        ),
        notes=knowledge.describe,
        describes=knowledge.COEFFICIENTS | BEFORE_MIXING,
    )
