"""Models as points of a space: what formulas are written on.

A `Point` is a model: its trainable parameters and its buffers (BatchNorm's running statistics). The
difference of two points and a gradient are `Vector`s. Points and vectors add as in geometry, so `v
- lr * (grad + lam * (v - w))` reads as in a paper, while buffers never enter a distance, a proximal
term or a step: a gradient carries the buffers its forward pass made (`fresh`), and the point that
takes the step takes them over. Points are averaged with `mean` and `blend`, buffers included.

Every leaf may have leading dimensions: a stack of m models is a Point whose leaves are [m, ...].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.device import to_double

Leaves = dict[str, Tensor]
T = TypeVar("T")


class Point:
    """A model: named parameters, and named buffers where the network has any."""

    __slots__ = ("buffers", "params")

    def __init__(self, params: Leaves, buffers: Leaves | None = None):
        self.params = params
        self.buffers = buffers or {}

    @overload
    def __sub__(self, other: Point) -> Vector: ...

    @overload
    def __sub__(self, other: Vector) -> Point: ...

    def __sub__(self, other: Point | Vector) -> Point | Vector:
        if isinstance(other, Point):
            return Vector({k: a - other.params[k] for k, a in self.params.items()})
        return Point(
            {k: a - other.params[k] for k, a in self.params.items()}, other.fresh or self.buffers
        )

    def __add__(self, other: Vector) -> Point:
        return Point(
            {k: a + other.params[k] for k, a in self.params.items()}, other.fresh or self.buffers
        )

    def as_vector(self) -> Vector:
        """The parameters as a vector from the origin (for weight decay, cosines)."""
        return Vector(self.params)


class Vector:
    """A direction: a difference of points, a gradient, a momentum."""

    __slots__ = ("fresh", "params")

    def __init__(self, params: Leaves, fresh: Leaves | None = None):
        self.params = params
        self.fresh = fresh or {}  # buffers of the forward pass that made this gradient

    def __add__(self, other: Vector) -> Vector:
        return Vector(
            {k: a + other.params[k] for k, a in self.params.items()}, other.fresh or self.fresh
        )

    def __sub__(self, other: Vector) -> Vector:
        return Vector(
            {k: a - other.params[k] for k, a in self.params.items()}, other.fresh or self.fresh
        )

    def __mul__(self, factor: float | Tensor) -> Vector:
        return Vector({k: a * factor for k, a in self.params.items()}, self.fresh)

    __rmul__ = __mul__

    def __neg__(self) -> Vector:
        return self * -1.0

    def stale(self) -> Vector:
        """The same direction without buffers, to be kept from step to step."""
        return Vector(self.params)

    def dot(self, other: Vector) -> Tensor:
        """Inner product over all parameters."""
        return sum((a * other.params[k]).sum() for k, a in self.params.items())  # type: ignore[return-value]

    def squared(self) -> Tensor:
        """Squared Euclidean length."""
        return self.dot(self)


pytree.register_pytree_node(
    Point,
    lambda p: ([p.params, p.buffers], None),
    lambda children, _: Point(*children),
    serialized_type_name="coterie.Point",
)
pytree.register_pytree_node(
    Vector,
    lambda v: ([v.params, v.fresh], None),
    lambda children, _: Vector(*children),
    serialized_type_name="coterie.Vector",
)


def tree_map(f: Callable[..., Any], first: T, *rest: T) -> T:
    """Apply `f` to matching tensors of one or more trees."""
    mapped: T = pytree.tree_map(f, first, *rest)
    return mapped


def zeros(like: Point | Vector) -> Vector:
    """The zero vector of a model's space."""
    return Vector({k: torch.zeros_like(a) for k, a in like.params.items()})


def _mix(weights: Tensor, stacked: Tensor) -> Tensor:
    """weights [m] or [k, m] times a stack [m, ...]."""
    if not stacked.is_floating_point():  # BatchNorm's count of batches
        return _mix(weights, to_double(stacked)).round().to(stacked)
    mixed: Tensor = torch.tensordot(weights.to(stacked), stacked, dims=1)
    return mixed


def mean(stacked: T, weights: Tensor) -> T:
    """Weighted sum over a stack of trees; weights [m] give one tree, weights [k, m] a stack of
    k.
    """
    return tree_map(lambda a: _mix(weights, a), stacked)


def blend(a: Point, b: Point, t: float | Tensor) -> Point:
    """(1 - t) a + t b; t may lie outside [0, 1] for parameters, never for buffers."""
    params = {k: x + t * (b.params[k] - x) for k, x in a.params.items()}
    inside = torch.as_tensor(t).clamp(0, 1)
    buffers = {
        k: (x + inside * (b.buffers[k] - x)).to(x.dtype) if x.is_floating_point() else b.buffers[k]
        for k, x in a.buffers.items()
    }
    return Point(params, buffers)


def stack(trees: Iterable[T]) -> T:
    """Trees of one shape as one tree with a leading dimension."""
    first, *rest = trees
    return tree_map(lambda *leaves: torch.stack(leaves), first, *rest)


def pick(stacked: T, index: Any) -> T:
    """Row(s) `index` of a stack."""
    return tree_map(lambda a: a[index], stacked)


def pick_ordered(stacked: T, order: Sequence[int], count: int) -> T:
    """Rows of a stack of `count`; the stack itself where these are all of them in their order."""
    return stacked if list(order) == list(range(count)) else pick(stacked, order)


def flatten(stacked: Point | Vector) -> Tensor:
    """The parameters of a stack of m models as one matrix [m, d]."""
    return torch.cat([a.flatten(1) for a in stacked.params.values()], dim=1)


def unflatten(rows: Tensor, like: Point) -> Leaves:
    """Rows [m, d] as stacked parameters shaped like one model."""
    leaves: Leaves = {}
    start = 0
    for name, a in like.params.items():
        leaves[name] = rows[:, start : start + a.numel()].reshape(len(rows), *a.shape)
        start += a.numel()
    return leaves


def split(point: Point, inside: Callable[[str], bool]) -> tuple[Point, Point]:
    """The layers whose name satisfies `inside`, and the others."""
    return tuple(  # type: ignore[return-value]
        Point(
            {k: a for k, a in point.params.items() if inside(k) is keep},
            {k: a for k, a in point.buffers.items() if inside(k) is keep},
        )
        for keep in (True, False)
    )


def merge(one: Point, other: Point, like: Iterable[str]) -> Point:
    """Two complementary parts as one model, parameters in the order of `like`."""
    params = one.params | other.params
    return Point({k: params[k] for k in like}, one.buffers | other.buffers)
