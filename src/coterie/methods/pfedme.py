"""pFedMe. T. Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes. NeurIPS
2020, Algorithm 1. arXiv:2006.08848.

    min_w sum_i F_i(w),  F_i(w) = min_theta f_i(theta) + lam/2 |theta - w|^2

theta is the client's own model, and the envelope's gradient is lam (w - theta).
"""

from typing import NamedTuple

from coterie.core.method import Batch, Method, Newcomer, Pass, Train
from coterie.core.model import Model
from coterie.core.options import NonNegative, Positive, PositiveInt
from coterie.core.point import Point
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.methods.declare import OPTIMIZER_SETTINGS, method
from coterie.methods.fedavg import fedavg


class PFedMeState(NamedTuple):
    """The local copy w_i of the global model, and the personal theta."""

    w: Point
    theta: Point


@method(
    when="clients differ somewhat, and extra gradient steps are cheap",
    without=(*OPTIMIZER_SETTINGS, "momentum", "weight_decay"),
    only={"server_optimizer": ("beta", 1.0)},
    uploads="mean",
    rows="gradients",
)
def pfedme(
    model: Model,
    train: Train,
    lam: NonNegative = 15.0,
    inner: PositiveInt = 5,
    inner_lr: Positive = 0.05,
    beta: Positive = 1.0,
    mu: NonNegative = 0.0,
    keep_theta: bool = True,
) -> Method:
    """Moreau envelopes: several descent steps on theta for each step on w_i.

    lam: weight of the term that regularizes theta towards w.
    inner: descent steps on theta for each step on w_i.
    inner_lr: learning rate of the inner steps.
    beta: the server's step towards the mean of the uploads; 1 is the mean itself.
    mu: weight of an L2 term on theta.
    keep_theta: theta goes on from the step before (the authors' code); no: it starts at w_i in each
        step (the paper). Either way it starts at the received w in each round.
    """

    def step(c: PFedMeState, batch: Batch) -> PFedMeState:
        theta = c.theta if keep_theta else c.w
        for _ in range(inner):
            pull = lam * (theta - c.w)
            if mu:
                pull = pull + mu * theta.as_vector()
            theta = theta - inner_lr * (model.grad(theta, batch) + pull)
        w = c.w - train.rate_at(batch) * lam * (c.w - theta)
        return PFedMeState(Point(w.params, theta.buffers), theta)

    base = fedavg(model, train, beta)
    trip = base.round[0]._replace(
        start=lambda state, w: PFedMeState(w, w),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, state, w: (c, c.w),
    )
    return base._replace(
        join=lambda w, rng: PFedMeState(w, w),
        round=(trip,),
        personal=lambda state, w: state.theta,
        views={"global": lambda state, w: w, "w_i": lambda state, w: state.w},
        newcomer=Newcomer("trains its theta around the received w"),
        describes={
            "w_i": LoggedQuantity("the client's copy of the global model", QuantityKind.VIEW)
        },
    )
