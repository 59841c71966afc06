"""Operations along the last dimension in C: pass after pass over all rows, since functions of long
loops are vectors of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from coterie.engines.local.native.expressions import IVDEP, Index, flat_index
from coterie.engines.local.native.images import Images
from coterie.engines.local.native.operations import c_type, tail
from coterie.engines.local.native.plan import LOG_SOFTMAX, LOG_SOFTMAX_BACK, SOFTMAX, SOFTMAX_BACK
from coterie.engines.local.native.values import Value
from coterie.engines.local.programs import Untraceable

aten = torch.ops.aten


class _Row(NamedTuple):
    """Where a row of a value is, while C for it is written."""

    at: Index  # place c of the row
    number: str  # which row it is


class Rows(Images):
    """Writes operations along the last dimension."""

    def by_row(self, v: Value) -> None:
        """C of an operation along the last dimension."""
        source: Value = v.args[0]
        back = v.op in (SOFTMAX_BACK, LOG_SOFTMAX_BACK)
        dim = v.args[2] if back else v.args[1] if len(v.args) > 1 else None
        dim = dim[0] if isinstance(dim, list) and len(dim) == 1 else dim
        count = len(source.shape)
        if not count or not isinstance(dim, int) or dim % count != count - 1:
            raise Untraceable(f"there is no C for {v.op} along other dimensions than the last")
        if back:
            self._slopes(v, source)
        elif v.op == aten.argmax.default:
            self._largest(v, source)
        else:
            self._shares(v, source)

    def _each_row(self, source: Value, body: Callable[[_Row], str]) -> None:
        outer = source.shape[:-1]

        def text(at: Index) -> str:
            return body(_Row([*at[:-1], "c"], flat_index(outer, at[:-1])))

        self.loops([*outer, 1], text)

    def _all(self, count: int, line: str) -> None:
        self.lines.append(f"{{\n{IVDEP}for (long i = 0; i < {count}; i++) {{ {line} }}\n}}")

    def _slopes(self, v: Value, slopes: Value) -> None:
        """Those of the input of a softmax or of its logarithm."""
        n, kind, t = v.shape[-1], c_type(v.dtype), tail(v.dtype)
        each = f"for (long c = 0; c < {n}; c++)"

        def of_shares(row: _Row) -> str:
            g, y, out = (self.load(one, row.at) for one in (slopes, v.args[1], v))
            return f"{kind} sum = 0; {each} sum += {g} * {y}; {each} {out} = {y} * ({g} - sum);"

        if v.op == SOFTMAX_BACK:
            self._each_row(v, of_shares)
            return
        with self.numbers(v.numel, v) as shares:

            def copied(row: _Row) -> str:
                y = self.load(v.args[1], row.at)
                return f"{each} {shares}[({row.number}) * {n} + c] = {y};"

            def of_logs(row: _Row) -> str:
                g, out = self.load(slopes, row.at), self.load(v, row.at)
                share = f"{shares}[({row.number}) * {n} + c]"
                return f"{kind} sum = 0; {each} sum += {g}; {each} {out} = {g} - {share} * sum;"

            self._each_row(v, copied)
            self._all(v.numel, f"{shares}[i] = vexp{t}({shares}[i]);")
            self._each_row(v, of_logs)

    def _largest(self, v: Value, source: Value) -> None:
        kind = c_type(source.dtype)

        def body(row: _Row) -> str:
            x, out = self.load(source, row.at), self._of_row(v, row)
            each = f"for (long c = 0; c < {source.shape[-1]}; c++)"
            return (
                f"{kind} most = -INFINITY; long where = 0; "
                f"{each} if (!({x} <= most)) {{ most = {x}; where = c; }} {out} = where;"
            )

        self._each_row(source, body)

    def _of_row(self, v: Value, row: _Row) -> str:
        """The one number that an operation gives for a row."""
        keep = len(v.args) > 2 and bool(v.args[2])
        return self.load(v, [*row.at[:-1], "0"] if keep else row.at[:-1])

    def _shares(self, v: Value, source: Value) -> None:
        """softmax, its logarithm, or the logarithm of the sum in it."""
        n, kind, t = source.shape[-1], c_type(source.dtype), tail(source.dtype)
        rows = math.prod(source.shape[:-1])
        each = f"for (long c = 0; c < {n}; c++)"
        with (
            self.numbers(source.numel, source) as powers,
            self.numbers(rows, source) as most,
            self.numbers(rows, source) as sums,
        ):

            def lessened(row: _Row) -> str:
                x, r = self.load(source, row.at), row.number
                top = f"{kind} top = -INFINITY; {each} top = {x} > top ? {x} : top;"
                return f"{top} {most}[{r}] = top; {each} {powers}[({r}) * {n} + c] = {x} - top;"

            def summed(row: _Row) -> str:
                add = f"{each} sum += {powers}[({row.number}) * {n} + c];"
                return f"{kind} sum = 0; {add} {sums}[{row.number}] = sum;"

            def done(row: _Row) -> str:
                r, out = row.number, self.load(v, row.at)
                if v.op == SOFTMAX:
                    share = f"{kind} share = 1 / {sums}[{r}];"
                    return f"{share} {each} {out} = {powers}[({r}) * {n} + c] * share;"
                less = f"{kind} top = {most}[{r}], less = {sums}[{r}];"
                return f"{less} {each} {out} = ({self.load(source, row.at)} - top) - less;"

            def whole(row: _Row) -> str:
                top, sum_ = f"{most}[{row.number}]", f"{sums}[{row.number}]"
                return f"{self._of_row(v, row)} = isinf({top}) ? {top} : {top} + {sum_};"

            self._each_row(source, lessened)
            self._all(source.numel, f"{powers}[i] = vexp{t}({powers}[i]);")
            self._each_row(source, summed)
            if v.op != SOFTMAX:
                self._all(rows, f"{sums}[i] = vlog{t}({sums}[i]);")
            self._each_row(source, done if v.op in (SOFTMAX, LOG_SOFTMAX) else whole)
