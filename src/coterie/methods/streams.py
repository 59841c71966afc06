"""The models that UCFL's server broadcasts: who shares one, how uploads are mixed, and newcomers.

Over few peers rows of W over everyone are found once, and those over the clients that answer in a
round when they are needed, so that few active clients still find the nearest among themselves.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.device import to_double, to_numpy
from coterie.core.errors import BadInput
from coterie.core.method import Replies
from coterie.core.point import Point, mean, pick, tree_map
from coterie.methods.bounds import Room, check_room
from coterie.methods.mixing import Mixing
from coterie.methods.peers import are_few, cut_blocks

WAY = "give --peers 50 to mix the 50 nearest, or fewer clients"


class Compared(NamedTuple):
    """What W was found by, kept so that a newcomer's row can be found too."""

    start: Point  # the common start
    g: Tensor  # [N, d], the clients' gradients there
    variance: Tensor  # [N], sigma_i^2; -1 of clients that did not answer


class Server(NamedTuple):
    """The models in the air and how they are mixed; a single one, mixed as FedAvg does, until
    similarities are known."""

    models: Point  # [k, ...], one per stream
    stream: Tensor  # [N], which one per client listens to
    mix: Any  # Mixing [k, N], a stream's weights on the clients, rows sum to 1; (): those of W
    weights: Mixing  # [N, N], W
    sigma: Tensor  # [N], 0 where not known
    sizes: Tensor  # [N], n_j
    compared: Any = ()  # Compared, after the round before training


def check_scale(size: int, streams: int, peers: int, clients: int) -> None:
    """Refuse what the number of clients does not allow; size: parameters of a model."""
    if streams > clients:
        raise BadInput(
            f"ucfl.streams = {streams}, but there are {clients} clients: lower it, or give 0 for "
            "one per client"
        )
    if streams < 0 and are_few(peers, clients):
        raise BadInput(
            f"ucfl.streams = -1 compares whole rows of W, but ucfl.peers = {peers} keeps parts "
            "of them: give the number of streams, or leave out peers"
        )
    own = 0 if streams > 0 else 3 * size  # models: as kept, as sent up, as mixed
    each = 4 * (5 * size + own)  # gradients: as sent up, flat, compared, kept
    room = Room(pair=40, entry=60, client=each, client_of_few=each + 8 * max(streams, 0))
    check_room("ucfl", clients, peers, room, WAY)


def group_rows(
    rows: Mixing, streams: int, known: Tensor, n: Tensor, rng: np.random.Generator
) -> tuple[Tensor, Any]:
    """The stream [N] of every client, and the streams' rows, the centroids of k-means on those of
    clients; () where every client has its own (`streams` as in `ucfl`). Over few peers, who is not
    known [N] listens to one more stream, mixed by the sizes n [N] as FedAvg does."""
    if streams == 0:
        return torch.arange(len(n)), ()
    seed = int(rng.integers(2**31))
    if rows.sparse:
        return _group_few(rows, streams, known, n, seed)
    points = to_numpy(to_double(rows.weights)).round(12)
    group = torch.as_tensor(_group_points(points, streams, seed), dtype=torch.int64)
    member = torch.nn.functional.one_hot(group).T.to(rows.weights.dtype)
    return group, Mixing((member / member.sum(1, keepdim=True)) @ rows.weights)


