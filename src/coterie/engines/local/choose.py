"""Choose how clients run by timing a few real steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from coterie.core.method import Exchange
from coterie.engines.local.steps import Stepper

if TYPE_CHECKING:
    from coterie.engines.base import Moment, Send, Settings
    from coterie.engines.local.engine import LocalEngine

WIDTHS = (16, 64, 256)
MEMORY = 2**30  # bytes a chunk of models may take, several copies counted
REPAID = 60.0  # seconds of eager work from which compiling is worth its time


def fits(size: int, copies: int = 1) -> int:
    """Clients a chunk whose models of so many parameters fit the memory."""
    return max(1, MEMORY // (8 * 4 * size * copies))


def choose(
    engine: LocalEngine,
    a: int,
    exchange: Exchange,
    when: Moment,
    clients: Sequence[int],
    send: Send,
    counts: dict[int, int] | None,
) -> Settings:
    """Fill what the settings leave open: path and width by eager timing, then compile where the run is long enough."""
    given = engine.settings[a]
    planned = [k for k, p in enumerate(exchange.passes) if p.plan and engine._steps(p.plan, clients[0], counts)]
    most = fits(engine.models[a].size, exchange.copies)
    widths = [given.width] if given.width else sorted({min(w, len(clients), most) for w in WIDTHS})
    if not planned:  # nothing to time: an exchange without steps
        path = given.path if given.path != "auto" else "vectorized"
        return given._replace(path=path, width=widths[-1], compile="no" if given.compile == "auto" else given.compile)
    trial = _Trial(engine, a, exchange, planned[0], when, clients, send, counts)
    times: dict[tuple[str, int], float] = {}
    if given.path != "sequential":
        times |= {("vectorized", w): trial.seconds("vectorized", w, False) for w in widths}
    if given.path != "vectorized":
        times["sequential", widths[-1]] = trial.seconds("sequential", 1, False)
    path, width = min(times, key=lambda k: times[k])
    chunk = width if path == "vectorized" else 1
    steps = sum(engine._steps(p.plan, i, counts) for p in exchange.passes if p.plan for i in clients)
    long = times[path, width] * steps * engine.rounds > REPAID
    if engine.free_threads and torch.get_num_threads() > 1:
        many = torch.get_num_threads()
        torch.set_num_threads(1)
        alone = trial.seconds(path, chunk, False)
        # small networks lose more to waiting than they gain, and on a busy machine threads cost most: they must earn their
        # keep, but for a long run, which is compiled, one thread must be clearly better
        if alone > (0.8 if long else 1.25) * times[path, width]:
            torch.set_num_threads(many)
        else:
            times[path, width] = alone
    engine.free_threads = False
    compile_ = given.compile
    if compile_ == "auto":
        compile_ = "yes" if long and trial.seconds(path, chunk, True) < times[path, width] else "no"
    return given._replace(path=path, width=width, compile=compile_)


class _Trial:
    """Times the first pass with steps on real clients; nothing it computes is kept."""

    def __init__(self, engine: Any, a: int, exchange: Any, number: int, when: Any, clients: Any, send: Any, counts: Any):
        self.engine, self.a, self.exchange, self.number = engine, a, exchange, number
        self.when, self.clients, self.send, self.counts = when, clients, send, counts

    def seconds(self, path: str, width: int, compiled: bool) -> float:
        """Seconds a client-step, the best of three short runs after a warm-up."""
        from coterie.engines.local.engine import channels_last, lift, share
        from coterie.engines.local.states import tensors

        engine, chunk = self.engine, list(self.clients[:width])
        stepper = Stepper(path == "vectorized", compiled)
        payloads = [tensors(self.send(i)) for i in chunk]
        state = engine._gather(self.a, chunk, payloads, self.exchange)
        if stepper.vectorized:
            payload, dims = share(payloads)
            carry = lift(self.exchange.start, len(chunk), 0, dims)(state, payload)
        else:
            state, payload = channels_last(pytree.tree_map(lambda t: t[0], state)), channels_last(payloads[0])
            carry = self.exchange.start(state, payload)
        for work in self.exchange.passes[: self.number]:
            carry, _ = engine.run_pass(stepper, work, "trial", self.when, chunk, carry, self.counts, limit=1)
        work = self.exchange.passes[self.number]
        batches, each = engine.batches(stepper, work.plan, "trial", self.when, chunk, self.counts)
        count = min(max(each), 4 if stepper.vectorized else 10)
        try:
            carry = stepper.loop(work.step, carry, batches, count)
            best = float("inf")
            for _ in range(3):
                begin = time.perf_counter()
                stepper.loop(work.step, carry, batches, count)
                best = min(best, time.perf_counter() - begin)
        except (RuntimeError, NotImplementedError):
            if path == "sequential" and not compiled:
                raise
            return float("inf")  # this network cannot be stacked, or there is no compiler: the other path is taken
        return best / (count * (width if stepper.vectorized else 1))
