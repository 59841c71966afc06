"""Per-FedAvg. Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical
Guarantees: A Model-Agnostic Meta-Learning Approach. NeurIPS 2020, Algorithm 1. arXiv:2002.07948.

    min_w sum_i f_i(w - alpha grad f_i(w))

A start from which one step on a client's own data goes far. With batches D, D', D''
    g = grad f_i(w; D),  g' = grad f_i(w - alpha g; D'),
    w <- w - beta (I - alpha H_i(w; D'')) g'
with beta the learning rate of training. FO leaves H_i out; HF takes H_i g' = (grad f_i(w + delta
g'; D'') - grad f_i(w - delta g'; D'')) / (2 delta). The model used is w - alpha grad f_i(w; one
batch of the client's training data).
"""

from typing import Literal

from coterie.core.method import Batch, BatchPlan, Method, Newcomer, Pass, Train, keep_server
from coterie.core.model import Descent, Model, descend
from coterie.core.options import NonNegative, Positive
from coterie.core.point import Point, Vector
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg

BATCHES = {"fo": 2, "hf": 3}  # per step


def curvature(model: Model, w: Point, g: Vector, batch: Batch, delta: float) -> Vector:
    """H(w; batch) g by a central difference."""
    ahead, behind = (model.grad(w + d * g, batch) for d in (delta, -delta))
    return (1 / (2 * delta)) * (ahead - behind)


@method(when="new clients shall adapt in a step or two", uploads="mean", rows="gradients")
def perfedavg(
    model: Model,
    train: Train,
    variant: Literal["fo", "hf"] = "fo",
    alpha: NonNegative = 0.03,
    delta: Positive = 1e-3,
) -> Method:
    """A global model made to be adapted by one step; the learning rate of training is beta.

    variant: "fo" is first order, "hf" has Hessian-vector products by finite differences.
    alpha: learning rate of the step that adapts the model.
    delta: width of the finite difference of variant = hf.
    """

    def adapt(w: Point, batch: Batch) -> Point:
        return w - alpha * model.grad(w, batch)

    def step(c: Descent, batch: Batch) -> Descent:
        g = model.grad(adapt(c.w, batch.one(0)), batch.one(1))
        if variant == "hf":
            g = g - alpha * curvature(model, c.w, g, batch.one(2), delta).stale()
        return descend(c, g, train, batch)

    base = fedavg(model, train)
    trip = base.round[0]._replace(passes=(Pass(step, train.plan(batches=BATCHES[variant])),))
    once = trip._replace(
        start=lambda state, w: w,
        passes=(Pass(adapt, BatchPlan(batch_size=train.batch_size, steps=1)),),
        finish=lambda w, state, sent: (w, ()),
        receive=keep_server,
    )
    return base._replace(
        round=(trip,),
        personalize=once,
        personal=lambda adapted, w: adapted,
        views={"global": lambda state, w: w},
        newcomer=Newcomer("takes one step from the received start", rounds=0),
    )
