"""FedFomo. Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order
Model Optimization. ICLR 2021, Algorithm 1.

A client is offered M models and moves towards those that do better on its validation part than its
own theta_i:
    d_ij = (L_i(theta_i) - L_i(theta_j)) / |theta_j - theta_i|,
    w_ij = max(0, d_ij) / sum_j max(0, d_ij),
    theta_i <- theta_i + sum_j w_ij (theta_j - theta_i), then local SGD; where no d_ij is positive
    it keeps theta_i.
The server learns whom to offer: P_ij <- P_ij + d_ij. A client is sent its own last model and those
of largest P_ij, each of them with probability eps replaced by a random one; eps falls round by
round. Reading: theta_i is the client's model of the round before (the authors' default). With
`peers` a row of P keeps its m entries furthest from 0, the value of a client that was never tried.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import pad

from coterie.core.device import array
from coterie.core.method import (
    Batch,
    BatchPlan,
    Exchange,
    Facts,
    Method,
    Newcomer,
    Pass,
    Replies,
    Train,
)
from coterie.core.model import Descent, Model, begin, sgd
from coterie.core.notes import Kind, Note
from coterie.core.point import Point, mean, pick, tree
from coterie.core.rng import Rng
from coterie.core.values import MANY, Range, Share, Whole
from coterie.methods.bounds import check_clients
from coterie.methods.declare import method
from coterie.methods.fedamp import copies, remember
from coterie.methods.peers import Rows, few, noted

Own = Literal["stays", "competes"]
SQUARE = 10  # bytes per pair of clients at the peak of a round
FREE = -1  # a place in a sparse row of P that holds nobody


class Server(NamedTuple):
    """The last known models of all clients, and who helped whom."""

    models: Point  # [N, ...]; a client never heard of stands at the mean of the others
    heard: Tensor  # [N]
    affinity: Any  # P [N, N], or Rows of it whose free places have the id FREE
    round: Tensor


class Offer(NamedTuple):
    """What goes down; free slots hold the client's own model again."""

    models: Point  # [M, ...], its own first
    ids: Tensor  # [M]


class Upload(NamedTuple):
    theta: Point
    ids: Tensor  # [M], whose models were scored
    scores: Tensor  # [M], d_ij with its sign


class Client(NamedTuple):
    """A client's state."""

    theta: Point
    mixed: Point  # the same before the round's local training


class Carry(NamedTuple):
    go: Descent
    models: Point  # [M, ...]
    own: Tensor  # sum of the losses of theta_i over the validation rows
    once: Tensor  # [M], 0 where a slot holds the client's own model again
    losses: Tensor  # [M], of the offered models
    rows: Tensor
    mixed: Point
    scores: Tensor  # [M]


def score(theta: Point, models: Point, gains: Tensor) -> Tensor:
    """d_ij [M] from the gains L_i(theta_i) - L_i(theta_j); 0 for theta_i itself."""
    length = vmap(lambda w: (w - theta).squared())(models).sqrt()
    return torch.where(length > 0, gains / torch.where(length > 0, length, 1.0), 0.0)


def mix(theta: Point, models: Point, scores: Tensor) -> Point:
    """theta + sum_j w_j (theta_j - theta) with weights w_j in proportion to the positive scores."""
    good = scores.clamp(min=0)
    total = good.sum()
    weights = torch.where(total > 0, good / torch.where(total > 0, total, 1.0), 0.0)
    stacked = tree(lambda a, b: torch.cat([a.unsqueeze(0), b]), theta, models)
    return mean(stacked, torch.cat([(1 - weights.sum()).reshape(1), weights]))


def offered(server: Server, i: int, count: int, eps: float, rng: np.random.Generator) -> list[int]:
    """Whose models client i is sent: its own, then the best or, by chance, any; its own again where
    there are no more."""
    # so that ties in P fall at random
    heard = rng.permutation(array(server.heard.nonzero().flatten()))
    order = np.argsort(-array(server.affinity[i])[heard], kind="stable")
    known = [int(j) for j in heard[order] if j != i]
    ids = [i]
    while known and len(ids) < count:
        ids.append(known.pop(int(rng.integers(len(known))) if rng.random() < eps else 0))
    return ids + [i] * (count - len(ids))


