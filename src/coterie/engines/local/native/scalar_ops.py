"""Operations on single numbers as C."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from coterie.engines.local.tracing import Untraceable

aten = torch.ops.aten
TYPES = {
    torch.float32: "real",  # a step has one type of real numbers, which C names
    torch.float64: "real",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.uint8: "uint8_t",
    torch.bool: "uint8_t",
}
TO_COPY = getattr(aten, "_to_copy").default  # noqa: B009 (a name of torch, not of ours)
Write = Callable[..., str]  # C of the arguments -> C of the result


def c_type(dtype: torch.dtype) -> str:
    """The C name of a type."""
    if dtype not in TYPES:
        raise Untraceable(f"there is no C for numbers of {dtype}")
    return TYPES[dtype]


def c_literal(value: float | bool, dtype: torch.dtype) -> str:
    """A number of Python in C."""
    if not dtype.is_floating_point:
        return f"INT64_C({int(value)})"
    value = float(value)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"((real){value.hex()})"


def c_cast(text: str, have: torch.dtype, want: torch.dtype) -> str:
    """C of a number as another type."""
    if have == want or TYPES.get(have) == TYPES.get(want) == "real":
        return text
    if want == torch.bool:
        return f"(({text}) != 0)"
    return f"({c_type(want)})({text})"


def _call(name: str) -> Write:
    """A function of C's library, of whatever type of real numbers, or of ours."""
    return lambda a: f"{name}({a})"


def hold(text: str, **parts: str) -> str:
    """C of a choice whose parts are all computed before it.

    gcc 12 may otherwise read memory only where it is chosen, several numbers at once, and then
    take the wrong ones on processors with AVX-512.
    """
    names = " ".join(f"const __auto_type {name} = {part};" for name, part in parts.items())
    return f"({{ {names} {text}; }})"


def _c_power(a: str, exponent: str) -> str:
    return f"pow({a}, {exponent})"


# Of arguments that are all in the type of the result.
ARITHMETIC: dict[Any, Write] = {
    aten.mul.Tensor: lambda a, b: f"({a} * {b})",
    aten.mul.Scalar: lambda a, b: f"({a} * {b})",
    aten.div.Tensor: lambda a, b: f"({a} / {b})",
    aten.div.Scalar: lambda a, b: f"({a} / {b})",
    aten.square.default: lambda a: f"({a} * {a})",
    aten.neg.default: lambda a: f"(-{a})",
    aten.clone.default: lambda a: a,
    aten.detach.default: lambda a: a,
    aten.exp.default: _call("vexp"),
    aten.log.default: _call("vlog"),
    aten.log1p.default: _call("log1p"),
    aten.expm1.default: _call("expm1"),
    aten.sqrt.default: _call("sqrt"),
    aten.tanh.default: _call("tanh"),
    aten.erf.default: _call("verf"),
    aten.abs.default: _call("fabs"),
    aten.floor.default: _call("floor"),
    aten.rsqrt.default: lambda a: f"(1 / sqrt({a}))",
    aten.reciprocal.default: lambda a: f"(1 / {a})",
    aten.sigmoid.default: lambda a: f"(1 / (1 + vexp(-{a})))",
    # NaN stays NaN, as it does in torch
    aten.relu.default: lambda a: hold("one <= 0 ? 0 : one", one=a),
    aten.sign.default: lambda a: hold("(one > 0) - (one < 0)", one=a),
    aten.sgn.default: lambda a: hold("(one > 0) - (one < 0)", one=a),
    aten.pow.Tensor_Scalar: _c_power,
    aten.pow.Tensor_Tensor: _c_power,
    aten.maximum.default: lambda a, b: hold(
        "(one >= two) | (one != one) ? one : two", one=a, two=b
    ),
    aten.minimum.default: lambda a, b: hold(
        "(one <= two) | (one != one) ? one : two", one=a, two=b
    ),
    aten.addcmul.default: lambda a, b, c: f"({a} + {b} * {c})",
    aten.threshold_backward.default: lambda g, a, edge: hold(
        f"one <= {edge} ? 0 : given", one=a, given=g
    ),
    aten.tanh_backward.default: lambda g, y: f"({g} * (1 - {y} * {y}))",
    aten.sigmoid_backward.default: lambda g, y: f"({g} * ({y} * (1 - {y})))",
    aten.xlogy.Tensor: lambda a, b: hold("one == 0 ? 0 : all", one=a, all=f"{a} * vlog({b})"),
}
# Those with a factor before the last argument.
WITH_ALPHA: dict[Any, Write] = {
    aten.add.Tensor: lambda a, b: f"({a} + {b})",
    aten.add.Scalar: lambda a, b: f"({a} + {b})",
    aten.sub.Tensor: lambda a, b: f"({a} - {b})",
    aten.sub.Scalar: lambda a, b: f"({a} - {b})",
    aten.rsub.Scalar: lambda a, b: f"({b} - {a})",
}
COMPARISONS: dict[Any, str] = {
    getattr(getattr(aten, name), kind): sign
    for name, sign in {
        "eq": "==",
        "ne": "!=",
        "gt": ">",
        "ge": ">=",
        "lt": "<",
        "le": "<=",
        "logical_and": "!= 0 & 0 !=",
        "logical_or": "!= 0 | 0 !=",
    }.items()
    for kind in ("Tensor", "Scalar", "default")
    if hasattr(getattr(aten, name), kind)
}
BITWISE: dict[Any, str] = {
    getattr(getattr(aten, name), kind): sign
    for name, sign in {
        "bitwise_and": "&",
        "bitwise_or": "|",
        "bitwise_xor": "^",
        "bitwise_right_shift": ">>",
        "bitwise_left_shift": "<<",
        "__rshift__": ">>",
        "__lshift__": "<<",
        "__and__": "&",
    }.items()
    for kind in ("Tensor", "Scalar", "Tensor_Scalar")
    if hasattr(getattr(aten, name), kind)
}
OTHERS = {
    aten.where.self,
    aten.clamp.default,
    aten.clamp_min.default,
    TO_COPY,
    aten.logical_not.default,
    aten.bitwise_not.default,
    aten.gather.default,
    aten.index_select.default,
    aten.index.Tensor,
    aten.embedding.default,
}
ELEMENTWISE = {*ARITHMETIC, *WITH_ALPHA, *COMPARISONS, *BITWISE, *OTHERS}
LOOKUPS = {
    aten.gather.default,
    aten.index_select.default,
    aten.index.Tensor,
    aten.embedding.default,
}


def clamp(text: str, low: str | None, high: str | None) -> str:
    """A number within bounds; NaN stays NaN."""
    if low is not None:
        text = hold(f"one < {low} ? {low} : one", one=text)
    return text if high is None else hold(f"one > {high} ? {high} : one", one=text)
