"""The states of clients, stacked leaf by leaf: a client costs one row of each leaf, and only once
it has joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.memory import check_memory, read_memory_limit
from coterie.core.memory_map import map_tensor, open_scratch_file
from coterie.core.method import Tree

MEMORY_FRACTION = 4  # of the memory, one part in so many: states beyond lie in files


def to_tensors(tree: Tree) -> Tree:
    """The same tree with plain numbers as tensors."""
    return pytree.tree_map(lambda a: a if isinstance(a, Tensor) else torch.as_tensor(a), tree)


class StateStore:
    """Client states of one architecture, in arrays that grow as clients join."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}
        self.leaves: list[Tensor] = []
        self.spec: Any = None
        self.files: dict[int, BinaryIO] = {}  # leaf -> where it lies, if not in memory
        self.changed: set[int] | None = None  # since they were written; None: never were
        self.lent = False  # whether others may hold the leaves, which are then not written over

    def __contains__(self, client: int) -> bool:
        return client in self.slots

    def gather(self, clients: Sequence[int]) -> Tree:
        """States of clients that have joined, stacked."""
        where = torch.tensor([self.slots[i] for i in clients])
        return pytree.tree_unflatten([leaf[where] for leaf in self.leaves], self.spec)

    def lend(self, clients: Sequence[int]) -> Tree:
        """The same to be read only: the leaves themselves, where these are all clients in order."""
        if not self._covers(clients):
            return self.gather(clients)
        self.lent = True
        return pytree.tree_unflatten(self.leaves, self.spec)

    def _covers(self, clients: Sequence[int]) -> bool:
        """Whether the leaves are made of these clients and lie in memory."""
        n = len(self.slots)
        fit = not self.files and len(clients) == n and all(len(leaf) == n for leaf in self.leaves)
        return fit and list(self.slots) == list(clients)

    def scatter(self, clients: Sequence[int], stacked: Tree, own: bool = False) -> None:
        """Store the states of clients, new ones too.

        own: nobody else will write into these tensors, so that they need not be copied.
        """
        leaves, spec = pytree.tree_flatten(stacked)
        if self.spec is None:
            self.spec = spec
            self.leaves = [leaf.new_empty((0, *leaf.shape[1:])) for leaf in leaves]
        elif spec != self.spec:
            raise TypeError(f"a client's state changed its structure from {self.spec} to {spec}")
        for i in clients:
            self.slots.setdefault(i, len(self.slots))
        if self.changed is not None:
            self.changed.update(clients)
        if self._covers(clients) and all(map(_is_alike, leaves, self.leaves)):
            own = own and all(map(_fills_memory, leaves))
            self.leaves = (
                leaves
                if own
                else [leaf.clone(memory_format=torch.contiguous_format) for leaf in leaves]
            )
            self.lent = own
            return
        if self.lent:
            self.leaves, self.lent = [leaf.clone() for leaf in self.leaves], False
        where = torch.tensor([self.slots[i] for i in clients])
        for k, leaf in enumerate(leaves):
            self._grow(k, len(self.slots))
            self.leaves[k][where] = leaf

    def _grow(self, k: int, needed: int) -> None:
        """Make room for so many clients; in a file where memory is better left to others."""
        old = self.leaves[k]
        n = len(old)
        if n >= needed:
            return
        rows = max(needed, min(2 * n, n + max(4096, n // 8)))
        if k in self.files:  # it keeps what it has
            self.leaves[k] = map_tensor(self.files[k], old, rows)
            return
        more = (rows - n) * old.element_size() * old.shape[1:].numel()
        if self.bytes + more <= read_memory_limit() // MEMORY_FRACTION:
            new = old.new_empty((rows, *old.shape[1:]))
        else:
            self.files[k] = open_scratch_file(self)
            new = map_tensor(self.files[k], old, rows)
        new[:n] = old
        self.leaves[k] = new

    @property
    def bytes(self) -> int:
        """What the states take, with room for those who join next."""
        return sum(leaf.nbytes for leaf in self.leaves)

    def everything(self) -> tuple[list[int], Tree]:
        """All clients that have joined, ascending, and their states stacked (None where nobody
        has).
        """
        clients = sorted(self.slots)
        check_memory(
            2 * self.bytes,  # as they stand and as they are written
            f"all states of {len(clients):,} clients at once, as a checkpoint holds them,",
            "use --checkpoint 0, or a smaller network",
        )
        return clients, self.gather(clients) if clients else None

    def changes(self) -> tuple[list[int], Tree]:
        """The clients that changed since they were written, ascending, and their states."""
        clients = sorted(self.changed or ())
        return clients, self.gather(clients) if clients else None

    def convert(self, convert: Any) -> StateStore:
        """The same clients with every state converted."""
        new = StateStore()
        for i in sorted(self.slots):
            state = pytree.tree_map(lambda a: a[0], self.gather([i]))
            new.scatter([i], pytree.tree_map(lambda a: a.unsqueeze(0), to_tensors(convert(state))))
        return new


def _is_alike(new: Tensor, old: Tensor) -> bool:
    """Whether a tensor may take the place of another."""
    return new.shape == old.shape and new.dtype == old.dtype and new.device == old.device


def _fills_memory(leaf: Tensor) -> bool:
    """Whether to keep a tensor costs no more memory than its numbers."""
    return leaf.is_contiguous() and leaf.untyped_storage().nbytes() == leaf.nbytes
