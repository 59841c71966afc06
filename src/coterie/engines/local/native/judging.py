"""Evaluation in machine code: what is said of every row under the models of many clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.method import Batch
from coterie.core.point import Point
from coterie.engines.local.native.compiler import read_header
from coterie.engines.local.native.make import make_native

# of each row of a batch: two numbers [B] and outputs [B, ...]
JudgeRows = Callable[[Point, Batch], tuple[Tensor, Tensor, Tensor]]


class NativeJudge:
    """A function of a model and a batch as machine code, for batches of `size` rows.

    Untraceable where there is no C for it; `point` is a model of one client.
    """

    def __init__(self, judge: JudgeRows, point: Point, x: Tensor, y: Tensor, size: int):
        leaves, spec = pytree.tree_flatten(point)
        n, real = len(leaves), torch.get_default_dtype()
        rows = torch.arange(size) % len(x)
        batch = Batch(x[rows], y[rows], torch.ones(size, dtype=real), rows, torch.tensor(0))

        def step(*tensors: Tensor) -> list[Tensor]:
            same = list(tensors[:n])
            return [*same, *judge(pytree.tree_unflatten(same, spec), Batch(*tensors[n + 3 :]))]

        new = [torch.zeros_like(found) for found in judge(point, batch)]
        header = "\n" + read_header("judge.h")
        self._step = make_native(step, [*leaves, *new], batch, x, size, header)
        self._shape, self._form = new[2].shape[1:], (size, new[2][0].numel())

    def run(
        self, points: Point, counts: np.ndarray, rows: Tensor, x: Tensor, y: Tensor
    ) -> list[np.ndarray]:
        """The two numbers of each of `rows`, one client after another; the clients whose models
        [clients, ...] these are have so many rows each.
        """
        return [values.numpy() for values in self._judge(points, counts, rows, x, y, None)]

    def outputs(
        self, points: Point, counts: np.ndarray, rows: Tensor, x: Tensor, y: Tensor
    ) -> Tensor:
        """The outputs of each of these rows."""
        found = torch.empty(len(rows), *self._shape, dtype=self._step.real)
        self._judge(points, counts, rows, x, y, found)
        return found

    def _judge(
        self,
        points: Point,
        counts: np.ndarray,
        rows: Tensor,
        x: Tensor,
        y: Tensor,
        outputs: Tensor | None,
    ) -> list[Tensor]:
        leaves = [leaf.contiguous() for leaf in pytree.tree_leaves(points)]
        return self._step.judge(leaves, torch.as_tensor(counts), rows, x, y, self._form, outputs)
