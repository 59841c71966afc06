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
        self, points: Point, counts: np.ndarray, rows: Tensor, x: Tensor, y: Tensor, keep: bool
    ) -> tuple[list[np.ndarray], Tensor]:
        """The two numbers of each of `rows`, one client after another, and its outputs if they are
        to be kept; the clients whose models [clients, ...] these are have so many rows each.
        """
        leaves = [leaf.contiguous() for leaf in pytree.tree_leaves(points)]
        outputs = torch.empty(len(rows) if keep else 0, *self._shape, dtype=self._step.real)
        given = outputs if keep else None
        counted = torch.as_tensor(counts)
        values = self._step.judge(leaves, counted, rows, x, y, self._form, given)
        return [each.numpy() for each in values], outputs
