"""Run a pure step over stacked clients or one client, eagerly or compiled; a client whose steps are
over is frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Tree
from coterie.core.model import GRADIENTS


def _freeze(active: Tensor, new: Tree, old: Tree) -> Tree:
    def keep(n: Tensor, o: Tensor) -> Tensor:
        if n is o or (
            n.data_ptr() == o.data_ptr() and n.shape == o.shape and n.stride() == o.stride()
        ):
            return o  # passed through
        return torch.where(active.reshape(-1, *(1,) * (n.dim() - 1)), n, o)

    return pytree.tree_map(keep, new, old)


class Stepper:
    """Lifts functions of one client to the engine's path, and remembers what it has compiled."""

    def __init__(self, vectorized: bool, compiled: bool):
        self.vectorized = vectorized
        self.compiled = compiled
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
        lifted = self.lift(self._counted(step))
        for s in range(count):
            batch, active = batches(s)
            new = lifted(carry, batch)
            carry = new if active is None else _freeze(active, new, carry)
        return carry

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
        n = len(leaves)

        def one(flag: Tensor, *tensors: Tensor) -> list[Tensor]:
            carry = pytree.tree_unflatten(list(tensors[:n]), spec)
            new = self._counted(step)(carry, pytree.tree_unflatten(list(tensors[n:]), batch_spec))
            after, new_spec = pytree.tree_flatten(new)
            if new_spec != spec:
                raise TypeError(
                    f"a step changed the structure of its carry from {spec} to {new_spec}"
                )
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
