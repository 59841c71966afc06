"""FedAvg. McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep
Networks from Decentralized Data. AISTATS 2017, Algorithm 1. arXiv:1602.05629.

    min_w sum_i (n_i / n) f_i(w)

Clients descend from w, the server averages what they reach.
"""

from typing import Any, NamedTuple

from coterie.core.method import Exchange, Method, Pass, Replies, Train, return_nothing
from coterie.core.model import Model, optimize
from coterie.core.options import Positive
from coterie.core.point import Point, blend
from coterie.core.rng import Rng
from coterie.methods.declare import method


class FedAvgServer(NamedTuple):
    """The server's state: one model for all."""

    w: Point


@method(
    when="always, as the other baseline: one model for all, best for alike clients",
    only={"server_optimizer": ("beta", 1.0)},
    uploads="mean",
    rows="gradients",
)
def fedavg(model: Model, train: Train, beta: Positive = 1.0) -> Method:
    """One global model.

    beta: the server's step towards the mean of the uploads; 1 is the mean itself.
    """
    begin, step = optimize(model, train)

    def receive(server: Any, replies: Replies, rng: Rng) -> Any:
        average = replies.average(replies.upload, train.weights(replies))
        return server._replace(w=average if beta == 1 else blend(server.w, average, beta))

    return Method(
        init=lambda rng, facts: FedAvgServer(model.init(rng)),
        join=return_nothing,
        round=(
            Exchange(
                send=lambda server, i, rng: server.w,
                start=lambda state, w: begin(w),
                passes=(Pass(step, train.plan()),),
                finish=lambda c, state, w: (state, c.w),
                receive=receive,
            ),
        ),
        personal=lambda state, w: w,
    )
