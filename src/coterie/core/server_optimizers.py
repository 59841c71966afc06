"""Server optimizers: how a server moves its model along the mean change of its clients' models.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization.
ICLR 2021, Algorithm 2. With Delta the mean of the clients' models less the server's x,
    m <- beta1 m + (1 - beta1) Delta
    v <- v + Delta^2                                   (adagrad)
    v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)     (yogi)
    v <- beta2 v + (1 - beta2) Delta^2                 (adam)
    x <- x + eta m / (sqrt(v) + tau)
from m = 0 and v = tau^2, without a correction of bias; "sgd" is x <- x + eta m with
m <- momentum m + Delta: with a momentum FedAvgM (Hsu, Qi, Brown: 2019), without one and with
eta = 1 FedAvg itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.options import BelowOne, Positive, read_spec
from coterie.core.point import Point, Vector, tree_map, zeros

NONE = "none"


class Moments(NamedTuple):
    """What a server optimizer remembers of one model."""

    m: Vector
    v: Any  # a Vector; () of sgd, which has none


class ServerOptimizer(NamedTuple):
    """How a server's model moves."""

    lr: float  # eta, where none is given
    start: float  # of v; 0: it has none
    update: Callable[[Vector, Moments], Moments]  # (Delta, moments)
    direction: Callable[[Moments], Vector]

    def begin(self, x: Point) -> Moments:
        """The moments of a model that has not moved."""
        v = tree_map(lambda a: torch.full_like(a, self.start), zeros(x)) if self.start else ()
        return Moments(zeros(x), v)

    def move(self, x: Point, mean: Point, old: Moments, lr: float) -> tuple[Point, Moments]:
        """The server's model after a round whose clients' models have this mean; buffers are
        theirs.
        """
        new = self.update(mean - x, old)
        moved = x + (lr or self.lr) * self.direction(new)
        return Point(moved.params, mean.buffers), new


def sgd(momentum: BelowOne = 0.0) -> ServerOptimizer:
    """A step of eta along the changes, those of earlier rounds faded by `momentum`."""
    return ServerOptimizer(
        lr=1.0,
        start=0.0,
        update=lambda delta, old: old._replace(m=momentum * old.m + delta),
        direction=lambda moments: moments.m,
    )


def adam(beta1: BelowOne = 0.9, beta2: BelowOne = 0.99, tau: Positive = 1e-3) -> ServerOptimizer:
    """FedAdam."""
    return _adapt(0.01, beta1, tau, lambda v, square: beta2 * v + (1 - beta2) * square)


def yogi(beta1: BelowOne = 0.9, beta2: BelowOne = 0.99, tau: Positive = 1e-3) -> ServerOptimizer:
    """FedYogi."""
    return _adapt(
        0.01, beta1, tau, lambda v, square: v - (1 - beta2) * square * (v - square).sign()
    )


def adagrad(beta1: BelowOne = 0.0, tau: Positive = 1e-3) -> ServerOptimizer:
    """FedAdagrad; the paper's experiments have beta1 = 0."""
    return _adapt(0.1, beta1, tau, lambda v, square: v + square)


SERVER_OPTIMIZERS: dict[str, Callable[..., ServerOptimizer]] = {
    "sgd": sgd,
    "adam": adam,
    "yogi": yogi,
    "adagrad": adagrad,
}


@lru_cache(maxsize=64)
def server_optimizer_of(spec: str) -> ServerOptimizer | None:
    """The server optimizer that `[train]` names; None where it names none."""
    if spec == NONE:
        return None
    name, options = read_spec(spec, SERVER_OPTIMIZERS, "server_optimizer")
    return SERVER_OPTIMIZERS[name](**options)


def _adapt(
    lr: float, beta1: float, tau: float, follow: Callable[[Tensor, Tensor], Tensor]
) -> ServerOptimizer:
    """A server optimizer that divides by the root of v, which follows the squares of changes."""

    def update(delta: Vector, old: Moments) -> Moments:
        v = {k: follow(a, delta.params[k].square()) for k, a in old.v.params.items()}
        return Moments(beta1 * old.m + (1 - beta1) * delta, Vector(v))

    def direction(now: Moments) -> Vector:
        v = now.v.params
        return Vector({k: m / (v[k].sqrt() + tau) for k, m in now.m.params.items()})

    return ServerOptimizer(lr, tau**2, update, direction)
