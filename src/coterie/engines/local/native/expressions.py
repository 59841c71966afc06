"""Numbers of a step as C expressions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coterie.engines.local.native.context import Context, Index
from coterie.engines.local.native.fusion import MATMULS
from coterie.engines.local.native.graph import Value
from coterie.engines.local.native.scalar_ops import (
    ARITHMETIC,
    BITWISE,
    COMPARISONS,
    LOOKUPS,
    TO_COPY,
    WITH_ALPHA,
    c_cast,
    c_literal,
    clamp,
    hold,
)
from coterie.engines.local.tracing import Untraceable

aten = torch.ops.aten


def load(c: Context, v: Value, at: Index) -> str:
    """C of one number of a value in memory."""
    if v.constant is not None:
        return _load_constant(c, v, at)
    steps = [f"{i} * {s}" for i, s in zip(at, v.stride, strict=True) if i != "0" and s]
    offset = v.offset - v.base.offset
    if offset + v.extent > max(v.base.extent, 1):
        raise Untraceable("a view reaches beyond what it is a view of")
    steps += [str(offset)] if offset or not steps else []
    return f"{c.names[v.base]}[{' + '.join(steps)}]"


def _load_constant(c: Context, v: Value, at: Index) -> str:
    assert v.constant is not None
    if v.constant.numel() == 1:
        return c.number(v, "constant", v.constant.item(), v.dtype)
    if v not in c.names:
        number = len(c.constants)
        c.constants.append(v.constant)
        c.names[v] = c.declare(f"fixed{number}", v.dtype, f"(void *)constant[{number}]")
    return f"{c.names[v]}[{flatten_index(v.shape, at)}]"


def load_argument(
    c: Context, user: Value, place: int, at: Index, root: Value, want: torch.dtype
) -> str:
    """C of an argument of an operation at a place of its result."""
    a = user.args[place]
    if not isinstance(a, Value):
        fixed = user.op in FORMED  # such a number chooses the C that is written
        return c_literal(a, want) if fixed else c.number(user, place, a, want)
    mine = at[len(at) - len(a.shape) :]
    mine = ["0" if n == 1 else i for n, i in zip(a.shape, mine, strict=True)]
    text = express(c, a, mine, root) if c.plan.within(a, root) else load(c, a, mine)
    return c_cast(text, a.dtype, want)


FORMED = {aten.pow.Tensor_Scalar, aten.threshold_backward.default}


def express(c: Context, v: Value, at: Index, root: Value) -> str:
    """C of one number of a computed value."""
    if v.op in MATMULS:
        return "product"
    if v.op in LOOKUPS:
        return _pick(c, v, at)
    kind = _find_common_type(v) if v.op in COMPARISONS else v.dtype
    if v.op in (aten.where.self, TO_COPY, aten.logical_not.default):
        return _express_special(c, v, at, root)
    if v.op in (aten.clamp.default, aten.clamp_min.default):
        return _clamp(c, v, at, root)
    places = [k for k, one in enumerate(v.args) if one is not None]
    places = places[:2] if v.op in WITH_ALPHA else places
    a = [load_argument(c, v, k, at, root, kind) for k in places]
    if v.op in WITH_ALPHA:
        alpha = v.args[2] if len(v.args) > 2 else v.kwargs.get("alpha", 1)
        factor = "" if alpha == 1 else f"{c.number(v, 'alpha', alpha, kind)} * "
        place = 0 if v.op == aten.rsub.Scalar else 1
        a[place] = f"{factor}{a[place]}"
        return WITH_ALPHA[v.op](*a)
    if v.op in COMPARISONS:
        return f"({a[0]} {COMPARISONS[v.op]} {a[1]})"
    if v.op in BITWISE:
        return f"({a[0]} {BITWISE[v.op]} {a[1]})"
    if v.op == aten.bitwise_not.default:
        return f"(~{a[0]})" if v.dtype != torch.bool else f"(!{a[0]})"
    if v.op == aten.pow.Tensor_Scalar and v.args[1] == 2:
        return f"({a[0]} * {a[0]})"
    return ARITHMETIC[v.op](*a)


def _clamp(c: Context, v: Value, at: Index, root: Value) -> str:
    low = v.args[1] if len(v.args) > 1 else v.kwargs.get("min")
    high = v.args[2] if len(v.args) > 2 else v.kwargs.get("max")
    if isinstance(low, Value) or isinstance(high, Value):
        raise Untraceable("there is no C for bounds that are tensors")
    text = load_argument(c, v, 0, at, root, v.dtype)
    ends = [
        None if bound is None else c.number(v, name, bound, v.dtype)
        for name, bound in (("low", low), ("high", high))
    ]
    return clamp(text, *ends)


def _express_special(c: Context, v: Value, at: Index, root: Value) -> str:
    if v.op == aten.where.self:
        flag = load_argument(c, v, 0, at, root, torch.bool)
        one, two = (load_argument(c, v, k, at, root, v.dtype) for k in (1, 2))
        return hold("flag ? one : two", flag=flag, one=one, two=two)
    first = v.args[0]
    text = load_argument(c, v, 0, at, root, first.dtype)
    if v.op == aten.logical_not.default:
        return f"(!({text}))"
    return c_cast(text, first.dtype, v.dtype)


def _pick(c: Context, v: Value, at: Index) -> str:
    """A number at a place that is itself looked up."""
    source, index = v.args[0], v.args[-1]
    if v.op in (aten.gather.default, aten.index_select.default):
        source, dim, index = v.args[:3]
        spot = [*at]
        spot[dim] = load(c, index, at if v.op == aten.gather.default else [at[dim]])
        return load(c, source, spot)
    if v.op == aten.embedding.default:
        source, index = v.args[:2]
    else:
        if len(index) != 1 or index[0] is None or index[0].dtype == torch.bool:
            raise Untraceable("there is no C for this way to index")
        index = index[0]
    n = len(index.shape)
    return load(c, source, [load(c, index, at[:n]), *at[n:]])


def _find_common_type(v: Value) -> torch.dtype:
    """The type in which two values are compared."""
    kinds = [a.dtype for a in v.args if isinstance(a, Value)]
    kind = kinds[0] if len(kinds) == 1 else torch.promote_types(*kinds)
    numbers = [a for a in v.args if isinstance(a, float)]
    return torch.get_default_dtype() if numbers and not kind.is_floating_point else kind


def count_steps(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of numbers that lie row by row."""
    steps, step = [], 1
    for n in reversed(shape):
        steps.append(step)
        step *= max(n, 1)
    return tuple(reversed(steps))


def flatten_index(shape: Sequence[int], at: Index) -> str:
    """C of a place among numbers that lie row by row."""
    pairs = zip(at, count_steps(shape), strict=True)
    return " + ".join(f"{i} * {s}" for i, s in pairs if i != "0") or "0"
