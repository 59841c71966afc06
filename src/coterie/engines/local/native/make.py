"""Machine code of a step: traced, written as C, compiled or found again, and checked."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.device import CPU
from coterie.core.method import Batch
from coterie.engines.local.native.check import check
from coterie.engines.local.native.codegen import write_program, write_step
from coterie.engines.local.native.compiler import load_library
from coterie.engines.local.native.graph import MutatingStep, TracedStep
from coterie.engines.local.native.runtime import NativeStep
from coterie.engines.local.tracing import Untraceable


def make_native(
    f: Callable[..., list[Tensor]],
    leaves: list[Tensor],
    batch: Batch,
    rows: Tensor,
    outside: int,
    more: str = "",
) -> NativeStep:
    """The machine code of a step; `f(*leaves, *batch)` gives the new leaves of one client, and
    `outside` is the place of padding. `more` is C that comes after it.

    Untraceable where there is no C for it.
    """
    if rows.device != CPU:
        raise Untraceable(f"the data are on {rows.device}, machine code runs on the processor")
    tensors = pytree.tree_leaves((leaves, batch))
    given = [t.detach().clone(memory_format=torch.contiguous_format) for t in tensors]
    if not rows.is_contiguous() or rows.dtype != batch.x.dtype:
        raise Untraceable("the rows lie in another order")
    n = len(leaves)
    try:
        traced = TracedStep(f, given)
    except MutatingStep:
        f = torch.func.functionalize(f, remove="mutations")
        traced = TracedStep(f, given)
    code = write_step(traced, n)
    text = write_program(code, Batch(*given[n:]), n) + more
    native = NativeStep(code, load_library(text, traced.real == torch.float64), traced.real)
    check(native, text, f, given[:n], Batch(*given[n:]), outside)
    return native
