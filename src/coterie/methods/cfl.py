"""CFL. Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask
Optimization Under Privacy Constraints. IEEE Transactions on Neural Networks and Learning Systems
2020, Algorithm 3. doi:10.1109/TNNLS.2020.3015958, arXiv:1910.01991.

FedAvg until a cluster is stationary while its members still disagree:

    |mean_i dW_i| < eps1,  max_i |dW_i| > eps2

Then the cluster is cut in two by complete linkage on -cos(dW_i, dW_j), and each half goes on alone:

    w_c = w + mean_{i in c} dW_i

With `bundles` the members of a large cluster are first
bundled by k-means on sketched directions, and linkage joins bundles by their mean directions, for
servers that cannot compare all pairs.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.core.device import to_double
from coterie.core.errors import BadInput
from coterie.core.method import Facts, Method, Replies, Train
from coterie.core.model import Model
from coterie.core.options import NonNegativeInt, Positive
from coterie.core.point import Point, flatten, pick, stack, tree_map
from coterie.core.rng import Rng
from coterie.methods.bounds import check_clients
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg
from coterie.methods.oracle import CLUSTER_QUANTITIES, average_clusters, join_largest
from coterie.methods.peers import find_centres, find_nearest, sketch

BYTES_PER_PAIR = 40  # bytes per pair of members at the peak of a split


class CFLServer(NamedTuple):
    """A model for every cluster, and what its members last sent."""

    models: Point  # [k, ...]
    cluster: Tensor  # [N]
    updates: Tensor  # [N, d], the last dW_i
    reported: Tensor  # [N], whether dW_i came since the client's cluster was made
    round: Tensor  # rounds done
    speed: Tensor  # the largest |mean dW| of all clients before any split


def bisect_updates(updates: Tensor) -> Tensor:
    """Which of two halves [m] each update [m, d] belongs to."""
    from sklearn.cluster import AgglomerativeClustering

    unit = F.normalize(to_double(updates), dim=1)
    distance = (1 - unit @ unit.T).clamp(min=0).fill_diagonal_(0)  # -cos, moved to be a distance
    found = AgglomerativeClustering(2, metric="precomputed", linkage="complete").fit(
        distance.numpy()
    )
    return torch.as_tensor(found.labels_, dtype=torch.int64)


def bisect_bundles(updates: Tensor, bundles: int) -> Tensor:
    """The same where members of a bundle stay together."""
    unit = F.normalize(updates, dim=1)
    points = sketch([unit])
    nobody = torch.full((len(points),), -1)
    found = find_nearest(points, find_centres(points, bundles), nobody, 1).ids[:, 0]
    bundle = found.unique(return_inverse=True)[1]
    count = int(bundle.max()) + 1
    if count == 1:  # one direction: any halves are as good as others
        return (torch.arange(len(points)) * 2 >= len(points)).long()
    return bisect_updates(torch.zeros(count, unit.shape[1]).index_add(0, bundle, unit))[bundle]


@method(
    when="clients form groups that nobody knows, and rounds are many",
    without=("weighting",),
    uploads="models",
    rows="gradients",
)
def cfl(
    model: Model,
    train: Train,
    eps1: Positive = 0.4,
    eps2: Positive = 1.6,
    after: NonNegativeInt = 20,
    relative: bool = True,
    bundles: NonNegativeInt = 0,
) -> Method:
    """FedAvg that splits clusters whose members disagree.

    Members are averaged with equal weights, and no cluster is split before all its members have
    reported.

    eps1: a cluster is stationary below this mean update.
    eps2: its members still disagree above this largest update.
    after: rounds before a split.
    relative: eps1 and eps2 count in units of the largest |mean dW| before any split, since lengths
        of updates depend on the network; no: they are lengths, as published.
    bundles: how many bundles a larger cluster is gathered into before it is cut; 0: none, all pairs
        are compared.
    """
    if bundles == 1:
        raise BadInput("cfl.bundles = 1, but a cluster is cut in two: give 2 or more, or 0")

    def needed(n: int) -> int:
        pairs = min(n, bundles) if bundles else n
        return n * 4 * 4 * model.size + BYTES_PER_PAIR * pairs**2

    def init(rng: Rng, facts: Facts) -> CFLServer:
        bundled = 0 < bundles < facts.clients
        way = "give --bundles 1000 to link 1,000 bundles of clients, or fewer clients"
        check_clients(
            "cfl",
            facts.clients,
            needed,
            "" if bundled else way,
        )
        return CFLServer(
            models=stack([model.init(rng)]),
            cluster=torch.zeros(facts.clients, dtype=torch.int64),
            updates=torch.zeros(facts.clients, model.size),
            reported=torch.zeros(facts.clients, dtype=torch.bool),
            round=torch.tensor(0),
            speed=torch.tensor(0.0),
        )

    def note(server: CFLServer, replies: Replies) -> CFLServer:
        """Write down this round's dW_i and how far they move together."""
        ids = replies.ids
        updates = server.updates.index_copy(
            0, ids, flatten(replies.upload - pick(server.models, server.cluster[ids]))
        )
        reported = server.reported.index_fill(0, ids, True)
        whole = reported.all() and not server.cluster.any()
        speed = torch.maximum(server.speed, updates.mean(0).norm()) if whole else server.speed
        return server._replace(
            updates=updates, reported=reported, round=server.round + 1, speed=speed
        )

    def stuck(server: CFLServer, members: Tensor) -> bool:
        """Whether a cluster stands still while a member still pulls."""
        if len(members) <= 2 or server.round <= after or not server.reported[members].all():
            return False
        mine, unit = server.updates[members], server.speed if relative else 1.0
        return bool(mine.mean(0).norm() < eps1 * unit and mine.norm(dim=1).max() > eps2 * unit)

    def split(server: CFLServer, members: Tensor) -> CFLServer:
        """One half keeps the cluster's number, the other gets a new one and a copy of the model."""
        mine = server.updates[members]
        bundled = 0 < bundles < len(members)
        moved = members[(bisect_bundles(mine, bundles) if bundled else bisect_updates(mine)) == 1]
        old, new = int(server.cluster[moved[0]]), int(server.cluster.max()) + 1
        return server._replace(
            models=tree_map(lambda a: torch.cat([a, a[old : old + 1]]), server.models),
            cluster=server.cluster.index_fill(0, moved, new),
            reported=server.reported.index_fill(0, members, False),
        )

    def receive(server: CFLServer, replies: Replies, rng: Rng) -> CFLServer:
        server = note(server, replies)
        for c in range(int(server.cluster.max()) + 1):
            members = (server.cluster == c).nonzero().flatten()
            if stuck(server, members):
                server = split(server, members)
        cluster = server.cluster[replies.ids]
        return server._replace(
            models=average_clusters(
                server.models, replies.upload, cluster, replies.equal, replies.average
            )
        )

    def admit(server: CFLServer) -> CFLServer:
        return server._replace(
            cluster=join_largest(server.cluster),
            updates=torch.cat([server.updates, torch.zeros(1, model.size)]),
            reported=torch.cat([server.reported, torch.tensor([False])]),
        )

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        send=lambda server, i, rng: pick(server.models, int(server.cluster[i])),
        receive=receive,
    )
    return base._replace(
        init=init,
        round=(trip,),
        admit=admit,
        notes=lambda server: {"cluster": server.cluster},
        describes=CLUSTER_QUANTITIES,
    )
