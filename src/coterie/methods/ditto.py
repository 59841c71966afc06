"""Ditto. Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization.
ICML 2021, Algorithm 1. arXiv:2012.04221.

    min_v f_i(v) + lam/2 |v - w|^2

w is FedAvg's model: each client keeps v, regularized towards the w it received, and trains w beside
it.
"""

from typing import NamedTuple

from coterie.core.method import Batch, Method, Newcomer, Pass, Train
from coterie.core.model import Descent, Model, begin, descend
from coterie.core.options import NonNegative
from coterie.core.point import Point
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg


class Carry(NamedTuple):
    """The copy of w that FedAvg trains, the personal v, and w as it was received."""

    local: Descent
    v: Descent
    w: Point


@method(
    when="clients differ somewhat, and fairness or attacks matter", uploads="mean", rows="gradients"
)
def ditto(model: Model, train: Train, lam: NonNegative = 1.0) -> Method:
    """A personal model regularized towards FedAvg's.

    lam: weight of the term that regularizes v towards w; 0 is local training.
    """

    def step(c: Carry, batch: Batch) -> Carry:
        local = descend(c.local, model.grad(c.local.w, batch), train, batch)
        v = descend(c.v, model.grad(c.v.w, batch) + lam * (c.v.w - c.w), train, batch)
        return Carry(local, v, c.w)

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        start=lambda v, w: Carry(begin(w, train), begin(v, train), w),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, v, w: (c.v.w, c.local.w),
    )
    return base._replace(
        join=lambda w, rng: w,  # v starts at the first w it sees
        round=(trip,),
        personal=lambda v, w: v,
        views={"global": lambda v, w: w},
        newcomer=Newcomer("trains its v beside the received w"),
    )
