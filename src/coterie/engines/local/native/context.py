"""What is known of a step while its C is written: names, memory, and the C so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from coterie.engines.local.native.fusion import FusionPlan
from coterie.engines.local.native.graph import Value
from coterie.engines.local.native.scalar_ops import c_literal, c_type

Index = list[str]  # C of the place in each dimension
IVDEP = "#pragma GCC ivdep\n"  # what is written over is read at its own places alone


class Buffer(NamedTuple):
    """Memory of a step beside the leaves: numbers of the step's own type, or bytes of others."""

    real: bool
    at: int  # reals or bytes from the start of its kind
    size: int

    def point(self, kind: str) -> str:
        """C of where it begins, as numbers of a type."""
        return f"reals + {self.at}" if self.real else f"({kind} *)(others + {self.at})"


class Context:
    """A step while its C is written."""

    def __init__(self, plan: FusionPlan):
        self.plan = plan
        self.names: dict[Value, str] = {}
        self.constants: list[torch.Tensor] = []  # tensors that are the same in every step
        self.numbers: list[float] = []  # what the step is given beside tensors, as its rate
        self.declared: dict[str, str] = {}  # name -> C that declares it
        self.lines: list[str] = []
        self.functions: dict[tuple[str, str], str] = {}  # (call, more arguments) -> name
        self.free: list[Buffer] = []
        self.tops = {True: 0, False: 0}  # how much memory there is, of reals and of others
        self._numbered: dict[tuple[Value, int | str], str] = {}

    def take(self, count: int, dtype: torch.dtype) -> Buffer:
        """Memory for so many numbers; whoever has taken it puts it back to what is free."""
        real = dtype.is_floating_point
        size, step = (count, 16) if real else (count * dtype.itemsize, 64)
        size = -(-size // step) * step
        fitting = [b for b in self.free if b.real == real and b.size >= size]
        if fitting:
            best = min(fitting, key=lambda b: b.size)
            self.free.remove(best)
            return best
        self.tops[real] += size
        return Buffer(real, self.tops[real] - size, size)

    def declare(self, name: str, dtype: torch.dtype, where: str) -> str:
        """Let a name stand for numbers in memory."""
        kind = c_type(dtype)
        self.declared.setdefault(name, f"{kind} *const {name} = {where};")
        return name

    @contextmanager
    def lend(self, count: int, like: Value) -> Iterator[str]:
        """The name of memory for so many numbers, while C that needs it is written."""
        buffer = self.take(count, like.dtype)
        where = buffer.point(c_type(like.dtype))
        yield self.declare(f"lent{len(self.declared)}", like.dtype, where)
        self.free.append(buffer)

    def number(self, owner: Value, place: int | str, value: float, dtype: torch.dtype) -> str:
        """C of a number that an operation is given.

        A float is an argument of the program, found by its place and never by its value: runs that
        differ in their rate share one program. Whole numbers belong to the step's form, and so do
        0, 1 and -1, which a compiler leaves out.
        """
        formed = not isinstance(value, float) or not math.isfinite(value) or abs(value) in (0, 1)
        if formed or not dtype.is_floating_point:
            return c_literal(value, dtype)
        if (owner, place) not in self._numbered:
            k = len(self.numbers)
            self.numbers.append(value)
            self.declared[f"number{k}"] = f"const real number{k} = number[{k}];"
            self._numbered[owner, place] = f"number{k}"
        return self._numbered[owner, place]

    def name_function(self, call: str, more: str = "") -> str:
        """The name of a function that makes a call with all sizes, compiled once however often it
        is taken; `more` are its arguments beside out, a and b.
        """
        return self.functions.setdefault((call, more), f"call{len(self.functions)}")

    def write_loops(
        self, shape: Sequence[int], body: Callable[[Index], str], once: bool = True
    ) -> None:
        """Nested loops over a shape; `body` gives the C of a place, which is written `once`."""
        at = ["0" if n == 1 else f"i{d}" for d, n in enumerate(shape)]
        real = [d for d, n in enumerate(shape) if n != 1]
        text = body(at)
        for d in reversed(real):
            hint = IVDEP if once and d == real[-1] else ""
            text = f"{hint}for (long i{d} = 0; i{d} < {shape[d]}; i{d}++) {{\n{text}\n}}"
        self.lines.append(f"{{\n{text}\n}}")
