"""APFL. Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning. arXiv:2003.13461, 2020,
Algorithm 1.

Each client uses vbar = alpha v + (1 - alpha) w, its own v mixed with FedAvg's w. In each step, on
one batch,
    w' <- w' - eta grad f_i(w'),  v <- v - eta alpha grad f_i(vbar),
    vbar = alpha v + (1 - alpha) w',
and alpha <- alpha - eta (<v - w', grad f_i(vbar)> + .02 alpha), kept in [0, 1], in the first step
of a round. Interpretations (the authors' code): vbar is taken with the w' that has just stepped;
the .02 keeps alpha from growing unchecked.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Batch, Method, Newcomer, Pass, Train
from coterie.core.model import Descent, Model, begin, descend
from coterie.core.options import Share
from coterie.core.point import Point, blend
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg

PENALTY = 0.02


class APFLState(NamedTuple):
    """A client's state."""

    v: Point
    alpha: Tensor  # scalar in [0, 1]


class Carry(NamedTuple):
    w: Descent  # the copy that FedAvg trains
    v: Descent
    alpha: Tensor
    first: Tensor  # whether the next step is the round's first


@method(
    when="each client shall weigh its own and the common model", uploads="mean", rows="gradients"
)
def apfl(model: Model, train: Train, alpha: Share = 0.5, adaptive: bool = True) -> Method:
    """A personal model mixed with FedAvg's by a share `alpha`.

    alpha: the personal model's share at the start; 0 is FedAvg, 1 is local training.
    adaptive: clients learn their share.
    """

    def step(c: Carry, batch: Batch) -> Carry:
        w = descend(c.w, model.grad(c.w.w, batch), train, batch)
        g = model.grad(blend(w.w, c.v.w, c.alpha), batch)
        v = descend(c.v, c.alpha * g, train, batch)
        if not adaptive:
            return c._replace(w=w, v=v)
        gradient = (c.v.w - w.w).dot(g) + PENALTY * c.alpha
        moved = (c.alpha - train.rate_at(batch) * gradient).clamp(0, 1)
        return Carry(w, v, torch.where(c.first, moved, c.alpha), torch.zeros_like(c.first))

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        start=lambda state, w: Carry(
            begin(w, train), begin(state.v, train), state.alpha, torch.tensor(True)
        ),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, state, w: (APFLState(c.v.w, c.alpha), c.w.w),
    )
    return base._replace(
        join=lambda w, rng: APFLState(w, torch.tensor(alpha)),  # v starts at the first w it sees
        round=(trip,),
        personal=lambda state, w: blend(w, state.v, state.alpha),
        views={"global": lambda state, w: w},
        newcomer=Newcomer("trains its v, and its share of it, beside the received w"),
        client_notes=lambda state: {"alpha": state.alpha},
        describes={
            "alpha": LoggedQuantity(
                "alpha",
                QuantityKind.COURSE,
                "",
                "The share of a client's own model in its mixture.",
            )
        },
    )
