"""FedAMP and HeurFedAMP. Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated
Learning on Non-IID Data. AAAI 2021, Algorithm 1.

min sum_i f_i(w_i) + lam sum_{i<j} A(|w_i - w_j|^2),  A(x) = 1 - exp(-x / sigma). The server passes
messages, a client answers:
    xi_ij = alpha_k A'(|w_i - w_j|^2) for j != i,  xi_ii = 1 - sum_{j != i} xi_ij,
    u_i = sum_j xi_ij w_j,
    w_i <- argmin_w f_i(w) + lam / (2 alpha_k) |w - u_i|^2, by SGD from the client's own w_i.
HeurFedAMP, for deep networks: xi_ii fixed,
    xi_ij = (1 - xi_ii) exp(sigma cos(w_i, w_j)) / sum_{h != i} exp(sigma cos(w_i, w_h)).

Readings: alpha_k is lowered, where it must be, to the largest that leaves every xi_ii >= 0. The
proximal term takes its step implicitly, w <- (w + eta p u_i) / (1 + eta p) with p = lam / alpha_k:
the same minimum, and no p can make it diverge.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from coterie.core.device import exact
from coterie.core.method import Batch, Exchange, Facts, Method, Newcomer, Pass, Replies, Train
from coterie.core.model import Descent, Model, begin, descend
from coterie.core.notes import Kind, Note
from coterie.core.point import Point, flat, mean, pick, tree
from coterie.core.rng import Rng
from coterie.core.values import BelowOne, NonNegative, Positive, PositiveShare, Range
from coterie.methods.declare import method

# (models [N, d], heard [N], alpha) -> xi, alpha_k
Attend = Callable[[Tensor, Tensor, float], tuple[Tensor, float]]


class Server(NamedTuple):
    """The last known models of all clients, and what is passed on."""

    models: Point  # [N, ...]; a client never heard of stands at the mean of the others
    heard: Tensor  # [N]
    xi: Tensor  # [N, N], rows sum to 1
    u: Point  # [N, ...]
    pull: Tensor  # lam / alpha_k
    round: Tensor  # k


class Message(NamedTuple):
    """What goes down."""

    u: Point
    pull: Tensor


class Carry(NamedTuple):
    go: Descent
    u: Point
    pull: Tensor


def copies(w: Point, clients: int) -> Point:
    """One model for each client."""
    return tree(lambda a: a.expand(clients, *a.shape).clone(), w)


def remember(models: Point, heard: Tensor, replies: Replies) -> tuple[Point, Tensor]:
    """The last known models after a round; who was never heard of stands at the mean of those that
    were."""
    heard = heard.index_fill(0, replies.ids, True)
    models = tree(lambda old, new: old.index_copy(0, replies.ids, new), models, replies.upload)
    middle = mean(pick(models, heard), torch.full((int(heard.sum()),), 1 / int(heard.sum())))
    return tree(
        lambda a, m: torch.where(heard.reshape(-1, *(1,) * m.dim()), a, m), models, middle
    ), heard


def others(values: Tensor, heard: Tensor, empty: float) -> Tensor:
    """A matrix [N, N] with `empty` for oneself and for who was never heard of."""
    keep = heard.repeat(len(heard), 1).fill_diagonal_(False)
    return torch.where(keep, values, empty)


def attentive(w: Tensor, heard: Tensor, alpha: float, sigma: float) -> tuple[Tensor, float]:
    """FedAMP's xi, and the alpha_k it was made with."""
    w, heard = exact(w - w.mean(0)), heard.cpu()
    gram = w @ w.T
    squares = gram.diagonal()
    distance = (squares[:, None] + squares - 2 * gram).clamp(min=0)
    slope = others(torch.exp(-distance / sigma) / sigma, heard, 0.0)
    most = float(slope.sum(1).max())
    alpha = min(alpha, 1 / most) if most else alpha
    xi = alpha * slope
    return xi + torch.diag((1 - xi.sum(1)).clamp(min=0)), alpha