def offered_few(
    server: Server, i: int, count: int, eps: float, rng: np.random.Generator
) -> list[int]:
    """The same with a row of P of which few entries are kept: 0 are all others."""
    heard = server.heard.nonzero().flatten().numpy()
    known = zip(server.affinity.ids[i].tolist(), server.affinity.weights[i].tolist(), strict=True)
    row = {j: p for j, p in known if j != FREE and server.heard[j]}
    ids, most = [i], min(count, len(heard) + (not server.heard[i]))

    def any_of() -> int:
        return next(j for j in _drawn(heard, rng) if j not in ids)

    while len(ids) < most:
        left = sorted((j for j in row if j not in ids), key=lambda j: -row[j])
        untried = next((j for j in _drawn(heard, rng) if j not in ids and j not in row), None)
        if rng.random() < eps:
            ids.append(any_of())
        elif left and (row[left[0]] > 0 or untried is None):
            ids.append(left[0])
        else:
            ids.append(any_of() if untried is None else untried)
    return ids + [i] * (count - len(ids))


def _drawn(heard: np.ndarray, rng: np.random.Generator) -> Iterator[int]:
    """Clients in a random order: some drawn at once, then all."""
    for size in (min(len(heard), 8), len(heard)):
        yield from rng.choice(heard, size, replace=False).tolist()


def tried(affinity: Rows, of: Tensor, ids: Tensor, scores: Tensor) -> Rows:
    """Rows of P of the clients `of` [a] after scores [a, M] of the clients `ids` [a, M]."""
    kept, p = affinity.ids[of], affinity.weights[of]
    ids = torch.where(ids == of[:, None], FREE, ids)  # oneself is always offered
    hit = (ids[:, :, None] == kept[:, None]) & (ids != FREE)[:, :, None]
    p = p + (hit * scores[:, :, None]).sum(1)
    fresh = ~hit.any(2) & (ids != FREE)
    everyone = torch.cat([kept, torch.where(fresh, ids, FREE)], 1)
    values = torch.cat([p, torch.where(fresh, scores, 0.0)], 1)
    far = torch.where(everyone == FREE, -1.0, values.abs())
    best = far.topk(kept.shape[1]).indices
    return Rows(
        affinity.ids.index_copy(0, of, everyone.gather(1, best)),
        affinity.weights.index_copy(0, of, values.gather(1, best)),
    )


def admit(server: Server) -> Server:
    """Room for one more client, whose model is the mean of the others' until it is heard."""
    n = len(server.heard)
    middle = mean(server.models, torch.full((n,), 1 / n))
    return server._replace(
        models=tree(lambda a, m: torch.cat([a, m[None]]), server.models, middle),
        heard=torch.cat([server.heard, torch.tensor([False])]),
        affinity=_wider(server.affinity),
    )


def _wider(affinity: Any) -> Any:
    if not isinstance(affinity, Rows):
        return pad(affinity, (0, 1, 0, 1))
    return Rows(pad(affinity.ids, (0, 0, 0, 1), value=FREE), pad(affinity.weights, (0, 0, 0, 1)))


def affinities(server: Server) -> dict[str, Tensor]:
    """P for reports."""
    p = server.affinity
    if isinstance(p, Rows):  # a free place counts nothing
        p = noted(p._replace(ids=p.ids.clamp(min=0)))
    return {} if p is None else {"P": p}


def joined(offer: Offer, rng: Rng) -> Client:
    """A client that begins at what it is offered as its own."""
    own = pick(offer.models, 0)
    return Client(own, own)


