"""Whether what clients made is made of numbers: an update that is not finite must reach nobody."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.method import Tree
from coterie.core.point import Point, Vector


def find_non_finite(state: Tree, upload: Tree, clients: int) -> list[int]:
    """The places in a chunk whose upload, or a model in whose new state, is not finite.

    Of a state only models count: a method may keep "nothing yet" as NaN or infinity beside them.
    """
    suspects = [
        t for t in (*_model_tensors(state), *pytree.tree_leaves(upload)) if _may_be_non_finite(t)
    ]
    if not suspects:  # one sum per tensor has told
        return []
    good = torch.ones(clients, dtype=torch.bool)
    for leaf in suspects:
        good &= leaf.isfinite().reshape(clients, -1).all(1)
    return [k for k in range(clients) if not good[k]]


def _may_be_non_finite(leaf: Tensor) -> bool:
    """Whether a tensor may hold NaN or infinity: then its sum is neither a number."""
    return leaf.is_floating_point() and bool(leaf.numel()) and not bool(leaf.sum().isfinite())


def _model_tensors(state: Tree) -> Iterator[Tensor]:
    """The tensors of all points and vectors in a tree."""
    kinds = (Point, Vector)
    for part in pytree.tree_leaves(state, is_leaf=lambda t: isinstance(t, kinds)):
        if isinstance(part, kinds):
            yield from pytree.tree_leaves(part)
