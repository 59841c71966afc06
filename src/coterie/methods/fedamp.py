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
the same minimum, and no p can make it diverge. With `peers` xi_ij is 0 but for the m clients of the
nearest models (HeurFedAMP: of the largest cosines), for servers that cannot keep N x N numbers.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from coterie.core.device import exact
from coterie.core.method import Batch, Exchange, Facts, Method, Newcomer, Pass, Replies, Train
from coterie.core.model import Descent, Model, begin, descend
from coterie.core.notes import Kind, Note
from coterie.core.point import Point, flat, mean, pick, tree
from coterie.core.rng import Rng
from coterie.core.values import BelowOne, NonNegative, Positive, PositiveShare, Range, Whole
from coterie.methods.bounds import check_clients
from coterie.methods.declare import method
from coterie.methods.peers import Rows, few, mixed, nearest, noted, sketch, squares

SQUARE = 56  # bytes per pair of clients at the peak of finding xi
# (models [N, d], heard [N], alpha) -> xi, alpha_k
Attend = Callable[[Tensor, Tensor, float], tuple[Tensor, float]]
# (models, heard [N], alpha, peers) -> xi, alpha_k
AttendFew = Callable[[Point, Tensor, float, int], tuple[Rows, float]]


class Server(NamedTuple):
    """The last known models of all clients, and what is passed on."""

    models: Point  # [N, ...]; a client never heard of stands at the mean of the others
    heard: Tensor  # [N]
    xi: Any  # [N, N], or Rows over few peers; rows sum to 1
    u: Any  # [N, ...]; (): mixed when it is sent
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


def attentive_few(
    models: Point, heard: Tensor, alpha: float, peers: int, sigma: float
) -> tuple[Rows, float]:
    """FedAMP's xi over oneself and the nearest models, and the alpha_k it was made with."""
    parts = models.params.values()
    ids, there = near(sketch(parts), heard, peers)
    slope = torch.where(there, torch.exp(-squares(parts, ids) / sigma) / sigma, 0.0)
    total = slope.sum(1, keepdim=True)
    most = float(total.max())
    alpha = min(alpha, 1 / most) if most else alpha
    return with_own(ids, alpha * slope, (1 - alpha * total).clamp(min=0)), alpha


def heuristic_few(models: Point, heard: Tensor, peers: int, own: float, sigma: float) -> Rows:
    """HeurFedAMP's xi over oneself and the models of the largest cosines; 0 for `own` is 1/N."""
    parts, own = list(models.params.values()), own or 1 / len(heard)
    square = sum((a.flatten(1).double().square().sum(1) for a in parts), torch.zeros(()))
    length = square.sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    ids, there = near(sketch(parts) / length[:, None].float(), heard, peers)
    apart = square[:, None] + square[ids] - squares(parts, ids)  # 2 <w_i, w_j>
    cosine = apart / (2 * length[:, None] * length[ids])
    share = torch.softmax(torch.where(there, sigma * cosine, -torch.inf), dim=1)
    alone = ~there.any(1, keepdim=True)
    share = torch.where(alone, 0.0, (1 - own) * share)
    return with_own(ids, share, torch.where(alone, 1.0, own))


def near(points: Tensor, heard: Tensor, peers: int) -> tuple[Tensor, Tensor]:
    """The clients [N, m] heard of that are nearest to each, and which entries [N, m] are any."""
    known = heard.nonzero().flatten()
    own = torch.where(heard, heard.cumsum(0) - 1, -1)
    found = nearest(points, points[known], own, peers)
    return known[found.ids], found.there


def with_own(ids: Tensor, weights: Tensor, own: Tensor) -> Rows:
    """Rows with what a client keeps of itself [N, 1] before the others."""
    itself = torch.arange(len(ids))[:, None]
    return Rows(torch.cat([itself, ids], 1), torch.cat([own.to(weights.dtype), weights], 1))


def bytes_of(model: Model, peers: int) -> Callable[[int], int]:
    """Bytes that the server takes at its peak, by the number of clients."""

    def needed(n: int) -> int:
        if few(peers, n):
            return n * (4 * 4 * model.size + 60 * (peers + 1))
        return n * 4 * 9 * model.size + SQUARE * n * n

    return needed


def passing(
    model: Model,
    train: Train,
    lam: float,
    alpha: float,
    alpha_decay: float,
    attend: Attend,
    attend_few: AttendFew,
    peers: int,
    name: str,
) -> Method:
    """Message passing with the weights that `attend` gives, or `attend_few` over few peers."""

    def init(rng: Rng, facts: Facts) -> Server:
        n = facts.clients
        sparse = few(peers, n)
        way = "give --peers 50 to hear the 50 nearest, or fewer clients"
        check_clients(
            name,
            n,
            bytes_of(model, peers),
            "" if sparse else way,
        )
        models = copies(model.init(rng), n)
        return Server(
            models=models,
            heard=torch.zeros(n, dtype=torch.bool),
            xi=Rows(torch.arange(n)[:, None], torch.ones(n, 1)) if sparse else torch.eye(n),
            u=() if sparse else models,
            pull=torch.tensor(lam / alpha),
            round=torch.tensor(0),
        )

    def passed(server: Server) -> Server:
        wanted = alpha * alpha_decay ** int(server.round)
        if isinstance(server.xi, Rows):
            rows, used = attend_few(server.models, server.heard, wanted, peers)
            weights = rows.weights.to(server.xi.weights.dtype)
            return server._replace(xi=Rows(rows.ids, weights), pull=torch.tensor(lam / used))
        xi, used = attend(flat(server.models), server.heard, wanted)
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

    def send(server: Server, i: int, rng: Rng) -> Message:
        if isinstance(server.xi, Rows):
            u = pick(mixed(server.models, pick(server.xi, slice(i, i + 1))), 0)
        else:
            u = pick(server.u, i)
        return Message(u, server.pull)

    def notes(server: Server) -> dict[str, Tensor]:
        xi = noted(server.xi) if isinstance(server.xi, Rows) else server.xi
        return {} if xi is None else {"xi": xi}

    def step(c: Carry, batch: Batch) -> Carry:
        go = descend(c.go, model.grad(c.go.w, batch), train)
        near = train.rate * c.pull
        return c._replace(go=go._replace(w=go.w + (near / (1 + near)) * (c.u - go.w)))

    return Method(
        init=init,
        join=lambda message, rng: message.u,
        round=(
            Exchange(
                send=send,
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
        notes=notes,
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
    peers: Whole = 0,
) -> Method:
    """Clients whose models are near exchange more; alpha_k = alpha * alpha_decay^k.

    sigma is in squared distances of models, which grow with the network. peers: how many others a
    client hears, those of the nearest models; 0: all.
    """
    return passing(
        model=model,
        train=train,
        lam=lam,
        alpha=alpha,
        alpha_decay=alpha_decay,
        attend=lambda w, heard, a: attentive(w, heard, a, sigma),
        attend_few=lambda w, heard, a, m: attentive_few(w, heard, a, m, sigma),
        peers=peers,
        name="fedamp",
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
    peers: Whole = 0,
) -> Method:
    """FedAMP by cosines of models.

    own: xi_ii, 0 for 1/N. peers: how many others a client hears, those of the largest cosines; 0:
    all.
    """
    return passing(
        model=model,
        train=train,
        lam=lam,
        alpha=alpha,
        alpha_decay=alpha_decay,
        attend=lambda w, heard, a: (heuristic(w, heard, own, sigma), a),
        attend_few=lambda w, heard, a, m: (heuristic_few(w, heard, m, own, sigma), a),
        peers=peers,
        name="heurfedamp",
    )
