"""Run a pure step over stacked clients or one client, eagerly or compiled; a client whose steps are
over is frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Tree
from coterie.core.model import GRADIENTS
from coterie.engines.local.batches import Batches
from coterie.engines.local.programs import Program, Untraceable, traced


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


def _widths(clients: int) -> list[int]:
    """The numbers of clients that a program is traced for: all, and shares of them."""
    return sorted({-(-clients * k // 4) for k in range(1, 5)}) if clients >= 8 else [clients]


def _width(active: Tensor | None, widths: list[int]) -> int:
    """How many of the first clients a step is taken for; clients with most steps come first."""
    if active is None or len(widths) == 1:
        return widths[-1]
    last = int(active.nonzero()[-1]) + 1
    return next(width for width in widths if width >= last)


def _run(
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
        self.compiled, self.traced = compiled, traced
        self._replayed: dict[Any, Program | None] = {}  # None: the step cannot be traced
        self.gradients: dict[Any, int] = {}  # evaluations in one step of each function
        self._programs: dict[Any, tuple[Callable[..., None], list[int]]] = {}

    def _counted(self, step: Callable[[Tree, Any], Tree]) -> Callable[[Tree, Any], Tree]:
        """The same step, which notes how many gradients it takes."""

        def run(carry: Tree, batch: Any) -> Tree:
            before = GRADIENTS.value
            new = step(carry, batch)
            self.gradients[step] = GRADIENTS.value - before
            return new

        return run

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
        if self.compiled and count:
            return self._compiled_loop(step, carry, batches, count)
        if self.traced and count and self._replayed.get(step, Program) is not None:
            return self._replay(step, carry, batches, count)
        lifted = self.lift(self._counted(step))
        for s in range(count):
            batch, active = batches(s)
            new = lifted(carry, batch)
            carry = new if active is None else _freeze(active, new, carry)
        return carry

    def _replay(self, step: Any, carry: Tree, batches: Batches, count: int) -> Tree:
        """The same from a trace of the step, with as many clients as are still at work."""
        leaves, spec = pytree.tree_flatten(carry)
        own: set[int] = set()  # leaves in memory of this loop
        widths = _widths(len(batches.each)) if self.vectorized else [1]
        for s in range(count):
            active = batches.active(s)
            width = _width(active, widths)
            batch = list(batches.of_first(s, width))
            narrow = width < widths[-1]
            part = [a[:width] for a in leaves] if narrow else leaves
            program = self._traced(step, spec, part, batch)
            if program is None:  # it cannot be traced, as was found in the first step
                return self.loop(step, carry, batches, count)
            others = set(program.written + program.returned) - own
            if others:  # the program writes over the carry: never over somebody else's tensors
                own |= others
                leaves = [a.clone() if k in others else a for k, a in enumerate(leaves)]
                part = [a[:width] for a in leaves] if narrow else leaves
                program = self._traced(step, spec, part, batch)
                assert program is not None
            idle = None if active is None else (~active[:width]).nonzero().squeeze(1)
            _run(program, leaves, part, batch, narrow, idle)
        return pytree.tree_unflatten(leaves, spec)

    def _traced(
        self, step: Any, spec: Any, leaves: list[Tensor], batch: list[Tensor]
    ) -> Program | None:
        """The program of a step on tensors of this form; None where it cannot be traced."""
        key = (step, tuple((a.shape, a.stride(), a.dtype) for a in (*leaves, *batch)))
        if key not in self._replayed:
            n = len(leaves)
            counted = self._counted(step)

            def flat(*tensors: Tensor) -> list[Tensor]:
                old = pytree.tree_unflatten(list(tensors[:n]), spec)
                new = self.lift(counted)(old, Batch(*tensors[n:]))
                after, new_spec = pytree.tree_flatten(new)
                _check_structure(spec, new_spec)
                return after

            try:
                self._replayed[key] = traced(flat, leaves, batch)
            except Untraceable:
                self._replayed[key] = self._replayed[step] = None
        return self._replayed[key]

    def _compiled_loop(self, step: Any, carry: Tree, batches: Any, count: int) -> Tree:
        leaves, spec = pytree.tree_flatten(carry)
        everyone = torch.ones(len(leaves[0]) if self.vectorized else 1, dtype=torch.bool)
        program: Any = None
        for s in range(count):
            batch, active = batches(s)
            rows = list(batch) if isinstance(batch, Batch) else pytree.tree_leaves(batch)
            active = everyone if active is None else active
            if program is None:  # all batches of a pass have one shape
                program, changed = self._program(
                    step, leaves, spec, rows, pytree.tree_structure(batch), active
                )
                keep = torch.contiguous_format if self.vectorized else torch.preserve_format
                # the program writes its result over the carry: never over somebody else's tensors
                leaves = [
                    a.clone(memory_format=keep) if k in changed else a for k, a in enumerate(leaves)
                ]
            program(active, leaves, rows)
        return pytree.tree_unflatten(leaves, spec)

    def _program(
        self,
        step: Any,
        leaves: list[Tensor],
        spec: Any,
        batch: list[Tensor],
        batch_spec: Any,
        active: Tensor,
    ) -> Any:
        shape = tuple((tuple(a.shape), a.dtype) for a in leaves + batch)
        key = (step, spec, batch_spec, shape)
        if key not in self._programs:
            self._programs[key] = self._compile(step, leaves, spec, batch, batch_spec, active)
        return self._programs[key]

    def _compile(
        self,
        step: Any,
        leaves: list[Tensor],
        spec: Any,
        batch: list[Tensor],
        batch_spec: Any,
        active: Tensor,
    ) -> Any:
        """Trace the lifted step once, find the leaves it changes, and compile a function that
        writes those in place.
        """
        from torch.fx.experimental.proxy_tensor import make_fx

        n = len(leaves)

        def one(flag: Tensor, *tensors: Tensor) -> list[Tensor]:
            carry = pytree.tree_unflatten(list(tensors[:n]), spec)
            new = self._counted(step)(carry, pytree.tree_unflatten(list(tensors[n:]), batch_spec))
            after, new_spec = pytree.tree_flatten(new)
            _check_structure(spec, new_spec)
            return [
                a if a is b else torch.where(flag, a, b)
                for a, b in zip(after, tensors[:n], strict=True)
            ]

        lifted = vmap(one) if self.vectorized else lambda flag, *t: one(flag[0], *t)
        own = [
            a.clone() for a in leaves + batch
        ]  # a tensor that is two leaves of the carry would be traced as one
        try:
            graph = make_fx(lifted)(active, *own)
        except RuntimeError as problem:
            why = str(problem).strip().splitlines()[0].rstrip(".")[:200]
            raise BadInput(f"a step cannot be compiled ({why}): use compile = no") from problem
        inputs = [node for node in graph.graph.nodes if node.op == "placeholder"][1:]
        output = next(node for node in graph.graph.nodes if node.op == "output")
        changed = [k for k, node in enumerate(output.args[0]) if node is not inputs[k]]
        single = [
            k for k in changed if leaves[k].dim() == 0
        ]  # inductor loses what is written over a tensor of no dimension
        results = output.args[0]
        with graph.graph.inserting_before(
            output
        ):  # in the graph itself: each program is code of its own to the compiler
            for k in changed:
                if k not in single:
                    graph.graph.call_function(torch.ops.aten.copy_.default, (inputs[k], results[k]))
        output.args = (tuple(results[k] for k in single),)
        graph.recompile()
        fast = torch.compile(graph, dynamic=False)

        def program(flag: Tensor, carry: list[Tensor], rows: list[Tensor]) -> None:
            for k, value in zip(single, fast(flag, *carry, *rows), strict=True):
                carry[k] = value

        return program, changed
