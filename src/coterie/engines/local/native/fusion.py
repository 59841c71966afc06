"""What of a traced step is kept in memory, in which order, and what is computed in passing."""

from __future__ import annotations

import torch

from coterie.engines.local.native.graph import (
    CONVOLUTION,
    IMAGE_OPS,
    LARGEST_GRADIENTS,
    TracedStep,
    Value,
)
from coterie.engines.local.native.scalar_ops import ELEMENTWISE, LOOKUPS
from coterie.engines.local.tracing import Untraceable

aten = torch.ops.aten
SOFTMAX, LOG_SOFTMAX = (getattr(aten, name).default for name in ("_softmax", "_log_softmax"))
SOFTMAX_BACKWARD, LOG_SOFTMAX_BACKWARD = (
    getattr(aten, name).default for name in ("_softmax_backward_data", "_log_softmax_backward_data")
)
REDUCTIONS = {
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.mean.default,
    aten.mean.dim,
    aten.amax.default,
}
ROW_OPS = {
    SOFTMAX,
    LOG_SOFTMAX,
    SOFTMAX_BACKWARD,
    LOG_SOFTMAX_BACKWARD,
    aten.logsumexp.default,
    aten.argmax.default,
}
CONCATS = {aten.cat.default, aten.stack.default}
MATMULS = {aten.mm.default, aten.bmm.default}
SCATTERS = {
    aten.scatter_add.default,
    aten.index_copy.default,
    aten.embedding_dense_backward.default,
}
TRANSPOSE_DEPTH = 8  # numbers of depth per row up to which turning the second factor pays
SUPPORTED = {*ELEMENTWISE, *REDUCTIONS, *ROW_OPS, *CONCATS, *MATMULS, *SCATTERS, *IMAGE_OPS}


