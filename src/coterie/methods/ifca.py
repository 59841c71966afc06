"""IFCA. Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning.
NeurIPS 2020, Algorithm 1 (model averaging). arXiv:2006.04088.

    j_i = argmin_j f_i(w_j)

Every client hears k models, takes the one of least loss on its training data and trains it; the
server averages w_j over the clients that chose it. Evaluated: the
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
    keep_server,
)
from coterie.core.model import Descent, Model, optimize
from coterie.core.options import Range
from coterie.core.point import Point, pick, stack, tree_map
from coterie.core.rng import Rng
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg
from coterie.methods.oracle import CLUSTER_QUANTITIES, average_clusters


class IFCAServer(NamedTuple):
    """The k models, and who chose which one last."""

    models: Point  # [k, ...]
    cluster: Tensor  # [N], -1 where not known


class ClusterLosses(NamedTuple):
    """Losses [k] summed over the rows seen so far."""

    models: Point
    losses: Tensor


class ClusterDescent(NamedTuple):
    """The number of the chosen model, and that model on its way down."""

    cluster: Tensor
    descent: Descent


class IFCAUpload(NamedTuple):
    """The trained model and its number."""

    w: Point
    cluster: Tensor


@method(
    when="clients form a known number of groups that contradict each other",
    refuses={"keep_optimizer": "a client may train another cluster's model in each round"},
    uploads="models",
)
def ifca(model: Model, train: Train, clusters: Annotated[int, Range(1, 10_000)] = 2) -> Method:
    """FedAvg of several models, each client in the cluster whose model fits it best.

    clusters: number of models.
    """
    begin, descend = optimize(model, train)

    def init(rng: Rng, facts: Facts) -> IFCAServer:
        return IFCAServer(
            stack([model.init(rng) for _ in range(clusters)]), torch.full((facts.clients,), -1)
        )

    def weigh(c: ClusterLosses, batch: Batch) -> ClusterLosses:
        losses = [model.measure(pick(c.models, j), batch)[0] for j in range(clusters)]
        return c._replace(losses=c.losses + torch.stack(losses))

    def choose(c: ClusterLosses, _: None) -> ClusterDescent:
        j = c.losses.argmin()
        return ClusterDescent(
            j, begin(tree_map(lambda a: a.index_select(0, j.reshape(1)).squeeze(0), c.models))
        )

    def step(c: ClusterDescent, batch: Batch) -> ClusterDescent:
        return c._replace(descent=descend(c.descent, batch))

    def receive(server: IFCAServer, replies: Replies, rng: Rng) -> IFCAServer:
        w, cluster = replies.upload
        return IFCAServer(
            average_clusters(server.models, w, cluster, train.weights(replies), replies.average),
            server.cluster.index_copy(0, replies.ids, cluster),
        )

    look = (Pass(weigh, BatchPlan(batch_size=256, shuffle=False)), Pass(choose))
    base = fedavg(model, train)
    trip = base.round[0]._replace(
        send=lambda server, i, rng: server.models,
        start=lambda cluster, models: ClusterLosses(models, torch.zeros(clusters)),
        passes=(*look, Pass(step, train.plan())),
        finish=lambda c, cluster, models: (c.cluster, IFCAUpload(c.descent.w, c.cluster)),
        receive=receive,
    )
    return base._replace(
        init=init,
        join=lambda models, rng: torch.tensor(-1),
        round=(trip,),
        personalize=trip._replace(
            passes=look, finish=lambda c, cluster, models: (c.descent.w, ()), receive=keep_server
        ),
        personal=lambda w, models: w,
        admit=lambda server: server._replace(
            cluster=torch.cat([server.cluster, torch.tensor([-1])])
        ),
        notes=lambda server: {"cluster": server.cluster},
        newcomer=Newcomer("takes the cluster's model of least training loss", rounds=0),
        client_notes=lambda cluster: {"cluster": cluster},
        describes=CLUSTER_QUANTITIES,
    )
