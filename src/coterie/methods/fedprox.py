"""FedProx. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous
Networks. MLSys 2020, Algorithm 2. arXiv:1812.06127.

    min_w' f_i(w') + mu/2 |w' - w|^2

Every client minimises it from the received w.
"""

from typing import NamedTuple

from coterie.core.method import Batch, Method, Pass, Train
from coterie.core.model import Descent, Model, begin, descend
from coterie.core.options import NonNegative
from coterie.core.point import Point
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg


class Carry(NamedTuple):
    """The local model and the received one it is regularized towards."""

    local: Descent
    w: Point


@method(
    when="one model for all, where FedAvg is unstable on unlike clients",
    uploads="mean",
    rows="gradients",
)
def fedprox(model: Model, train: Train, mu: NonNegative = 0.1) -> Method:
    """FedAvg with a proximal term.

    mu: weight of the proximal term; 0 is FedAvg.
    """

    def step(c: Carry, batch: Batch) -> Carry:
        gradient = model.grad(c.local.w, batch) + mu * (c.local.w - c.w)
        return c._replace(local=descend(c.local, gradient, train, batch))

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        start=lambda state, w: Carry(begin(w, train), w),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, state, w: (state, c.local.w),
    )
    return base._replace(round=(trip,))
