"""User-Centric FL. Mestoukirdi, Zecchin, Gesbert, Li, Gresset: User-Centric Federated Learning.
IEEE Globecom Workshops 2021. doi:10.1109/GCWkshps52748.2021.9682003.

    theta_i = sum_j w_ij theta_j'                                                       (5)
    w_ij ~ n_j exp(-|g_i - g_j|^2 / (2 sigma_i sigma_j)),  rows of W add up to 1           (6)

theta_j' is what client j reaches from theta_j. W is found once, in a round before training: g_i is
the gradient of client i's mean loss at the common random start, sigma_i^2 the mean of |g_i^(k) -
g_i|^2 over K batches of n_i / K rows (7). The paper does not say K and partitions the rows; as in
the authors' later code K may be 2.5, and batches are floor(K) random subsets. By default K follows
from a client's rows, as no single one serves few rows and many: K_i = 1 + n_i / b makes sigma_i^2
the variance of a mean gradient over b rows at any n_i. Where W is flat, or each client weighs
itself alone, the run says so. Gradients are taken of the model as it is used (no dropout, BatchNorm
by its running statistics), so that they are sums over rows. With fewer streams than clients,
k-means groups the rows of W, and a group shares the model of its centroid row. With `peers` W has m
+ 1 entries per row (`streams`), for servers that cannot keep N x N numbers.
"""

from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.core.device import to_double
from coterie.core.errors import BadInput
from coterie.core.method import Facts, Method, Newcomer, Replies, Stage, Train, return_nothing
from coterie.core.model import Model
from coterie.core.options import MAX_COUNT, NonNegativeInt, PositiveInt, Range
from coterie.core.point import Point, flatten, pick, stack, tree_map
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.core.rng import Rng
from coterie.methods.declare import SEVERAL_OPTIMIZERS, method
from coterie.methods.fedavg import fedavg
from coterie.methods.gradient_spread import ask_gradient
from coterie.methods.mixing import Mixing, start_rows
from coterie.methods.peers import compare_gradients, measure_pairs
from coterie.methods.streams import (
    Compared,
    Server,
    admit,
    average_uploads,
    check_scale,
    group_rows,
    place_newcomer,
)

QUANTITIES = {
    "W": LoggedQuantity("similarity weights W", QuantityKind.MATRIX),
    "sigma": LoggedQuantity(
        "gradient spread sigma",
        QuantityKind.FINAL,
        "",
        "Of a client's batches around its mean gradient.",
    ),
}
BATCH_ROWS = 200  # by benchmarks/defaults.py
# worth a remark: the share of clients that are mixed in effect, 1 / sum_j w_ij^2, and the mean
# weight on oneself
FLAT, ALONE = 2 / 3, 0.9
STREAM_QUANTITIES = {"streams": LoggedQuantity("streams", QuantityKind.GROUPS)}


def find_sigma(variance: Tensor) -> Tensor:
    """sigma [m] from sigma^2 [m]; one of 0 counts as the smallest other one, none of -1."""
    sigma = to_double(variance).clamp(min=0).sqrt()
    known = sigma[sigma > 0]
    least = known.min() if len(known) else torch.tensor(torch.finfo(sigma.dtype).eps)
    return torch.where(sigma > 0, sigma, least.to(sigma.dtype))


def weigh(square: Tensor, mine: Tensor, theirs: Tensor, n: Tensor) -> Tensor:
    """Rows of (6) by squared distances of gradients, both sigmas and the others' sizes."""
    return torch.softmax(to_double(n).log() - square / (2 * mine * theirs), dim=1).to(n)


def find_rows(g: Tensor, sigma: Tensor, n: Tensor, peers: int) -> Mixing:
    """Rows of (6) of clients over each other, each over oneself and so many nearest; 0: all."""
    near = compare_gradients(g, peers)
    rows = weigh(near.values, sigma[:, None], near.take(sigma), near.take(n))
    return Mixing(rows, near.ids)


def compare_clients(server: Server, replies: Replies, rng: Rng, streams: int, peers: int) -> Server:
    """The server with W, the streams and a model for each of them."""
    ids, n, variance = replies.ids, server.sizes, replies.upload.variance
    g = flatten(replies.upload.g)
    compared = Compared(
        start=pick(server.models, 0),
        g=torch.zeros(len(n), g.shape[1], dtype=g.dtype).index_copy(0, ids, g),
        variance=torch.full_like(n, -1).index_copy(0, ids, variance),
    )
    rows = find_rows(g, find_sigma(variance), n[ids], server.weights.limit(peers))
    # who did not answer keeps FedAvg's row, and is in nobody else's
    weights = server.weights.replace_among(ids, rows)
    stream, mix = group_rows(weights, streams, compared.variance >= 0, n, rng)
    count = len((mix or weights).weights)
    return server._replace(
        models=pick(server.models, torch.zeros(count, dtype=torch.int64)),
        stream=stream,
        mix=mix,
        weights=weights,
        sigma=server.sigma.index_copy(0, ids, variance.sqrt()),
        compared=compared,
    )


def mix_models(server: Server, replies: Replies, peers: int) -> Server:
    """The streams' models of the next round (5); one nobody of whom was active keeps its own."""
    at, n, rows = server.stream[replies.ids].unique(), server.sizes, server.mix or server.weights
    variance = server.compared.variance if server.compared else n.new_zeros(0)
    known = pad(variance >= 0, (0, len(n) - len(variance)))

    def find(ids: Tensor) -> Mixing:
        return find_rows(server.compared.g[ids], find_sigma(variance)[ids], n[ids], peers)

    fresh = average_uploads(rows, at, replies, known, n, find)
    return server._replace(
        models=tree_map(lambda old, new: old.index_copy(0, at, new), server.models, fresh)
    )


