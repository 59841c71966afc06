"""User-Centric FL. Mestoukirdi, Zecchin, Gesbert, Li, Gresset: User-Centric Federated Learning.
IEEE Globecom Workshops 2021.

    theta_i = sum_j w_ij theta_j'                                                       (5)
    w_ij ~ n_j exp(-|g_i - g_j|^2 / (2 sigma_i sigma_j)),  rows of W sum to 1           (6)

theta_j' is what client j reaches from theta_j. W is found once, in a round before training: g_i is
the gradient of client i's mean loss at the common random start, sigma_i^2 the mean of |g_i^(k) -
g_i|^2 over K batches of n_i / K rows (7). The paper does not say K and partitions the rows; as in
the authors' later code K may be 2.5, and batches are floor(K) random subsets. Gradients are taken
of the model as it is used (no dropout, BatchNorm by its running statistics), so that they are sums
over rows. With fewer streams than clients, k-means groups the rows of W, and a group shares the
model of its centroid row. With `peers` W has m + 1 entries per row (`ucfl_peers`), for servers that
cannot keep N x N numbers.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.device import array, exact
from coterie.core.errors import BadInput
from coterie.core.method import (
    Batch,
    BatchPlan,
    Exchange,
    Facts,
    Method,
    Newcomer,
    Pass,
    Replies,
    Stage,
    Train,
    nothing,
)
from coterie.core.model import Model
from coterie.core.notes import Kind, Note
from coterie.core.point import Point, Vector, flat, mean, pick, stack, tree, zeros
from coterie.core.rng import Rng
from coterie.core.values import MANY, Range, Whole
from coterie.methods.bounds import check_clients
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg
from coterie.methods.peers import Rows, dense, few, mixed, noted
from coterie.methods.ucfl_peers import (
    bytes_of,
    group_few,
    mix_few,
    nearest_rows,
    one_more,
    signs_of,
    widen,
)

NOTES = {
    "W": Note("similarity weights W", Kind.MATRIX),
    "sigma": Note(
        "gradient spread sigma", Kind.FINAL, "", "Of a client's batches around its mean gradient."
    ),
}
STREAMS = {"streams": Note("streams", Kind.GROUPS)}


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
    # [k, N], a stream's weights on the clients, rows sum to 1; (): the rows over few peers
    mix: Any
    weights: Any  # [N, N], W; Rows over few peers, () until they are found
    sigma: Tensor  # [N], 0 where not known
    sizes: Tensor  # [N], n_j
    compared: Any = ()  # Compared, after the round before training


class Carry(NamedTuple):
    """Sums on the way to a client's gradient and its spread."""

    theta: Point
    g: Vector  # the gradient on all rows
    total: Vector  # the sum over the rows of this pass
    rows: Tensor
    spread: Tensor  # sum over batches of |g^(k) - g|^2


class Upload(NamedTuple):
    """A client's answer before training."""

    g: Vector
    variance: Tensor  # sigma_i^2


def collaboration(g: Tensor, variance: Tensor, n: Tensor) -> Tensor:
    """W of (6) from gradients [m, d], sigma^2 [m] and sizes [m]."""
    return rows_on((g, variance), (g, variance), n)


def rows_on(of: tuple[Tensor, Tensor], on: tuple[Tensor, Tensor], n: Tensor) -> Tensor:
    """Rows of (6) [k, m] of k clients on m others, from the gradients [., d] and sigma^2 [.] of
    both, and the sizes [m] of the others; a sigma of 0 counts as the smallest other one."""
    g, h = exact(of[0]), exact(on[0])
    mine, theirs = exact(of[1]).sqrt(), exact(on[1]).sqrt()
    known = torch.cat([mine[mine > 0], theirs[theirs > 0]])
    least = known.min() if len(known) else torch.tensor(torch.finfo(mine.dtype).eps)
    mine, theirs = (torch.where(s > 0, s, least.to(s)) for s in (mine, theirs))
    delta = torch.cdist(g, h, compute_mode="donot_use_mm_for_euclid_dist").square()
    return torch.softmax(exact(n).log() - delta / (2 * torch.outer(mine, theirs)), dim=1)


