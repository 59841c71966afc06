"""A traced step of one client as values: what each is computed from, and where it lies."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from coterie.engines.local.native.decompositions import DECOMPOSITIONS
from coterie.engines.local.tracing import Tape, Untraceable, is_mutating

aten = torch.ops.aten
Shape = tuple[int, ...]
SPLITS = {
    aten.unbind.int,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.chunk.default,
}
CONVOLUTION, GRADIENTS = aten.convolution.default, aten.convolution_backward.default
MAX_POOL = aten.max_pool2d_with_indices.default
LARGEST_GRADIENTS = aten.max_pool2d_with_indices_backward.default
AVG_POOL, MEAN_GRADIENTS = aten.avg_pool2d.default, aten.avg_pool2d_backward.default
IMAGE_OPS = {CONVOLUTION, GRADIENTS, MAX_POOL, LARGEST_GRADIENTS, AVG_POOL, MEAN_GRADIENTS}
MULTI_OUTPUT = {GRADIENTS, MAX_POOL}
# Their results do not depend on what they are given, only on its form.
SHAPE_ONLY = {
    "aten::ones_like",
    "aten::zeros_like",
    "aten::full_like",
    "aten::new_zeros",
    "aten::new_ones",
    "aten::new_full",
}


class Value:
    """A tensor of a step: given to it, constant, computed, or a view of one of these."""

    def __init__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], like: Tensor):
        self.op, self.args, self.kwargs = op, args, kwargs  # op is None for what is not computed
        self.shape: Shape = tuple(like.shape)
        self.stride: Shape = tuple(like.stride())
        self.offset, self.dtype = int(like.storage_offset()), like.dtype
        self.base = self  # whose memory it lies in
        self.constant: Tensor | None = None
        self.users: list[Value] = []
        self.output = False  # whether it is a new leaf of the carry
        self.part = 0  # which of the operation's results it is
        self.positive = False  # whether the operation does what a ReLU after it would

    @property
    def numel(self) -> int:
        """How many numbers it has."""
        return torch.Size(self.shape).numel()

    @property
    def extent(self) -> int:
        """How many numbers its memory has room for."""
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return reach + 1 if self.numel else 0

    def same(self, other: Value) -> bool:
        """Whether another value lies in the same memory in the same way."""
        mine, its = ((v.shape, v.stride, v.offset, v.dtype) for v in (self, other))
        return mine == its

    @property
    def inputs(self) -> list[Value]:
        """The values among its arguments."""
        found: list[Value] = []
        for a in (*self.args, *self.kwargs.values()):
            found += [v for v in (a if isinstance(a, list | tuple) else [a]) if _is_value(v)]
        return found


class MutatingStep(Untraceable):
    """A step with operations in place, which has to be said without them first."""


def _is_value(value: Any) -> bool:
    return isinstance(value, Value)


class TracedStep:
    """The values of a step in the order in which they are computed."""

    def __init__(self, f: Callable[..., list[Tensor]], given: list[Tensor]):
        """Trace `f` on tensors that are given to it, each with memory of its own and contiguous."""
        with Tape(given, DECOMPOSITIONS) as tape:
            after = f(*given)
        if any(is_mutating(node) for node in tape.graph.nodes):
            raise MutatingStep("it writes over what it is given")
        self.after = [t.detach() for t in after]  # what it gives
        results = [tape.node_of(t) for t in after]
        tape.graph.output(results)
        for node in tape.graph.nodes:  # C finds the largest number of a window anew
            if node.target == LARGEST_GRADIENTS:
                node.args = node.args[:-1]
        tape.graph.eliminate_dead_code()
        self.computed: list[Value] = []
        self._of: dict[fx.Node, Value] = {}
        self._owner: dict[int, Value] = {}  # by the address of a storage
        for node in tape.graph.nodes:
            if node.op != "output":
                self._add_node(node, tape)
        self.given = [self._of.get(node) for node in tape.inputs]
        self.results = [self._of[node] for node in results]
        for value in self.results:
            value.output = True
        reals = [t.dtype for t in self.after if t.is_floating_point()]
        self.real = reals[0] if reals else torch.float32  # what the step computes in
        for value in reversed(self.computed):
            if value.users or value.output:  # views of views are often passed over
                for one in value.inputs:
                    one.users.append(value)
        self.computed = [value for value in self.computed if value.users or value.output]

    def _add_node(self, node: fx.Node, tape: Tape) -> None:
        tensor = tape.made.get(node)
        if node.target in SPLITS or node.target in MULTI_OUTPUT:  # its parts follow
            return
        if tensor is None:  # a tuple of tensors, or none
            raise Untraceable(f"there is no C for {node.target}")
        value = Value(None, (), {}, tensor)
        whole: Any = node
        part: Any = 0
        if node.target is operator.getitem:
            whole, part = node.args
        if whole.target in SPLITS:
            self._of[node] = value
            owner = self._owner.get(tensor.untyped_storage().data_ptr())
            if owner is None:
                raise Untraceable("there is no C for parts of a constant")
            value.base, value.args = owner, (owner,)
            self.computed.append(value)
            return
        if node.op == "call_function":
            value.args = tuple(self._map_argument(a) for a in whole.args)
            value.kwargs = {k: self._map_argument(a) for k, a in whole.kwargs.items()}
            value.op, value.part = whole.target, part
            _simplify(value)
            if value.op in IMAGE_OPS:
                value.args = tuple(
                    self._make_contiguous(a) if _is_value(a) else a for a in value.args
                )
            if value.op == aten.addmm.default and not value.kwargs:
                value.op, value.args = aten.add.Tensor, (value.args[0], self._add_product(value))
        self._of[node] = value
        known = node.op == "get_attr" or (node.op == "call_function" and _is_constant(value))
        if known:
            value.op, value.args, value.kwargs = None, (), {}
            value.constant = tensor.detach().clone(memory_format=torch.contiguous_format)
            value.stride, value.offset = tuple(value.constant.stride()), 0
            return
        owner = self._owner.setdefault(tensor.untyped_storage().data_ptr(), value)
        if owner is not value and owner.same(value):
            self._of[node] = owner
            return
        if owner is not value and tensor.numel():
            value.base, value.op = owner, None  # a view: its arguments no longer matter
            value.args, value.kwargs = (owner,), {}
        self.computed.append(value)

    def _add_product(self, value: Value) -> Value:
        """The product that is added in a value."""
        product = Value(aten.mm.default, value.args[1:3], {}, torch.empty(value.shape))
        product.dtype = value.dtype
        self.computed.append(product)
        return product

    def _make_contiguous(self, value: Value) -> Value:
        """A value row by row, as C reads images: a copy where it lies otherwise, as a half of the
        channels does.
        """
        usual = torch.empty(value.shape, device="meta").stride()
        sides = zip(value.shape, value.stride, usual, strict=True)
        if value.constant is not None or all(mine == its for n, mine, its in sides if n > 1):
            return value
        copy = Value(aten.clone.default, (value,), {}, torch.empty(value.shape))
        copy.dtype = value.dtype
        self.computed.append(copy)
        return copy

    def _map_argument(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return self._of[argument]
        if isinstance(argument, list | tuple):
            return [self._map_argument(a) for a in argument]
        return argument


def _simplify(value: Value) -> None:
    """Leave out what C does not read; gradients of a bias are the sum of those of the images."""
    if value.op == GRADIENTS:
        gradients, x, w, *form = value.args
        if value.part == 2:
            value.op, value.args = (
                aten.sum.dim_IntList,
                (gradients, [0, *range(2, len(gradients.shape))]),
            )
        else:
            value.args = (gradients, x if value.part else None, None if value.part else w, *form)
    if value.op == MEAN_GRADIENTS:
        value.args = (value.args[0], None, *value.args[2:])
    if value.op == MAX_POOL and value.part == 1:
        raise Untraceable("there is no C for where a window has its largest number")


def _is_constant(value: Value) -> bool:
    """Whether a value is the same in every step."""
    if torch.Tag.nondeterministic_seeded in value.op.tags:
        raise Untraceable("it draws numbers of its own")
    if value.op.name().partition(".")[0] in SHAPE_ONLY:
        return True
    return all(v.constant is not None for v in value.inputs)
