"""Self-FL at the level of clusters: G.4 of the paper.

The server keeps the latest model of every cluster as its representative. A round replaces those of
clusters with active clients, by (11) over these; the others are loaded as they are, and theta is
(11) over all representatives, so that no part of the clients is forgotten while it is silent.

Interpretations. Only the aggregation is of clusters: s0^2, S_-m and so the clients' work stay as
they are. The uncertainty of a representative is the mean of its clients' s_m^2. Clusters by s_m^2
are formed anew in every round by k-means of log s_m^2, numbered from the smallest; a client without
history counts as the median one.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.device import to_double, to_numpy
from coterie.core.method import Average
from coterie.core.point import Point, mean, pick, tree_map
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.methods.oracle import average_clusters, join_largest

SWEEPS = 100  # of k-means at most; it ends when nobody changes cluster
NOTE = LoggedQuantity(
    "clusters",
    QuantityKind.GROUPS,
    meaning="The server keeps the latest model of every cluster and aggregates these.",
)


class Clusters(NamedTuple):
    """The cluster of every client, and the latest model of every cluster."""

    of: Tensor  # [N]
    models: Point  # [k, ...]
    var: Tensor  # [k] the representative's s^2; -1 while unknown
    heard: Tensor  # [k] whether there is a representative yet


def unheard(of: Tensor, theta: Point, clusters: int) -> Clusters:
    """Clusters before any client has answered."""
    return Clusters(
        of=of,
        models=tree_map(lambda a: a.expand(clusters, *a.shape).clone(), theta),
        var=-torch.ones(clusters),
        heard=torch.zeros(clusters, dtype=torch.bool),
    )


def update(
    clusters: Clusters, ids: Tensor, models: Point, var: Tensor, weights: Tensor, average: Average
) -> Clusters:
    """Clusters of which clients `ids` have answered with models [m, ...] of variances [m]."""
    of = clusters.of[ids]
    return clusters._replace(
        models=average_clusters(clusters.models, models, of, weights, average),
        var=average_clusters(clusters.var, var, of, weights, mean),
        heard=clusters.heard.index_fill(0, of, True),
    )


def representatives(clusters: Clusters) -> Point:
    """The models [k, ...] of the clusters that have one."""
    return pick(clusters.models, clusters.heard)


def rows_of(clusters: Clusters, sizes: Tensor) -> Tensor:
    """[k] training rows of the clients of every cluster that has a model."""
    return torch.zeros_like(clusters.var).index_add(0, clusters.of, sizes)[clusters.heard]


def by_variance(s2: Tensor, clusters: int) -> Tensor:
    """[N] clusters of alike variances, from the smallest: k-means of their logarithms, from
    quantiles."""
    logs = np.log(to_numpy(to_double(s2)))
    centres = np.quantile(logs, (np.arange(clusters) + 0.5) / clusters, method="inverted_cdf")
    found = np.zeros(len(logs), dtype=np.int64)
    for _ in range(SWEEPS):
        nearest = np.searchsorted((centres[1:] + centres[:-1]) / 2, logs)
        if (nearest == found).all():
            break
        found = nearest
        count = np.bincount(found, minlength=clusters)
        sums = np.bincount(found, logs, clusters)
        centres = np.sort(np.where(count, sums / np.maximum(count, 1), centres))
    return torch.from_numpy(found).to(s2.device)


def admit(clusters: Clusters) -> Clusters:
    """Room for a newcomer: of an unknown group, so in the largest cluster."""
    return clusters._replace(of=join_largest(clusters.of))
