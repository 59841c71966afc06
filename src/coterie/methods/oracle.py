"""Oracle: FedAvg within each true group, for federations whose groups are known (the bound
clustered methods aim at).

    w_g = sum_{i in g} n_i w_i / sum_{i in g} n_i
"""

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from coterie.core.method import Average, Facts, Method, Replies, Train
from coterie.core.model import Model
from coterie.core.point import Point, mean, pick, tree_map
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.core.rng import Rng
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg

T = TypeVar("T")
CLUSTER_QUANTITIES = {"cluster": LoggedQuantity("clusters", QuantityKind.GROUPS)}


class OracleServer(NamedTuple):
    """A model for every group."""

    models: Point  # [k, ...]
    cluster: Tensor  # [N]


def average_clusters(
    models: T, uploads: T, cluster: Tensor, weights: Tensor, average: Average = mean
) -> T:
    """Models [k, ...] replaced by the mean of the uploads [m, ...] of their cluster [m]; one
    without uploads stays."""
    heard = cluster.unique()
    rows = (heard[:, None] == cluster) * weights
    fresh: T = average(uploads, rows / rows.sum(1, keepdim=True))
    return tree_map(lambda old, new: old.index_copy(0, heard, new), models, fresh)


def join_largest(cluster: Tensor) -> Tensor:
    """Room for a newcomer, in the largest cluster."""
    return torch.cat([cluster, cluster.bincount().argmax()[None]])


@method(when="to see what knowing the groups would give", uploads="models", rows="gradients")
def oracle(model: Model, train: Train) -> Method:
    """One FedAvg for each true group."""

    def init(rng: Rng, facts: Facts) -> OracleServer:
        _, cluster = facts.groups.unique(return_inverse=True)
        copies = int(cluster.max()) + 1
        return OracleServer(
            tree_map(lambda a: a.expand(copies, *a.shape).clone(), model.init(rng)), cluster
        )

    def receive(server: OracleServer, replies: Replies, rng: Rng) -> OracleServer:
        cluster, weights = server.cluster[replies.ids], train.weights(replies)
        return server._replace(
            models=average_clusters(
                server.models, replies.upload, cluster, weights, replies.average
            )
        )

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        send=lambda server, i, rng: pick(server.models, int(server.cluster[i])),
        receive=receive,
    )
    return base._replace(
        init=init,
        round=(trip,),
        admit=lambda server: server._replace(cluster=join_largest(server.cluster)),
        notes=lambda server: {"cluster": server.cluster},
        describes=CLUSTER_QUANTITIES,
        needs=frozenset({"groups"}),
    )
