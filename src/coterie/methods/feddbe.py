"""FedDBE. Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan: Eliminating Domain Bias for Federated
Learning in Representation Space. NeurIPS 2023, Algorithm 1 (DBE on FedAvg). arXiv:2311.14975.

What is peculiar to a client's features it keeps in a vector b_i; the body is regularized towards
one mean:
    min_{w, b_i} f_i(head(z + b_i)) + kappa |m_i - m|^2 / 2d,   m_i <- (1 - mu) m_i + mu mean_x z,
z the d features of a batch, m_i = 0 before every round. A first round of all clients without b_i
and kappa gives m, the mean of their m_i by their rows, and nothing else. w is averaged. A client
uses the head on z + b_i, which is another bias; the view `global` is w. Interpretations of the
authors' code, which has kappa = 50 on Fashion-MNIST: b_i starts at 0, m_i is not corrected for its
start.
"""

from functools import partial

import torch
from torch import Tensor

from coterie.core.method import Batch, Newcomer, Pass, Stage, Train
from coterie.core.model import Model, begin, descend
from coterie.core.options import NonNegative, PositiveShare
from coterie.core.point import Leaves, Point
from coterie.core.split import Head, Split
from coterie.methods.declare import SEVERAL_OPTIMIZERS, method
from coterie.methods.feature_mean import DBECarry, DBEServer, hear_means
from coterie.methods.fedavg import fedavg


@method(
    when="clients differ in look or classes, the body shall not",
    refuses={"keep_optimizer": SEVERAL_OPTIMIZERS},
    uploads="models",
)
def feddbe(
    model: Model, train: Train, kappa: NonNegative = 50.0, mu: PositiveShare = 1.0, head: Head = 1
) -> tuple[Stage, ...]:
    """FedAvg whose clients keep the bias of their features to themselves.

    kappa: weight of the term towards the common mean of features; the authors' value, tune it.
    mu: share of a batch in the running mean of features.
    head: the head: how many of the last layers, or the name of a part of the network.
    """
    split = Split(model, head, "feddbe", linear=True)

    def step(c: DBECarry, batch: Batch, hold: float) -> DBECarry:
        def objective(params: Leaves, z: Tensor, own: Leaves) -> tuple[Tensor, Tensor]:
            rows = z * batch.mask.unsqueeze(-1)
            running = (1 - mu) * c.running + mu * rows.sum(0) / batch.mask.sum().clamp(min=1)
            loss = model.data_loss(split.head(params, z + hold * own["b"], batch), batch)
            return loss + hold * kappa / 2 * (running - c.mean).square().mean(), running

        (grad, grad_b), running = split.gradients_and(objective, c.go.w, batch, c.bias.w)
        go, bias = descend(c.go, grad, train, batch), descend(c.bias, grad_b, train, batch)
        return DBECarry(go, bias, running.detach(), c.mean)

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        send=lambda server, i, rng: server,
        start=lambda own, server: DBECarry(
            begin(server.w, train), begin(own, train), torch.zeros(split.width), server.mean
        ),
        passes=(Pass(partial(step, hold=1.0), train.plan()),),
        finish=lambda c, own, server: (c.bias.w, c.go.w),
    )
    first = trip._replace(
        passes=(Pass(partial(step, hold=0.0), train.plan()),),
        finish=lambda c, own, server: (own, c.running),
        receive=lambda server, replies, rng: hear_means(server, replies, train),
    )
    own = base._replace(
        init=lambda rng, facts: DBEServer(model.init(rng), torch.zeros(split.width)),
        join=lambda server, rng: Point({"b": torch.zeros(split.width)}),
        round=(trip,),
        personal=lambda own, server: split.shift(server.w, own.params["b"]),
        views={"global": lambda own, server: server.w},
        newcomer=Newcomer("trains its b beside the received network, held to the common mean"),
    )
    before = Stage("means", own._replace(round=(first,)), rounds=1, everyone=True)
    return before, Stage("train", own)
