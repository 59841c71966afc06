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

INITIAL_SLOTS = 64  # slots at the start; they double until all that are allowed are there
LoadWeights = Callable[[int], dict[str, Tensor]]  # the weights of a client, by its number


class ModelCache:
    """The models of one network."""

    def __init__(self, network: nn.Module, capacity: int) -> None:
        self.network, self.capacity = network, capacity
        self.hits = self.misses = self.evictions = 0
        self._slot_of: OrderedDict[int, int] = (
            OrderedDict()
        )  # client -> slot, used longest ago first
        self._tensors: dict[str, Tensor] = {}  # [slots, ...] each
        self._size = 0
        self._stacked = True  # whether the network runs stacked

    def __len__(self) -> int:
        return len(self._slot_of)

    def take(self, clients: Sequence[int], load: LoadWeights) -> None:
        """Have models in memory, no more than the capacity; those that are not there are loaded."""
        for client in clients:
            if client in self._slot_of:
                self._slot_of.move_to_end(client)
                self.hits += 1
        for client in clients:
            if client not in self._slot_of:
                tensors = load(client)  # may refuse: nothing has changed yet
                self.misses += 1
                slot = self._free_slot(tensors)
                for name, tensor in tensors.items():
                    self._tensors[name][slot] = tensor
                self._slot_of[client] = slot

    def places(self, clients: Sequence[int]) -> Tensor:
        """The slots of models that are in memory."""
        return torch.tensor([self._slot_of[client] for client in clients])

    def pick(self, slots: Tensor) -> dict[str, Tensor]:
        """The tensors of models that are in memory, stacked in the order of the slots."""
        return {name: held[slots] for name, held in self._tensors.items()}

    def _free_slot(self, like: dict[str, Tensor]) -> int:
        """A slot for one more model."""
        if len(self._slot_of) < self._size:
            return len(self._slot_of)
        if self._size < self.capacity:
            size = min(self.capacity, max(INITIAL_SLOTS, 2 * self._size))
            for name, tensor in like.items():
                larger = torch.zeros(size, *tensor.shape, dtype=tensor.dtype)
                if self._size:
                    larger[: self._size] = self._tensors[name]
                self._tensors[name] = larger
            self._size = size
            return len(self._slot_of)
        self.evictions += 1
        return self._slot_of.popitem(last=False)[1]

    def run(self, slots: Tensor, x: Tensor) -> Tensor:
        """The outputs [k, rows, ...] of k models for inputs [k, rows, ...] of each."""
        with torch.no_grad():
            if len(slots) > 1 and self._stacked:
                try:
                    return vmap(self._outputs)(self.pick(slots), x)
                except RuntimeError:  # a layer that torch cannot stack
                    self._stacked = False
            return torch.stack(
                [self._run_one(int(s), rows) for s, rows in zip(slots, x, strict=True)]
            )

    def _run_one(self, slot: int, x: Tensor) -> Tensor:
        return self._outputs({name: held[slot] for name, held in self._tensors.items()}, x)

    def _outputs(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        return first_output(functional_call(self.network, tensors, (x,)))