@method(when="clients differ strongly, and downloads are cheap", without=("weighting",))
def fedfomo(
    model: Model,
    train: Train,
    offers: Annotated[int, Range(2, MANY)] = 5,
    eps: Share = 0.3,
    eps_step: Share = 0.05,
    peers: Whole = 0,
    own: Own = "stays",
) -> Method:
    """Every client mixes those offered models that help on its validation part.

    offers: M, the models sent to a client, its own among them. eps: chance that an offered model is
    a random one, less `eps_step` each round. peers: how many others the server keeps in mind per
    client, those that helped or harmed most; 0: all. own: "stays" has theta_i as the client last
    trained it, which all offers must beat; "competes" has it as it was before that training, whose
    result is one of the offers.
    """
    _, local = sgd(model, train)

    def needed(n: int) -> int:
        return n * (4 * 4 * model.size + (24 * peers if few(peers, n) else SQUARE * n))

    def init(rng: Rng, facts: Facts) -> Server:
        n = facts.clients
        sparse = few(peers, n)
        way = "give --peers 50 to keep the 50 that matter most, or fewer clients"
        check_clients("fedfomo", n, needed, "" if sparse else way)
        rows = Rows(torch.full((n, peers), FREE), torch.zeros(n, peers)) if sparse else None
        return Server(
            copies(model.init(rng), n),
            torch.zeros(n, dtype=torch.bool),
            torch.zeros(n, n) if rows is None else rows,
            torch.tensor(0),
        )

    def send(server: Server, i: int, rng: Rng) -> Offer:
        count = min(offers, len(server.heard))
        choose = offered_few if isinstance(server.affinity, Rows) else offered
        ids = torch.tensor(
            choose(server, i, count, max(0.0, eps - eps_step * int(server.round)), rng)
        )
        return Offer(pick(server.models, ids), ids)

    def start(state: Client, offer: Offer) -> Carry:
        none = torch.zeros(len(offer.ids))
        theta = state.mixed if own == "competes" else state.theta
        first = torch.arange(len(offer.ids)) == 0
        return Carry(
            go=begin(theta, train),
            models=offer.models,
            own=none[0],
            once=(first | (offer.ids != offer.ids[0])).to(none.dtype),
            losses=none,
            rows=none[0],
            mixed=theta,
            scores=none,
        )

    def examine(c: Carry, batch: Batch) -> Carry:
        losses = vmap(lambda w: model.measure(w, batch)[0])(c.models)
        mine = model.measure(c.go.w, batch)[0]
        return c._replace(
            own=c.own + mine, losses=c.losses + losses, rows=c.rows + batch.mask.sum()
        )

    def combine(c: Carry, _: None) -> Carry:
        scores = c.once * score(c.go.w, c.models, (c.own - c.losses) / c.rows.clamp(min=1))
        mixed = mix(c.go.w, c.models, scores)
        return c._replace(go=begin(mixed, train), mixed=mixed, scores=scores)

    def receive(server: Server, replies: Replies, rng: Rng) -> Server:
        _, ids, scores = replies.upload
        if isinstance(server.affinity, Rows):
            affinity = tried(server.affinity, replies.ids, ids, scores)
        else:
            affinity = server.affinity.index_put(
                (replies.ids[:, None], ids), scores, accumulate=True
            )
        kept, heard = remember(
            server.models, server.heard, replies._replace(upload=replies.upload.theta)
        )
        return Server(kept, heard, affinity, server.round + 1)

    return Method(
        init=init,
        join=joined,
        round=(
            Exchange(
                send=send,
                start=start,
                passes=(
                    Pass(examine, BatchPlan(part="validation", shuffle=False)),
                    Pass(combine),
                    Pass(lambda c, batch: c._replace(go=local(c.go, batch)), train.plan()),
                ),
                finish=lambda c, state, offer: (
                    Client(c.go.w, c.mixed),
                    Upload(c.go.w, offer.ids, c.scores),
                ),
                receive=receive,
            ),
        ),
        personal=lambda state, offer: state.theta,
        views={"after_mixing": lambda state, offer: state.mixed},
        admit=admit,
        newcomer=Newcomer("mixes the models that it is offered by validation loss, and trains"),
        notes=affinities,
        describes={
            "P": Note("affinities P", Kind.MATRIX),
            "after_mixing": Note("the mixture, before the client trains it", Kind.VIEW),
        },
        needs=frozenset({"validation"}),
    )
