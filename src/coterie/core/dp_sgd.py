"""DP-SGD. Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential
Privacy. CCS 2016, Algorithm 1.

The gradient of every row is clipped to the length `clip`, and Gaussian noise of deviation noise
clip is added to their sum:

    g = (sum_j g_j min(1, clip / |g_j|) + noise clip N(0, I)) / B.

Noise is a function of the batch's key, as all draws of a run are: who knows the seed can take it
off again, so it measures what privacy costs, and protects nobody whose seed is known.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from coterie.core.device import to_double
from coterie.core.draws import uniform
from coterie.core.errors import BadInput
from coterie.core.method import Batch
from coterie.core.model import Loss, Model
from coterie.core.point import Point, Vector

SALT = 7_919  # tells draws of noise from those of dropout


def normal(shape: tuple[int, ...], key: Tensor) -> Tensor:
    """Normal numbers that depend on the key and their place only (Box and Muller)."""
    fine = to_double(uniform(shape, key * 4 + 2)) / 2**24  # 48 bits, for the tails
    radius = (-2 * torch.log1p(-(to_double(uniform(shape, key * 4)) + fine))).sqrt()
    angle = 2 * math.pi * to_double(uniform(shape, key * 4 + 1))
    return (radius * angle.cos()).to(key.device, torch.get_default_dtype())


class PrivateModel(Model):
    """A network whose gradients are clipped row by row and noised; all else is as before."""

    def __init__(self, model: Model, clip: float, noise: float):
        vars(self).update(vars(model))
        if self.init_has_buffers():
            raise BadInput(
                f"dp = example with {model.name}: running statistics of its normalization layers "
                "are made of rows without noise; give a network without BatchNorm"
            )
        if self.goal.is_coupled:
            raise BadInput(
                f"dp = example clips the gradient of each row, but a row's loss in the task "
                f"'{self.task}' depends on the rows beside it: use dp = client"
            )
        self.clip, self.noise = clip, noise
        self._last: Tensor | None = None  # the key of the batch that was seen last
        self._turn = 0  # gradients taken of that batch

    def init_has_buffers(self) -> bool:
        """Whether the network keeps anything but parameters."""
        return bool(self.start(0).buffers)

    def grad_and_loss(
        self, point: Point, batch: Batch, loss: Loss | None = None
    ) -> tuple[Vector, Tensor]:
        """The clipped and noised gradient, and the plain value of the loss."""
        self._turn = self._turn + 1 if batch.key is self._last else 0
        self._last = batch.key
        key = (batch.key * 1_000_003 + SALT) * 64 + self._turn
        objective = loss or self.data_loss

        def value(params: dict[str, Tensor], row: Batch) -> Tensor:
            logits, _ = self.forward(Point(params, {}), row)
            return objective(logits, row)

        def of_row(row: Batch) -> tuple[dict[str, Tensor], Tensor]:
            row = Batch(row.x[None], row.y[None], row.mask[None], row.place[None], row.key)
            gradient, found = grad_and_value(value)(point.params, row)
            length = sum(g.square().sum() for g in gradient.values()) ** 0.5
            factor = row.mask[0] * (self.clip / length.clamp(min=1e-30)).clamp(max=1)
            return {k: factor * g for k, g in gradient.items()}, row.mask[0] * found

        count = len(batch.mask)
        keys = batch.key * count + torch.arange(count)  # every row has a dropout of its own
        gradients, values = vmap(of_row)(batch._replace(key=keys, pace=()))
        rows = batch.mask.sum().clamp(min=1)
        deviation = self.noise * self.clip
        noised = {
            k: (g.sum(0) + deviation * normal(tuple(g.shape[1:]), key + 1_000_000_007 * place))
            / rows
            for place, (k, g) in enumerate(gradients.items())
        }
        return Vector(noised), values.sum() / rows
