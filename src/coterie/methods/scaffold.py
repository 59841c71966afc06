"""SCAFFOLD. Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
ICML 2020, Algorithm 1, option II.

    y <- y - eta (grad f_i(y) - c_i + c),   c_i <- c_i - c + (x - y) / (K eta),   x <- x + beta sum_i p_i (y_i - x)

c = sum_i p_i c_i over all clients, with p_i = n_i / n (the paper's 1 / N where weights are equal), so that x settles where
sum_i p_i grad f_i = 0 whatever the number K of local steps. With momentum, K counts what a gradient moves in all.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..method import Method, Pass, Train
from ..model import Model
from ..point import Point, Vector, blend, mean, zeros
from .fedavg import fedavg


class Server(NamedTuple):
    """The model, the common control variate, and every client's share of it."""

    x: Point
    c: Vector
    share: Tensor  # [N], p_i


class Payload(NamedTuple):
    """What goes down: two models' worth."""

    x: Point
    c: Vector


class Carry(NamedTuple):
    """A model on its way down, and what corrects its steps."""

    y: Point
    u: Any  # the momentum, a Vector; () without one
    correction: Vector  # c - c_i
    reach: Tensor  # what a gradient of now has moved, in steps: 1, more with momentum
    steps: Tensor  # K


class Upload(NamedTuple):
    """What goes up: two models' worth."""

    y: Point
    change: Vector  # of c_i


def scaffold(model: Model, train: Train, beta: float = 1.0) -> Method:
    """FedAvg whose clients correct their drift; `beta` is the server's step towards the mean (1: the mean itself)."""

    def init(rng, facts):
        x = model.init(rng)
        n = facts.sizes if train.weighting == "size" else torch.ones_like(facts.sizes)
        return Server(x, zeros(x), n / n.sum())

    def start(c_i, payload: Payload):
        nothing = torch.zeros(())
        return Carry(payload.x, zeros(payload.x) if train.momentum else (), payload.c - c_i, nothing, nothing)

    def step(c: Carry, batch):
        g = model.grad(c.y, batch) + c.correction
        if train.decay:
            g = g + train.decay * c.y.as_vector()
        u = train.momentum * c.u + g if train.momentum else g
        reach = 1 + train.momentum * c.reach
        return Carry(c.y - train.rate * u, u.stale() if train.momentum else (), c.correction, reach, c.steps + reach)

    def finish(c: Carry, c_i, payload: Payload):
        change = (1 / (c.steps.clamp(min=1) * train.rate)) * (payload.x - c.y) - payload.c
        return c_i + change, Upload(c.y, change)

    def receive(server: Server, replies, rng):
        y, change = replies.upload
        return server._replace(
            x=blend(server.x, mean(y, train.weights(replies)), beta),
            c=server.c + mean(change, server.share[replies.ids]),
        )

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        send=lambda server, i, rng: Payload(server.x, server.c),
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
    )
