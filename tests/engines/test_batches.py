"""Batches are drawn for many clients at once, and are those of every client alone."""

import numpy as np
import pytest

from coterie.core.method import BatchPlan
from coterie.core.rng import stream, streams
from coterie.engines.local.batches import FULL_BATCH, count_steps, draw_batches, padded_batch_size

SIZES = [*range(1, 40), 0, 333]


def alone(plan, n, rows, steps, rng):
    """One client's key and batches, row after row."""
    key, part = int(rng.integers(2**40)), np.arange(n)
    if plan.share < 1:
        part = np.sort(rng.choice(n, max(1, int(n * plan.share)), replace=False))
    batches, size = [], min(plan.batch_size or FULL_BATCH, rows)
    while len(batches) < steps * plan.batches:
        order = rng.permutation(part) if plan.shuffle else part
        batches += [order[k : k + size].tolist() for k in range(0, len(part), size)]
    filled = [b + [-1] * (rows - len(b)) for b in batches[: steps * plan.batches]]
    return key, np.array(filled, int).reshape(steps, plan.batches, rows)


@pytest.mark.parametrize("more", [0, 3])  # rows of padding
@pytest.mark.parametrize("clients", [3, len(SIZES)])  # seeded one by one, and together
@pytest.mark.parametrize(
    "plan",
    [
        BatchPlan(batch_size=7, epochs=3),
        BatchPlan(batch_size=7, steps=9),
        BatchPlan(batch_size=5, epochs=2, batches=3),
        BatchPlan(batch_size=7, epochs=2, shuffle=False),
        BatchPlan(batch_size=4, steps=5, share=0.5),
        BatchPlan(),
    ],
)
def test_clients_draw_together_what_each_draws_alone(plan, clients, more):
    sizes = [n for n in SIZES[:clients] if n or plan.share == 1]
    rows, what = padded_batch_size(plan, max(sizes)) + more, ("batches", "train", 4, "train-0")
    steps = [count_steps(plan, n) for n in sizes]
    chosen = [3 * k for k in range(len(sizes))]
    places, keys = draw_batches(plan, sizes, steps, rows, streams(5, what, chosen))
    for k, (n, count) in enumerate(zip(sizes, steps, strict=True)):
        key, batches = alone(plan, n, rows, count, stream(5, *what, chosen[k]))
        assert keys[k] == key
        assert (places[k, :count] == batches).all()
        assert (places[k, count:] == -1).all()
