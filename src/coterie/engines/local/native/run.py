"""All steps of a pass in machine code: client after client, several clients at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.core.device import CPU
from coterie.core.method import Batch
from coterie.engines.local.batches import Batches
from coterie.engines.local.native.compiler import library
from coterie.engines.local.native.emit import Buffer, Code, Emitter
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
        n = len(batches.each)
        each = torch.tensor([min(e, count) for e in batches.each])
        first = batches.first.reshape(-1)
        rows = batches.part.rows
        places, keys = batches.places.contiguous(), batches.keys
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
                _at(each),
                ctypes.c_int64(places.shape[1]),
                _at(places),
                _at(first),
                ctypes.c_int64(int(len(first) > 1)),
                _at(rows) if len(rows) else None,
                _at(keys),
                ctypes.c_int64(batches.plan.draw or batches.part.largest),
                _at(batches.x),
                _at(batches.y),
                constants,
                ctypes.c_void_p(aligned),
            )

        threads = max(1, min(threads, n))
        if threads == 1:
            work(0)
        else:
            with threads_of(1):
                list(pool(threads).map(work, range(threads)))


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
    code = Emitter(Traced(f, given), len(leaves)).code()
    return Native(code, Batch(*given[len(leaves) :]), len(leaves))