def group_rows(weights: Tensor, streams: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The group [N] of every row of W, and the centroids [k, N]; `streams` as in `ucfl`."""
    if streams == 0:
        return torch.arange(len(weights)), weights
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    rows = array(exact(weights)).round(12)
    distinct = len(np.unique(rows, axis=0))
    seed = int(rng.integers(2**31))

    def labels(k: int) -> np.ndarray:
        found: np.ndarray = KMeans(k, n_init=10, random_state=seed).fit(rows).labels_
        return found

    if streams > 0 or min(len(rows) - 1, distinct) < 2:  # the silhouette needs 2 to N - 1 groups
        found = labels(min(streams, distinct) if streams > 0 else distinct)
    else:
        tried = [labels(k) for k in range(2, min(len(rows) - 1, distinct) + 1)]
        found = max(tried, key=lambda those: silhouette_score(rows, those))
    group = torch.as_tensor(found, dtype=torch.int64)
    member = torch.nn.functional.one_hot(group).T.to(weights.dtype)
    return group, (member / member.sum(1, keepdim=True)) @ weights


def placed(server: Server, replies: Replies, rng: Rng) -> Server:
    """The server with a newcomer's row of (6) over the clients that were compared, and its mixture
    of their streams' models."""
    if not server.compared:
        return server  # of a version that did not keep gradients: it stays as it was admitted
    _, g, variance = server.compared
    there = variance >= 0
    known = len(variance)
    n = server.sizes[:known] * there
    mine = flat(replies.upload.g), replies.upload.variance
    rows = rows_on(mine, (g, variance.clamp(min=0)), n).to(n)
    if isinstance(server.weights, Rows):
        return _placed_few(server, replies, rows)
    listens = torch.nn.functional.one_hot(server.stream[:known], len(server.mix)).to(n.dtype)
    fresh = mean(server.models, rows @ listens)
    wide = torch.nn.functional.pad(rows, (0, len(server.sizes) - known))
    at = server.stream[replies.ids]
    return server._replace(
        models=tree(lambda old, new: old.index_copy(0, at, new), server.models, fresh),
        mix=server.mix.index_copy(0, at, wide),
        weights=server.weights.index_copy(0, replies.ids, wide),
        sigma=server.sigma.index_copy(0, replies.ids, replies.upload.variance.sqrt()),
    )


def _placed_few(server: Server, replies: Replies, rows: Tensor) -> Server:
    """The same with the entries of a newcomer's nearest peers alone."""
    found = rows.topk(server.weights.ids.shape[1])
    kept = Rows(found.indices, found.values / found.values.sum(1, keepdim=True))
    at = server.stream[replies.ids]
    fresh = mixed(server.models, Rows(server.stream[kept.ids], kept.weights))

    def put(old: Tensor, new: Tensor) -> Tensor:
        return old.index_copy(0, at, new)

    wide = dense(kept, len(server.sizes))
    return server._replace(
        models=tree(put, server.models, fresh),
        mix=server.mix.index_copy(0, at, wide) if streamed(server) else (),
        weights=tree(lambda a, b: a.index_copy(0, replies.ids, b), server.weights, kept),
        sigma=server.sigma.index_copy(0, replies.ids, replies.upload.variance.sqrt()),
    )


def streamed(server: Server) -> bool:
    """Whether streams have rows of their own; else they are those over few peers."""
    return isinstance(server.mix, Tensor)


class Sharing(NamedTuple):
    """How many models are broadcast, and of how many others each is mixed; as in `ucfl`."""

    streams: int
    peers: int


# Before training: gradients and their spread at the common start


def asked(model: Model, batches: float, send: Any, receive: Any) -> Exchange:
    """The exchange in which clients tell their gradient and its spread (7)."""

    def start(state: tuple[()], theta: Point) -> Carry:
        none = torch.zeros(())
        return Carry(theta, zeros(theta), zeros(theta), none, none)

    def add(c: Carry, batch: Batch) -> Carry:
        return c._replace(
            total=c.total + model.slope(c.theta, batch), rows=c.rows + batch.mask.sum()
        )

    def average(c: Carry) -> Vector:
        return (1 / c.rows.clamp(min=1)) * c.total

    def close_all(c: Carry, _: None) -> Carry:
        return c._replace(g=average(c), total=zeros(c.total), rows=torch.zeros_like(c.rows))

    def close_batch(c: Carry, _: None) -> Carry:
        spread = c.spread + (average(c) - c.g).squared()
        return c._replace(spread=spread, total=zeros(c.total), rows=torch.zeros_like(c.rows))

    every = BatchPlan(batch=256, shuffle=False)
    count = int(batches)
    one = (Pass(add, every._replace(share=1 / batches)), Pass(close_batch))
    return Exchange(
        send=send,
        start=start,
        passes=(Pass(add, every), Pass(close_all), *one * count),
        finish=lambda c, state, theta: (state, Upload(c.g, c.spread / count)),
        receive=receive,
    )


def compare(server: Server, replies: Replies, rng: Rng, sharing: Sharing) -> Server:
    """The server with W, the streams and a model for each of them."""
    server = server._replace(compared=remembered(server, replies))
    found = _few_rows if few(sharing.peers, len(server.sizes)) else _all_rows
    weights, stream, mix, count = found(server, replies, rng, sharing)
    return server._replace(
        models=pick(server.models, torch.zeros(count, dtype=torch.int64)),
        stream=stream,
        mix=mix,
        weights=weights,
        sigma=server.sigma.index_copy(0, replies.ids, replies.upload.variance.sqrt()),
    )


def remembered(server: Server, replies: Replies) -> Compared:
    """The start and the gradients there, for the rows of newcomers."""
    ids, n, g = replies.ids, server.sizes, flat(replies.upload.g)
    return Compared(
        start=pick(server.models, 0),
        g=torch.zeros(len(n), g.shape[1], dtype=g.dtype).index_copy(0, ids, g),
        variance=torch.full_like(n, -1).index_copy(0, ids, replies.upload.variance),
    )


def _all_rows(
    server: Server, replies: Replies, rng: Rng, sharing: Sharing
) -> tuple[Tensor, Tensor, Tensor, int]:
    """W over everybody, the clients' streams, the streams' rows and their number."""
    ids, n = replies.ids, server.sizes
    # who did not answer keeps FedAvg's row, and is in nobody else's
    weights = server.weights.clone()
    weights[ids] = 0
    weights[ids[:, None], ids] = collaboration(
        flat(replies.upload.g), replies.upload.variance, n[ids]
    ).to(n)
    stream, mix = group_rows(weights, sharing.streams, rng)
    return weights, stream, mix, len(mix)


def _few_rows(
    server: Server, replies: Replies, rng: Rng, sharing: Sharing
) -> tuple[Rows, Tensor, Any, int]:
    """The same with the entries of the nearest peers alone."""
    n, ids = server.sizes, replies.ids
    signs, known = signs_of(server.compared.g, server.compared.variance, n)
    rows = widen(nearest_rows(pick(signs, ids), sharing.peers), ids, len(n))
    if not sharing.streams:
        return rows, torch.arange(len(n)), (), len(n)
    stream, mix = group_few(rows, known, n, sharing.streams, rng)
    return rows, stream, mix, len(mix)


# Training


def mix_models(server: Server, replies: Replies, peers: int) -> Server:
    """The streams' models of the next round (5); one nobody of whom was active keeps its own."""
    if streamed(server):
        at = server.stream[replies.ids].unique()
        rows = server.mix[at][:, replies.ids]
        fresh = replies.average(replies.upload, rows / rows.sum(1, keepdim=True))
    else:  # a model per client
        at = server.stream[replies.ids]
        signs, known = signs_of(server.compared.g, server.compared.variance, server.sizes)
        fresh = mix_few(replies, signs, server.weights, known, peers)
    return server._replace(
        models=tree(lambda old, new: old.index_copy(0, at, new), server.models, fresh)
    )


def admit(server: Server) -> Server:
    """A newcomer's likeness is not known: a stream of its own that is mixed as FedAvg does, nothing
    of it in the others."""
    n, k = server.sizes, len(next(iter(server.models.params.values())))
    sizes = torch.cat([n, n.mean()[None]])
    row = (sizes / sizes.sum())[None]
    listeners = torch.zeros(k).index_add(0, server.stream, n)
    middle = mean(server.models, (listeners / listeners.sum())[None])

    def wider(rows: Tensor) -> Tensor:
        return torch.cat([torch.cat([rows, torch.zeros(len(rows), 1)], 1), row])

    dense_rows = isinstance(server.weights, Tensor)
    return server._replace(
        models=tree(lambda a, b: torch.cat([a, b]), server.models, middle),
        stream=torch.cat([server.stream, torch.tensor([k])]),
        mix=wider(server.mix) if streamed(server) else (),
        weights=wider(server.weights) if dense_rows else one_more(server.weights),
        sigma=torch.cat([server.sigma, torch.zeros(1)]),
        sizes=sizes,
    )


def told(server: Server, sharing: Sharing) -> dict[str, Tensor]:
    """W, sigma and the streams, for reports."""
    w = noted(server.weights) if isinstance(server.weights, Rows) else server.weights
    found = ({"W": w} if isinstance(w, Tensor) else {}) | {"sigma": server.sigma}
    return found | {"streams": server.stream} if sharing.streams else found


def check_scale(model: Model, sharing: Sharing, facts: Facts) -> None:
    """Refuse what the number of clients does not allow."""
    streams, peers = sharing
    if streams > facts.clients:
        raise BadInput(
            f"ucfl.streams = {streams}, but there are {facts.clients} clients: lower it, or "
            "give 0 for one per client"
        )
    if streams < 0 and few(peers, facts.clients):
        raise BadInput(
            f"ucfl.streams = -1 compares whole rows of W, but ucfl.peers = {peers} keeps parts "
            "of them: give the number of streams, or leave out peers"
        )
    way = "give --peers 50 to mix the 50 nearest, or fewer clients"
    way = "" if few(peers, facts.clients) else way
    check_clients("ucfl", facts.clients, bytes_of(model.size, streams, peers), way)


@method(
    when="clients differ by degrees, and the server may store a model per client", uploads="models"
)
def ucfl(
    model: Model,
    train: Train,
    batches: Annotated[float, Range(1, 10_000, low_open=True)] = 2.5,
    streams: Annotated[int, Range(-1, MANY)] = 0,
    peers: Whole = 0,
) -> tuple[Stage, ...]:
    """A mixture of all clients' models for each client, weighted by the likeness of their
    gradients.

    batches: K of (7); identical distributions weigh a peer exp(-1 / (K - 1)) of oneself, so a
    larger K shares more. streams: how many models are broadcast; 0: one per client, -1: as many as
    the silhouette score prefers. peers: how many others a client mixes, those of the nearest
    gradients; 0: all.
    """
    sharing = Sharing(streams, peers)

    def init(rng: np.random.Generator, facts: Facts) -> Server:
        check_scale(model, sharing, facts)
        n = facts.sizes if train.weighting == "size" else torch.ones_like(facts.sizes)
        row = n / n.sum()
        return Server(
            models=stack([model.init(rng)]),
            stream=torch.zeros(facts.clients, dtype=torch.int64),
            mix=row[None],
            weights=() if few(peers, facts.clients) else row.repeat(facts.clients, 1),
            sigma=torch.zeros_like(n),
            sizes=n,
        )

    def send(server: Server, i: int, rng: Rng) -> Point:
        # a view: members of a stream hear one broadcast
        return pick(server.models, int(server.stream[i]))

    def send_start(server: Server, i: int, rng: Rng) -> Point:
        return server.compared.start if server.compared else send(server, i, rng)

    def weigh(server: Server, replies: Replies, rng: Rng) -> Server:
        return compare(server, replies, rng, sharing)

    def receive(server: Server, replies: Replies, rng: Rng) -> Server:
        return mix_models(server, replies, peers)

    similarity = Method(
        init=init,
        join=nothing,
        round=(asked(model, batches, send, weigh),),
        personal=lambda state, theta: theta,
        admit=admit,
        notes=lambda server: told(server, sharing),
        describes=NOTES | STREAMS if streams else NOTES,
    )
    trip = fedavg(model, train).round[0]._replace(send=send, receive=receive)
    look = asked(model, batches, send_start, placed)
    rule = Newcomer("mixes the clients' models by a row from one gradient", rounds=1, round=(look,))
    return (
        Stage("similarity", similarity, rounds=1, everyone=True),
        Stage("train", similarity._replace(round=(trip,), newcomer=rule)),
    )
