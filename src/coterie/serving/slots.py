"""Personal models in memory: as many as are allowed, the ones used longest ago make room.

Models of one network lie stacked in slots, so that the models of many clients are picked by one
index and run by one call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coterie.core.model import first_output

FIRST = 64  # slots at the start; they double until all that are allowed are there
Load = Callable[[int], dict[str, Tensor]]  # the weights of a client, by its number


class Slots:
    """The models of one network."""

    def __init__(self, network: nn.Module, capacity: int) -> None:
        self.network, self.capacity = network, capacity
        self.hits = self.misses = self.evictions = 0
        self._place: OrderedDict[int, int] = OrderedDict()  # client -> slot, used longest ago first
        self._held: dict[str, Tensor] = {}  # [slots, ...] each
        self._size = 0
        self._stacked = True  # whether the network runs stacked

    def __len__(self) -> int:
        return len(self._place)

    def take(self, clients: Sequence[int], load: Load) -> None:
        """Have models in memory, no more than the capacity; those that are not there are loaded."""
        for client in clients:
            if client in self._place:
                self._place.move_to_end(client)
                self.hits += 1
        for client in clients:
            if client not in self._place:
                tensors = load(client)  # may refuse: nothing has changed yet
                self.misses += 1
                slot = self._free(tensors)
                for name, tensor in tensors.items():
                    self._held[name][slot] = tensor
                self._place[client] = slot

    def places(self, clients: Sequence[int]) -> Tensor:
        """The slots of models that are in memory."""
        return torch.tensor([self._place[client] for client in clients])

    def _free(self, like: dict[str, Tensor]) -> int:
        """A slot for one more model."""
        if len(self._place) < self._size:
            return len(self._place)
        if self._size < self.capacity:
            size = min(self.capacity, max(FIRST, 2 * self._size))
            for name, tensor in like.items():
                larger = torch.zeros(size, *tensor.shape, dtype=tensor.dtype)
                if self._size:
                    larger[: self._size] = self._held[name]
                self._held[name] = larger
            self._size = size
            return len(self._place)
        self.evictions += 1
        return self._place.popitem(last=False)[1]

    def run(self, slots: Tensor, x: Tensor) -> Tensor:
        """The outputs [k, rows, ...] of k models for inputs [k, rows, ...] of each."""
        with torch.no_grad():
            if len(slots) > 1 and self._stacked:
                tensors = {name: held[slots] for name, held in self._held.items()}
                try:
                    return vmap(self._outputs)(tensors, x)
                except RuntimeError:  # a layer that torch cannot stack
                    self._stacked = False
            return torch.stack([self._one(int(s), rows) for s, rows in zip(slots, x, strict=True)])

    def _one(self, slot: int, x: Tensor) -> Tensor:
        return self._outputs({name: held[slot] for name, held in self._held.items()}, x)

    def _outputs(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        return first_output(functional_call(self.network, tensors, (x,)))
