"""Ditto. Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021, Algorithm 1.

min_v f_i(v) + lam/2 |v - w|^2 with w FedAvg's model: each client keeps v, held to the w it received, and trains w beside it.
"""

from typing import NamedTuple

from ..method import Method, Pass, Train
from ..model import Model
from ..point import Point
from .fedavg import fedavg


class Carry(NamedTuple):
    """The copy of w that FedAvg trains, the personal v, and w as it was received."""

    local: Point
    v: Point
    w: Point


def ditto(model: Model, train: Train, lam: float = 1.0) -> Method:
    """A personal model held to FedAvg's by a proximal term of weight `lam`."""

    def step(c: Carry, batch):
        local = c.local - train.rate * model.grad(c.local, batch)
        v = c.v - train.rate * (model.grad(c.v, batch) + lam * (c.v - c.w))
        return Carry(local, v, c.w)

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        start=lambda v, w: Carry(w, v, w),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, v, w: (c.v, c.local),
    )
    return base._replace(
        join=lambda w, rng: w,  # v starts at the first w it sees
        round=(trip,),
        personal=lambda v, w: v,
        views={"global": lambda v, w: w},
    )
