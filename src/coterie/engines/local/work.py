"""What a chunk of clients does in one exchange: start, passes over batches, finish."""

from __future__ import annotations

import sys
from functools import partial
from typing import NamedTuple

from coterie.core.method import Exchange, Pass, Tree
from coterie.core.point import pick, stack
from coterie.engines.base import Effort, Moment
from coterie.engines.local.batches import Feed, StepCounts
from coterie.engines.local.stacks import lift, stack_payloads, to_channels_last
from coterie.engines.local.states import to_tensors
from coterie.engines.local.steps import Stepper
from coterie.engines.local.threads import map_clients


class ChunkTask(NamedTuple):
    """An exchange for some clients, and where they stand."""

    exchange: Exchange
    number: int  # of the exchange in its round
    when: Moment
    clients: list[int]
    states: Tree  # [m, ...]
    payloads: list[Tree]
    counts: StepCounts = None


class ChunkResult(NamedTuple):
    """What a chunk of clients made of one exchange; nothing of it is stored yet."""

    architecture: int
    clients: list[int]
    payloads: list[Tree]
    state: Tree  # [m, ...]
    upload: Tree  # [m, ...]
    effort: Effort
    broken: list[int]  # places in the chunk whose state or upload is not finite


def run_exchange(task: ChunkTask, stepper: Stepper, feed: Feed) -> tuple[Tree, Tree, Effort]:
    """The new states and uploads of the clients, stacked, and what it took."""
    return (_run_stacked if stepper.vectorized else _run_sequential)(task, stepper, feed)


def _run_stacked(task: ChunkTask, stepper: Stepper, feed: Feed) -> tuple[Tree, Tree, Effort]:
    """Start, passes and finish of all clients as one."""
    payload, dims = stack_payloads(task.payloads)
    width = len(task.clients)
    carry = lift(task.exchange.start, width, 0, dims)(task.states, payload)
    effort = Effort()
    for number, work in enumerate(task.exchange.passes):
        label = _label_pass(task.exchange, task.number, number)
        carry, taken = run_pass(
            feed, stepper, work, label, task.when, task.clients, carry, task.counts
        )
        effort = effort.plus(_compute_effort(task, stepper, work, taken))
    finish = lift(task.exchange.finish, width, 0, 0, dims)
    state, upload = finish(carry, task.states, payload)
    return state, upload, effort


def _run_sequential(task: ChunkTask, stepper: Stepper, feed: Feed) -> tuple[Tree, Tree, Effort]:
    """The same with every client for itself, several at once in their passes."""
    states = [to_channels_last(pick(task.states, k)) for k in range(len(task.clients))]
    payloads = [to_channels_last(payload) for payload in task.payloads]
    carries = [task.exchange.start(s, p) for s, p in zip(states, payloads, strict=True)]
    effort = Effort()
    for number, work in enumerate(task.exchange.passes):
        label = _label_pass(task.exchange, task.number, number)

        def one(k: int, work: Pass = work, label: str = label) -> tuple[Tree, int]:
            mine = [task.clients[k]]
            return run_pass(feed, stepper, work, label, task.when, mine, carries[k], task.counts)

        worked = map_clients(one, len(carries), partial(stepper.replays, work.step))
        carries = [carry for carry, _ in worked]
        taken = sum(steps for _, steps in worked)
        effort = effort.plus(_compute_effort(task, stepper, work, taken))
    ends = [task.exchange.finish(*one) for one in zip(carries, states, payloads, strict=True)]
    state, upload = (stack([to_tensors(end[k]) for end in ends]) for k in range(2))
    return state, upload, effort


def _compute_effort(task: ChunkTask, stepper: Stepper, work: Pass, taken: int) -> Effort:
    return Effort(taken, taken * stepper.gradients.get(work.step, 0) * task.exchange.copies)


def _label_pass(exchange: Exchange, index: int, number: int) -> str:
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
    counts: StepCounts = None,
    limit: int = sys.maxsize,
) -> tuple[Tree, int]:
    """One pass over the batches of stacked clients, or of one alone; the number of client-steps."""
    if work.plan is None:
        return stepper.once(work.step, carry), 0
    batches, each = feed.batches(work.plan, label, when, chunk, counts, stepper.vectorized)
    count = min(max(each, default=0), limit)
    return stepper.loop(work.step, carry, batches, count), sum(each)
