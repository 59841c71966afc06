"""Trees of many clients: stacked, shared, copied, and cut into chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.method import Tree


def lift(f: Callable[..., Any], width: int, *dims: Tree) -> Callable[..., Any]:
    """`f` over `width` stacked clients, even where every argument is shared by all of them.

    torch's vmap sees plain lists of tensors: it would go through trees once per tensor.
    """

    def over(*arguments: Any) -> Any:
        leaves, spec = pytree.tree_flatten(arguments)
        sides = _dims_per_leaf(dims, arguments)
        stacked = [k for k, side in enumerate(sides) if side is not None]
        after: list[Any] = []

        def one(_: Tensor, *mine: Tensor) -> tuple[Tensor, ...]:
            given = list(leaves)
            for k, leaf in zip(stacked, mine, strict=True):
                given[k] = leaf
            results, structure = pytree.tree_flatten(f(*pytree.tree_unflatten(given, spec)))
            after.append(structure)
            return tuple(results)

        found = torch.func.vmap(one)(torch.zeros(width), *(leaves[k] for k in stacked))
        return pytree.tree_unflatten(list(found), after[0])

    return over


def _dims_per_leaf(dims: tuple[Tree, ...], arguments: tuple[Any, ...]) -> list[int | None]:
    """0 for leaves that are stacked, None for those that are shared."""
    sides: list[int | None] = []
    for dim, argument in zip(dims, arguments, strict=True):
        if dim is None or isinstance(dim, int):
            sides += [dim] * len(pytree.tree_leaves(argument))
        else:
            sides += pytree.tree_leaves(dim)
    return sides


def stack_payloads(payloads: list[Tree]) -> tuple[Tree, Tree]:
    """Payloads stacked leaf by leaf; a leaf that is the same tensor for all stays single (in_dims
    None).
    """
    if all(p is payloads[0] for p in payloads):
        return payloads[0], pytree.tree_map(lambda _: None, payloads[0])
    flat = [pytree.tree_flatten(p) for p in payloads]
    spec = flat[0][1]
    if any(s != spec for _, s in flat):
        raise TypeError("payloads of one exchange must have one structure")
    leaves: list[Tensor] = []
    dims: list[int | None] = []
    for column in zip(*(leaves_ for leaves_, _ in flat), strict=True):
        first = column[0]
        same = all(t.data_ptr() == first.data_ptr() and t.shape == first.shape for t in column)
        leaves.append(first if same else torch.stack(column))
        dims.append(None if same else 0)
    return pytree.tree_unflatten(leaves, spec), pytree.tree_unflatten(dims, spec)


def copy_tree(tree: Tree) -> Tree:
    """The same tree in memory of its own; what was one tensor in several places stays one."""
    seen: dict[Any, Tensor] = {}

    def copy(t: Tensor) -> Tensor:
        key = (t.data_ptr(), t.shape, t.stride(), t.dtype)
        if key not in seen:
            seen[key] = t.clone()
        return seen[key]

    return pytree.tree_map(copy, tree)


def to_channels_last(tree: Tree) -> Tree:
    """Images and convolutions in the memory order that this kind of processor likes."""

    def turned(t: Tensor) -> Tensor:
        # `contiguous` leaves one channel as it is, and torch takes the order from these strides
        return t.to(memory_format=torch.channels_last) if t.dim() == 4 else t

    return pytree.tree_map(turned, tree)


def split_chunks(clients: list[int], width: int) -> Iterator[list[int]]:
    """Chunks of nearly equal size, none wider than `width`."""
    chunks = -(-len(clients) // max(1, width))
    for k in range(chunks):
        yield clients[k * len(clients) // chunks : (k + 1) * len(clients) // chunks]
