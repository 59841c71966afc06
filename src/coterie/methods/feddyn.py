"""FedDyn. Acar, Zhao, Matas, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic
Regularization. ICLR 2021, Algorithm 1. arXiv:2111.04263.

A client's own optimum is moved until it is the common one:
    theta_i = argmin_theta f_i(theta) + a_i <d_i, theta> + a_i / 2 |theta - w|^2,
    d_i <- d_i + theta_i - w,   w <- mean_i theta_i + (1 / N) sum_i d_i,
the mean over who answered, the sum over all N. The paper writes -alpha d_i as f_i's gradient at the
last theta_i, which it is at the minimum. a_i = alpha n / (N n_i), as in the authors' code, so that
w settles where sum_i n_i grad f_i = 0; `weighting = equal` is the paper's text, a_i = alpha.
Interpretation: the minimum is the run's local training from w.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Batch, Facts, Method, Pass, Replies, Train
from coterie.core.model import Descent, Model, begin, descend
from coterie.core.options import Positive
from coterie.core.point import Point, Vector, zeros
from coterie.core.rng import Rng
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg


class DynServer(NamedTuple):
    w: Point
    drift: Vector  # (1 / N) sum_i d_i
    a: Tensor  # [N], a_i


class Carry(NamedTuple):
    """The local model, and what its objective is made of."""

    go: Descent
    drift: Vector  # d_i
    w: Point
    a: Tensor


@method(
    when="one model for all, whose clients would each have another optimum",
    refuses=dict.fromkeys(("server_optimizer", "server_lr"), "its server adds the clients' drift"),
    uploads="mean",
    rows="gradients",
    weights="equal",
)
def feddyn(model: Model, train: Train, alpha: Positive = 0.1) -> Method:
    """FedAvg whose clients regularize towards the common model, corrected for their drift from it.

    alpha: weight of the regularization; the smaller, the further a client's drift moves the server.
    """

    def init(rng: Rng, facts: Facts) -> DynServer:
        w = model.init(rng)
        n = facts.sizes if train.weighting == "size" else torch.ones_like(facts.sizes)
        return DynServer(w, zeros(w), alpha * n.mean() / n.clamp(min=1))

    def step(c: Carry, batch: Batch) -> Carry:
        pull = c.a * (c.drift + (c.go.w - c.w))
        return c._replace(go=descend(c.go, model.grad(c.go.w, batch) + pull, train, batch))

    def receive(server: DynServer, replies: Replies, rng: Rng) -> DynServer:
        average = replies.average(replies.upload, replies.equal)
        share = len(replies.ids) / len(server.a)
        drift = server.drift + share * (average - server.w)
        return server._replace(w=average + drift, drift=drift)

    def admit(server: DynServer) -> DynServer:
        """A newcomer of middle size, whose d_i is 0."""
        old, a = len(server.a) / (len(server.a) + 1), server.a.new_full((1,), alpha)
        return server._replace(drift=old * server.drift, a=torch.cat([server.a, a]))

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        send=lambda server, i, rng: (server.w, server.a[i]),
        start=lambda drift, sent: Carry(begin(sent[0], train), drift, *sent),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, drift, sent: (drift + (c.go.w - c.w), c.go.w),
        receive=receive,
    )
    return base._replace(
        init=init,
        join=lambda sent, rng: zeros(sent[0]),
        round=(trip,),
        personal=lambda drift, sent: sent[0],
        admit=admit,
    )
