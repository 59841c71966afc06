"""Fed-RoD. Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image
Classification. ICLR 2022, Algorithm 1 (linear personalized head). arXiv:2107.00778.

Two heads on one body. The generic one g learns by a softmax that is balanced by the n_ij rows that
client i has of class j, as if all clients had the same classes; body and g are averaged:
    min_{body, g} sum_i (n_i / n) mean_x -log( n_iy^gamma e^g_y / sum_j n_ij^gamma e^g_j ).
The personal head p_i stays home and learns the plain loss of the sum, body and g fixed:
    min_{p_i} mean_x loss( g(z) + p_i(z), y ).
A client uses g + p_i, which is one dense layer again; the view `global` is body and g.
Interpretations: p_i starts at 0, so that a client starts with the generic model (the code of PFLlib
starts it as a copy of g); every step is one on both losses. gamma = 0 gives body and g of FedAvg.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Batch, Method, Newcomer, Pass, Train
from coterie.core.model import Descent, Model, begin, cross_entropy, descend
from coterie.core.options import NonNegative
from coterie.core.point import Leaves, Point
from coterie.core.rng import Rng
from coterie.core.split import Head, Split
from coterie.methods.declare import SupportedTasks, method
from coterie.methods.fedavg import fedavg
from coterie.methods.prototypes import EVERY_ROW, mark_classes

FEWEST = 1e-30  # rows of a class that a client does not have: the logarithm stays finite


class Carry(NamedTuple):
    """Body and generic head, the personal head, and the rows of each class."""

    w: Descent
    p: Descent
    rows: Tensor  # [C]


@method(
    when="classes differ between clients, and the global model must be good too",
    tasks=SupportedTasks(lambda task: task.has_output_per_class, "balances classes"),
    uploads="mean",
)
def fedrod(model: Model, train: Train, gamma: NonNegative = 1.0, head: Head = 1) -> Method:
    """A generic head learned with balanced classes, and a personal one on top of it.

    gamma: how much of the classes' imbalance is balanced; 0: none.
    head: the head: how many of the last layers, or the name of a part of the network.
    """
    split = Split(model, head, "fedrod", linear=True)

    def count(c: Carry, batch: Batch) -> Carry:
        return c._replace(rows=c.rows + mark_classes(batch, model.outputs).sum(0))

    def step(c: Carry, batch: Batch) -> Carry:
        prior = gamma * c.rows.clamp(min=FEWEST).log()

        def objective(params: Leaves, z: Tensor, personal: Leaves) -> Tensor:
            generic = split.head(params, z, batch)
            both = generic.detach() + split.head(personal, z.detach(), batch)
            return cross_entropy(generic + prior, batch) + model.data_loss(both, batch)

        grad_w, grad_p = split.gradients_of(objective, c.w.w, batch, c.p.w)
        return c._replace(
            w=descend(c.w, grad_w, train, batch), p=descend(c.p, grad_p, train, batch)
        )

    def join(w: Point, rng: Rng) -> Point:
        return Point({k: torch.zeros_like(a) for k, a in w.params.items() if split.inside(k)})

    def both(p: Point, w: Point) -> Point:
        return Point(w.params | {k: w.params[k] + a for k, a in p.params.items()}, w.buffers)

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        start=lambda p, w: Carry(begin(w, train), begin(p, train), torch.zeros(model.outputs)),
        passes=(Pass(count, EVERY_ROW), Pass(step, train.plan())),
        finish=lambda c, p, w: (c.p.w, c.w.w),
    )
    return base._replace(
        join=join,
        round=(trip,),
        personal=both,
        views={"global": lambda p, w: w},
        newcomer=Newcomer("trains its personal head on top of the received model"),
    )
