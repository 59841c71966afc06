"""Random draws of a training pass: functions of its key, alike under vmap and alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class PassContext:
    """What a training pass knows beside its input: which rows are real, and the key of its random
    draws.
    """

    def __init__(self) -> None:
        self.mask: Tensor | None = None
        self.key: Tensor | None = None
        self._turns: dict[int, int] = {}  # place of a layer -> draws it has made in this pass

    @contextmanager
    def over(self, mask: Tensor, key: Tensor) -> Iterator[None]:
        """Hold for one forward pass."""
        self.mask, self.key, self._turns = mask, key, {}
        try:
            yield
        finally:
            self.mask = self.key = None

    def turn(self, place: int) -> int:
        """How often a layer has drawn in this pass: one that is used twice draws anew."""
        self._turns[place] = self._turns.get(place, -1) + 1
        return self._turns[place]


def uniform(shape: tuple[int, ...], key: Tensor) -> Tensor:
    """Numbers in [0, 1) that depend on the key and their place only, alike under vmap and alone."""
    count = 1
    for length in shape:
        count *= length
    h = (
        torch.arange(count, dtype=torch.int64) + key * 0x2545F491
    )  # products of the index alone overflow once compiled
    for shift, factor in ((32, 0x2C1B3C6D), (29, 0x297A2D39), (31, 0x1B56C4E9)):
        h = (h ^ ((h >> shift) & ((1 << (64 - shift)) - 1))) * factor
    bits = (h >> 20) & 0xFFFFFF
    return (bits.to(torch.get_default_dtype()) / (1 << 24)).reshape(shape)


class KeyedDropout(nn.Module):
    """Dropout whose draw is a function of the step's key."""

    def __init__(self, p: float, place: int, context: PassContext, whole_channels: bool = False):
        super().__init__()
        self.p, self.place, self.whole_channels = p, place, whole_channels
        self._context = [context]  # in a list, so that it is no submodule

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        context = self._context[0]
        assert context.key is not None, "dropout outside a training pass"
        shape = (*x.shape[:2], *(1,) * (x.dim() - 2)) if self.whole_channels else tuple(x.shape)
        place = self.place + 100_003 * context.turn(self.place)
        keep = uniform(shape, context.key * 1_000_003 + place) >= self.p
        return x * keep / (1 - self.p)
