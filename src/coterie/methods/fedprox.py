"""FedProx. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020,
Algorithm 2.

Clients minimise f_i(w') + mu/2 |w' - w|^2 from the received w.
"""

from typing import NamedTuple

from ..method import Method, Pass, Train
from ..model import Model
from ..point import Point
from .fedavg import fedavg


class Carry(NamedTuple):
    """The local model and the received one it is held to."""

    local: Point
    w: Point


def fedprox(model: Model, train: Train, mu: float = 0.1) -> Method:
    """FedAvg with a proximal term of weight `mu`."""

    def step(c: Carry, batch):
        return c._replace(local=c.local - train.rate * (model.grad(c.local, batch) + mu * (c.local - c.w)))

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        start=lambda state, w: Carry(w, w),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, state, w: (state, c.local),
    )
    return base._replace(round=(trip,))
