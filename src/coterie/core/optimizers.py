"""Optimizers as pure functions: what a step makes of a gradient and of the optimizer's state.

An optimizer is named in `[train]`, with options of its own after a colon, as in
`optimizer = "adam:beta1=0.8"`. Its steps are those of torch.optim. Its state is a tuple of vectors
with an entry for every parameter, so that a method which moves some layers only keeps the state of
the others as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.core.options import BelowOne, Positive, read_spec
from coterie.core.point import Point, Vector, zeros

OptimizerState = tuple[Vector, ...]
CLIP_ROOM = 1e-6  # added to the length of a gradient, as torch does


class Optimizer(NamedTuple):
    """How a gradient becomes a move, of which a point takes the learning rate's share."""

    begin: Callable[[Point], OptimizerState]
    # (gradient, state) -> (move, state)
    step: Callable[[Vector, OptimizerState], tuple[Vector, OptimizerState]]
    decoupled: bool = False  # weight decay is added to the move, not to the gradient
    momentum: bool = False  # whether it has use for `momentum`
    nesterov: bool = False  # and for `nesterov`


def sgd(train: Train) -> Optimizer:
    """Gradient descent, with momentum (u <- mu u + g) and Nesterov's g + mu u."""
    mu = train.momentum

    def step(g: Vector, state: OptimizerState) -> tuple[Vector, OptimizerState]:
        if not mu:
            return g, ()
        u = mu * state[0] + g
        return (g + mu * u.stale() if train.nesterov else u), (u.stale(),)

    return Optimizer(lambda w: (zeros(w),) if mu else (), step, momentum=True, nesterov=True)


def adam(
    train: Train, beta1: BelowOne = 0.9, beta2: BelowOne = 0.999, eps: Positive = 1e-8
) -> Optimizer:
    """Adam (Kingma, Ba: ICLR 2015, Algorithm 1); weight decay is part of the gradient."""

    def begin(w: Point) -> OptimizerState:
        count = Vector({k: a.new_zeros(()) for k, a in w.params.items()})
        return zeros(w), zeros(w), count

    def step(g: Vector, state: OptimizerState) -> tuple[Vector, OptimizerState]:
        m, v, t = state
        t = _map(lambda n: n + 1, t)
        m = beta1 * m + (1 - beta1) * g.stale()
        v = beta2 * v + (1 - beta2) * _map(torch.square, g).stale()

        def move(m: Tensor, v: Tensor, t: Tensor) -> Tensor:
            return (m / _correct_bias(beta1, t)) / ((v / _correct_bias(beta2, t)).sqrt() + eps)

        return Vector(_map(move, m, v, t).params, g.fresh), (m, v, t)

    return Optimizer(begin, step)


def adamw(
    train: Train, beta1: BelowOne = 0.9, beta2: BelowOne = 0.999, eps: Positive = 1e-8
) -> Optimizer:
    """Adam whose weight decay is no part of the gradient (Loshchilov, Hutter: ICLR 2019)."""
    return adam(train, beta1, beta2, eps)._replace(decoupled=True)


def rmsprop(train: Train, alpha: BelowOne = 0.99, eps: Positive = 1e-8) -> Optimizer:
    """Gradients over the root of the mean of their squares, which fade by `alpha`; then momentum
    (Hinton's lecture, as torch has it).
    """
    mu = train.momentum

    def step(g: Vector, state: OptimizerState) -> tuple[Vector, OptimizerState]:
        v = alpha * state[0] + (1 - alpha) * _map(torch.square, g).stale()
        move = _map(lambda g, v: g / (v.sqrt() + eps), g, v)
        if not mu:
            return move, (v,)
        u = mu * state[1] + move
        return u, (v, u.stale())

    return Optimizer(lambda w: (zeros(w),) * (2 if mu else 1), step, momentum=True)


def adagrad(train: Train, eps: Positive = 1e-10) -> Optimizer:
    """Gradients over the root of the sum of their squares (Duchi, Hazan, Singer: JMLR 2011)."""

    def step(g: Vector, state: OptimizerState) -> tuple[Vector, OptimizerState]:
        v = state[0] + _map(torch.square, g).stale()
        return _map(lambda g, v: g / (v.sqrt() + eps), g, v), (v,)

    return Optimizer(lambda w: (zeros(w),), step)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": adamw,
    "rmsprop": rmsprop,
    "adagrad": adagrad,
}


@lru_cache(maxsize=64)
def optimizer_of(train: Train) -> Optimizer:
    """The optimizer that `[train]` names; what it has no use for is refused."""
    name, options = read_spec(train.optimizer, OPTIMIZERS, "optimizer")
    made = OPTIMIZERS[name](train, **options)
    if train.momentum and not made.momentum:
        raise BadInput(
            f"momentum = {train.momentum:g}, but {name} has no use for it: leave out --momentum, "
            "or use sgd or rmsprop"
        )
    if train.nesterov and not (made.nesterov and train.momentum):
        raise BadInput(
            f"nesterov = yes changes how sgd uses its momentum, but optimizer = {name} and "
            f"momentum = {train.momentum:g}: leave out --nesterov, or give sgd a --momentum"
        )
    return made


def clip(g: Vector, length: float) -> Vector:
    """A gradient of at most this Euclidean length over all parameters."""
    return (length / (g.squared().sqrt() + CLIP_ROOM)).clamp(max=1) * g


def _map(f: Callable[..., Tensor], first: Vector, *rest: Vector) -> Vector:
    """Apply `f` to matching entries of vectors; buffers are those of the first."""
    return Vector(
        {k: f(a, *(v.params[k] for v in rest)) for k, a in first.params.items()}, first.fresh
    )


def _correct_bias(beta: float, t: Tensor) -> Tensor | float:
    """1 - beta^t, without the cancellation that it has in single precision."""
    return -torch.expm1(t * math.log(beta)) if beta else 1.0
