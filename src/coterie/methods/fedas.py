"""FedAS. Yang, Huang, Ye: FedAS: Bridging Inconsistency in Personalized Federated Learning. CVPR
2024, Algorithm 1. doi:10.1109/CVPR52733.2024.01139.

FedPer whose clients first align the received body with the features of their own last model:
    body <- body - eta grad sum_j mean_{x in j} |z(x) - C_ij|^2 / d,   `align_epochs` epochs,
C_ij the mean of the d features of class j under that model; then body and head train together.
Bodies are averaged with weights F_i / sum_k F_k, F_i the trace of the empirical Fisher matrix: the
sum over batches of the squared length of the loss's gradient under the trained model. Used is the
current body, aligned, with the client's head. Interpretations, after public copies of the code: the
sum is over classes in a batch, eta = `lr_align`; F_i is by the run's batches, with the head. Unlike
there, each client aligns the body as the server sent it, not as the client before left it, and what
is measured is the averaged body, not the client's own just after training.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Batch, Method, Newcomer, Pass, Train, keep_server
from coterie.core.model import Descent, Model, begin, optimize
from coterie.core.options import NonNegative, NonNegativeInt
from coterie.core.point import Point, merge, split
from coterie.core.split import Head, Split
from coterie.methods.declare import method
from coterie.methods.fedper import SharedLayers, keep_layers_local
from coterie.methods.fisher_trace import average_by_trace, square_gradient
from coterie.methods.prototypes import BY_CLASS, EVERY_ROW, ClassSums, no_sums


class Carry(NamedTuple):
    go: Descent  # the received body with the client's head
    last: Point  # its last model
    own: ClassSums  # features under that
    trace: Tensor  # F_i


@method(
    when="as fedper, and some clients are seldom there",
    without=("weighting",),
    uploads="models",
    tasks=BY_CLASS,
)
def fedas(
    model: Model,
    train: Train,
    align_epochs: NonNegativeInt = 1,
    lr_align: NonNegative = 0.01,
    head: Head = 1,
) -> Method:
    """FedPer with received bodies aligned to a client's features, averaged by Fisher's trace.

    align_epochs: epochs of the alignment, before training and before use.
    lr_align: learning rate of the alignment.
    head: the head: how many of the last layers, or the name of a part of the network.
    """
    cut, (_, descent) = Split(model, head, "fedas"), optimize(model, train)

    def align(c: Carry, batch: Batch) -> Carry:
        (grad,) = cut.gradients_of(lambda params, z: c.own.gap(z, batch), c.go.w, batch)
        return c._replace(go=c.go._replace(w=c.go.w - lr_align * grad))

    def measure(c: Carry, batch: Batch) -> Carry:
        return c._replace(trace=c.trace + square_gradient(model, c.go.w, batch))

    def whole(last: Point, shared: SharedLayers) -> Point:
        return merge(split(last, cut.inside)[0], shared.base, model.shapes)

    def start(last: Point, shared: SharedLayers) -> Carry:
        return Carry(begin(whole(last, shared), train), last, no_sums(cut), torch.zeros(()))

    base, every = keep_layers_local(model, train, cut.inside), train.plan(epochs=1, steps=0)
    look = Pass(lambda c, b: c._replace(own=c.own.add(cut.features(c.last, b), b)), EVERY_ROW)
    aligned = look, Pass(align, train.plan(epochs=align_epochs, steps=0))
    step = Pass(lambda c, batch: c._replace(go=descent(c.go, batch)), train.plan())
    trip = base.round[0]._replace(
        start=start,
        passes=(*aligned, step, Pass(measure, every)),
        finish=lambda c, last, shared: (c.go.w, (split(c.go.w, cut.inside)[1], c.trace)),
        receive=average_by_trace,
    )
    use = trip._replace(passes=aligned, finish=lambda c, *_: (c.go.w, ()), receive=keep_server)
    return base._replace(
        join=lambda shared, rng: whole(model.start(int(shared.seed)), shared),
        round=(trip,),
        personalize=use,
        personal=lambda aligned, shared: aligned,
        newcomer=Newcomer("trains a head of its own and the received body, aligned"),
    )
