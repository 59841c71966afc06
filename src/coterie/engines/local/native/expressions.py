"""Numbers of a step as C expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from coterie.engines.local.native.operations import (
    ARITHMETIC,
    BITS,
    COMPARED,
    PICKING,
    SCALED,
    TO_COPY,
    c_type,
    cast,
    clamped,
    held,
    literal,
    tail,
)
from coterie.engines.local.native.plan import PRODUCTS, Plan
from coterie.engines.local.native.values import Value
from coterie.engines.local.programs import Untraceable

aten = torch.ops.aten
Index = list[str]  # C of the place in each dimension
IVDEP = "#pragma GCC ivdep\n"  # what is written over is read at its own places alone


class Buffer(NamedTuple):
    """Memory of a step beside the leaves."""

    at: int  # bytes from the start of the scratch memory
    size: int


class Expressions:
    """What stands for the values of a step in C, and how they are read."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.names: dict[Value, str] = {}
        self.constants: list[torch.Tensor] = []
        self.declared: dict[str, str] = {}  # name -> C that declares it
        self.lines: list[str] = []
        self.top, self.free = 0, list[Buffer]()

    def take(self, size: int) -> Buffer:
        """Memory for so many bytes; whoever has taken it puts it back to what is free."""
        size = -(-size // 64) * 64
        fitting = [b for b in self.free if b.size >= size]
        if fitting:
            best = min(fitting, key=lambda b: b.size)
            self.free.remove(best)
            return best
        self.top += size
        return Buffer(self.top - size, size)

    @contextmanager
    def numbers(self, count: int, like: Value) -> Iterator[str]:
        """The name of memory for so many numbers, while C that needs it is written."""
        buffer, name = self.take(count * like.dtype.itemsize), f"lent{len(self.declared)}"
        kind = c_type(like.dtype)
        self.declared[name] = f"{kind} *const {name} = ({kind} *)(scratch + {buffer.at});"
        yield name
        self.free.append(buffer)

    def loops(self, shape: Sequence[int], body: Callable[[Index], str], once: bool = True) -> None:
        """Nested loops over a shape; `body` gives the C of a place, which is written `once`."""
        at = ["0" if n == 1 else f"i{d}" for d, n in enumerate(shape)]
        real = [d for d, n in enumerate(shape) if n != 1]
        text = body(at)
        for d in reversed(real):
            hint = IVDEP if once and d == real[-1] else ""
            text = f"{hint}for (long i{d} = 0; i{d} < {shape[d]}; i{d}++) {{\n{text}\n}}"
        self.lines.append(f"{{\n{text}\n}}")

    def load(self, v: Value, at: Index) -> str:
        """C of one number of a value in memory."""
        if v.constant is not None:
            return self._constant(v, at)
        steps = [f"{i} * {s}" for i, s in zip(at, v.stride, strict=True) if i != "0" and s]
        offset = v.offset - v.base.offset
        if offset + v.extent > max(v.base.extent, 1):
            raise Untraceable("a view reaches beyond what it is a view of")
        steps += [str(offset)] if offset or not steps else []
        return f"{self.names[v.base]}[{' + '.join(steps)}]"

    def _constant(self, v: Value, at: Index) -> str:
        assert v.constant is not None
        if v.constant.numel() == 1:
            return literal(v.constant.item(), v.dtype)
        if v not in self.names:
            number = len(self.constants)
            self.constants.append(v.constant)
            kind = c_type(v.dtype)
            self.names[v] = name = f"fixed{number}"
            self.declared[name] = f"const {kind} *const {name} = constant[{number}];"
        return f"{self.names[v]}[{flat_index(v.shape, at)}]"

    def argument(self, a: Any, user: Value, at: Index, root: Value, want: torch.dtype) -> str:
        """C of an argument of an operation at a place of its result."""
        if not isinstance(a, Value):
            return literal(a, want)
        mine = at[len(at) - len(a.shape) :]
        mine = ["0" if n == 1 else i for n, i in zip(a.shape, mine, strict=True)]
        if self.plan.within(a, root):
            return cast(self.expression(a, mine, root), a.dtype, want)
        return cast(self.load(a, mine), a.dtype, want)

    def expression(self, v: Value, at: Index, root: Value) -> str:
        """C of one number of a computed value."""
        if v.op in PRODUCTS:
            return "product"
        if v.op in PICKING:
            return self._picked(v, at)
        kind = _compared_type(v) if v.op in COMPARED else v.dtype
        if v.op in (aten.where.self, TO_COPY, aten.logical_not.default):
            return self._special(v, at, root)
        a = [self.argument(one, v, at, root, kind) for one in v.args if one is not None]
        if v.op in SCALED:
            alpha = v.args[2] if len(v.args) > 2 else v.kwargs.get("alpha", 1)
            factor = "" if alpha == 1 else f"{literal(alpha, kind)} * "
            place = 0 if v.op == aten.rsub.Scalar else 1
            a[place] = f"{factor}{a[place]}"
            return SCALED[v.op](*a[:2])
        if v.op in COMPARED:
            return f"({a[0]} {COMPARED[v.op]} {a[1]})"
        if v.op in BITS:
            return f"({a[0]} {BITS[v.op]} {a[1]})"
        if v.op in (aten.clamp.default, aten.clamp_min.default):
            return self._clamped(v, at, root)
        if v.op == aten.bitwise_not.default:
            return f"(~{a[0]})" if v.dtype != torch.bool else f"(!{a[0]})"
        if v.op == aten.pow.Tensor_Scalar and v.args[1] == 2:
            return f"({a[0]} * {a[0]})"
        return ARITHMETIC[v.op](tail(kind), *a)

    def _clamped(self, v: Value, at: Index, root: Value) -> str:
        bounds = [*v.args[1:], v.kwargs.get("min"), v.kwargs.get("max")]
        if any(isinstance(b, Value) for b in bounds):
            raise Untraceable("there is no C for bounds that are tensors")
        low = v.args[1] if len(v.args) > 1 else v.kwargs.get("min")
        high = v.args[2] if len(v.args) > 2 else v.kwargs.get("max")
        text = self.argument(v.args[0], v, at, root, v.dtype)
        ends = [None if b is None else literal(b, v.dtype) for b in (low, high)]
        return clamped(text, *ends)

    def _special(self, v: Value, at: Index, root: Value) -> str:
        if v.op == aten.where.self:
            flag = self.argument(v.args[0], v, at, root, torch.bool)
            one, two = (self.argument(a, v, at, root, v.dtype) for a in v.args[1:])
            return held("flag ? one : two", flag=flag, one=one, two=two)
        first = v.args[0]
        text = self.argument(first, v, at, root, first.dtype)
        if v.op == aten.logical_not.default:
            return f"(!({text}))"
        return cast(text, first.dtype, v.dtype)

    def _picked(self, v: Value, at: Index) -> str:
        """A number at a place that is itself looked up."""
        source, index = v.args[0], v.args[-1]
        if v.op == aten.gather.default:
            source, dim, index = v.args[:3]
            spot = [*at]
            spot[dim] = self.load(index, at)
            return self.load(source, spot)
        if v.op == aten.index_select.default:
            source, dim, index = v.args
            spot = [*at]
            spot[dim] = self.load(index, [at[dim]])
            return self.load(source, spot)
        if v.op == aten.embedding.default:
            source, index = v.args[:2]
        else:
            if len(index) != 1 or index[0] is None or index[0].dtype == torch.bool:
                raise Untraceable("there is no C for this way to index")
            index = index[0]
        n = len(index.shape)
        return self.load(source, [self.load(index, at[:n]), *at[n:]])


def _compared_type(v: Value) -> torch.dtype:
    """The type in which two values are compared."""
    kinds = [a.dtype for a in v.args if isinstance(a, Value)]
    kind = kinds[0] if len(kinds) == 1 else torch.promote_types(*kinds)
    numbers = [a for a in v.args if isinstance(a, float)]
    return torch.get_default_dtype() if numbers and not kind.is_floating_point else kind


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    steps, step = [], 1
    for n in reversed(shape):
        steps.append(step)
        step *= max(n, 1)
    return tuple(reversed(steps))


def flat_index(shape: Sequence[int], at: Index) -> str:
    pairs = zip(at, contiguous(shape), strict=True)
    return " + ".join(f"{i} * {s}" for i, s in pairs if i != "0") or "0"
