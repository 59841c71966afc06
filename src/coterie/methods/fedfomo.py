"""FedFomo. Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order
Model Optimization. ICLR 2021, Algorithm 1. arXiv:2012.08565.

A client is offered M models and moves towards those that do better on its validation part than its
own theta_i:
    d_ij = (L_i(theta_i) - L_i(theta_j)) / |theta_j - theta_i|,
    w_ij = max(0, d_ij) / sum_j max(0, d_ij),
    theta_i <- theta_i + sum_j w_ij (theta_j - theta_i)
then local SGD; where no d_ij is positive it keeps theta_i. The server learns whom to offer: P_ij <-
P_ij + d_ij. A client is sent its own last model and those of largest P_ij, each of them with
probability eps replaced by a random one; eps falls round by round. Interpretation: theta_i is the
client's model of the round before (the authors' default). With `peers` a row of P keeps its m
entries furthest from 0, the value of a client that was never tried.
"""

from itertools import islice
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

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
from coterie.core.model import Descent, Model, begin, optimize
from coterie.core.options import MAX_COUNT, NonNegativeInt, Range, Share
from coterie.core.point import Point, mean, pick, tree_map
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.core.rng import Rng
from coterie.methods.bounds import Room, check_room
from coterie.methods.declare import method
from coterie.methods.last_models import LastModels, start_models
from coterie.methods.mixing import Mixing, start_zero

WAY = "give --peers 50 to keep the 50 that matter most, or fewer clients"
NOTES = {
    "P": LoggedQuantity("affinities P", QuantityKind.MATRIX),
    "after_mixing": LoggedQuantity("the mixture, before the client trains it", QuantityKind.VIEW),
}


class FedFomoServer(NamedTuple):
    """The last known models of all clients, and who helped whom."""

    last: LastModels
    affinity: Mixing  # P
    round: Tensor


class Offer(NamedTuple):
    """What goes down; free slots hold the client's own model again."""

    models: Point  # [M, ...], its own first
    ids: Tensor  # [M]


class FedFomoUpload(NamedTuple):
    theta: Point
    ids: Tensor  # [M], whose models were scored
    scores: Tensor  # [M], d_ij with its sign


class FedFomoState(NamedTuple):
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


def score_models(theta: Point, models: Point, gains: Tensor) -> Tensor:
    """d_ij [M] from the gains L_i(theta_i) - L_i(theta_j); 0 for theta_i itself."""
    length = vmap(lambda w: (w - theta).squared())(models).sqrt()
    return torch.where(length > 0, gains / torch.where(length > 0, length, 1.0), 0.0)


def mix_models(theta: Point, models: Point, scores: Tensor) -> Point:
    """theta + sum_j w_j (theta_j - theta) with weights w_j in proportion to the positive scores."""
    good = scores.clamp(min=0)
    total = good.sum()
    weights = torch.where(total > 0, good / torch.where(total > 0, total, 1.0), 0.0)
    stacked = tree_map(lambda a, b: torch.cat([a.unsqueeze(0), b]), theta, models)
    return mean(stacked, torch.cat([(1 - weights.sum()).reshape(1), weights]))


def choose_offers(server: FedFomoServer, i: int, count: int, eps: float, rng: Rng) -> list[int]:
    """Whose models client i is sent: its own, then the best or, by chance, any; its own again where
    there are no more."""
    others = server.affinity.rank(i, server.last.heard, eps, rng)
    ids = [i, *islice(others, count - 1)]
    return ids + [i] * (count - len(ids))


@method(when="clients differ strongly, and downloads are cheap", without=("weighting",))
def fedfomo(
    model: Model,
    train: Train,
    offers: Annotated[int, Range(2, MAX_COUNT)] = 5,
    eps: Share = 0.3,
    eps_step: Share = 0.05,
    peers: NonNegativeInt = 0,
    own: Literal["stays", "competes"] = "stays",
) -> Method:
    """Every client mixes those offered models that help on its validation part.

    offers: M, the models sent to a client, its own among them.
    eps: probability that an offered model is a random one.
    eps_step: how much eps falls per round.
    peers: how many others the server remembers per client, those that helped or harmed most; 0:
        all.
    own: "stays" has theta_i as the client last trained it, which all offers must beat; "competes"
        has it as it was before that training, whose result is one of the offers.
    """
    _, local = optimize(model, train)

    def init(rng: Rng, facts: Facts) -> FedFomoServer:
        n, each = facts.clients, 16 * model.size
        room = Room(pair=10, entry=24, client=each, client_of_few=each)
        check_room("fedfomo", n, peers, room, WAY)
        return FedFomoServer(
            start_models(model.init(rng), n), start_zero(n, peers), torch.tensor(0)
        )

    def send(server: FedFomoServer, i: int, rng: Rng) -> Offer:
        count = min(offers, len(server.last.heard))
        chance = max(0.0, eps - eps_step * int(server.round))
        ids = torch.tensor(choose_offers(server, i, count, chance, rng))
        return Offer(pick(server.last.models, ids), ids)

    def join(offer: Offer, rng: Rng) -> FedFomoState:
        first = pick(offer.models, 0)
        return FedFomoState(first, first)

    def start(state: FedFomoState, offer: Offer) -> Carry:
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
        seen = c.rows + batch.mask.sum()
        return c._replace(own=c.own + mine, losses=c.losses + losses, rows=seen)

    def combine(c: Carry, _: None) -> Carry:
        scores = c.once * score_models(c.go.w, c.models, (c.own - c.losses) / c.rows.clamp(min=1))
        mixed = mix_models(c.go.w, c.models, scores)
        return c._replace(go=c.go._replace(w=mixed), mixed=mixed, scores=scores)

    def receive(server: FedFomoServer, replies: Replies, rng: Rng) -> FedFomoServer:
        theta, ids, scores = replies.upload
        affinity = server.affinity.add(replies.ids, ids, scores)
        return FedFomoServer(server.last.remember(replies.ids, theta), affinity, server.round + 1)

    def admit(server: FedFomoServer) -> FedFomoServer:
        return server._replace(last=server.last.admit(), affinity=server.affinity.admit())

    trip = Exchange(
        send=send,
        start=start,
        passes=(
            Pass(examine, BatchPlan(part="validation", shuffle=False)),
            Pass(combine),
            Pass(lambda c, batch: c._replace(go=local(c.go, batch)), train.plan()),
        ),
        finish=lambda c, _, offer: (
            FedFomoState(c.go.w, c.mixed),
            FedFomoUpload(c.go.w, offer.ids, c.scores),
        ),
        receive=receive,
    )
    return Method(
        init=init,
        join=join,
        round=(trip,),
        personal=lambda state, offer: state.theta,
        views={"after_mixing": lambda state, offer: state.mixed},
        admit=admit,
        newcomer=Newcomer("mixes the models that it is offered by validation loss, and trains"),
        notes=lambda server: server.affinity.describe("P"),
        describes=NOTES,
        needs=frozenset({"validation"}),
    )
