"""The gradient of a client's mean loss, and how far those of its batches are from it.

UCFL's (7): sigma_i^2 is the mean of |g_i^(k) - g_i|^2 over K batches of n_i / K rows. Over random
subsets it is (K - 1) v_i / n_i in the mean, v_i being the variance of one row's gradient; so for a
K that depends on the rows, K_i - 1 = n_i / b, random halves measure v_i / n_i.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Batch, BatchPlan, Exchange, Pass
from coterie.core.model import Model
from coterie.core.point import Point, Vector, zeros

HALVES = 8  # random ones that measure v_i / n_i


class Carry(NamedTuple):
    """Sums on the way to a client's gradient and its spread."""

    theta: Point
    g: Vector  # the gradient on all rows
    total: Vector  # the sum over the rows of this pass
    rows: Tensor
    n: Tensor  # all rows
    spread: Tensor  # sum over batches of |g^(k) - g|^2


class Upload(NamedTuple):
    """A client's answer before training."""

    g: Vector
    variance: Tensor  # sigma_i^2


def ask_gradient(model: Model, batches: float, rows: float, send: Any, receive: Any) -> Exchange:
    """The exchange in which clients send their gradient and its spread (7), over K batches; where K
    is 0, over the K_i = 1 + n_i / rows of every client."""

    def start(state: tuple[()], theta: Point) -> Carry:
        none = torch.zeros(())
        return Carry(theta, zeros(theta), zeros(theta), none, none, none)

    def add(c: Carry, batch: Batch) -> Carry:
        return c._replace(
            total=c.total + model.sum_gradient(c.theta, batch), rows=c.rows + batch.mask.sum()
        )

    def average(c: Carry) -> Vector:
        return (1 / c.rows.clamp(min=1)) * c.total

    def close_all(c: Carry, _: None) -> Carry:
        none = torch.zeros_like(c.rows)
        return c._replace(g=average(c), total=zeros(c.total), rows=none, n=c.rows)

    def close_batch(c: Carry, _: None) -> Carry:
        spread = c.spread + (average(c) - c.g).squared()
        return c._replace(spread=spread, total=zeros(c.total), rows=torch.zeros_like(c.rows))

    every = BatchPlan(batch_size=256, shuffle=False)
    count = int(batches) or HALVES
    one = (Pass(add, every._replace(share=1 / (batches or 2))), Pass(close_batch))

    def finish(c: Carry, state: tuple[()], theta: Point) -> tuple[tuple[()], Upload]:
        variance = c.spread / count
        return state, Upload(c.g, variance if batches else variance * c.n / rows)

    return Exchange(
        send=send,
        start=start,
        passes=(Pass(add, every), Pass(close_all), *one * count),
        finish=finish,
        receive=receive,
    )
