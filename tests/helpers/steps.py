"""Steps of functions in machine code."""

import torch

from coterie.core.method import Batch
from coterie.engines.local.native.make import make_native


class Rows:
    """As many rows for each of some clients as machine code needs to run a step on them."""

    def __init__(self, clients: int, steps: int):
        self.x, self.y = torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)
        self.each = [steps] * clients
        self.first = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
        self.places = torch.zeros(clients, steps, 1, 1, dtype=torch.int64)
        self.keys = torch.arange(clients)
        self.part = type("Part", (), {"rows": torch.zeros(0, dtype=torch.int64), "largest": 1})
        self.plan = type("Plan", (), {"draw": 0})
        self.pace = self.moves = self.border = None


def make(f, rows, *leaves):
    """The machine code of a function of leaves, for one client."""
    batch = Batch(rows.x, rows.y[:1], torch.ones(1), rows.y[:1], torch.tensor(0))

    def step(*given):
        return list(f(*given[: len(leaves)]))

    return make_native(step, list(leaves), batch, rows.x, outside=1)


def taken(f, *leaves, steps=1):
    """What some steps of a function leave in copies of leaves, for one client."""
    rows = Rows(1, steps)
    made = make(f, rows, *leaves)
    held = [t.clone().unsqueeze(0) for t in leaves]
    made.run(held, rows, steps, 1)
    return [t[0] for t in held]


def stepped(forward):
    """A step of gradient descent on x, weights and bias."""

    def step(*leaves):
        with torch.enable_grad():
            wet = [t.detach().requires_grad_() for t in leaves]
            gradients = torch.autograd.grad(forward(*wet), wet)
        return [t - 0.1 * g for t, g in zip(leaves, gradients, strict=True)]

    return step