def heuristic(w: Tensor, heard: Tensor, own: float, sigma: float) -> Tensor:
    """HeurFedAMP's xi; 0 for `own` is 1/N."""
    unit, heard = normalize(exact(w)), heard.cpu()
    own = own or 1 / len(w)
    share = torch.softmax(others(sigma * (unit @ unit.T), heard, -torch.inf), dim=1)
    itself = torch.eye(len(w), dtype=share.dtype, device=share.device)
    # nan: there is nobody else
    return torch.where(share.isnan().any(1, keepdim=True), itself, own * itself + (1 - own) * share)


def passing(
    model: Model, train: Train, lam: float, alpha: float, alpha_decay: float, attend: Attend
) -> Method:
    """Message passing with the weights that `attend` gives."""

    def init(rng: Rng, facts: Facts) -> Server:
        n = facts.clients
        models = copies(model.init(rng), n)
        nobody = torch.zeros(n, dtype=torch.bool)
        return Server(
            models, nobody, torch.eye(n), models, torch.tensor(lam / alpha), torch.tensor(0)
        )

    def passed(server: Server) -> Server:
        xi, used = attend(
            flat(server.models), server.heard, alpha * alpha_decay ** int(server.round)
        )
        xi = xi.to(server.xi)
        return server._replace(xi=xi, u=mean(server.models, xi), pull=torch.tensor(lam / used))

    def receive(server: Server, replies: Replies, rng: Rng) -> Server:
        models, heard = remember(server.models, server.heard, replies)
        return passed(server._replace(models=models, heard=heard, round=server.round + 1))

    def admit(server: Server) -> Server:
        middle = mean(server.models, torch.full((len(server.heard),), 1 / len(server.heard)))
        models = tree(lambda a, m: torch.cat([a, m[None]]), server.models, middle)
        return passed(
            server._replace(models=models, heard=torch.cat([server.heard, torch.tensor([False])]))
        )

    def step(c: Carry, batch: Batch) -> Carry:
        go = descend(c.go, model.grad(c.go.w, batch), train)
        near = train.rate * c.pull
        return c._replace(go=go._replace(w=go.w + (near / (1 + near)) * (c.u - go.w)))

    return Method(
        init=init,
        join=lambda message, rng: message.u,
        round=(
            Exchange(
                send=lambda server, i, rng: Message(pick(server.u, i), server.pull),
                start=lambda w, message: Carry(begin(w, train), *message),
                passes=(Pass(step, train.plan()),),
                finish=lambda c, w, message: (c.go.w, c.go.w),
                receive=receive,
            ),
        ),
        personal=lambda w, message: w,
        views={"u_i": lambda w, message: message.u},
        admit=admit,
        newcomer=Newcomer("trains, held to the mixture that it is sent"),
        notes=lambda server: {"xi": server.xi},
        describes={
            "xi": Note("attention weights xi", Kind.MATRIX),
            "u_i": Note("the mixture that the server sends a client", Kind.VIEW),
        },
    )


@method(when="few clients, some of which resemble each other", without=("weighting",))
def fedamp(
    model: Model,
    train: Train,
    lam: NonNegative = 0.1,
    alpha: Positive = 1.0,
    sigma: Annotated[float, Range(0, 1e12, low_open=True)] = 5.0,
    alpha_decay: PositiveShare = 1.0,
) -> Method:
    """Clients whose models are near exchange more; alpha_k = alpha * alpha_decay^k.

    sigma is in squared distances of models, which grow with the network.
    """
    return passing(
        model, train, lam, alpha, alpha_decay, lambda w, heard, a: attentive(w, heard, a, sigma)
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
) -> Method:
    """FedAMP by cosines of models; own: xi_ii, 0 for 1/N."""
    return passing(
        model,
        train,
        lam,
        alpha,
        alpha_decay,
        lambda w, heard, a: (heuristic(w, heard, own, sigma), a),
    )
