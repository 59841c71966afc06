"""What an upload tells beyond its payload: the change.

For every model (`Point`) in the upload it is the difference to the model of the same layers and
shapes that came with the payload (to the first of several, where a stack was sent); for every other
array of real numbers (gradients, scores, soft predictions), and for a model to which nothing that
was sent corresponds, the array itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.device import CPU, to_double
from coterie.core.method import Tree
from coterie.core.point import Point


def origin_of(upload: Tree, payload: Tree) -> Tree:
    """What each array of an upload is measured from: the payload's model where there is one, else
    zero.
    """
    known = _points(payload)

    def origin(part: Any) -> Any:
        if not isinstance(part, Point):
            return torch.zeros_like(part)
        shape = _shapes(part)
        for point in known:
            if _shapes(point) == shape:
                return point
        for stacked in known:
            if all(t.dim() and len(t) for t in pytree.tree_leaves(stacked)):
                first = pytree.tree_map(lambda t: t[0], stacked)
                if _shapes(first) == shape:
                    return first
        return pytree.tree_map(torch.zeros_like, part)

    return pytree.tree_map(origin, upload, is_leaf=_is_point)


def has_models(upload: Tree) -> bool:
    """Whether an upload holds a model."""
    return bool(_points(upload))


def compute_updates(stacked: Tree, origins: Tree, models: bool = False) -> Tensor:
    """The changes of m uploads as one matrix [m, d] in double precision, on the processor.

    Whole numbers are left out, and all but models where only `models` count.
    """
    if models:
        stacked, origins = _points(stacked), _points(origins)
    pairs = _pairs(stacked, origins)
    rows = [to_double(a - b).reshape(len(a), -1) for a, b in pairs if a.is_floating_point()]
    return torch.cat(rows, 1) if rows else torch.zeros(0, 0, device=CPU)


def scale_updates(stacked: Tree, origins: Tree, factors: Tensor, models: bool = False) -> Tree:
    """The uploads with the change of each [m] multiplied by its factor; a factor of 1 changes no
    bit.
    """
    still = factors == 1

    def one(a: Tensor, b: Tensor) -> Tensor:
        if not a.is_floating_point():
            return a
        shape = (-1, *(1,) * (a.dim() - 1))
        moved = b + factors.to(a).reshape(shape) * (a - b)
        return torch.where(still.to(a.device).reshape(shape), a, moved)

    def part(a: Any, b: Any) -> Any:
        return pytree.tree_map(one, a, b) if isinstance(a, Point) or not models else a

    return pytree.tree_map(part, stacked, origins, is_leaf=_is_point)


def add_noise(stacked: Tree, noise: Tensor) -> Tree:
    """The uploads with rows of noise [m, d] added to their real numbers, in the order of
    `changes`.
    """
    leaves, spec = pytree.tree_flatten(stacked)
    out, start = [], 0
    for a in leaves:
        if a.is_floating_point():
            size = a[0].numel()
            mine = noise[:, start : start + size].reshape(a.shape)
            a, start = a + mine.to(a), start + size
        out.append(a)
    return pytree.tree_unflatten(out, spec)


def _pairs(stacked: Tree, origins: Tree) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(pytree.tree_leaves(stacked), pytree.tree_leaves(origins), strict=True)


def _points(tree: Tree) -> list[Point]:
    leaves = pytree.tree_leaves(tree, is_leaf=_is_point)
    return [part for part in leaves if isinstance(part, Point)]


def _is_point(part: Any) -> bool:
    return isinstance(part, Point)


def _shapes(point: Point) -> dict[str, tuple[int, ...]]:
    return {k: tuple(t.shape) for k, t in (point.params | point.buffers).items()}
