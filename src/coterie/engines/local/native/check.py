"""Machine code is held against torch before it is taken, once for every program.

The same C in double precision must be what torch computes in double precision: that shows that the
program is right. What runs is its single precision, which rounds otherwise than torch's does; its
distance to torch's double precision is bounded by that of torch's own single precision.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from coterie.core.method import Batch
from coterie.engines.local.native.compiler import is_checked, load_once, mark_checked
from coterie.engines.local.native.graph import SHAPE_ONLY
from coterie.engines.local.native.runtime import NativeStep
from coterie.engines.local.tracing import Tape, Untraceable

SHARE = 1e-9  # of a leaf's change by which double precision may differ
TIMES = 8  # as far from the truth as torch's own single precision may a step be
# units in the last place of a leaf's numbers, and of the largest change of any leaf, beside which
# some are nothing but rounding, as the gradients of a bias before a norm
LAST, SUMMED = 4, 200
TRIES = 12  # steps of single precision at most, where rounding switches a ReLU here and there
WRONG = "the machine code of this compiler computes something else"


class Replay:
    """A step as torch's own operations, on whatever tensors and in double precision too."""

    def __init__(self, f: Callable[..., list[Tensor]], given: list[Tensor]):
        with Tape(given) as tape:
            self._results = [tape.node_of(t) for t in f(*given)]
        self._tape = tape
        tape.graph.output(self._results)
        tape.graph.eliminate_dead_code()
        self._fixed = set[fx.Node]()  # they are the same in every step
        for node in tape.graph.nodes:
            form = node.op == "call_function" and _name(node.target) in SHAPE_ONLY
            known = node.op == "call_function" and self._fixed.issuperset(node.all_input_nodes)
            if (node.op == "get_attr" or form or known) and node in tape.made:
                self._fixed.add(node)

    def run(self, given: list[Tensor], double: bool) -> list[Tensor]:
        """The new leaves."""

        def widen(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.double() if value.is_floating_point() else value
            return torch.float64 if value is torch.float32 else value

        def convert(value: Any) -> Any:
            return widen(value) if double else value

        def find(value: Any) -> Any:
            return values[value] if isinstance(value, fx.Node) else convert(value)

        values: dict[fx.Node, Any] = dict(zip(self._tape.inputs, map(convert, given), strict=True))
        for node in self._tape.graph.nodes:
            if node in self._fixed:
                values[node] = convert(self._tape.made[node])
            elif node.op == "call_function":
                args = fx.node.map_aggregate(node.args, find)
                kwargs = fx.node.map_aggregate(node.kwargs, find)
                values[node] = node.target(*args, **kwargs)
        return [values[node] for node in self._results]


def _name(target: Any) -> str:
    return "" if target is operator.getitem else target.name().partition(".")[0]


def check(
    native: NativeStep,
    text: str,
    f: Callable[..., list[Tensor]],
    leaves: list[Tensor],
    batch: Batch,
    outside: int,
) -> None:
    """Untraceable unless the machine code of a program computes what the step `f` does, in several
    steps, some of them with a short batch; the verdict is kept beside the library.
    """
    double = native.real == torch.float64
    if is_checked(text, double):  # whatever the step's numbers are
        return
    step, short = Replay(f, pytree.tree_leaves((leaves, batch))), _shorten(batch, outside)
    wide = native if double else NativeStep(native.code, load_once(text, True), torch.float64)
    _check_double(wide, step, leaves, [batch, short, batch])
    if not double:
        for one in (batch, short):
            _check_single(native, step, leaves, one)
    mark_checked(text, double)


def _shorten(batch: Batch, outside: int) -> Batch:
    """The first half of the rows of a batch, padded as the engine does it."""
    mask = batch.mask.clone()
    mask[..., -(-mask.shape[-1] // 2) :] = 0
    real = mask > 0
    first = (real & (batch.place == 0)).reshape(-1).nonzero()  # padding is read as this row
    row = int(first[0]) if len(first) else 0

    def pad(values: Tensor) -> Tensor:
        flat = values.reshape(real.numel(), *values.shape[real.dim() :])
        side = real.reshape(-1, *(1,) * (flat.dim() - 1))
        return torch.where(side, flat, flat[row]).reshape(values.shape)

    place = torch.where(real, batch.place, outside)
    return Batch(pad(batch.x), pad(batch.y), mask, place, batch.key, batch.pace)


def _check_double(
    native: NativeStep, step: Replay, leaves: list[Tensor], batches: list[Batch]
) -> None:
    right = [native.convert(leaf) for leaf in leaves]
    for batch in batches:
        old = right  # both from here: what a step may be off is measured by its own change
        mine = native.step(old, batch)
        right = step.run(pytree.tree_leaves((old, batch)), double=True)
        floors = _find_rounding(old, right, torch.float64)
        for before, found, wanted, floor in zip(old, mine, right, floors, strict=True):
            if not _agree(found, wanted, SHARE * _measure(before, wanted) + floor):
                raise Untraceable(WRONG)


def _check_single(native: NativeStep, step: Replay, leaves: list[Tensor], batch: Batch) -> None:
    """One step that is right but for rounding will do: where rounding switches a ReLU, all
    gradients before it move and another step is taken, but code that is wrong is wrong in all.
    """
    bounded = 0
    for _ in range(TRIES):
        given = pytree.tree_leaves((leaves, batch))
        mine, single = native.step(leaves, batch), step.run(given, double=False)
        right = step.run(given, double=True)
        floors = _find_rounding(leaves, right, native.real)
        if all(map(_agree, mine, right, floors)):
            return
        own = [
            TIMES * _measure(one, two) + floor
            for one, two, floor in zip(single, right, floors, strict=True)
        ]
        bounded += all(map(_agree, mine, right, own))
        leaves = single
    if bounded <= TRIES // 2:  # else torch's own steps are as far off
        raise Untraceable(WRONG)


def _find_rounding(old: list[Tensor], new: list[Tensor], real: torch.dtype) -> list[float]:
    """How far each leaf may be off by rounding alone."""
    largest = max(map(_measure, old, new), default=0.0)
    sizes = [_measure(torch.zeros_like(leaf), leaf) for leaf in new]
    return [torch.finfo(real).eps * (LAST * size + SUMMED * largest) for size in sizes]


def _agree(found: Tensor, right: Tensor, most: float) -> bool:
    """Whether a leaf has become what it should."""
    if not right.is_floating_point():
        return torch.equal(found, right)
    same = torch.equal(found.isfinite(), right.isfinite())
    return same and _measure(found, right) <= most


def _measure(one: Tensor, two: Tensor) -> float:
    """How far two leaves are apart where both are finite."""
    if not two.is_floating_point() or not two.numel():
        return 0.0
    return float((two - one).nan_to_num(0, 0, 0).abs().max())
