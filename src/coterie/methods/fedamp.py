"""FedAMP and HeurFedAMP. Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated
Learning on Non-IID Data. AAAI 2021, Algorithm 1. arXiv:2007.03797.

    min sum_i f_i(w_i) + lam sum_{i<j} A(|w_i - w_j|^2),  A(x) = 1 - exp(-x / sigma)

The server passes messages, a client answers:
    xi_ij = alpha_k A'(|w_i - w_j|^2) for j != i,  xi_ii = 1 - sum_{j != i} xi_ij,
    u_i = sum_j xi_ij w_j,
    w_i <- argmin_w f_i(w) + lam / (2 alpha_k) |w - u_i|^2
by SGD from the client's own w_i.
HeurFedAMP, for deep networks: xi_ii fixed,
    xi_ij = (1 - xi_ii) exp(sigma cos(w_i, w_j)) / sum_{h != i} exp(sigma cos(w_i, w_h)).

Interpretations: alpha_k is lowered, where it must be, to the largest that leaves every xi_ii >= 0.
The proximal term takes its step implicitly, w <- (w + eta p u_i) / (1 + eta p) with p = lam /
alpha_k: the same minimum, and no p can make it diverge. With `peers` xi_ij is 0 but for the m
clients of the nearest models (HeurFedAMP: of the largest cosines), for servers that cannot keep N x
N numbers.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Batch, Exchange, Facts, Method, Newcomer, Pass, Replies, Train
from coterie.core.model import Descent, Model, begin, descend
from coterie.core.options import (
    BelowOne,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveShare,
    Range,
)
from coterie.core.point import Point
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.core.rng import Rng
from coterie.methods.bounds import Room, check_room
from coterie.methods.declare import method
from coterie.methods.last_models import LastModels, start_models
from coterie.methods.mixing import Mixing, join_own, keep_rest, start_own
from coterie.methods.peers import Likeness, compare_cosines, compare_distances

# (models, peers, alpha) -> xi, alpha_k
Attend = Callable[[LastModels, int, float], tuple[Mixing, float]]
Decay = Callable[[int], float]  # k -> alpha_k
WAY = "give --peers 50 to hear the 50 nearest, or fewer clients"
NOTES = {
    "xi": LoggedQuantity("attention weights xi", QuantityKind.MATRIX),
    "u_i": LoggedQuantity("the mixture that the server sends a client", QuantityKind.VIEW),
}


class FedAMPServer(NamedTuple):
    """The last known models of all clients, and what is passed on."""

    last: LastModels
    xi: Mixing  # rows sum to 1
    u: Any  # [N, ...]; (): mixed when it is sent
    pull: Tensor  # lam / alpha_k
    round: Tensor  # k


class FedAMPPayload(NamedTuple):
    """What goes down."""

    u: Point
    pull: Tensor


class Carry(NamedTuple):
    go: Descent
    u: Point
    pull: Tensor


def attend_near(near: Likeness, alpha: float, sigma: float) -> tuple[Mixing, float]:
    """FedAMP's xi by squared distances, and the alpha_k it was found with."""
    gradient = torch.where(near.there, torch.exp(-near.values / sigma) / sigma, 0.0)  # A'
    most = float(gradient.sum(1).max())
    alpha = min(alpha, 1 / most) if most else alpha
    return keep_rest(near, gradient, alpha), alpha


def attend_alike(near: Likeness, own: float, sigma: float) -> Mixing:
    """HeurFedAMP's xi by cosines; 0 for `own` is 1/N."""
    own = own or 1 / len(near.values)
    share = torch.softmax(torch.where(near.there, sigma * near.values, -torch.inf), dim=1)
    alone = ~near.there.any(1, keepdim=True) | share.isnan().any(1, keepdim=True)
    others = torch.where(alone, 0.0, (1 - own) * share)
    return join_own(near, others, torch.where(alone, 1.0, own))


