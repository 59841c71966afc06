"""FedTGP. Zhang, Liu, Hua, Cao: FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced
Contrastive Learning for Data and Model Heterogeneity in Federated Learning. AAAI 2024, Algorithm
1. arXiv:2401.03230.

FedProto whose server trains prototypes: P_j = F(e_j), F two dense layers with a ReLU between. C_ij
that clients sent are told apart with a margin, by S epochs:
    min_{F, e} mean_ij -log( e^-(|C_ij - P_j| + delta) / (e^-(|C_ij - P_j| + delta)
        + sum_{k != j} e^-|C_ij - P_k|) ),   delta = min(max_j min_{k != j} |Q_j - Q_k|, tau),
Q_j the plain mean of the C_ij. F and e go on from round to round. Interpretations, after the
authors' code: each class counts with its nearest other in delta, steps have the run's batch and
rate. Unlike there, a class that no client has had is never predicted.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad

from coterie.core.method import Method, Train
from coterie.core.model import Model
from coterie.core.options import NonNegative, PositiveInt
from coterie.core.point import Leaves, Point
from coterie.core.rng import Rng
from coterie.core.split import Head, Split
from coterie.methods import prototypes as proto
from coterie.methods.declare import method


def build_maker(classes: int, d: int) -> nn.Module:
    """e and F."""
    return nn.Sequential(nn.Embedding(classes, d), nn.Linear(d, d), nn.Linear(d, d))


def make_prototypes(params: Leaves) -> Tensor:
    """P [C, d]."""
    hidden = F.linear(params["0.weight"], params["1.weight"], params["1.bias"]).relu()
    return F.linear(hidden, params["2.weight"], params["2.bias"])


def contrast(params: Leaves, sent: Tensor, classes: Tensor, delta: float) -> Tensor:
    """The loss of sent prototypes [m, d] of some classes [m]."""
    made = make_prototypes(params)
    squares = (sent.unsqueeze(1) - made).square().sum(-1)
    own = F.one_hot(classes, len(made)).to(sent.dtype)
    return F.cross_entropy(-(squares.clamp(min=1e-12).sqrt() + delta * own), classes)


@method(
    when="as fedproto, where classes lie close together",
    tasks=proto.BY_CLASS,
    without=("weighting",),
)
def fedtgp(
    model: Model,
    train: Train,
    lam: NonNegative = 1.0,
    tau: NonNegative = 100.0,
    server_epochs: PositiveInt = 100,
    head: Head = 1,
    predict: Literal["prototype", "head"] = "prototype",
) -> Method:
    """FedProto with prototypes that the server trains to lie apart.

    lam: weight of the distance to the prototypes.
    tau: the largest margin.
    server_epochs: S, the server's epochs on the prototypes per round.
    head: the head: how many of the last layers, or the name of a part of the network.
    predict: by the nearest prototype, or by the client's own head.
    """

    def begin(split: Split, rng: Rng) -> Point:
        return Model(lambda: build_maker(proto.count_classes(model), split.width)).init(rng)

    def renew(server: proto.ProtoServer, sent: proto.ClassSums, rng: Rng) -> proto.ProtoServer:
        there, params = sent.rows > 0, server.more.params
        rows, classes = sent.features[there], there.nonzero(as_tuple=True)[1]
        delta = proto.find_margin(rows, classes, tau)
        for _ in range(server_epochs):
            for part in torch.as_tensor(rng.permutation(len(rows))).split(train.batch_size):
                gradient = grad(contrast)(params, rows[part], classes[part], delta)
                params = {k: a - train.lr * gradient[k] for k, a in params.items()}
        known = torch.maximum(server.shared.known, there.any(0).to(rows))
        shared = proto.Prototypes(make_prototypes(params), known)
        return server._replace(shared=shared, more=Point(params))

    rules = proto.ServerRules(renew, begin)
    return proto.build_prototype_method(model, train, lam, head, predict, "fedtgp", rules)
