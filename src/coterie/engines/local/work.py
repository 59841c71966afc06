"""What a chunk of clients does in one exchange: start, passes over batches, finish."""

from __future__ import annotations

import sys
from functools import reduce
from typing import Any, NamedTuple

from coterie.core.method import Exchange, Pass, Tree
from coterie.core.point import pick, stack
from coterie.engines.base import Effort, Moment
from coterie.engines.local.batches import Counts, Feed
from coterie.engines.local.stacks import channels_last, lift, share
from coterie.engines.local.states import tensors
from coterie.engines.local.steps import Stepper


class Task(NamedTuple):
    """An exchange for some clients, and where they stand."""

    exchange: Exchange
    number: int  # of the exchange in its round
    when: Moment
    clients: list[int]
    states: Tree  # [m, ...]
    payloads: list[Tree]
    counts: Counts = None


class Worked(NamedTuple):
    """What a chunk of clients made of one exchange; nothing of it is stored yet."""

    architecture: int
    clients: list[int]
    payloads: list[Tree]
    state: Tree  # [m, ...]
    upload: Tree  # [m, ...]
    effort: Effort
    broken: list[int]  # places in the chunk whose state or upload is not finite


def perform(task: Task, stepper: Stepper, feed: Feed) -> tuple[Tree, Tree, Effort]:
    """The new states and uploads of the clients, stacked, and what it took."""
    if stepper.vectorized:
        return _client(task, task.clients, task.states, task.payloads, stepper, feed)
    alone = [
        _client(task, [i], pick(task.states, k), task.payloads[k], stepper, feed)
        for k, i in enumerate(task.clients)
    ]
    effort = reduce(Effort.plus, (e for _, _, e in alone))
    return stack([s for s, _, _ in alone]), stack([u for _, u, _ in alone]), effort


def _client(
    task: Task, chunk: list[int], state: Tree, payload: Any, stepper: Stepper, feed: Feed
) -> tuple[Tree, Tree, Effort]:
    """Start, passes and finish for stacked clients, or for one alone."""
    start, finish = task.exchange.start, task.exchange.finish
    if stepper.vectorized:
        payload, dims = share(payload)
        start = lift(start, len(chunk), 0, dims)
        finish = lift(finish, len(chunk), 0, 0, dims)
    else:
        state, payload = channels_last(state), channels_last(payload)
    carry = start(state, payload)
    effort = Effort()
    for number, work in enumerate(task.exchange.passes):
        label = _ordinal(task.exchange, task.number, number)
        carry, taken = run_pass(feed, stepper, work, label, task.when, chunk, carry, task.counts)
        gradients = taken * stepper.gradients.get(work.step, 0) * task.exchange.copies
        effort = effort.plus(Effort(taken, gradients))
    state, upload = finish(carry, state, payload)
    return tensors(state), tensors(upload), effort


def _ordinal(exchange: Exchange, index: int, number: int) -> str:
    """The name of a pass: its part, and its place among the round's passes on that part.

    So methods share random streams where they can.
    """
    plan = exchange.passes[number].plan
    if plan is None:
        return ""
    before = sum(1 for p in exchange.passes[:number] if p.plan and p.plan.part == plan.part)
    return f"public-{index}-{before}" if plan.part == "public" else f"{plan.part}-{before}"


def run_pass(
    feed: Feed,
    stepper: Stepper,
    work: Pass,
    label: str,
    when: Moment,
    chunk: list[int],
    carry: Tree,
    counts: Counts = None,
    limit: int = sys.maxsize,
) -> tuple[Tree, int]:
    """One pass over the batches of stacked clients, or of one alone; the number of client-steps."""
    if work.plan is None:
        return stepper.once(work.step, carry), 0
    batches, each = feed.batches(work.plan, label, when, chunk, counts, stepper.vectorized)
    count = min(max(each, default=0), limit)
    return stepper.loop(work.step, carry, batches, count), sum(each)