def pass_messages(
    model: Model, train: Train, name: str, attend: Attend, lam: float, alpha: Decay, peers: int
) -> Method:
    """Message passing with the weights that `attend` finds."""

    def init(rng: Rng, facts: Facts) -> FedAMPServer:
        n, size = facts.clients, model.size
        room = Room(pair=56, entry=60, client=36 * size, client_of_few=16 * size)
        check_room(name, n, peers, room, WAY)
        last, xi, pull = start_models(model.init(rng), n), start_own(n, peers), lam / alpha(0)
        return FedAMPServer(
            last, xi, xi.mix_early(last.models), torch.tensor(pull), torch.tensor(0)
        )

    def mix(server: FedAMPServer, last: LastModels) -> FedAMPServer:
        xi, used = attend(last, server.xi.limit(peers), alpha(int(server.round)))
        xi = xi._replace(weights=xi.weights.to(server.xi.weights))
        u = xi.mix_early(last.models)
        return server._replace(last=last, xi=xi, u=u, pull=torch.tensor(lam / used))

    def receive(server: FedAMPServer, replies: Replies, rng: Rng) -> FedAMPServer:
        last = server.last.remember(replies.ids, replies.upload)
        return mix(server._replace(round=server.round + 1), last)

    def send(server: FedAMPServer, i: int, rng: Rng) -> FedAMPPayload:
        return FedAMPPayload(server.xi.mix(server.last.models, i, server.u), server.pull)

    def step(c: Carry, batch: Batch) -> Carry:
        go = descend(c.go, model.grad(c.go.w, batch), train, batch)
        near = train.rate_at(batch) * c.pull
        return c._replace(go=go._replace(w=go.w + (near / (1 + near)) * (c.u - go.w)))

    trip = Exchange(
        send=send,
        start=lambda w, message: Carry(begin(w, train), *message),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, w, message: (c.go.w, c.go.w),
        receive=receive,
    )
    return Method(
        init=init,
        join=lambda message, rng: message.u,
        round=(trip,),
        personal=lambda w, message: w,
        views={"u_i": lambda w, message: message.u},
        admit=lambda server: mix(server, server.last.admit()),
        newcomer=Newcomer("trains, regularized towards the mixture that it is sent"),
        notes=lambda server: server.xi.describe("xi"),
        describes=NOTES,
    )


@method(when="few clients, some of which resemble each other", without=("weighting",))
def fedamp(
    model: Model,
    train: Train,
    lam: NonNegative = 0.1,
    alpha: Positive = 1.0,
    sigma: Annotated[float, Range(0, 1e12, low_open=True)] = 5.0,
    alpha_decay: PositiveShare = 1.0,
    peers: NonNegativeInt = 0,
) -> Method:
    """Clients whose models are near exchange more.

    lam: strength of the attraction between models.
    alpha: step size of the messages in the first round.
    sigma: up to which squared distance of models, which grows with the network, they attract each
        other.
    alpha_decay: factor of alpha per round.
    peers: how many others a client hears, those of the nearest models; 0: all.
    """

    def attend(last: LastModels, count: int, a: float) -> tuple[Mixing, float]:
        return attend_near(compare_distances(*last, count), a, sigma)

    return pass_messages(
        model, train, "fedamp", attend, lam, lambda k: alpha * alpha_decay**k, peers
    )


@method(when="as fedamp, for large networks", without=("weighting",))
def heurfedamp(
    model: Model,
    train: Train,
    lam: NonNegative = 0.1,
    alpha: Positive = 1.0,
    sigma: NonNegative = 25.0,
    own: BelowOne = 0.0,
    alpha_decay: PositiveShare = 1.0,
    peers: NonNegativeInt = 0,
) -> Method:
    """FedAMP by cosines of models.

    lam: strength of the attraction between models.
    alpha: step size of the messages in the first round.
    sigma: how strongly similarity (cosine) counts.
    own: xi_ii, the share of a client's own model; 0: 1/N.
    alpha_decay: factor of alpha per round.
    peers: how many others a client hears, those of the largest cosines; 0: all.
    """

    def attend(last: LastModels, count: int, a: float) -> tuple[Mixing, float]:
        return attend_alike(compare_cosines(*last, count), own, sigma), a

    return pass_messages(
        model, train, "heurfedamp", attend, lam, lambda k: alpha * alpha_decay**k, peers
    )
