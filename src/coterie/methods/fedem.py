"""FedEM. Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a Mixture of
Distributions. NeurIPS 2021, Algorithm 1. arXiv:2108.10252.

Every client's rows come from M common distributions, in shares pi_i of its own. Expectation, with
the received theta and the client's last pi_i, and maximization:
    q_m(x, y) ~ pi_im exp(-loss(h_m(x), y)),   sum_m q_m = 1,
    pi_im = mean_x q_m,   theta_m <- descent on mean_x q_m loss(h_m(x), y) from theta_m;
each theta_m is averaged as in FedAvg. A client uses the class probabilities sum_m pi_im h_m(x),
with its last pi_i and the newest theta. M = 1 is FedAvg. Interpretations: theta_1..M start at
random, pi_i equal; the loss is -log of a probability up to a constant, so that tasks are those of
classes; q is of models as they are used, and constant over the round.
"""

from typing import Annotated

import torch
from torch import Tensor

from coterie.core.method import Batch, Facts, Method, Newcomer, Pass, Train, keep_server
from coterie.core.model import Descent, Model, begin, descend, masked_mean
from coterie.core.options import Range
from coterie.core.point import Point, pick, stack
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.core.rng import Rng
from coterie.methods import components as em
from coterie.methods.declare import method
from coterie.methods.fedavg import FedAvgServer, fedavg
from coterie.methods.prototypes import EVERY_ROW
from coterie.networks.assembled import assemble_model

NOTES = {"largest": LoggedQuantity("largest share of a component", QuantityKind.COURSE, "%")}


@method(
    when="clients' rows are mixtures of a few common distributions",
    uploads="mean",
    tasks=em.BY_PROBABILITY,
)
def fedem(model: Model, train: Train, components: Annotated[int, Range(1, 1000)] = 3) -> Method:
    """A few common models, which every client mixes in shares that it learns.

    components: M, number of common models.
    """

    def look(c: em.EMCarry, batch: Batch) -> em.EMCarry:
        q = em.expect(model, c, batch)
        return c._replace(mass=c.mass + (q * batch.mask.unsqueeze(-1)).sum(0))

    def step(c: em.EMCarry, batch: Batch) -> em.EMCarry:
        q = em.expect(model, c, batch)

        def move(go: Descent, share: Tensor) -> Descent:
            def loss(out: Tensor, batch: Batch) -> Tensor:
                return masked_mean(share * model.goal.losses(out, batch.y), batch)

            return descend(go, model.grad(go.w, batch, loss), train, batch)

        return c._replace(go=tuple(move(go, q[:, m]) for m, go in enumerate(c.go)))

    def start(pi: Tensor, sent: Point) -> em.EMCarry:
        go = tuple(begin(pick(sent, m), train) for m in range(components))
        return em.EMCarry(sent, pi, torch.zeros(components), go)

    def init(rng: Rng, facts: Facts) -> FedAvgServer:
        return FedAvgServer(stack(model.init(rng) for _ in range(components)))

    base, learn = fedavg(model, train), Pass(look, EVERY_ROW)
    trip = base.round[0]._replace(
        start=start,
        passes=(learn, Pass(step, train.plan())),
        finish=lambda c, pi, sent: (em.share_rows(c), stack(go.w for go in c.go)),
        copies=components,
    )
    alone = trip._replace(passes=(learn,), receive=keep_server)
    return base._replace(
        init=init,
        join=lambda sent, rng: torch.full((components,), 1 / components),
        round=(trip,),
        personal=em.join_networks,
        model_of={"personal": assemble_model(model, f"mixture:components={components}")},
        newcomer=Newcomer("learns its shares of the received models, which stay", round=(alone,)),
        client_notes=lambda pi: {"largest": pi.max()},
        describes=NOTES,
    )
