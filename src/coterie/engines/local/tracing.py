"""A step as a plain list of tensor operations: traced once, tidied, replayed without autograd and
vmap.

A replayed step computes what the step itself computes. What tidying changes is rounding: a product
that is added is added in one operation, and where a leaf of the carry only takes a sum, it takes it
in place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
UNSAFE_VIEW = getattr(aten, "_unsafe_view").default  # noqa: B009 (a name of torch, not of ours)
RESHAPES = (aten.view.default, UNSAFE_VIEW, aten.expand.default)
# Their results are numbers of Python, on which a step may branch.
SCALAR_RESULTS = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::item"}
# Of these only the form of the argument matters, never its values.
CONSTANTS: dict[Any, float] = {
    aten.ones_like.default: 1.0,
    aten.zeros_like.default: 0.0,
    aten.new_zeros.default: 0.0,
    aten.new_ones.default: 1.0,
}
SUMS: dict[Any, int] = {aten.add.Tensor: 1, aten.sub.Tensor: -1}
IN_PLACE: dict[Any, Any] = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.baddbmm.default: aten.baddbmm_.default,
}


class Program(NamedTuple):
    """A traced step: `run(*carry, *batch)` writes over some leaves and returns new ones for
    others.
    """

    run: Callable[..., Sequence[Tensor]]
    written: list[int]  # leaves that are written over
    returned: list[int]  # leaves that are given anew


class Untraceable(RuntimeError):
    """A step that does not always take the same operations."""


class Tape(TorchDispatchMode):
    """Writes down the operations that tensors go through, below autograd and vmap.

    torch's own tracer does the same, but takes seconds to load.
    """

    def __init__(
        self, inputs: list[Tensor], rewritten: dict[Any, Callable[..., Any]] | None = None
    ):
        """`rewritten` says how operations are to be had from others."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._rewritten = rewritten or {}
        self.graph = fx.Graph()
        self.constants: dict[str, Tensor] = {}
        self._nodes: dict[int, fx.Node] = {}
        # what every node stands for, kept so that no other tensor takes its id
        self.made: dict[fx.Node, Tensor] = {}
        self.inputs = [self.graph.placeholder(f"leaf_{k}") for k in range(len(inputs))]
        for tensor, node in zip(inputs, self.inputs, strict=True):
            self._record(tensor, node)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing here is compiled, and to say so torch would load its compiler."""
        return False

    def _record(self, tensor: Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self.made[node] = tensor
        node.meta["form"] = tensor.shape, tensor.stride(), tensor.dtype

    def node_of(self, value: Any) -> Any:
        """What stands for a value in the graph."""
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._nodes:  # made before, as a table of word vectors
            name = f"given_{len(self.constants)}"
            self.constants[name] = value
            self._record(value, self.graph.get_attr(name))
        return self._nodes[id(value)]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.name().partition(".")[0] in SCALAR_RESULTS:
            raise Untraceable("it branches on what it computes")
        if func in self._rewritten:
            with self:
                return self._rewritten[func](*args, **kwargs)
        mapped = pytree.tree_map(self.node_of, (tuple(args), kwargs))
        out = func(*args, **kwargs)
        node = self.graph.call_function(func, *mapped)
        if isinstance(out, Tensor):
            self._record(out, node)
        elif isinstance(out, tuple | list):
            for k, one in enumerate(out):
                if isinstance(one, Tensor):
                    self._record(one, self.graph.call_function(operator.getitem, (node, k)))
        return out


def trace(f: Callable[..., list[Tensor]], carry: list[Tensor], batch: list[Tensor]) -> Program:
    """The program of a function that takes the leaves of a carry and a batch and gives the new
    leaves.
    """
    # A tensor that is two leaves of the carry would be traced as one.
    given = [*(_copy_strided(t) for t in carry), *(t.view_as(t) for t in batch)]
    with Tape(given) as tape:
        after = f(*given)
    inputs = tape.inputs
    output = tape.graph.output([tape.node_of(t) for t in after])
    module = fx.GraphModule(tape.constants, tape.graph)
    pure = not any(is_mutating(node) for node in module.graph.nodes)
    if pure:
        _tidy(module, output)
    results = list(output.args[0])
    changed = [k for k, node in enumerate(results) if node is not inputs[k]]
    written = _find_in_place(inputs[: len(carry)], results, changed) if pure else []
    returned = [k for k in changed if k not in written]
    _own_results(module.graph, output, [results[k] for k in returned])
    for k in written:
        _write_in_place(results[k], output)
    module.recompile()
    return Program(module.forward, written, returned)


def _copy_strided(t: Tensor) -> Tensor:
    """A copy with the same strides: whether a view of it can be had depends on them."""
    once = t
    for side, step in enumerate(t.stride()):
        once = once.narrow(side, 0, 1) if step == 0 and t.shape[side] > 1 else once
    copy = torch.empty_strided(once.shape, once.stride(), dtype=t.dtype, device=t.device)
    return copy.copy_(once).expand(t.shape)


def _schema(node: fx.Node) -> Any:
    return getattr(node.target, "_schema", None) if node.op == "call_function" else None


def is_mutating(node: fx.Node) -> bool:
    """Whether an operation writes over what it is given."""
    schema = _schema(node)
    return schema is not None and schema.is_mutable


def _may_alias(node: fx.Node) -> bool:
    """Whether a result may lie in the memory of an argument."""
    if node.op != "call_function" or node.target in (operator.getitem, *RESHAPES):
        return True
    schema = _schema(node)
    return schema is None or any(r.alias_info is not None for r in schema.returns)


def _base_node(node: fx.Node) -> fx.Node:
    """Whose memory a node may lie in."""
    while node.op == "call_function" and _may_alias(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


# Tidying


def _tidy(module: fx.GraphModule, output: fx.Node) -> None:
    """Leave out what does nothing, and put products and sums together."""
    results = set(output.all_input_nodes)
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        same = _identity_input(node)
        if same is not None and node not in results:
            node.replace_all_uses_with(same)
        elif node.target in CONSTANTS and node not in results:
            _make_constant(module, node)
    module.graph.eliminate_dead_code()
    for node in list(module.graph.nodes):
        if node.target in SUMS:
            _fuse_factor(node)
            _fuse_product(node)
    module.graph.eliminate_dead_code()


def _form(node: Any) -> Any:
    """Shape, strides and type of what a node gives; None where they are not known."""
    return node.meta.get("form") if isinstance(node, fx.Node) else None


def _identity_input(node: fx.Node) -> fx.Node | None:
    """The argument that an operation gives back as it is."""
    first = node.args[0] if node.args else None
    if not isinstance(first, fx.Node) or _form(node) is None:
        return None
    if node.target in (*RESHAPES, aten.mul.Scalar, aten.mul.Tensor):
        times = node.target not in RESHAPES
        if (not times or _is_one(node.args[1])) and _form(first) == _form(node):
            return first
    twice = node.target == first.target == aten.transpose.int and node.args[1:] == first.args[1:]
    return first.args[0] if twice and isinstance(first.args[0], fx.Node) else None


def _is_one(value: Any) -> bool:
    return isinstance(value, int | float) and value == 1


def _make_constant(module: fx.GraphModule, node: fx.Node) -> None:
    """Make a tensor of one value once and for all."""
    shape, _, dtype = node.meta["form"]
    name = f"constant_{node.name}"
    filled = torch.full(shape, CONSTANTS[node.target], dtype=dtype)
    module.register_buffer(name, filled, persistent=False)
    with module.graph.inserting_before(node):
        constant = module.graph.get_attr(name)
    constant.meta["form"] = node.meta["form"]
    node.replace_all_uses_with(constant)


def _fuse_factor(node: fx.Node) -> None:
    """a + c * b in one operation, where c is a number."""
    first, second = node.args[:2]
    if "alpha" in node.kwargs or not isinstance(first, fx.Node) or not isinstance(second, fx.Node):
        return
    known = _form(first) and _form(second) and _form(node)
    if not known or second.target != aten.mul.Tensor or len(second.users) > 1:
        return
    inner, factor = second.args
    if isinstance(factor, float | int) and isinstance(inner, fx.Node):
        floats = all(_form(n)[2].is_floating_point for n in (first, inner, node))
        if floats and _form(inner)[2] == _form(node)[2]:
            node.args = (first, inner)
            node.kwargs = {"alpha": factor}
            node.graph.erase_node(second)


def _fuse_product(node: fx.Node) -> None:
    """a + c * (B C) in one operation."""
    first, second = node.args[:2]
    if not isinstance(first, fx.Node) or not isinstance(second, fx.Node):
        return
    alpha: Any = node.kwargs.get("alpha", 1)
    whole = _form(node)
    for product, other, scale, beta in (
        (second, first, SUMS[node.target] * alpha, 1),
        (first, second, 1, SUMS[node.target] * alpha),
    ):
        fits = product.target == aten.bmm.default and len(product.users) == 1
        if fits and _form(other) and whole and _form(other)[::2] == _form(product)[::2]:
            node.target = aten.baddbmm.default
            node.args = (other, *product.args)
            node.kwargs = {"beta": beta, "alpha": scale}
            node.graph.erase_node(product)
            return


# Where results go


def _find_in_place(carry: list[fx.Node], results: list[Any], changed: list[int]) -> list[int]:
    """The leaves that can take their sum in place.

    Everything else is computed before, so that only the sums themselves may not read a leaf that
    another of them writes over.
    """
    found, moving = [], {carry[k] for k in changed}
    for k in changed:
        node = results[k]
        if not isinstance(node, fx.Node) or node.target not in IN_PLACE or len(node.users) > 1:
            continue
        own = node.args[0] is carry[k]
        read = {_base_node(n) for n in node.args[1:] if isinstance(n, fx.Node)}
        free = not read & moving and results.count(node) == 1
        if own and free and carry[k] not in results and _form(node) == _form(carry[k]):
            found.append(k)
    return found


def _own_results(graph: fx.Graph, output: fx.Node, results: list[Any]) -> None:
    """Return results in memory of their own, which later steps may write over."""
    seen: set[fx.Node] = set()
    owned = []
    with graph.inserting_before(output):
        for node in results:
            shared = node in seen or _may_alias(node) or not node.all_input_nodes
            seen.add(node)
            owned.append(graph.call_function(aten.clone.default, (node,)) if shared else node)
    output.args = (tuple(owned),)


def _write_in_place(node: fx.Node, output: fx.Node) -> None:
    """Let a sum write over its first argument, after all that reads it."""
    with node.graph.inserting_before(output):
        node.graph.call_function(IN_PLACE[node.target], node.args, node.kwargs)
    node.graph.erase_node(node)
