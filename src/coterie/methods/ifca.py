"""IFCA. Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning.
NeurIPS 2020, Algorithm 1 (model averaging).

Every client hears k models, takes the one of least loss on its training data, j_i = argmin_j
f_i(w_j), and trains it; the server averages w_j over the clients that chose it. Evaluated: the
model of least training loss among those of the server.
"""

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.core.method import (
    Batch,
    BatchPlan,
    Facts,
    Method,
    Newcomer,
    Pass,
    Replies,
    Train,
    unchanged,
)
from coterie.core.model import Descent, Model, sgd
from coterie.core.point import Point, pick, stack, tree
from coterie.core.rng import Rng
from coterie.core.values import Range
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg
from coterie.methods.oracle import CLUSTERS, per_cluster


class Server(NamedTuple):
    """The k models, and who chose which one last."""

    models: Point  # [k, ...]
    cluster: Tensor  # [N], -1 where not known


class Choosing(NamedTuple):
    """Losses [k] summed over the rows seen so far."""

    models: Point
    losses: Tensor


class Chosen(NamedTuple):
    """The number of the chosen model, and that model on its way down."""

    cluster: Tensor
    descent: Descent


class Upload(NamedTuple):
    """The trained model and its number."""

    w: Point
    cluster: Tensor


@method(when="clients form a known number of groups that contradict each other", uploads="models")
def ifca(model: Model, train: Train, clusters: Annotated[int, Range(1, 10_000)] = 2) -> Method:
    """FedAvg of `clusters` models, each client in the cluster whose model fits it best."""
    begin, descend = sgd(model, train)

    def init(rng: Rng, facts: Facts) -> Server:
        return Server(
            stack([model.init(rng) for _ in range(clusters)]), torch.full((facts.clients,), -1)
        )

    def weigh(c: Choosing, batch: Batch) -> Choosing:
        losses = [model.measure(pick(c.models, j), batch)[0] for j in range(clusters)]
        return c._replace(losses=c.losses + torch.stack(losses))

    def choose(c: Choosing, _: None) -> Chosen:
        j = c.losses.argmin()
        return Chosen(
            j, begin(tree(lambda a: a.index_select(0, j.reshape(1)).squeeze(0), c.models))
        )

    def step(c: Chosen, batch: Batch) -> Chosen:
        return c._replace(descent=descend(c.descent, batch))

    def receive(server: Server, replies: Replies, rng: Rng) -> Server:
        w, cluster = replies.upload
        return Server(
            per_cluster(server.models, w, cluster, train.weights(replies), replies.average),
            server.cluster.index_copy(0, replies.ids, cluster),
        )

    look = (Pass(weigh, BatchPlan(batch=256, shuffle=False)), Pass(choose))
    base = fedavg(model, train)
    trip = base.round[0]._replace(
        send=lambda server, i, rng: server.models,
        start=lambda cluster, models: Choosing(models, torch.zeros(clusters)),
        passes=(*look, Pass(step, train.plan())),
        finish=lambda c, cluster, models: (c.cluster, Upload(c.descent.w, c.cluster)),
        receive=receive,
    )
    return base._replace(
        init=init,
        join=lambda models, rng: torch.tensor(-1),
        round=(trip,),
        personalize=trip._replace(
            passes=look, finish=lambda c, cluster, models: (c.descent.w, ()), receive=unchanged
        ),
        personal=lambda w, models: w,
        admit=lambda server: server._replace(
            cluster=torch.cat([server.cluster, torch.tensor([-1])])
        ),
        notes=lambda server: {"cluster": server.cluster},
        newcomer=Newcomer("takes the cluster's model of least training loss", rounds=0),
        client_notes=lambda cluster: {"cluster": cluster},
        describes=CLUSTERS,
    )
