"""Operations along the last dimension in C: pass after pass over all rows, since functions of long
loops are vectors of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from coterie.engines.local.native.context import IVDEP, Context, Index
from coterie.engines.local.native.expressions import flatten_index, load
from coterie.engines.local.native.fusion import (
    LOG_SOFTMAX,
    LOG_SOFTMAX_BACKWARD,
    SOFTMAX,
    SOFTMAX_BACKWARD,
)
from coterie.engines.local.native.graph import Value
from coterie.engines.local.native.scalar_ops import c_type
from coterie.engines.local.tracing import Untraceable

aten = torch.ops.aten


class _RowPlace(NamedTuple):
    """Where a row of a value is, while C for it is written."""

    at: Index  # place c of the row
    number: str  # which row it is


def write_rows(c: Context, v: Value) -> None:
    """C of an operation along the last dimension."""
    source: Value = v.args[0]
    back = v.op in (SOFTMAX_BACKWARD, LOG_SOFTMAX_BACKWARD)
    dim = v.args[2] if back else v.args[1] if len(v.args) > 1 else None
    dim = dim[0] if isinstance(dim, list) and len(dim) == 1 else dim
    count = len(source.shape)
    if not count or not isinstance(dim, int) or dim % count != count - 1:
        raise Untraceable(f"there is no C for {v.op} along other dimensions than the last")
    if v.op == SOFTMAX_BACKWARD:
        _write_softmax_gradients(c, v)
    elif v.op == LOG_SOFTMAX_BACKWARD:
        _write_log_softmax_gradients(c, v)
    elif v.op == aten.argmax.default:
        _write_argmax(c, v, source)
    else:
        _write_softmax(c, v, source)


def _write_each(c: Context, source: Value, body: Callable[[_RowPlace], str]) -> None:
    outer = source.shape[:-1]

    def write_row(at: Index) -> str:
        return body(_RowPlace([*at[:-1], "c"], flatten_index(outer, at[:-1])))

    c.write_loops([*outer, 1], write_row)


def _write_all(c: Context, count: int, line: str) -> None:
    c.lines.append(f"{{\n{IVDEP}for (long i = 0; i < {count}; i++) {{ {line} }}\n}}")


def _write_softmax_gradients(c: Context, v: Value) -> None:
    each = f"for (long c = 0; c < {v.shape[-1]}; c++)"

    def write_row(row: _RowPlace) -> str:
        g, y, out = (load(c, one, row.at) for one in (v.args[0], v.args[1], v))
        return f"real sum = 0; {each} sum += {g} * {y}; {each} {out} = {y} * ({g} - sum);"

    _write_each(c, v, write_row)


def _write_log_softmax_gradients(c: Context, v: Value) -> None:
    n = v.shape[-1]
    each = f"for (long c = 0; c < {n}; c++)"
    with c.lend(v.numel, v) as shares:

        def copy(row: _RowPlace) -> str:
            return f"{each} {shares}[({row.number}) * {n} + c] = {load(c, v.args[1], row.at)};"

        def write_row(row: _RowPlace) -> str:
            g, out = load(c, v.args[0], row.at), load(c, v, row.at)
            share = f"{shares}[({row.number}) * {n} + c]"
            return f"real sum = 0; {each} sum += {g}; {each} {out} = {g} - {share} * sum;"

        _write_each(c, v, copy)
        _write_all(c, v.numel, f"{shares}[i] = vexp({shares}[i]);")
        _write_each(c, v, write_row)


def _write_argmax(c: Context, v: Value, source: Value) -> None:
    each = f"for (long c = 0; c < {source.shape[-1]}; c++)"

    def write_row(row: _RowPlace) -> str:
        x, out = load(c, source, row.at), _load_of_row(c, v, row)
        return (
            f"{c_type(source.dtype)} most = -INFINITY; long where = 0; "
            f"{each} if (!({x} <= most)) {{ most = {x}; where = c; }} {out} = where;"
        )

    _write_each(c, source, write_row)


def _load_of_row(c: Context, v: Value, row: _RowPlace) -> str:
    """The one number that an operation gives for a row."""
    keep = len(v.args) > 2 and bool(v.args[2])
    return load(c, v, [*row.at[:-1], "0"] if keep else row.at[:-1])


def _write_softmax(c: Context, v: Value, source: Value) -> None:
    """softmax, its logarithm, or the logarithm of the sum in it."""
    n, rows = source.shape[-1], math.prod(source.shape[:-1])
    each = f"for (long c = 0; c < {n}; c++)"
    with (
        c.lend(source.numel, source) as powers,
        c.lend(rows, source) as most,
        c.lend(rows, source) as sums,
    ):

        def subtract_largest(row: _RowPlace) -> str:
            x, r = load(c, source, row.at), row.number
            top = f"real top = -INFINITY; {each} top = {x} > top ? {x} : top;"
            return f"{top} {most}[{r}] = top; {each} {powers}[({r}) * {n} + c] = {x} - top;"

        def add_powers(row: _RowPlace) -> str:
            add = f"{each} sum += {powers}[({row.number}) * {n} + c];"
            return f"real sum = 0; {add} {sums}[{row.number}] = sum;"

        def write_shares(row: _RowPlace) -> str:
            r, out = row.number, load(c, v, row.at)
            if v.op == SOFTMAX:
                share = f"real share = 1 / {sums}[{r}];"
                return f"{share} {each} {out} = {powers}[({r}) * {n} + c] * share;"
            less = f"real top = {most}[{r}], less = {sums}[{r}];"
            return f"{less} {each} {out} = ({load(c, source, row.at)} - top) - less;"

        def write_whole(row: _RowPlace) -> str:
            top, sum_ = f"{most}[{row.number}]", f"{sums}[{row.number}]"
            return f"{_load_of_row(c, v, row)} = isinf({top}) ? {top} : {top} + {sum_};"

        _write_each(c, source, subtract_largest)
        _write_all(c, source.numel, f"{powers}[i] = vexp({powers}[i]);")
        _write_each(c, source, add_powers)
        if v.op != SOFTMAX:
            _write_all(c, rows, f"{sums}[i] = vlog({sums}[i]);")
        _write_each(c, source, write_shares if v.op in (SOFTMAX, LOG_SOFTMAX) else write_whole)
