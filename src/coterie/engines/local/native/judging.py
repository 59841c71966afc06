"""Evaluation in machine code: two numbers of every row under the models of many clients."""

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

JudgeRows = Callable[[Point, Batch], tuple[Tensor, Tensor]]  # two numbers of each row of a batch


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
            return [*same, *judge(pytree.tree_unflatten(same, spec), Batch(*tensors[n + 2 :]))]

        numbers = [torch.zeros(size, dtype=real) for _ in range(2)]
        header = "\n" + read_header("judge.h")
        self._step = make_native(step, [*leaves, *numbers], batch, x, size, header)
        self._size = size

    def run(
        self, points: Point, counts: np.ndarray, rows: Tensor, x: Tensor, y: Tensor
    ) -> list[np.ndarray]:
        """The two numbers of each of `rows`, one client after another; the clients whose models
        [clients, ...] these are have so many rows each.
        """
        leaves = [leaf.contiguous() for leaf in pytree.tree_leaves(points)]
        found = self._step.judge(leaves, torch.as_tensor(counts), rows, x, y, self._size)
        return [values.numpy() for values in found]
