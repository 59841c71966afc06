"""Choose how clients run by timing a few real steps on copies of what they hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Exchange, Tree
from coterie.core.model import Model
from coterie.core.point import stack
from coterie.engines.base import Moment
from coterie.engines.local.batches import Counts, Feed
from coterie.engines.local.stacks import channels_last, copied, lift, share
from coterie.engines.local.steps import Stepper
from coterie.engines.local.work import run_pass
from coterie.engines.settings import Settings

WIDTHS = (16, 64, 256)
MEMORY = 2**30  # bytes that the models of a chunk may take, several copies counted
REPAID = 60.0  # seconds of eager work from which compiling is worth its time


def fits(size: int, copies: int = 1) -> int:
    """The number of clients per chunk whose models fit into memory."""
    return max(1, MEMORY // (8 * 4 * size * copies))


def alone_because(model: Model, feed: Feed) -> str:
    """Why the clients of a network can only run one after another; "" where they can be stacked.

    A network may branch on what it computes, or use what vmap does not know.
    """
    rows = min(2, len(feed.x))
    if not rows:
        return ""
    one = Batch(
        x=feed.x[:rows],
        y=feed.y[:rows],
        mask=torch.ones(rows),
        place=torch.arange(rows),
        key=torch.tensor(1),
    )
    pair = stack([model.start(0), model.start(1)])
    batch = Batch(*(t.expand(2, *t.shape) for t in one))
    try:
        torch.func.vmap(model.logits)(pair, batch)
        torch.func.vmap(lambda point, batch: model.grad(point, batch).params)(pair, batch)
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as problem:
        if isinstance(problem, BadInput):
            raise
        return str(problem).strip().splitlines()[0].rstrip(".")[:200] or type(problem).__name__
    return ""


class Case(NamedTuple):
    """The first exchange of an architecture's clients, on which its settings are chosen."""

    given: Settings
    exchange: Exchange
    when: Moment
    clients: list[int]  # most steps first
    ready: Callable[[list[int]], tuple[list[Tree], Tree]]  # clients -> payloads, stacked states
    feed: Feed
    counts: Counts
    size: int  # parameters of the network
    rounds: int  # of the whole run

    def steps(self, clients: list[int]) -> int:
        """The steps of some clients in this exchange."""
        plans = [p.plan for p in self.exchange.passes if p.plan]
        return sum(self.feed.steps(plan, i, self.counts) for plan in plans for i in clients)

    @property
    def timed(self) -> int | None:
        """The first pass with steps; None where there is nothing to time."""
        for k, p in enumerate(self.exchange.passes):
            if p.plan and self.feed.steps(p.plan, self.clients[0], self.counts):
                return k
        return None

    @property
    def widths(self) -> list[int]:
        """The widths to try."""
        most = fits(self.size, self.exchange.copies)
        tried = sorted({min(w, len(self.clients), most) for w in WIDTHS})
        return [self.given.width] if self.given.width else tried


class Choice(NamedTuple):
    """What suits the clients best."""

    settings: Settings
    threads: int | None = None  # of this process; None: not chosen here


def choose(case: Case, free_threads: bool) -> Choice:
    """Fill what the settings leave open: path and width by eager timing, then threads and
    compiling.
    """
    given, number = case.given, case.timed
    if number is None:
        return Choice(_filled(given, Settings("vectorized", case.widths[-1], "no")))
    path, width, eager = _fastest(case, number)
    chunk = width if path == "vectorized" else 1
    long = eager * case.steps(case.clients) * case.rounds > REPAID
    threads = torch.get_num_threads()
    if free_threads and threads > 1:
        with _threads(1):
            alone = seconds(case, number, path, chunk, False)
        # Small networks lose more to waiting than they gain, and on a busy machine threads cost
        # most: they must earn their keep, but for a long run, which is compiled, one thread must be
        # clearly better.
        if alone <= (0.8 if long else 1.25) * eager:
            threads, eager = 1, alone
    faster = False
    if long and given.compile == "auto":
        with _threads(threads):
            faster = seconds(case, number, path, chunk, True) < eager
    found = _filled(given, Settings(path, width, "yes" if faster else "no"))
    return Choice(found, threads if free_threads else None)


def _filled(given: Settings, found: Settings) -> Settings:
    """The given settings, with what was found where they are open."""
    return Settings(
        path=found.path if given.path == "auto" else given.path,
        width=given.width or found.width,
        compile=found.compile if given.compile == "auto" else given.compile,
    )


def _fastest(case: Case, number: int) -> tuple[Any, int, float]:
    """The path and width with the fewest seconds per client-step, and those seconds."""
    times: dict[tuple[str, int], float] = {}
    if case.given.path != "sequential":
        for width in case.widths:
            times["vectorized", width] = seconds(case, number, "vectorized", width, False)
    if case.given.path != "vectorized":
        times["sequential", case.widths[-1]] = seconds(case, number, "sequential", 1, False)
    path, width = min(times, key=lambda k: times[k])
    return path, width, times[path, width]


def seconds(case: Case, number: int, path: str, width: int, compiled: bool) -> float:
    """Seconds per client-step of one pass, the best of three short runs after a warm-up.

    Everything happens on copies and with a stepper of its own; nothing that is computed is kept.
    """
    stepper, chunk = Stepper(path == "vectorized", compiled), case.clients[:width]
    with torch.random.fork_rng(devices=[]):
        carry = _started(case, stepper, chunk)
        for p in case.exchange.passes[:number]:
            carry, _ = run_pass(
                case.feed, stepper, p, "trial", case.when, chunk, carry, case.counts, limit=1
            )
        work = case.exchange.passes[number]
        assert work.plan is not None
        batches, each = case.feed.batches(
            work.plan, "trial", case.when, chunk, case.counts, stepper.vectorized
        )
        count = min(max(each), 4 if stepper.vectorized else 10)
        try:
            carry = stepper.loop(work.step, carry, batches, count)
            best = float("inf")
            for _ in range(3):
                begin = time.perf_counter()
                stepper.loop(work.step, carry, batches, count)
                best = min(best, time.perf_counter() - begin)
        except (RuntimeError, NotImplementedError, BadInput):
            if path == "sequential" and not compiled:
                raise
            # This network cannot be stacked, or there is no compiler: the other path is taken.
            return float("inf")
    return best / (count * (width if stepper.vectorized else 1))


def _started(case: Case, stepper: Stepper, chunk: list[int]) -> Tree:
    """The carry of a chunk at the start of the exchange, in memory of its own."""
    payloads, states = copied(case.ready(chunk))
    if stepper.vectorized:
        payload, dims = share(payloads)
        return lift(case.exchange.start, len(chunk), 0, dims)(states, payload)
    state = channels_last(pytree.tree_map(lambda t: t[0], states))
    return case.exchange.start(state, channels_last(payloads[0]))


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """So many threads in this process, and then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
