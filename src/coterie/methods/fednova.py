"""FedNova. Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization. NeurIPS 2020, update rule (7). arXiv:2007.07481.

A client that takes more steps pulls no harder. It sends its change per unit of gradient,
    d_i = (x - y_i) / |a_i|,   x <- x - (sum_i p_i |a_i|) sum_i p_i d_i,
y_i what its steps reach from x, |a_i| how often it added a gradient to x - y_i, in units of the
rate: the number of its steps, or with momentum m the sum over steps t of (1 - m^t) / (1 - m). So x
follows sum_i p_i grad f_i, p_i = n_i / n among those that answered, where FedAvg weighs client i by
p_i |a_i|. With equally many steps it is FedAvg. The paper's server momentum is
`server_optimizer = sgd:momentum=...`; its proximal variant is left out.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Batch, Method, Pass, Replies, Train
from coterie.core.model import Descent, Model, begin, descend
from coterie.core.point import Point, Vector
from coterie.core.rng import Rng
from coterie.methods.declare import method
from coterie.methods.fedavg import FedAvgServer, fedavg

LEAST = 1e-12  # |a_i| of a client that took no step, and sends 0


class Carry(NamedTuple):
    """A model on its way down, and how far gradients have moved it."""

    go: Descent
    reach: Tensor  # what a gradient of now has moved the momentum by: 1, more with momentum
    a: Tensor  # |a_i|


class NovaUpload(NamedTuple):
    """What goes up: a model's worth, and one number."""

    d: Vector  # with the buffers of y_i
    a: Tensor


@method(
    when="one model for all, where clients take unequally many steps",
    refuses=dict.fromkeys(
        ("optimizer", "clip_norm", "keep_optimizer"), "its d_i must be a sum of gradients over |a|"
    ),
    uploads="mean",
    rows="gradients",
)
def fednova(model: Model, train: Train) -> Method:
    """FedAvg of changes that are normalized by the clients' steps."""

    def start(state: tuple[()], x: Point) -> Carry:
        return Carry(begin(x, train), torch.zeros(()), torch.zeros(()))

    def step(c: Carry, batch: Batch) -> Carry:
        go = descend(c.go, model.grad(c.go.w, batch), train, batch)
        reach = 1 + train.momentum * c.reach
        moved = 1 + train.momentum * reach if train.nesterov else reach
        return Carry(go, reach, c.a + train.rate_at(batch) / train.lr * moved)

    def finish(c: Carry, state: tuple[()], x: Point) -> tuple[tuple[()], NovaUpload]:
        d = (1 / c.a.clamp(min=LEAST)) * (x - c.go.w)
        return state, NovaUpload(Vector(d.params, c.go.w.buffers), c.a)

    def receive(server: FedAvgServer, replies: Replies, rng: Rng) -> FedAvgServer:
        d, a = replies.average(replies.upload, train.weights(replies))
        return server._replace(w=server.w - a * d)

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        start=start, passes=(Pass(step, train.plan()),), finish=finish, receive=receive
    )
    return base._replace(round=(trip,))
