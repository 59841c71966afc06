"""C code of a traced step: sums and products are put together where their numbers pass by once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from coterie.core.method import Batch
from coterie.engines.local.native.compiler import read_header
from coterie.engines.local.native.context import Buffer, Context, Index
from coterie.engines.local.native.expressions import (
    count_steps,
    express,
    flatten_index,
    load,
    load_argument,
)
from coterie.engines.local.native.fusion import CONCATS, MATMULS, REDUCTIONS, ROW_OPS, FusionPlan
from coterie.engines.local.native.graph import IMAGE_OPS, TracedStep, Value
from coterie.engines.local.native.image_ops import write_image
from coterie.engines.local.native.matrix_ops import write_product
from coterie.engines.local.native.row_ops import write_rows
from coterie.engines.local.native.scalar_ops import ELEMENTWISE, LOOKUPS, c_literal, c_type
from coterie.engines.local.tracing import Untraceable

aten = torch.ops.aten
MAX_PART_CHARS = 8_000  # characters of C from which on a function ends
VALUE_NAMES = re.compile(r"\b(?:carry|field|v|fixed|copy|lent|number)\d+\b")
PARAMETERS = (
    "char *const *leaf, const void *const *constant, const double *number, real *reals, "
    "char *others"
)
PASSED = "leaf, constant, number, reals, others"
ROW = (
    "real *reals, char *others, int64_t j, const char *x, const char *y, int64_t row, "
    "int64_t place, int64_t outside, const int32_t *move, const char *border"
)


class StepCode(NamedTuple):
    """A step in C, and what it needs."""

    text: str
    reals: int  # numbers of the step's own type that there must be room for
    others: int  # bytes for all else
    constants: list[torch.Tensor]
    numbers: list[float]
    changed: list[int]  # leaves that the step writes over
    fields: dict[int, Buffer]  # where it reads the batch: x, y, mask, place, key, pace


def write_step(traced: TracedStep, carry: int) -> StepCode:
    """One step as C; `carry` is the number of its leaves, which come before the batch."""
    c = Context(FusionPlan(traced, carry))
    fields = _name_given(c)
    last, never = c.plan.last_reads(), len(c.plan.order)
    given_back: dict[int, list[Buffer]] = {}  # after which value memory is free again
    for place, v in enumerate(c.plan.order):
        if v in c.plan.targets:
            _name_leaf(c, v, c.plan.targets[v])
        else:
            buffer = c.take(v.extent, v.dtype)
            c.names[v] = c.declare(f"v{place}", v.dtype, buffer.point(c_type(v.dtype)))
            given_back.setdefault(last.get(v, never), []).append(buffer)
        _write_value(c, v)
        c.free += given_back.pop(place, [])
    changed = _copy_out(c)
    parts = _part(c)
    calls = [f"part{k}({PASSED});" for k in range(len(parts))]
    functions = [
        f"static __attribute__((noinline)) void {name}(real *out, const real *a, const real *b"
        f"{more}) {{ {call} }}"
        for (call, more), name in c.functions.items()
    ]
    step = [f"static void step({PARAMETERS}) {{", *calls, "}"]
    return StepCode(
        text="\n".join([*functions, *parts, *step]),
        reals=c.tops[True],
        others=c.tops[False],
        constants=c.constants,
        numbers=c.numbers,
        changed=changed,
        fields=fields,
    )


def write_program(code: StepCode, batch: Batch, leaves: int) -> str:
    """All steps of a pass as C: the same for every number that the step is given."""
    several = batch.key.numel() if batch.key.dim() else 1
    rows = batch.mask.numel()
    count = batch.x.numel() // rows if 0 in code.fields else 0
    return "\n".join(
        [
            f"#define LEAVES {leaves}",
            f"#define BATCH_ROWS {rows}",
            f"#define X_BYTES ({count} * sizeof({c_type(batch.x.dtype)}))",
            f"#define REALS {code.reals}",
            code.text,
            f"static inline void copy_row({ROW}) {{",
            *_copy_fields(code.fields, batch, rows),
            "}",
            "static inline void copy_keys(char *others, int64_t key, int64_t s) {",
            _copy_keys(code.fields, several),
            "}",
            "static inline void copy_pace(real *reals, double pace) {",
            f"*({code.fields[5].point('real')}) = pace;" if 5 in code.fields else "",
            "}",
            read_header("run.h"),
        ]
    )


def _copy_fields(fields: dict[int, Buffer], batch: Batch, rows: int) -> list[str]:
    """C that copies one row of a batch to where the step reads it."""
    lines = []
    for number, (name, tensor) in enumerate(zip("xy", batch[:2], strict=True)):
        if number in fields:
            kind, count = c_type(tensor.dtype), tensor.numel() // rows
            into = f"{fields[number].point(kind)} + j * {count}"
            size = f"{count} * sizeof({kind})"
            copied = f"memcpy({into}, {name} + row * ({size}), {size});"
            shape = ", ".join(map(str, tensor.shape[batch.mask.dim() :]))
            if name == "x" and shape.count(",") == 2 and tensor.is_floating_point():  # an image
                row = f"(const real *)x + row * {count}"
                moved = f"move_image({into}, {row}, (const real *)border, {shape}, move);"
                copied = f"if (move) {moved} else {copied}"
            lines.append(copied)
    if 2 in fields:
        lines.append(f"({fields[2].point(c_type(batch.mask.dtype))})[j] = place >= 0;")
    if 3 in fields:
        lines.append(f"({fields[3].point('int64_t')})[j] = place >= 0 ? place : outside;")
    return lines


def _copy_keys(fields: dict[int, Buffer], several: int) -> str:
    if 4 not in fields:
        return ""
    into = f"({fields[4].point('int64_t')})[j]"
    return f"for (int64_t j = 0; j < {several}; j++) {into} = (key + s) * {several} + j;"


# Memory


def _name_leaf(c: Context, v: Value, k: int) -> None:
    c.names[v] = c.declare(f"carry{k}", v.dtype, f"({c_type(v.dtype)} *)leaf[{k}]")


def _name_given(c: Context) -> dict[int, Buffer]:
    """Names for what a step reads of the carry and of the batch, and where the latter lies."""
    fields: dict[int, Buffer] = {}
    for k, v in enumerate(c.plan.given):
        if v is None or (not v.users and v not in c.plan.results):
            continue
        if k < c.plan.carry:
            _name_leaf(c, v, k)
        else:
            fields[k - c.plan.carry] = buffer = c.take(v.extent, v.dtype)
            c.names[v] = c.declare(f"field{k}", v.dtype, buffer.point(c_type(v.dtype)))
    return fields


def _part(c: Context) -> list[str]:
    """The step as functions: a compiler takes far longer for a long one than for its parts."""
    parts: list[list[str]] = [[]]
    for block in c.lines:
        if sum(map(len, parts[-1])) > MAX_PART_CHARS:
            parts.append([])
        parts[-1].append(block)
    texts = []
    for k, part in enumerate(parts):
        used = {name for block in part for name in VALUE_NAMES.findall(block)}
        names = [line for name, line in c.declared.items() if name in used]
        body = "\n".join([*names, *part])
        texts.append(f"static __attribute__((noinline)) void part{k}({PARAMETERS}) {{\n{body}\n}}")
    return texts


def _copy_out(c: Context) -> list[int]:
    """Write the other new leaves over the old ones, once everything has been read."""
    copies, changed = [], list(c.plan.targets.values())
    for k, v in enumerate(c.plan.results):
        leaf = c.plan.given[k]
        if v is leaf or k in changed:
            continue
        changed.append(k)
        kind = c_type(v.dtype)
        name = c.declare(f"copy{k}", v.dtype, c.take(v.numel, v.dtype).point(kind))

        def copy(at: Index, v: Value = v, name: str = name) -> str:
            return f"{name}[{flatten_index(v.shape, at)}] = {load(c, v, at)};"

        c.write_loops(v.shape, copy)
        copies.append(f"memcpy(leaf[{k}], {name}, {v.numel} * sizeof({kind}));")
    c.lines += copies
    return sorted(changed)


# Computing


def _write_value(c: Context, v: Value) -> None:
    if not v.numel:
        return
    if v in c.plan.product or v.op in MATMULS:
        write_product(c, v, c.plan.product.get(v, v))
    elif v.op in ELEMENTWISE:
        _write_elementwise(c, v)
    elif v.op in REDUCTIONS:
        _write_sum(c, v)
    elif v.op in ROW_OPS:
        write_rows(c, v)
    elif v.op in CONCATS:
        _write_joined(c, v)
    elif v.op in IMAGE_OPS:
        write_image(c, v)
    elif v.op == aten.embedding_dense_backward.default:
        _write_embedding_gradients(c, v)
    else:
        _write_scattered(c, v)


def _write_elementwise(c: Context, v: Value) -> None:
    def write_place(at: Index) -> str:
        return f"{load(c, v, at)} = {express(c, v, at, v)};"

    if _is_flat(c, v):
        before = ["0"] * (len(v.shape) - 1)
        c.write_loops([v.numel], lambda at: write_place([*before, at[0]]))
    else:
        c.write_loops(v.shape, write_place)


def _is_flat(c: Context, root: Value) -> bool:
    """Whether everything that a value is computed from lies in the same order."""
    if root.numel == 1 or root.shape[-1] == 1 or root.stride != count_steps(root.shape):
        return False
    waiting = [root]
    while waiting:
        v = waiting.pop()
        if v.op in LOOKUPS:
            return False
        for one in v.inputs:
            if c.plan.within(one, root):
                waiting.append(one)
            elif one.numel != 1 and (
                one.shape != root.shape or one.stride != count_steps(one.shape)
            ):
                return False
    return True


def _write_sum(c: Context, v: Value) -> None:
    """A sum, a mean or the largest number along some dimensions."""
    source: Value = v.args[0]
    dims = v.args[1] if len(v.args) > 1 and v.args[1] else range(len(source.shape))
    gone = {d % len(source.shape) for d in dims} if source.shape else set()
    keep = len(v.args) > 2 and bool(v.args[2])
    top = v.op == aten.amax.default
    start = "-INFINITY" if top else "0"
    name = c.names[v]
    c.lines.append(f"for (long i = 0; i < {v.extent}; i++) {name}[i] = {start};")

    def find_out(at: Index) -> str:
        spot = [("0" if d in gone else i) for d, i in enumerate(at) if keep or d not in gone]
        return load(c, v, spot)

    def take(at: Index, into: str) -> str:
        text = load_argument(c, v, 0, at, v, v.dtype)
        if top:
            return f"{{ {c_type(v.dtype)} one = {text}; if (!(one <= {into})) {into} = one; }}"
        return f"{into} += {text};"

    long = [d for d, n in enumerate(source.shape) if n != 1]
    inner = long[-1] if long else None
    if inner is not None and inner in gone and not top:
        _write_row_sums(c, v, source.shape, inner, take, find_out)
    else:
        c.write_loops(source.shape, lambda at: take(at, find_out(at)), once=inner not in gone)
    if v.op in (aten.mean.default, aten.mean.dim):
        share = c_literal(v.numel / source.numel, v.dtype)
        c.lines.append(f"for (long i = 0; i < {v.extent}; i++) {name}[i] *= {share};")


def _write_row_sums(
    c: Context,
    v: Value,
    shape: Sequence[int],
    inner: int,
    take: Callable[[Index, str], str],
    find_out: Callable[[Index], str],
) -> None:
    """Sums along the last dimension, several numbers at once."""
    kind = c_type(v.dtype)
    outer = [n if d != inner else 1 for d, n in enumerate(shape)]

    def add_row(at: Index) -> str:
        spot = [*at]
        spot[inner] = f"i{inner}"
        return (
            f"{kind} sum = 0;\n#pragma omp simd reduction(+ : sum)\n"
            f"for (long i{inner} = 0; i{inner} < {shape[inner]}; i{inner}++) {{ "
            f"{take(spot, 'sum')} }}\n{find_out(at)} += sum;"
        )

    c.write_loops(outer, add_row, once=False)


def _write_joined(c: Context, v: Value) -> None:
    parts: list[Value] = v.args[0]
    dim = v.args[1] if len(v.args) > 1 else 0
    fresh = v.op == aten.stack.default
    dim %= len(v.shape)
    before = 0
    for part in parts:

        def copy(at: Index, part: Value = part, before: int = before) -> str:
            spot = [*at]
            if fresh:
                spot.insert(dim, str(before))
            else:
                spot[dim] = f"({at[dim]} + {before})"
            return f"{load(c, v, spot)} = {load(c, part, at)};"

        c.write_loops(part.shape, copy)
        before += 1 if fresh else part.shape[dim]


def _write_embedding_gradients(c: Context, v: Value) -> None:
    """The gradients of a table of word vectors: each row takes those of its word."""
    gradients, index, _, unused, by_count = v.args
    if by_count:
        raise Untraceable("there is no C for gradients divided by how often words come")
    c.write_loops(v.shape, lambda at: f"{load(c, v, at)} = 0;")
    last = len(index.shape)

    def add(at: Index) -> str:
        word = load(c, index, at[:last])
        line = f"{load(c, v, [word, at[last]])} += {load(c, gradients, at)};"
        return f"if ({word} != {unused}) {line}"

    c.write_loops(gradients.shape, add, once=False)  # words may come twice


def _write_scattered(c: Context, v: Value) -> None:
    """Numbers at places that are looked up, added to what is there or in its stead."""
    start, dim, index, source = v.args
    if start.constant is not None or c.names[v] != c.names[start.base]:
        c.write_loops(v.shape, lambda at: f"{load(c, v, at)} = {load(c, start, at)};")
    adds = v.op == aten.scatter_add.default
    sign, shape = ("+=", index.shape) if adds else ("=", source.shape)

    def put(at: Index) -> str:
        spot = [*at]
        spot[dim] = load(c, index, at if adds else [at[dim]])
        return f"{load(c, v, spot)} {sign} {load(c, source, at)};"

    c.write_loops(shape, put, once=False)  # places may come twice