class FusionPlan:
    """The values that are kept, and those that others take in; `carry` is the number of leaves."""

    def __init__(self, traced: TracedStep, carry: int):
        self.given, self.results, self.carry = traced.given, traced.results, carry
        self.computed = [v for v in traced.computed if v.op is not None]
        self._check()
        for v in list(self.computed):
            self._fuse_relu(v)
        self.root: dict[Value, Value] = {}  # the value whose computation takes one in, or itself
        self.product: dict[Value, Value] = {}  # root -> the product that it takes in
        for v in reversed(self.computed):
            self.root[v] = self._find_root(v)
            if v.op in MATMULS and self.root[v] is not v:
                self.product[self.root[v]] = v
        self.order = self._order_values()
        self.reads = [self._find_reads(v) for v in self.order]
        self.targets = self._find_targets()

    def _check(self) -> None:
        for old, new in zip(self.given, self.results, strict=False):
            if old is None or (old.shape, old.dtype) != (new.shape, new.dtype):
                raise Untraceable("it changes the form of its carry")
        for v in self.computed:
            if v.op not in SUPPORTED:
                raise Untraceable(f"there is no C for {v.op}")
        read = {one for v in self.computed for one in (v, *v.inputs) if one.numel > 1}
        if len({v.dtype for v in {*read, *self.results} if v.dtype.is_floating_point}) > 1:
            raise Untraceable("it computes in more than one type of real numbers")

    def _fuse_relu(self, v: Value) -> None:
        """Let a convolution or the gradients of a pool, read by a ReLU alone, do what that does."""
        first = v.args[0] if v.op in (aten.relu.default, aten.threshold_backward.default) else None
        if not isinstance(first, Value) or first.users != [v] or first.output:
            return
        forward = v.op == aten.relu.default and first.op == CONVOLUTION
        # what is pooled is what the ReLU gave
        back = v.op == aten.threshold_backward.default and v.args[2] == 0
        back = back and first.op == LARGEST_GRADIENTS and first.args[1] is v.args[1]
        if not (forward or back) or first.stride != v.stride:
            return
        for one in v.inputs:
            one.users.remove(v)
        for one in first.inputs:
            one.users = [v if user is first else user for user in one.users]
        v.op, v.args, v.kwargs, v.positive = first.op, first.args, first.kwargs, True
        self.computed.remove(first)

    def within(self, v: Value, root: Value) -> bool:
        """Whether a value is computed in passing, as part of another."""
        return v is not root and self.root.get(v) is root

    def _find_root(self, v: Value) -> Value:
        """The value whose computation takes this one in; itself where it is kept."""
        if v.output or len(v.users) != 1:
            return v
        user = v.users[0]
        if user.op is None or user.op in LOOKUPS:
            return v
        if v.op in MATMULS:
            into = self.root[user]
            fits = user.op in ELEMENTWISE and into.op in ELEMENTWISE and into not in self.product
            alike = v.shape == user.shape == into.shape
            return into if fits and alike and is_tiled(v) else v
        if v.op not in ELEMENTWISE:
            return v
        if user.op in REDUCTIONS or (user.op in ELEMENTWISE and v.shape == user.shape):
            return self.root[user]
        return v

    def _order_values(self) -> list[Value]:
        """The values that are kept, those that are nothing but new leaves last."""
        kept = [v for v in self.computed if self.root[v] is v]
        last = [v for v in kept if v.output and not v.users]
        return [v for v in kept if v not in last] + last

    def _find_reads(self, root: Value) -> tuple[set[Value], set[Value]]:
        """The memory that a value is computed from: read at its own places alone, or elsewhere."""
        own, other = set[Value](), set[Value]()
        waiting = [root]
        while waiting:
            v = waiting.pop()
            for one in v.inputs:
                if self.within(one, root):
                    waiting.append(one)
                    continue
                same = one.shape == root.shape and one.stride == root.stride
                local = v.op in ELEMENTWISE and v.op not in LOOKUPS and same
                local &= one.offset == one.base.offset and root.op in ELEMENTWISE
                local |= v.op == aten.index_copy.default and one is v.args[0] and same
                (own if local else other).add(one.base)
        return own, other

    def _find_targets(self) -> dict[Value, int]:
        """The values that can be written over the leaf that they become."""
        copied = {v.base for k, v in enumerate(self.results) if v is not self.given[k]}
        found: dict[Value, int] = {}
        for k, v in enumerate(self.results):
            leaf = self.given[k]
            if v not in self.order or self.results.count(v) > 1 or leaf is None or v is leaf:
                continue
            place = self.order.index(v)
            later = set[Value]().union(*(own | other for own, other in self.reads[place + 1 :]))
            alike = (v.shape, v.stride, v.dtype) == (leaf.shape, leaf.stride, leaf.dtype)
            if alike and leaf not in self.reads[place][1] | later | copied:
                found[v] = k
        return found

    def last_reads(self) -> dict[Value, int]:
        """When values are read last; those that are read at the end are left out."""
        found = {b: place for place, sets in enumerate(self.reads) for b in set().union(*sets)}
        ends = {v.base for v in self.results}
        return {base: place for base, place in found.items() if base not in ends}


def is_tiled(v: Value) -> bool:
    """Whether the second factor has its columns side by side, or is turned so for many rows; else
    both have their depth so.
    """
    a, b = v.args
    if b.stride[-1] == 1 or b.shape[-1] == 1 or needs_transpose(v):
        return True
    if b.stride[-2] == 1 and a.stride[-1] == 1:
        return False
    raise Untraceable("there is no C for a product of matrices in this order")


def needs_transpose(v: Value) -> bool:
    """Whether the second factor has its depth side by side and is turned: that costs a pass over
    it, and saves the sums over a vector that every number of the product costs else.
    """
    b = v.args[1]
    deep = b.stride[-2] == 1 and b.stride[-1] != 1 and b.shape[-1] != 1
    return bool(deep and v.shape[-2] * TRANSPOSE_DEPTH > b.shape[-2])
