"""MOON. Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021, Algorithm 1.
arXiv:2103.16257.

A client's features shall be like those of the received w, and unlike those of its own last w_i:
    min_w' f_i(w') + mu mean_x -log( e^(s(z, z_w) / tau) / (e^(s(z, z_w) / tau) + e^(s(z, z_i) /
        tau)) ),
z, z_w, z_i the features of a row under w', w and w_i, s the cosine. Clients start at w, the server
averages. Interpretations: features are what the network's head is given (the paper puts a
projection of two dense layers before its output layer: give a network that has one); w and w_i are
fixed and evaluated as models are used, without dropout; w_i is w before a client's first round,
which is FedAvg's, for there is nothing to be unlike.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.method import Batch, Method, Pass, Train
from coterie.core.model import Descent, Model, begin, descend, masked_mean
from coterie.core.options import NonNegative, Positive
from coterie.core.point import Leaves, Point
from coterie.core.split import Head, Split
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg

SHORTEST = 1e-16  # added to a squared length, so that features of 0 have a cosine too


class Carry(NamedTuple):
    """The local model, the received one and the client's last."""

    go: Descent
    w: Point
    last: Point


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Of the rows of two matrices [B, d]."""
    lengths = (a.square().sum(-1) + SHORTEST).sqrt() * (b.square().sum(-1) + SHORTEST).sqrt()
    return (a * b).sum(-1) / lengths


@method(when="one model for all, of deep networks whose features drift apart", uploads="mean")
def moon(
    model: Model, train: Train, mu: NonNegative = 1.0, tau: Positive = 0.5, head: Head = 1
) -> Method:
    """FedAvg whose clients keep their features close to those of the received model.

    mu: weight of the contrastive term; 0 is FedAvg.
    tau: temperature of the contrastive term.
    head: the head: how many of the last layers, or the name of a part of the network.
    """
    split = Split(model, head, "moon")

    def step(c: Carry, batch: Batch) -> Carry:
        common, own = split.features(c.w, batch), split.features(c.last, batch)

        def objective(params: Leaves, z: Tensor) -> Tensor:
            alike = torch.stack([cosine(z, common), cosine(z, own)], dim=-1)
            contrast = -F.log_softmax(alike / tau, dim=-1)[:, 0]
            loss = model.data_loss(split.head(params, z, batch), batch)
            return loss + mu * masked_mean(contrast, batch)

        (gradient,) = split.gradients_of(objective, c.go.w, batch)
        return c._replace(go=descend(c.go, gradient, train, batch))

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        start=lambda last, w: Carry(begin(w, train), w, last),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, last, w: (c.go.w, c.go.w),
    )
    return base._replace(join=lambda w, rng: w, round=(trip,))