def place(server: Server, replies: Replies, rng: Rng) -> Server:
    """The server with a newcomer's row of (6) over the clients that were compared."""
    if not server.compared:
        return server  # nobody was: it stays as it was admitted
    (_, g, variance), mine, one = server.compared, replies.upload, len(replies.ids)
    n = server.sizes[: len(variance)] * (variance >= 0)
    sigma = find_sigma(torch.cat([mine.variance, variance]))
    rows = weigh(measure_pairs(flatten(mine.g), g), sigma[:one, None], sigma[one:], n)
    return place_newcomer(server, replies, rows)


def judge_weights(server: Server) -> str:
    """Why mixing by W is nearly FedAvg or nearly training alone, where it is."""
    rows, clients = server.weights, len(server.sizes)
    mixed = float((1 / rows.weights.square().sum(1)).mean())
    itself = torch.arange(clients)[:, None] == (rows.ids if rows.sparse else torch.arange(clients))
    alone = float((rows.weights * itself).sum(1).mean())
    n = f"{float(server.sizes.mean()):.0f} rows per client"
    if mixed > FLAT * clients:
        return (
            f"ucfl does not tell clients apart by {n}: W is flat, its largest weight is "
            f"{clients * float(rows.weights.max()):.1f}/N and {mixed:.1f} of {clients} clients are "
            "mixed in effect, nearly FedAvg's model; unless clients are alike, give more rows or a "
            "smaller K"
        )
    if alone > ALONE:
        return (
            f"ucfl finds nobody alike by {n}: a client's weight on itself is {alone:.2f} in the "
            "mean, so that all train nearly alone; give more rows or a larger K"
        )
    return ""


@method(
    when="clients differ by degrees, and the server may store a model per client",
    refuses={"keep_optimizer": SEVERAL_OPTIMIZERS},
    uploads="models",
)
def ucfl(
    model: Model,
    train: Train,
    batches: Annotated[float, Range(0, 10_000)] = 0.0,
    batch_rows: PositiveInt = BATCH_ROWS,
    streams: Annotated[int, Range(-1, MAX_COUNT)] = 0,
    peers: NonNegativeInt = 0,
) -> tuple[Stage, ...]:
    """A mixture of all clients' models for each client, weighted by the similarity of their
    gradients.

    batches: K of (7); identical distributions weigh a peer exp(-1 / (K - 1)) of oneself, so a
        larger K shares more; 0: by the rows of each client, 1 + n_i / batch_rows.
    batch_rows: b, with batches = 0: gradients are as far apart as sampling b rows would make them
        where |g_i - g_j|^2 = sigma_i sigma_j.
    streams: how many models are broadcast; 0: one per client, -1: as many as the silhouette score
        prefers.
    peers: how many others a client mixes, those of the nearest gradients; 0: all.
    """
    _check_batches(batches, batch_rows)

    def init(rng: Rng, facts: Facts) -> Server:
        check_scale(model.size, streams, peers, facts.clients)
        n = facts.sizes if train.weighting == "size" else torch.ones_like(facts.sizes)
        row = n / n.sum()
        return Server(
            models=stack([model.init(rng)]),
            stream=torch.zeros(facts.clients, dtype=torch.int64),
            mix=Mixing(row[None]),
            weights=start_rows(row, peers),
            sigma=torch.zeros_like(n),
            sizes=n,
        )

    def send(server: Server, i: int, rng: Rng) -> Point:
        # a view: members of a stream hear one broadcast
        return pick(server.models, int(server.stream[i]))

    def send_start(server: Server, i: int, rng: Rng) -> Point:
        return server.compared.start if server.compared else send(server, i, rng)

    def notes(server: Server) -> dict[str, Tensor]:
        found = {**server.weights.describe("W"), "sigma": server.sigma}
        return found | {"streams": server.stream} if streams else found

    def weigh_clients(server: Server, replies: Replies, rng: Rng) -> Server:
        return compare_clients(server, replies, rng, streams, peers)

    def receive(server: Server, replies: Replies, rng: Rng) -> Server:
        return mix_models(server, replies, peers)

    similarity = Method(
        init=init,
        join=return_nothing,
        round=(ask_gradient(model, batches, batch_rows, send, weigh_clients),),
        personal=lambda state, theta: theta,
        admit=admit,
        notes=notes,
        remark=judge_weights,
        describes=QUANTITIES | STREAM_QUANTITIES if streams else QUANTITIES,
    )
    trip = fedavg(model, train).round[0]._replace(send=send, receive=receive)
    look = ask_gradient(model, batches, batch_rows, send_start, place)
    rule = Newcomer("mixes the clients' models by a row from one gradient", rounds=1, round=(look,))
    return (
        Stage("similarity", similarity, rounds=1, everyone=True),
        Stage("train", similarity._replace(round=(trip,), newcomer=rule, remark=None)),
    )


def _check_batches(batches: float, batch_rows: int) -> None:
    """Refuse a K whose batch holds all rows, and rows per batch beside a K."""
    if 0 < batches <= 1:
        raise BadInput(
            f"ucfl.batches = {batches:g}: give a number above 1, or 0 for one by the client's rows"
        )
    if batches and batch_rows != BATCH_ROWS:
        raise BadInput(
            f"ucfl.batch_rows = {batch_rows} chooses K by a client's rows, and ucfl.batches = "
            f"{batches:g} gives it: leave out one"
        )
