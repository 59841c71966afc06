"""What this machine can do at most, and what a step needs at least."""

import os
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

SIDE = 1536  # of the matrices that are multiplied
COPIED = 2**26  # floats: no cache holds them
TRIES = 5


class Machine(NamedTuple):
    """The best that was seen, with all threads."""

    flops: float  # per second, of a product of large matrices
    bytes: float  # per second, read and written by a large copy

    def seconds(self, need: "Need") -> float:
        """The least time for what is needed."""
        return max(need.flops / self.flops, need.bytes / self.bytes)


class Need(NamedTuple):
    """What one step of one client takes, however it is done."""

    flops: float
    bytes: float


def machine() -> Machine:
    """Measure a large matrix product and a large copy."""
    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    out = torch.empty_like(a)
    multiplied = _best(lambda: torch.mm(a, b, out=out))
    source, target = torch.rand(COPIED), torch.empty(COPIED)
    copied = _best(lambda: target.copy_(source))
    torch.set_num_threads(before)
    return Machine(2 * SIDE**3 / multiplied, 2 * 4 * COPIED / copied)


def _best(work: Callable[[], object]) -> float:
    """The fewest seconds of several tries."""
    times = []
    for _ in range(TRIES):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def need(net: nn.Module, shape: tuple[int, ...], batch: int, gradients: int = 1) -> Need:
    """The operations of so many gradients of a batch, and the bytes that must move once: every
    parameter read and written, every row read.
    """
    x, y = torch.rand(batch, *shape), torch.zeros(batch, dtype=torch.int64)
    counter = FlopCounterMode(display=False)
    with counter:
        F.cross_entropy(net(x), y).backward()
    parameters = sum(p.numel() for p in net.parameters())
    return Need(gradients * counter.get_total_flops(), 4 * (2 * gradients * parameters + x.numel()))
