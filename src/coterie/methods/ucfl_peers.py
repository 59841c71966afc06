"""User-Centric FL over the nearest peers of each client, where W [N, N] would be too large.

A row of (6) has entries for the client itself and the m clients of the nearest gradients, found by
sketches and weighed by their exact distances. Rows over everyone are found once; those over the
clients that answer in a round when they are needed, so that few active clients still find the
nearest among themselves.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.method import Replies
from coterie.core.point import Point, mean, pick, tree
from coterie.methods.peers import Rows, blocks, dense, few, mixed, nearest, sketch, squares

SQUARE = 40  # bytes per pair of clients at the peak of finding W


class Signs(NamedTuple):
    """What rows of (6) are found by."""

    g: Tensor  # [m, d]
    sigma: Tensor  # [m], above 0
    n: Tensor  # [m]


def spread(variance: Tensor) -> Tensor:
    """sigma [m] from sigma^2 [m]; one of 0 counts as the smallest other one."""
    sigma = variance.double().sqrt()
    known = sigma[sigma > 0]
    least = known.min() if len(known) else torch.tensor(torch.finfo(sigma.dtype).eps)
    return torch.where(sigma > 0, sigma, least.to(sigma.dtype))


def signs_of(g: Tensor, variance: Tensor, sizes: Tensor) -> tuple[Signs, Tensor]:
    """The signs of all clients, and which of them [N] have been compared: who did not answer then
    has a variance of -1, and a newcomer has none."""
    more = len(sizes) - len(variance)
    known = torch.nn.functional.pad(variance >= 0, (0, more))
    sigma = torch.zeros(len(sizes), dtype=torch.float64)
    return Signs(g, sigma.masked_scatter(known, spread(variance[variance >= 0])), sizes), known


def nearest_rows(signs: Signs, m: int) -> Rows:
    """Rows of (6), each over oneself and the m nearest."""
    everyone = torch.arange(len(signs.g))
    points = sketch([signs.g])
    found = nearest(points, points, everyone, min(m, len(points) - 1))
    ids = torch.cat([everyone[:, None], found.ids], 1)
    far = squares([signs.g], ids) / (2 * signs.sigma[:, None] * signs.sigma[ids])
    return Rows(ids, torch.softmax(signs.n.double().log()[ids] - far, 1).to(signs.n.dtype))


def widen(rows: Rows, ids: Tensor, clients: int) -> Rows:
    """Rows of the clients `ids` over each other as rows over all; the others' have no entries."""
    columns = torch.arange(clients)[:, None].repeat(1, rows.ids.shape[1])
    weights = torch.zeros(clients, rows.ids.shape[1], dtype=rows.weights.dtype)
    return Rows(columns.index_copy(0, ids, ids[rows.ids]), weights.index_copy(0, ids, rows.weights))


def one_more(rows: Any) -> Any:
    """Rows with one more, which has no entries yet."""
    if not isinstance(rows, Rows):
        return rows  # none have been found
    ids, weights = rows
    mine = torch.full((1, ids.shape[1]), len(ids))
    return Rows(
        torch.cat([ids, mine]), torch.cat([weights, torch.zeros(mine.shape, dtype=weights.dtype)])
    )


def group_few(
    rows: Rows, known: Tensor, n: Tensor, streams: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """The group [N] of every client, and the centroids [k, N]; who is not known listens to one more
    stream that is mixed as FedAvg does."""
    from scipy.sparse import csr_matrix
    from sklearn.cluster import KMeans

    there = known.nonzero().flatten()
    order = rows.ids[there].argsort(1)
    columns = rows.ids[there].gather(1, order)
    weights = rows.weights[there].double().gather(1, order)
    flat = np.concatenate([columns.numpy(), weights.numpy().round(12)], axis=1)
    k = min(streams, len(np.unique(flat, axis=0)))
    ends = np.arange(len(there) + 1) * columns.shape[1]
    matrix = csr_matrix(
        (weights.flatten().numpy(), columns.flatten().numpy(), ends), shape=(len(there), len(n))
    )
    seed = int(rng.integers(2**31))
    group = torch.as_tensor(
        KMeans(k, n_init=10, random_state=seed).fit(matrix).labels_, dtype=torch.int64
    )
    total = torch.zeros(k, len(n), dtype=torch.float64).index_put(
        (group[:, None].expand_as(columns), columns), weights, accumulate=True
    )
    centroids = (total / group.bincount(minlength=k)[:, None]).to(n.dtype)
    stream = torch.full((len(n),), k).index_copy(0, there, group)
    return stream, centroids if known.all() else torch.cat([centroids, (n / n.sum())[None]])


def mix_few(replies: Replies, signs: Signs, rows: Rows, known: Tensor, m: int) -> Point:
    """What the clients that answered are sent next: the mixture of their row over each other, or
    FedAvg's of a client that is not known [N]. `signs` are of all clients, `rows` those over
    everyone."""
    ids = replies.ids
    mine = known[ids].nonzero().flatten()
    if not len(mine):
        return mean_of(replies, signs.n[ids])
    if len(mine) < len(known):
        rows = nearest_rows(pick(signs, ids[mine]), m)
    else:  # everyone is there: places among the answers are their places among all
        rows = Rows(ids.argsort()[rows.ids[ids]], rows.weights[ids])
    fresh = averaged(replies, mine, rows)
    if len(mine) == len(ids):
        return fresh
    common = mean_of(replies, signs.n[ids])
    both: Point = tree(lambda all, new: all.index_copy(0, mine, new), common, fresh)
    return both


def mean_of(replies: Replies, n: Tensor) -> Point:
    """FedAvg's mean, once for each of the answers."""
    whole: Point = replies.average(replies.upload, n / n.sum())
    return tree(lambda a: a.expand(len(n), *a.shape), whole)


def averaged(replies: Replies, mine: Tensor, rows: Rows) -> Point:
    """The uploads `mine` averaged by rows over each other; a robust average takes whole rows."""
    uploads: Point = pick(replies.upload, mine)
    if replies.average is mean:
        return mixed(uploads, rows)
    made: list[Point] = []
    for block in blocks(len(mine), len(mine)):
        made.append(replies.average(uploads, dense(pick(rows, block), len(mine))))
    return tree(lambda *parts: torch.cat(parts), made[0], *made[1:])


def bytes_of(size: int, streams: int, peers: int) -> Callable[[int], int]:
    """Bytes that the server takes at its peak, by the number of clients, for models of `size`
    parameters."""

    def needed(n: int) -> int:
        own = 0 if streams > 0 else 3 * size  # models: as kept, as sent up, as mixed
        per_client = 4 * (5 * size + own)  # gradients: as sent up, flat, compared, kept
        if few(peers, n):
            return n * (per_client + 60 * (peers + 1) + 8 * max(streams, 0))
        return n * per_client + SQUARE * n * n

    return needed
