"""All steps of a pass in machine code: client after client, several clients at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.device import CPU
from coterie.core.method import Batch
from coterie.engines.local.batches import Batches
from coterie.engines.local.native.compiler import library
from coterie.engines.local.native.emit import Code, Emitter
from coterie.engines.local.native.expressions import Buffer
from coterie.engines.local.native.operations import c_type
from coterie.engines.local.native.values import Traced
from coterie.engines.local.programs import Untraceable
from coterie.engines.local.threads import pool, threads_of

FRAME = """
{functions}

static void step(char *const *leaf, const void *const *constant, char *scratch) {{
{body}
}}

/* Every thread takes the next client until none is left. */
void run(int64_t clients, int64_t *next, char *const *leaves, const int64_t *apart,
         const int64_t *each, int64_t longest, const int64_t *places, const int64_t *first,
         int64_t first_apart, const int64_t *rows, const int64_t *keys, int64_t outside,
         const char *x, const char *y, const void *const *constant, char *scratch) {{
  for (;;) {{
    const int64_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
    if (i >= clients) return;
    char *leaf[{leaves} + 1];
    for (int k = 0; k < {leaves}; k++) leaf[k] = leaves[k] + i * apart[k];
    for (int64_t s = 0; s < each[i]; s++) {{
      const int64_t *place = places + (i * longest + s) * {rows};
      for (int64_t j = 0; j < {rows}; j++) {{
        const int64_t at = place[j] < 0 ? 0 : place[j];
        const int64_t row = rows ? rows[first[i * first_apart] + at] : at;
        (void)row;
{gather}
      }}
{keys}
      step(leaf, constant, scratch);
    }}
  }}
}}
"""


class Taken(NamedTuple):
    """The steps of some clients, and the rows that they read."""

    each: Tensor  # steps per client
    places: Tensor  # [client, step, ...] places of rows among the client's, -1 where there is none
    first: Tensor  # per client, where its rows begin; one number where that is the same for all
    rows: Tensor  # rows of all clients; none where places are rows
    keys: Tensor  # per client, of its first step
    outside: int  # what stands for the place of no row
    x: Tensor
    y: Tensor


class Native:
    """A step of one client as machine code."""

    def __init__(self, code: Code, batch: Batch, leaves: int):
        self.code, self.leaves = code, leaves
        several = batch.key.numel() if batch.key.dim() else 1
        rows = batch.mask.numel()
        body = FRAME.format(
            functions=code.functions,
            body=code.body,
            leaves=leaves,
            rows=rows,
            gather="\n".join(_gathered(code.fields, batch, rows)),
            keys=_keys(code.fields, several),
        )
        self._run = library(body).run
        self._run.restype = None
        self._constants = [c.contiguous() for c in code.constants]

    def run(self, leaves: list[Tensor], batches: Batches, count: int, threads: int) -> None:
        """Take all steps, in the leaves [clients, ...]."""
        self._take(
            leaves,
            Taken(
                each=torch.tensor([min(e, count) for e in batches.each]),
                places=batches.places.contiguous(),
                first=batches.first.reshape(-1),
                rows=batches.part.rows,
                keys=batches.keys,
                outside=batches.plan.draw or batches.part.largest,
                x=batches.x,
                y=batches.y,
            ),
            threads,
        )

    def check(self, leaves: list[Tensor], batch: Batch, after: list[Tensor]) -> None:
        """Untraceable unless one step leaves what torch makes of it, up to rounding."""
        held = [leaf.clone().unsqueeze(0) for leaf in leaves]
        self._take(held, _one(batch), 1)
        largest = max(map(_change, leaves, after), default=0.0)
        for old, new, right in zip(leaves, held, after, strict=True):
            if not _alike(old, new[0], right, largest):
                raise Untraceable("the machine code of this compiler computes something else")

    def _take(self, leaves: list[Tensor], taken: Taken, threads: int) -> None:
        n = len(taken.each)
        next_ = ctypes.c_int64(0)
        pointers = _pointers([leaf.data_ptr() for leaf in leaves])
        apart = torch.tensor([leaf.stride(0) * leaf.element_size() for leaf in leaves] or [0])
        constants = _pointers([c.data_ptr() for c in self._constants])

        def work(_: int) -> None:
            scratch = torch.empty(self.code.scratch + 128, dtype=torch.uint8)
            aligned = -(-scratch.data_ptr() // 64) * 64
            self._run(
                ctypes.c_int64(n),
                ctypes.byref(next_),
                pointers,
                _at(apart),
                _at(taken.each),
                ctypes.c_int64(taken.places.shape[1]),
                _at(taken.places),
                _at(taken.first),
                ctypes.c_int64(int(len(taken.first) > 1)),
                _at(taken.rows) if len(taken.rows) else None,
                _at(taken.keys),
                ctypes.c_int64(taken.outside),
                _at(taken.x),
                _at(taken.y),
                constants,
                ctypes.c_void_p(aligned),
            )

        threads = max(1, min(threads, n))
        if threads == 1:
            work(0)
        else:
            with threads_of(1):
                list(pool(threads).map(work, range(threads)))


def _one(batch: Batch) -> Taken:
    """A batch as one step of one client."""
    real = batch.mask.reshape(-1) > 0
    place = batch.place.reshape(-1)
    rows = int(place[real].max()) + 1 if real.any() else 1

    def data(values: Tensor) -> Tensor:
        flat = values.reshape(len(place), *values.shape[batch.mask.dim() :])
        found = flat.new_zeros(rows, *flat.shape[1:])
        if not real.all():
            found[0] = flat[~real][0]  # no row is read as the first
        found[place[real]] = flat[real]
        return found

    several = batch.key.numel() if batch.key.dim() else 1
    return Taken(
        each=torch.tensor([1]),
        places=torch.where(real, place, -1).reshape(1, 1, -1),
        first=torch.tensor([0]),
        rows=torch.zeros(0, dtype=torch.int64),
        keys=batch.key.reshape(-1)[:1] // several,
        outside=0 if real.all() else int(place[~real][0]),
        x=data(batch.x),
        y=data(batch.y),
    )


def _change(old: Tensor, new: Tensor) -> float:
    """The largest change of a leaf."""
    if not new.is_floating_point() or not new.numel():
        return 0.0
    return float((new - old).nan_to_num(0, 0, 0).abs().max())


def _alike(old: Tensor, new: Tensor, right: Tensor, largest: float) -> bool:
    """Whether a leaf has changed as it should, up to rounding; `largest`: the largest change of
    any leaf, beside which some are nothing but rounding, as the slopes of a bias before a norm.
    """
    if not right.is_floating_point():
        return torch.equal(new, right)
    if not torch.equal(new.isfinite(), right.isfinite()):
        return False
    size, off = (t.nan_to_num(0, 0, 0).abs() for t in (right, new - right))
    eps = torch.finfo(right.dtype).eps
    # in single precision rounding switches a ReLU here and there, which moves all slopes before it
    share = 0.05 if right.dtype == torch.float32 else 10 * eps**0.5
    whole = float(size.max()) if right.numel() else 0.0
    return bool((off <= share * _change(old, right) + 100 * eps * max(whole, largest)).all())


def _at(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _pointers(addresses: list[int]) -> Any:
    return (ctypes.c_void_p * max(1, len(addresses)))(*addresses)


def _gathered(fields: dict[int, Buffer], batch: Batch, rows: int) -> list[str]:
    """C that copies one row of a batch to where the step reads it."""
    lines = []
    for number, (name, tensor) in enumerate(zip("xy", batch[:2], strict=True)):
        if number in fields:
            size = tensor.numel() // rows * tensor.element_size()
            into = f"scratch + {fields[number].at} + j * {size}"
            lines.append(f"memcpy({into}, {name} + row * {size}, {size});")
    if 2 in fields:
        kind = c_type(batch.mask.dtype)
        lines.append(f"(({kind} *)(scratch + {fields[2].at}))[j] = place[j] >= 0;")
    if 3 in fields:
        lines.append(
            f"((int64_t *)(scratch + {fields[3].at}))[j] = place[j] >= 0 ? place[j] : outside;"
        )
    return lines


def _keys(fields: dict[int, Buffer], several: int) -> str:
    if 4 not in fields:
        return ""
    return (
        f"for (int64_t j = 0; j < {several}; j++) ((int64_t *)(scratch + {fields[4].at}))[j] = "
        f"keys[i] * {several} + s * {several} + j;"
    )


def native(
    f: Callable[..., list[Tensor]], leaves: list[Tensor], batch: Batch, rows: Tensor
) -> Native:
    """The machine code of a step; `f(*leaves, *batch)` gives the new leaves of one client.

    Untraceable where there is no C for it.
    """
    if rows.device != CPU:
        raise Untraceable(f"the data are on {rows.device}, machine code runs on the processor")
    given = [t.detach().clone(memory_format=torch.contiguous_format) for t in (*leaves, *batch)]
    if not rows.is_contiguous() or rows.dtype != batch.x.dtype:
        raise Untraceable("the rows lie in another order")
    traced = Traced(f, given)
    mine, batch = given[: len(leaves)], Batch(*given[len(leaves) :])
    found = Native(Emitter(traced, len(leaves)).code(), batch, len(leaves))
    found.check(mine, batch, traced.after)
    return found
