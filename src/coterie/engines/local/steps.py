"""Run a pure step over stacked clients or one client, eagerly or compiled; a client whose steps are
over is frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from coterie.core.method import Batch, Tree
from coterie.core.model import GRADIENT_COUNT, Model
from coterie.core.point import Point
from coterie.engines.local.batches import Batches, Feed
from coterie.engines.local.native.judging import NativeJudge
from coterie.engines.local.native.make import make_native
from coterie.engines.local.native.runtime import NativeStep
from coterie.engines.local.tracing import Program, Untraceable, trace


def _freeze(active: Tensor, new: Tree, old: Tree) -> Tree:
    def keep(n: Tensor, o: Tensor) -> Tensor:
        if n is o or (
            n.data_ptr() == o.data_ptr() and n.shape == o.shape and n.stride() == o.stride()
        ):
            return o  # passed through
        return torch.where(active.reshape(-1, *(1,) * (n.dim() - 1)), n, o)

    return pytree.tree_map(keep, new, old)


def _check_structure(before: Any, after: Any) -> None:
    if before != after:
        raise TypeError(f"a step changed the structure of its carry from {before} to {after}")


def _traced_widths(clients: int) -> list[int]:
    """The numbers of clients that a program is traced for: all, and shares of them."""
    return sorted({-(-clients * k // 4) for k in range(1, 5)}) if clients >= 8 else [clients]


def _select_width(active: Tensor | None, widths: list[int]) -> int:
    """How many of the first clients a step is taken for; clients with most steps come first."""
    if active is None or len(widths) == 1:
        return widths[-1]
    last = int(active.nonzero()[-1]) + 1
    return next(width for width in widths if width >= last)


def _run_program(
    program: Program,
    leaves: list[Tensor],
    part: list[Tensor],  # the leaves of the first clients
    batch: list[Tensor],
    narrow: bool,  # whether these are not all
    idle: Tensor | None,  # those of them whose steps are over
) -> None:
    """Take one step, in the leaves."""
    changed = program.written + program.returned
    held = {} if idle is None else {k: part[k].index_select(0, idle) for k in changed}
    results = program.run(*part, *batch)
    for k, result in zip(program.returned, results, strict=True):
        if narrow:
            part[k].copy_(result)
        else:
            leaves[k] = result
    if idle is not None:
        for k, old in held.items():
            leaves[k].index_copy_(0, idle, old)


class Stepper:
    """Lifts functions of one client to the engine's path, and remembers what it has compiled."""

    def __init__(self, vectorized: bool, compiled: bool, traced: bool = False):
        self.vectorized = vectorized
        self.compiled, self.traced = compiled, traced or compiled
        self._replayed: dict[Any, Program | None] = {}  # None: the step cannot be traced
        self._native: dict[
            Any, NativeStep | None
        ] = {}  # None: there is no machine code for the step
        self._judges: dict[Any, NativeJudge | None] = {}  # of a model, for evaluation
        self._one = Lock()
        self.why: dict[Any, str] = {}  # and why not
        self.gradients: dict[Any, int] = {}  # evaluations in one step of each function

    def _count_gradients(self, step: Callable[[Tree, Any], Tree]) -> Callable[[Tree, Any], Tree]:
        """The same step, which counts how many gradients it takes."""

        def run(carry: Tree, batch: Any) -> Tree:
            before = GRADIENT_COUNT.value
            new = step(carry, batch)
            self.gradients[step] = GRADIENT_COUNT.value - before
            return new

        return run

    def replays(self, step: Any) -> bool:
        """Whether a step is replayed, which several threads may do at once."""
        return any(
            program is not None
            for known in (self._replayed, self._native)
            for key, program in known.items()
            if isinstance(key, tuple) and key[0] is step
        )

    def lift(self, f: Callable[..., Any], *in_dims: Any) -> Callable[..., Any]:
        """`f` over stacked clients, or `f` itself on the sequential path."""
        return vmap(f, in_dims=in_dims or 0) if self.vectorized else f

    def once(self, step: Callable[[Tree, None], Tree], carry: Tree) -> Tree:
        """A step that takes no batch."""
        return self.lift(lambda c: step(c, None))(carry) if pytree.tree_leaves(carry) else carry

    def loop(
        self, step: Callable[[Tree, Any], Tree], carry: Tree, batches: Any, count: int
    ) -> Tree:
        """All steps of a pass; `batches(s)` gives the batch of step s and who is active in it
        (None: everyone).
        """
        if self.compiled and count and self._native.get(step, NativeStep) is not None:
            return self._run_native(step, carry, batches, count)
        if self.traced and count and self._replayed.get(step, Program) is not None:
            return self._replay(step, carry, batches, count)
        lifted = self.lift(self._count_gradients(step))
        for s in range(count):
            batch, active = batches(s)
            new = lifted(carry, batch)
            carry = new if active is None else _freeze(active, new, carry)
        return carry

    def _replay(self, step: Any, carry: Tree, batches: Batches, count: int) -> Tree:
        """The same from a trace of the step, with as many clients as are still at work."""
        leaves, spec = pytree.tree_flatten(carry)
        own: set[int] = set()  # leaves in memory of this loop
        widths = _traced_widths(len(batches.each)) if self.vectorized else [1]
        for s in range(count):
            active = batches.active(s)
            width = _select_width(active, widths)
            batch = pytree.tree_leaves(batches.of_first(s, width))
            narrow = width < widths[-1]
            part = [a[:width] for a in leaves] if narrow else leaves
            program = self._trace(step, spec, part, batch)
            if program is None:  # it cannot be traced, as was found in the first step
                return self.loop(step, carry, batches, count)
            others = set(program.written + program.returned) - own
            if others:  # the program writes over the carry: never over somebody else's tensors
                own |= others
                leaves = [a.clone() if k in others else a for k, a in enumerate(leaves)]
                part = [a[:width] for a in leaves] if narrow else leaves
                program = self._trace(step, spec, part, batch)
                assert program is not None
            idle = None if active is None else (~active[:width]).nonzero().squeeze(1)
            _run_program(program, leaves, part, batch, narrow, idle)
        return pytree.tree_unflatten(leaves, spec)

    def _run_native(self, step: Any, carry: Tree, batches: Batches, count: int) -> Tree:
        """The same in machine code, every client for itself."""
        leaves, spec = pytree.tree_flatten(carry)
        stacked = leaves if self.vectorized else [a.unsqueeze(0) for a in leaves]
        program = self._compile(step, spec, stacked, batches)
        if program is None:  # as was found in its first pass
            return self.loop(step, carry, batches, count)
        changed = set(program.code.changed)  # they are written over: never somebody else's tensors
        stacked = [
            a.clone(memory_format=torch.contiguous_format)
            if k in changed or not a[0].is_contiguous()
            else a
            for k, a in enumerate(stacked)
        ]
        program.run(stacked, batches, count, torch.get_num_threads())
        leaves = stacked if self.vectorized else [a[0] for a in stacked]
        return pytree.tree_unflatten(leaves, spec)

    def _compile(
        self, step: Any, spec: Any, leaves: list[Tensor], batches: Batches
    ) -> NativeStep | None:
        """The machine code of a step on tensors of this form; None where there is none."""
        forms = tuple((a.shape[1:], a.dtype) for a in leaves)
        key = (step, forms, batches.places.shape[2:], batches.x.shape[1:], batches.y.shape[1:])
        if key not in self._native:
            first = batches.of_first(0, 1, moved=False)  # what is checked is the step alone
            batch = pytree.tree_map(lambda t: t[0], first) if self.vectorized else first
            n, counted = len(leaves), self._count_gradients(step)

            def flat(*tensors: Tensor) -> list[Tensor]:
                old = pytree.tree_unflatten(list(tensors[:n]), spec)
                after, new_spec = pytree.tree_flatten(counted(old, Batch(*tensors[n:])))
                _check_structure(spec, new_spec)
                return after

            try:
                outside = batches.plan.draw or batches.part.largest
                self._native[key] = make_native(
                    flat, [a[0] for a in leaves], batch, batches.x, outside
                )
            except Untraceable as problem:
                self.why[step] = str(problem)
                self._native[key] = self._native[step] = None
        return self._native[key]

    def judge_of(self, model: Model, point: Point, feed: Feed, rows: int) -> NativeJudge | None:
        """The machine code that evaluates so many rows of a network at once; None where there is
        none.
        """
        key = (model, rows)
        if key not in self._judges:
            try:
                self._judges[key] = NativeJudge(model.judge_outputs, point, feed.x, feed.y, rows)
            except Untraceable:
                self._judges[key] = None
        return self._judges[key]

    def _trace(
        self, step: Any, spec: Any, leaves: list[Tensor], batch: list[Tensor]
    ) -> Program | None:
        """The program of a step on tensors of this form; None where it cannot be traced."""
        key = (step, tuple((a.shape, a.stride(), a.dtype) for a in (*leaves, *batch)))
        if key in self._replayed:
            return self._replayed[key]
        with self._one:  # a network is traced by one thread at a time
            n = len(leaves)
            counted = self._count_gradients(step)

            def flat(*tensors: Tensor) -> list[Tensor]:
                old = pytree.tree_unflatten(list(tensors[:n]), spec)
                new = self.lift(counted)(old, Batch(*tensors[n:]))
                after, new_spec = pytree.tree_flatten(new)
                _check_structure(spec, new_spec)
                return after

            try:
                self._replayed[key] = trace(flat, leaves, batch)
            except Untraceable:
                self._replayed[key] = self._replayed[step] = None
        return self._replayed[key]