def _label(points: Any, k: int, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    labels: np.ndarray = KMeans(k, n_init=10, random_state=seed).fit(points).labels_
    return labels


def _group_points(points: np.ndarray, streams: int, seed: int) -> np.ndarray:
    from sklearn.metrics import silhouette_score

    distinct = len(np.unique(points, axis=0))
    most = min(len(points) - 1, distinct)
    if streams > 0 or most < 2:  # the silhouette needs 2 to N - 1 groups
        return _label(points, min(streams, distinct) if streams > 0 else distinct, seed)
    tried = [_label(points, k, seed) for k in range(2, most + 1)]
    return max(tried, key=lambda labels: silhouette_score(points, labels))


def _group_few(
    rows: Mixing, streams: int, known: Tensor, n: Tensor, seed: int
) -> tuple[Tensor, Mixing]:
    from scipy.sparse import csr_matrix

    there = known.nonzero().flatten()
    order = rows.ids[there].argsort(1)
    columns = rows.ids[there].gather(1, order)
    weights = rows.weights[there].double().gather(1, order)
    both = np.concatenate([columns.numpy(), weights.numpy().round(12)], axis=1)
    k = min(streams, len(np.unique(both, axis=0)))
    ends = np.arange(len(there) + 1) * columns.shape[1]
    points = csr_matrix(
        (weights.flatten().numpy(), columns.flatten().numpy(), ends), shape=(len(there), len(n))
    )
    group = torch.as_tensor(_label(points, k, seed), dtype=torch.int64)
    total = torch.zeros(k, len(n), dtype=torch.float64).index_put(
        (group[:, None].expand_as(columns), columns), weights, accumulate=True
    )
    centroids = (total / group.bincount(minlength=k)[:, None]).to(n.dtype)
    stream = torch.full((len(n),), k).index_copy(0, there, group)
    all_known = bool(known.all())
    return stream, Mixing(centroids if all_known else torch.cat([centroids, (n / n.sum())[None]]))


def average_uploads(
    rows: Mixing,
    at: Tensor,
    replies: Replies,
    known: Tensor,
    n: Tensor,
    find: Callable[[Tensor], Mixing],
) -> Point:
    """The mixtures of the streams `at` (5), by the weights on the clients that answered.

    Over few peers `at` are these clients, whose rows over each other `find` finds; FedAvg's, by the
    sizes n [N], is the mixture of a client that is not known [N].
    """
    ids = replies.ids
    if not rows.sparse:
        weights = rows.weights[at][:, ids]
        mixture: Point = replies.average(replies.upload, weights / weights.sum(1, keepdim=True))
        return mixture
    mine = known[ids].nonzero().flatten()
    if not len(mine):
        return _average_all(replies, n[ids])
    if len(mine) < len(known):
        among = find(ids[mine])
    else:  # everyone is there: places among the answers are their places among all
        among = Mixing(rows.weights[ids], ids.argsort()[rows.ids[ids]])
    fresh = average_few(replies, mine, among)
    if len(mine) == len(ids):
        return fresh
    common = _average_all(replies, n[ids])
    return tree_map(lambda all, new: all.index_copy(0, mine, new), common, fresh)


def _average_all(replies: Replies, n: Tensor) -> Point:
    """FedAvg's mean, once for each of the answers."""
    whole: Point = replies.average(replies.upload, n / n.sum())
    return tree_map(lambda a: a.expand(len(n), *a.shape), whole)


def average_few(replies: Replies, mine: Tensor, rows: Mixing) -> Point:
    """The uploads `mine` averaged by rows over each other; a robust average takes whole rows."""
    uploads: Point = pick(replies.upload, mine)
    if replies.average is mean:
        return rows.mix_rows(uploads)
    parts: list[Point] = []
    for block in cut_blocks(len(mine), len(mine)):
        parts.append(replies.average(uploads, pick(rows, block).to_matrix(len(mine))))
    return tree_map(lambda *all: torch.cat(all), parts[0], *parts[1:])


def admit(server: Server) -> Server:
    """A newcomer's likeness is not known: a stream of its own that is mixed as FedAvg does, nothing
    of it in the others."""
    n, k = server.sizes, len(next(iter(server.models.params.values())))
    sizes = torch.cat([n, n.mean()[None]])
    row = sizes / sizes.sum()
    listeners = torch.zeros(k).index_add(0, server.stream, n)
    middle = mean(server.models, (listeners / listeners.sum())[None])
    return server._replace(
        models=tree_map(lambda a, b: torch.cat([a, b]), server.models, middle),
        stream=torch.cat([server.stream, torch.tensor([k])]),
        mix=server.mix.admit(row) if server.mix else (),
        weights=server.weights.admit(row),
        sigma=torch.cat([server.sigma, torch.zeros(1)]),
        sizes=sizes,
    )


def place_newcomer(server: Server, replies: Replies, rows: Tensor) -> Server:
    """The server with a newcomer's row of W over the clients that were compared, and its mixture of
    their streams' models."""
    ids, kept, known = replies.ids, server.weights.keep(rows), rows.shape[1]
    at, count = server.stream[ids], len(next(iter(server.models.params.values())))
    fresh = kept.over_groups(server.stream[:known], count).mix_rows(server.models)
    return server._replace(
        models=tree_map(lambda old, new: old.index_copy(0, at, new), server.models, fresh),
        mix=server.mix.replace(at, kept) if server.mix else (),
        weights=server.weights.replace(ids, kept),
        sigma=server.sigma.index_copy(0, ids, replies.upload.variance.sqrt()),
    )
