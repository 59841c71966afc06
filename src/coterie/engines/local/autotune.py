"""Choose how clients run: by rule where it is known what suits, else by timing a few real steps on
copies of what they hold.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from coterie.core.device import CPU
from coterie.core.errors import BadInput
from coterie.core.method import Batch, Exchange, Tree
from coterie.core.model import Model
from coterie.core.point import stack
from coterie.engines.base import Moment
from coterie.engines.local.batches import Feed, StepCounts
from coterie.engines.local.native.compiler import find_compiler
from coterie.engines.local.stacks import copy_tree, lift, stack_payloads, to_channels_last
from coterie.engines.local.steps import Stepper
from coterie.engines.local.threads import use_threads
from coterie.engines.local.timing_cache import recall, remember
from coterie.engines.local.work import run_pass
from coterie.engines.settings import CompileMode, ExecutionPath, ExecutionSettings

WIDTHS = (16, 64, 256)
CHUNK_BYTES = 2**30  # bytes that the models of a chunk may take, several copies counted
CACHE_BYTES = 2**21  # bytes of stacked parameters that a processor's caches hold
MIN_WIDTH, MAX_WIDTH = 32, 1024  # clients per chunk of a network without convolutions
MIN_STEPS_TO_TRACE = (
    50  # steps of the longest client in the run from which tracing is worth its time
)
# client-steps of an exchange in the whole run from which compiling is: a step of a small network
# gains 50 to 150 microseconds, compiling and checking it takes one to two seconds once, and later
# runs find it in the cache in a tenth of a second
MIN_STEPS_TO_COMPILE = 5_000
MIN_STEPS_TO_COMPILE_CONV = (
    500  # the same where there are convolutions, of which a step takes far longer
)
# rows evaluated in the whole run from which evaluation in machine code is worth compiling
MIN_ROWS_TO_COMPILE, MIN_ROWS_TO_COMPILE_CONV = 1_000_000, 100_000
MIN_SECONDS_TO_TIME = 120  # seconds of a run from which timing other ways than machine code is
STACKING_MARGIN = (
    1.1  # stacks must be faster by so much: in passes over larger batches they are slower
)


def compute_max_width(size: int, copies: int = 1, compiled: bool = False) -> int:
    """The number of clients per chunk whose models fit into memory: a model is held with its
    gradients and what lies between, in machine code before and after training and once stacked.
    """
    return max(1, CHUNK_BYTES // ((3 if compiled else 8) * 4 * size * copies))


def compute_cached_width(size: int, copies: int = 1) -> int:
    """The number of clients per chunk whose models the processor's caches hold."""
    return max(MIN_WIDTH, min(MAX_WIDTH, CACHE_BYTES // (4 * size * copies)))


def is_dense(shapes: Iterable[tuple[int, ...]]) -> bool:
    """Whether a network has no convolutions: stacked clients are then always faster."""
    return all(len(shape) <= 2 for shape in shapes)


def find_stacking_problem(model: Model, feed: Feed) -> str:
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
    batch = pytree.tree_map(lambda t: t.expand(2, *t.shape), one)
    try:
        torch.func.vmap(model.logits)(pair, batch)
        torch.func.vmap(lambda point, batch: model.grad(point, batch).params)(pair, batch)
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as problem:
        if isinstance(problem, BadInput):
            raise
        return str(problem).strip().splitlines()[0].rstrip(".")[:200] or type(problem).__name__
    return ""


class TuningCase(NamedTuple):
    """The first exchange of an architecture's clients, on which its settings are chosen."""

    given: ExecutionSettings
    exchange: Exchange
    when: Moment
    clients: list[int]  # most steps first
    ready: Callable[[list[int]], tuple[list[Tree], Tree]]  # clients -> payloads, stacked states
    feed: Feed
    counts: StepCounts
    size: int  # parameters of the network
    shapes: list[tuple[int, ...]]  # theirs
    rounds: int  # of the whole run
    worth: bool = False  # whether machine code repays its compiling in this exchange
    waits: bool = False  # whether it does in another exchange of the run
    strict: bool = True  # whether what must be machine code and cannot be is refused
    tell: Callable[[str], None] = lambda why: None  # why there is no machine code

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
    def dense(self) -> bool:
        """Whether the network has no convolutions."""
        return is_dense(self.shapes)

    @property
    def widths(self) -> list[int]:
        """The widths to try; one where it is known what suits."""
        if self.given.width:
            return [self.given.width]
        coded = self.given.compile == "yes" and _is_processor()
        most = compute_max_width(self.size, self.exchange.copies, coded)
        most = min(len(self.clients), most)
        if self.given.compile == "yes" or (self.dense and not _is_processor()):
            return [min(most, MAX_WIDTH)]
        if self.dense:
            return [min(most, compute_cached_width(self.size, self.exchange.copies))]
        return sorted({min(w, most) for w in WIDTHS})

    @property
    def kind(self) -> dict[str, Any]:
        """What the times of this case depend on."""
        plans = [p.plan for p in self.exchange.passes]
        return {
            "given": self.given,
            "shapes": self.shapes,
            "plans": plans,
            "steps": [getattr(p.step, "__qualname__", "") for p in self.exchange.passes],
            "clients": len(self.clients),
            "input": self.feed.x.shape[1:],
            "type": str(torch.get_default_dtype()),
            "threads": torch.get_num_threads(),
            "device": str(torch.get_default_device()),
            "torch": torch.__version__,
            "machine": (platform.machine(), platform.processor(), os.cpu_count()),
        }


class TunedSettings(NamedTuple):
    """What suits the clients best."""

    settings: ExecutionSettings
    threads: int | None = None  # of this process; None: not chosen here


def choose_settings(case: TuningCase, free_threads: bool) -> TunedSettings:
    """Fill what the settings leave open; what was timed once is remembered."""
    given, number = case.given, case.timed
    if number is None:
        return TunedSettings(
            _fill_open(given, ExecutionSettings("vectorized", case.widths[-1], "no"))
        )
    if _will_compile(case):
        width = case._replace(given=given._replace(compile="yes")).widths[-1]
        return TunedSettings(_fill_open(given, ExecutionSettings("vectorized", width, "yes")))
    if can_compile(case):
        case = case._replace(given=given._replace(compile="yes"))
        path: ExecutionPath = "vectorized" if given.path == "auto" else given.path
        compiled = ExecutionSettings(path, case.widths[-1], "yes")
        if given.path == given.compile == "auto" and not case.dense:
            return TunedSettings(_choose_faster(case, number, compiled))
        return TunedSettings(_fill_open(case.given, compiled))
    longest = case.steps(case.clients[:1]) * case.rounds
    option: CompileMode = "trace" if longest >= MIN_STEPS_TO_TRACE else "no"
    kind = case.kind | {"compile": option, "free": free_threads}
    known = _recall_choice(kind)
    if known is not None:
        return known._replace(settings=_fill_open(given, known.settings))
    path, width, usual = _find_fastest(case, number, option, free_threads)
    threads = torch.get_num_threads()
    if free_threads and threads > 1 and path == "vectorized":
        with use_threads(1):
            alone = time_pass(case, number, path, width, option)
        # Small networks lose more to waiting than they gain, and on a busy machine threads cost
        # most: they must earn their keep.
        if alone <= 1.25 * usual:
            threads = 1
    found = _fill_open(given, ExecutionSettings(path, width, option))
    choice = TunedSettings(found, threads if free_threads else None)
    if longest >= MIN_STEPS_TO_TRACE:
        remember(kind, {"settings": found.text(), "threads": choice.threads})
    return choice


def _will_compile(case: TuningCase) -> bool:
    """Whether a later exchange of the run is worth machine code and this one is not: it is then
    traced, and what the later one can be is seen when it comes.
    """
    given = case.given
    if given.compile != "auto" or given.path == "sequential" or not case.dense:
        return False
    return case.waits and not case.worth and bool(find_compiler())


def is_worth_compiling(steps: float, dense: bool) -> bool:
    """Whether so many client-steps repay the compiling of one."""
    return steps >= (MIN_STEPS_TO_COMPILE if dense else MIN_STEPS_TO_COMPILE_CONV)


def is_worth_judging(rows: int, dense: bool) -> bool:
    """Whether the evaluation of so many rows repays compiling it."""
    return rows >= (MIN_ROWS_TO_COMPILE if dense else MIN_ROWS_TO_COMPILE_CONV)


def can_compile(case: TuningCase) -> bool:
    """Whether the steps of an exchange run as machine code; refused where they must and cannot."""
    wanted = case.given.compile == "yes"
    stacked = case.given.path != "sequential"
    if not wanted and not (case.given.compile == "auto" and case.worth and stacked):
        return False
    stepper = Stepper(case.given.path != "sequential", compiled=True)
    chunk = case.clients[:1]
    with torch.random.fork_rng(devices=[]):
        carry = _start_carry(case, stepper, chunk)
        for p in case.exchange.passes:
            carry, _ = run_pass(
                case.feed, stepper, p, "trial", case.when, chunk, carry, case.counts, limit=1
            )
    if stepper.why:
        why = next(iter(stepper.why.values()))
        if wanted and case.strict:
            raise BadInput(f"a step cannot be compiled ({why}): use compile = auto, trace or no")
        case.tell(why)
    return not stepper.why


def _choose_faster(case: TuningCase, number: int, compiled: ExecutionSettings) -> ExecutionSettings:
    """Machine code, or torch's own convolutions one client after another: of deep networks either
    may be faster, and a long run is worth the trial.
    """
    steps = case.steps(case.clients) * case.rounds
    kind = case.kind | {"compile": "yes", "run": steps}
    known = _recall_choice(kind)
    if known is not None:
        return known.settings
    some = min(compiled.width, max(4, torch.get_num_threads()))
    coded = time_pass(case, number, compiled.path, some, "yes")
    worth = coded * steps > MIN_SECONDS_TO_TIME
    slower = worth and time_pass(case, number, "sequential", 1, "trace") < coded
    found = ExecutionSettings("sequential", compiled.width, "trace") if slower else compiled
    remember(kind, {"settings": found.text()})
    return found


def _recall_choice(kind: dict[str, Any]) -> TunedSettings | None:
    """The choice of an earlier run of this kind."""
    found = recall(kind) or {}
    threads = found.get("threads")
    try:
        settings = ExecutionSettings.read(str(found["settings"]))
    except (KeyError, ValueError):
        return None
    return TunedSettings(settings, threads if isinstance(threads, int) and threads > 0 else None)


def _fill_open(given: ExecutionSettings, found: ExecutionSettings) -> ExecutionSettings:
    """The given settings, with what was found where they are open."""
    return ExecutionSettings(
        path=found.path if given.path == "auto" else given.path,
        width=given.width or found.width,
        compile=found.compile if given.compile == "auto" else given.compile,
    )


def _find_fastest(
    case: TuningCase, number: int, option: CompileMode, free_threads: bool
) -> tuple[Any, int, float]:
    """The path and width with the fewest seconds per client-step, and those seconds (0 where
    nobody needs them).
    """
    tries = [("vectorized", width) for width in case.widths] * (case.given.path != "sequential")
    if case.given.path != "vectorized" and not (tries and case.dense):
        tries.append(("sequential", case.widths[-1]))
    if len(tries) == 1 and not (free_threads and torch.get_num_threads() > 1):
        return *tries[0], 0.0
    times = {(path, width): time_pass(case, number, path, width, option) for path, width in tries}
    path, width = min(
        times, key=lambda k: times[k] * (STACKING_MARGIN if k[0] == "vectorized" else 1)
    )
    return path, width, times[path, width]


def time_pass(case: TuningCase, number: int, path: str, width: int, option: CompileMode) -> float:
    """Seconds per client-step of one pass, the best of three short runs after a warm-up.

    Everything happens on copies and with a stepper of its own; nothing that is computed is kept.
    """
    # clients then run side by side, on a core each; on another device they share it
    if path == "sequential" and option == "trace" and _is_processor():
        together = min(torch.get_num_threads(), len(case.clients))
        if together > 1:
            with use_threads(1):
                return time_pass(case, number, path, 1, option) / together
    stepper = Stepper(path == "vectorized", compiled=option == "yes", traced=option == "trace")
    chunk = case.clients[: width if stepper.vectorized else 1]
    with torch.random.fork_rng(devices=[]):
        carry = _start_carry(case, stepper, chunk)
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
                begin = _read_clock()
                stepper.loop(work.step, carry, batches, count)
                best = min(best, _read_clock() - begin)
        except (RuntimeError, NotImplementedError, BadInput):
            if path == "sequential":
                raise
            return float("inf")  # this network cannot be stacked: the other path is taken
    return best / (count * len(chunk))


def _is_processor() -> bool:
    """Whether steps run on the processor, whose caches and cores set the limits here."""
    return torch.get_default_device() == CPU


def _read_clock() -> float:
    """Seconds, once all that was begun on a device is done."""
    if not _is_processor():
        torch.accelerator.synchronize()
    return time.perf_counter()


def _start_carry(case: TuningCase, stepper: Stepper, chunk: list[int]) -> Tree:
    """The carry of a chunk at the start of the exchange, in memory of its own."""
    payloads, states = copy_tree(case.ready(chunk))
    if stepper.vectorized:
        payload, dims = stack_payloads(payloads)
        return lift(case.exchange.start, len(chunk), 0, dims)(states, payload)
    state = to_channels_last(pytree.tree_map(lambda t: t[0], states))
    return case.exchange.start(state, to_channels_last(payloads[0]))
