"""C code of a traced step: sums and products are put together where their numbers pass by once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from coterie.engines.local.native.expressions import Buffer, Index, contiguous, flat_index
from coterie.engines.local.native.operations import ELEMENTWISE, PICKING, c_type, literal
from coterie.engines.local.native.plan import (
    BY_ROW,
    JOINED,
    PRODUCTS,
    SUMMED,
    Plan,
    by_tile,
)
from coterie.engines.local.native.rows import Rows
from coterie.engines.local.native.values import IMAGES, Traced, Value
from coterie.engines.local.programs import Untraceable

aten = torch.ops.aten
PART = 8_000  # characters of C from which on a function ends
NAMES = re.compile(r"\b(?:carry|field|v|fixed|copy|lent)\d+\b")
GIVEN = "char *const *leaf, const void *const *constant, char *scratch"


class Code(NamedTuple):
    """The body of a step, and what it needs."""

    functions: str
    body: str
    scratch: int  # bytes
    constants: list[torch.Tensor]
    changed: list[int]  # leaves that the step writes over
    fields: dict[int, Buffer]  # where it reads the batch: x, y, mask, place, key


class Emitter(Rows):
    """Writes one step as C; `carry` is the number of its leaves, which come before the batch."""

    def __init__(self, traced: Traced, carry: int):
        super().__init__(Plan(traced, carry))

    # Memory

    def _name(self, v: Value, name: str, where: str) -> None:
        if name not in self.names.values():
            kind = c_type(v.dtype)
            self.declared[name] = f"{kind} *const {name} = ({kind} *)({where});"
        self.names[v] = name

    def code(self) -> Code:
        """The whole step."""
        plan, order, targets = self.plan, self.plan.order, self.plan.targets
        fields: dict[int, Buffer] = {}
        for k, v in enumerate(plan.given):
            if v is None or (not v.users and v not in plan.results):
                continue
            if k < plan.carry:
                self._name(v, f"carry{k}", f"leaf[{k}]")
            else:
                fields[k - plan.carry] = self.take(v.extent * v.dtype.itemsize)
                self._name(v, f"field{k}", f"scratch + {fields[k - plan.carry].at}")
        last, never = plan.last_reads(), len(order)
        given_back: dict[int, list[Buffer]] = {}  # after which value memory is free again
        for place, v in enumerate(order):
            if v in targets:
                self._name(v, f"carry{targets[v]}", f"leaf[{targets[v]}]")
            else:
                buffer = self.take(v.extent * v.dtype.itemsize)
                self._name(v, f"v{place}", f"scratch + {buffer.at}")
                given_back.setdefault(last.get(v, never), []).append(buffer)
            self._compute(v)
            self.free += given_back.pop(place, [])
        changed = self._copy_out()
        parts = self._parts()
        return Code(
            functions="\n".join([self.functions, *parts]),
            body="\n".join(f"part{k}(leaf, constant, scratch);" for k in range(len(parts))),
            scratch=self.top,
            constants=self.constants,
            changed=changed,
            fields=fields,
        )

    def _parts(self) -> list[str]:
        """The step as functions: a compiler takes far longer for a long one than for its parts."""
        parts: list[list[str]] = [[]]
        for block in self.lines:
            if sum(map(len, parts[-1])) > PART:
                parts.append([])
            parts[-1].append(block)
        texts = []
        for k, part in enumerate(parts):
            used = {name for block in part for name in NAMES.findall(block)}
            names = [line for name, line in self.declared.items() if name in used]
            body = "\n".join([*names, *part])
            texts.append(f"static __attribute__((noinline)) void part{k}({GIVEN}) {{\n{body}\n}}")
        return texts

    def _copy_out(self) -> list[int]:
        """Write the other new leaves over the old ones, once everything has been read."""
        copies, changed = [], list(self.plan.targets.values())
        for k, v in enumerate(self.plan.results):
            leaf = self.plan.given[k]
            if v is leaf or k in changed:
                continue
            changed.append(k)
            staged = self.take(v.numel * v.dtype.itemsize)
            kind = c_type(v.dtype)
            self.declared[f"copy{k}"] = (
                f"{kind} *const copy{k} = ({kind} *)(scratch + {staged.at});"
            )

            def copied(at: Index, v: Value = v, k: int = k) -> str:
                return f"copy{k}[{flat_index(v.shape, at)}] = {self.load(v, at)};"

            self.loops(v.shape, copied)
            copies.append(f"memcpy(leaf[{k}], copy{k}, {v.numel * v.dtype.itemsize});")
        self.lines += copies
        return sorted(changed)

    # Computing

    def _compute(self, v: Value) -> None:
        if not v.numel:
            return
        if v in self.plan.product:
            self.tiled(v, self.plan.product[v])
        elif v.op in PRODUCTS:
            self.tiled(v, v) if by_tile(v) else self.dotted(v)
        elif v.op in ELEMENTWISE:
            self._pointwise(v)
        elif v.op in SUMMED:
            self._summed(v)
        elif v.op in BY_ROW:
            self.by_row(v)
        elif v.op in JOINED:
            self._joined(v)
        elif v.op in IMAGES:
            self.image(v)
        else:
            self._scattered(v)

    def _pointwise(self, v: Value) -> None:
        if self._flat_inside(v):
            self.loops([v.numel], lambda at: self._flat_line(v, at[0]))
            return
        self.loops(v.shape, lambda at: f"{self.load(v, at)} = {self._whole(v, at)};")

    def _whole(self, v: Value, at: Index) -> str:
        return self.expression(v, at, v)

    def _flat_inside(self, root: Value) -> bool:
        """Whether everything that a value is computed from lies in the same order."""
        if root.numel == 1 or root.shape[-1] == 1 or root.stride != contiguous(root.shape):
            return False
        waiting = [root]
        while waiting:
            v = waiting.pop()
            if v.op in PICKING:
                return False
            for one in v.inputs:
                if self.plan.within(one, root):
                    waiting.append(one)
                elif one.numel != 1 and (
                    one.shape != root.shape or one.stride != contiguous(one.shape)
                ):
                    return False
        return True

    def _flat_line(self, v: Value, i: str) -> str:
        at = ["0"] * (len(v.shape) - 1) + [i]
        return f"{self.load(v, at)} = {self._whole(v, at)};"

    def _summed(self, v: Value) -> None:
        source: Value = v.args[0]
        dims = v.args[1] if len(v.args) > 1 and v.args[1] else range(len(source.shape))
        gone = {d % len(source.shape) for d in dims} if source.shape else set()
        keep = len(v.args) > 2 and bool(v.args[2])
        top = v.op == aten.amax.default
        start = "-INFINITY" if top else "0"
        name = self.names[v]
        self.lines.append(f"for (long i = 0; i < {v.extent}; i++) {name}[i] = {start};")

        def out(at: Index) -> str:
            return self.load(
                v, [("0" if d in gone else i) for d, i in enumerate(at) if keep or d not in gone]
            )

        def take(at: Index, into: str) -> str:
            text = self.argument(source, v, at, v, v.dtype)
            if top:
                return f"{{ {c_type(v.dtype)} one = {text}; if (!(one <= {into})) {into} = one; }}"
            return f"{into} += {text};"

        real = [d for d, n in enumerate(source.shape) if n != 1]
        inner = real[-1] if real else None
        if inner is not None and inner in gone and not top:
            self._sum_rows(v, source.shape, inner, take, out)
        else:
            self.loops(source.shape, lambda at: take(at, out(at)), once=inner not in gone)
        if v.op in (aten.mean.default, aten.mean.dim):
            share = v.numel / source.numel
            self.lines.append(
                f"for (long i = 0; i < {v.extent}; i++) {name}[i] *= {literal(share, v.dtype)};"
            )

    def _sum_rows(self, v: Value, shape: Sequence[int], inner: int, take: Any, out: Any) -> None:
        """Sums along the last dimension, several numbers at once."""
        kind = c_type(v.dtype)
        outer = [n if d != inner else 1 for d, n in enumerate(shape)]

        def body(at: Index) -> str:
            spot = [*at]
            spot[inner] = f"i{inner}"
            return (
                f"{kind} sum = 0;\n#pragma omp simd reduction(+ : sum)\n"
                f"for (long i{inner} = 0; i{inner} < {shape[inner]}; i{inner}++) {{ "
                f"{take(spot, 'sum')} }}\n{out(at)} += sum;"
            )

        self.loops(outer, body, once=False)

    def _joined(self, v: Value) -> None:
        parts: list[Value] = v.args[0]
        dim = v.args[1] if len(v.args) > 1 else 0
        fresh = v.op == aten.stack.default
        dim %= len(v.shape)
        before = 0
        for part in parts:

            def body(at: Index, part: Value = part, before: int = before) -> str:
                spot = [*at]
                if fresh:
                    spot.insert(dim, str(before))
                else:
                    spot[dim] = f"({at[dim]} + {before})"
                return f"{self.load(v, spot)} = {self.load(part, at)};"

            self.loops(part.shape, body)
            before += 1 if fresh else part.shape[dim]

    def _words(self, v: Value) -> None:
        """The slopes of a table of word vectors: each row takes those of its word."""
        slopes, index, _, unused, by_count = v.args
        if by_count:
            raise Untraceable("there is no C for slopes that are divided by how often words come")
        self.loops(v.shape, lambda at: f"{self.load(v, at)} = 0;")
        last = len(index.shape)

        def body(at: Index) -> str:
            word = self.load(index, at[:last])
            line = f"{self.load(v, [word, at[last]])} += {self.load(slopes, at)};"
            return f"if ({word} != {unused}) {line}"

        self.loops(slopes.shape, body, once=False)  # words may come twice

    def _scattered(self, v: Value) -> None:
        """Numbers at places that are looked up, added to what is there or in its stead."""
        if v.op == aten.embedding_dense_backward.default:
            self._words(v)
            return
        start, dim, index, source = v.args
        if start.constant is not None or self.names[v] != self.names[start.base]:
            self.loops(v.shape, lambda at: f"{self.load(v, at)} = {self.load(start, at)};")
        adds = v.op == aten.scatter_add.default
        sign, shape = ("+=", index.shape) if adds else ("=", source.shape)

        def body(at: Index) -> str:
            spot = [*at]
            spot[dim] = self.load(index, at if adds else [at[dim]])
            return f"{self.load(v, spot)} {sign} {self.load(source, at)};"

        self.loops(shape, body, once=False)  # places may come twice
