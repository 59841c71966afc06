"""SCAFFOLD. Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning. ICML 2020, Algorithm 1, option II. arXiv:1910.06378.

    y <- y - eta (grad f_i(y) - c_i + c),   c_i <- c_i - c + (x - y) / (K eta),
    x <- x + beta sum_i p_i (y_i - x)

c = sum_i p_i c_i over all clients, with p_i = n_i / n (the paper's 1 / N where weights are equal),
so that x settles where sum_i p_i grad f_i = 0 whatever the number K of local steps. With momentum,
K counts what a gradient moves in all.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Batch, Facts, Method, Pass, Replies, Train
from coterie.core.model import Descent, Model, begin, descend
from coterie.core.options import Positive
from coterie.core.point import Point, Vector, blend, zeros
from coterie.core.rng import Rng
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg


class ScaffoldServer(NamedTuple):
    """The model, the common control variate, and every client's share of it."""

    x: Point
    c: Vector
    share: Tensor  # [N], p_i


class ScaffoldPayload(NamedTuple):
    """What goes down: two models' worth."""

    x: Point
    c: Vector


class Carry(NamedTuple):
    """A model on its way down, and what corrects its steps."""

    go: Descent
    correction: Vector  # c - c_i
    reach: Tensor  # what a gradient of now moves the momentum by: 1, more with momentum
    steps: Tensor  # K


class ScaffoldUpload(NamedTuple):
    """What goes up: two models' worth."""

    y: Point
    change: Vector  # of c_i


@method(
    when="one model for all, many own steps on unlike clients",
    refuses=dict.fromkeys(
        ("optimizer", "clip_norm", "keep_optimizer"),
        "its (x - y) / (K eta) must be a mean gradient",
    ),
    only={"server_optimizer": ("beta", 1.0)},
    uploads="mean",
    rows="gradients",
)
def scaffold(model: Model, train: Train, beta: Positive = 1.0) -> Method:
    """FedAvg whose clients correct their drift.

    beta: the server's step towards the mean of the uploads; 1 is the mean itself.
    """

    def init(rng: Rng, facts: Facts) -> ScaffoldServer:
        x = model.init(rng)
        n = facts.sizes if train.weighting == "size" else torch.ones_like(facts.sizes)
        return ScaffoldServer(x, zeros(x), n / n.sum())

    def start(c_i: Vector, payload: ScaffoldPayload) -> Carry:
        nothing = torch.zeros(())
        return Carry(begin(payload.x, train), payload.c - c_i, nothing, nothing)

    def step(c: Carry, batch: Batch) -> Carry:
        go = descend(c.go, model.grad(c.go.w, batch) + c.correction, train, batch)
        reach = 1 + train.momentum * c.reach
        moved = 1 + train.momentum * reach if train.nesterov else reach
        pace = train.rate_at(batch) / train.lr
        return Carry(go, c.correction, reach, c.steps + pace * moved)

    def finish(c: Carry, c_i: Vector, payload: ScaffoldPayload) -> tuple[Vector, ScaffoldUpload]:
        change = (1 / (c.steps.clamp(min=1) * train.lr)) * (payload.x - c.go.w) - payload.c
        return c_i + change, ScaffoldUpload(c.go.w, change)

    def receive(server: ScaffoldServer, replies: Replies, rng: Rng) -> ScaffoldServer:
        y, change = replies.upload
        return server._replace(
            x=blend(server.x, replies.average(y, train.weights(replies)), beta),
            c=server.c + replies.average(change, server.share[replies.ids]),
        )

    def admit(server: ScaffoldServer) -> ScaffoldServer:
        """A newcomer of middle size, whose c_i is 0."""
        old = len(server.share) / (len(server.share) + 1)
        return server._replace(
            c=old * server.c, share=torch.cat([old * server.share, torch.tensor([1 - old])])
        )

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        send=lambda server, i, rng: ScaffoldPayload(server.x, server.c),
        start=start,
        passes=(Pass(step, train.plan()),),
        finish=finish,
        receive=receive,
    )
    return base._replace(
        init=init,
        join=lambda payload, rng: zeros(payload.x),
        round=(trip,),
        personal=lambda c_i, payload: payload.x,
        admit=admit,
    )
