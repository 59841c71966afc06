"""Mini-batch plans: which rows each client takes in each step, drawn before the steps run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.core.method import Plan

FULL = 1024  # rows a step when a plan asks for whole parts


class Draw(NamedTuple):
    """A client's batches: positions in its part, -1 for padding."""

    places: np.ndarray  # [steps, batches, B]
    key: int  # seeds dropout


def batch_rows(plan: Plan, largest: int) -> int:
    """Rows a batch is padded to, the same for all clients: no more than the largest part has."""
    return max(1, min(plan.batch or FULL, largest))


def count_steps(plan: Plan, n: int) -> int:
    """Steps a client with n rows takes."""
    if n == 0:
        return 0
    if plan.steps:
        return plan.steps
    n = max(1, int(n * plan.share))
    return -(-plan.epochs * -(-n // (plan.batch or FULL)) // plan.batches)


def draw(plan: Plan, n: int, rows: int, rng: np.random.Generator, steps: int | None = None) -> Draw:
    """Batches of at most `plan.batch` rows, padded to `rows`; every epoch is reshuffled, its last batch may be short."""
    key = int(rng.integers(2**40))
    steps = count_steps(plan, n) if steps is None else steps
    part = np.arange(n)
    if plan.share < 1.0:
        part = np.sort(rng.choice(n, max(1, int(n * plan.share)), replace=False))
    size = min(plan.batch or FULL, rows)
    per_epoch = -(-len(part) // size) if len(part) else 1
    needed = steps * plan.batches
    out = np.full((max(needed, 1), rows), -1, dtype=np.int64)
    for first in range(0, needed, per_epoch):
        order = rng.permutation(part) if plan.shuffle else part
        epoch = np.full(per_epoch * size, -1, dtype=np.int64)
        epoch[: len(order)] = order
        last = min(first + per_epoch, needed)
        out[first:last, :size] = epoch.reshape(per_epoch, size)[: last - first]
    return Draw(out[:needed].reshape(steps, plan.batches, rows), key)
