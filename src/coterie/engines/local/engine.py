"""The local engine: all clients in one process, stacked and vectorized, or one after another."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence, Set
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.utils import _pytree as pytree

from coterie.core.device import CPU, device_of, to_default_device, use_device
from coterie.core.errors import BadInput
from coterie.core.method import Exchange, Tree
from coterie.core.point import pick, pick_ordered, stack, tree_map
from coterie.core.rng import LazyStream, Rng
from coterie.core.task import find_task
from coterie.data.federation import PARTS, Federation
from coterie.engines.base import (
    Engine,
    EngineSetup,
    ExchangeRequest,
    ExchangeResult,
    Metrics,
    Moment,
    Predictions,
    Send,
    Traffic,
    Uploads,
    Views,
    concat,
    count_download,
    count_upload,
)
from coterie.engines.finite import find_non_finite
from coterie.engines.local.autotune import (
    TuningCase,
    can_compile,
    choose_settings,
    compute_cached_width,
    compute_max_width,
    find_stacking_problem,
    is_dense,
    is_worth_compiling,
    is_worth_judging,
)
from coterie.engines.local.batches import Feed, StepCounts
from coterie.engines.local.evaluate import evaluate, predict_client
from coterie.engines.local.stacks import lift, split_chunks, stack_payloads
from coterie.engines.local.states import StateStore, to_tensors
from coterie.engines.local.steps import Stepper
from coterie.engines.local.work import ChunkResult, ChunkTask, run_exchange
from coterie.engines.settings import ExecutionSettings

DEFAULT_SETTINGS = ExecutionSettings("vectorized", 16, "no")  # to evaluate before the first round
EVAL_CLIENTS, EVAL_BYTES = 4096, 2**26  # clients, and bytes of their models, evaluated at once


class ClientGroup(NamedTuple):
    """The clients of one architecture that take part in an exchange, most steps first."""

    architecture: int
    exchange: Exchange
    clients: list[int]
    counts: StepCounts
    number: int  # of the exchange in its round


class LocalEngine(Engine):
    """All clients in this process."""

    def __init__(
        self, setup: EngineSetup, free_threads: bool = False, device: torch.device | None = None
    ):
        self._free_threads = free_threads  # whether the number of threads may be chosen
        self.device = device or torch.get_default_device()
        self._steppers: dict[Any, Stepper] = {}
        self._why_alone: dict[int, str] = {}  # architecture -> why it cannot be stacked, or ""
        self._compiled: set[int] = set()  # architectures of which it is known that they can be
        self._worthy: dict[int, dict[Any, bool]] = {}  # architecture -> exchanges worth compiling
        self._remarks: list[str] = []  # not yet taken
        self._reported: list[str] = []
        self.states = [StateStore() for _ in setup.models]
        super().__init__(setup)

    def take(self, federation: Federation, architecture: np.ndarray) -> None:
        with use_device(self.device):
            super().take(federation, architecture)
            self._worthy = {}
            self.feed = Feed.of(federation._replace(public=self.public), self.seed)

    def enter(self, stage: int) -> None:
        self.stage = stage
        for a, program in enumerate(self.programs):
            convert = program[stage].enter_state
            if convert is not None:
                self.states[a] = self.states[a].convert(convert)

    def dump(self) -> Tree:
        return [store.everything() for store in self.states]

    def mark_written(self) -> None:
        for store in self.states:
            store.changed = set()

    def dump_changes(self) -> Tree | None:
        if any(store.changed is None for store in self.states):
            return None
        return [store.changes() for store in self.states]

    def restore(self, dumped: Tree, stage: int) -> None:
        self.stage = stage
        self.states = [StateStore() for _ in self.models]
        for store, (clients, stacked) in zip(self.states, dumped, strict=True):
            if clients:
                store.scatter(clients, to_default_device(stacked))

    # One trip to the clients and back

    @torch.no_grad()
    def exchange(self, trip: ExchangeRequest) -> ExchangeResult:
        uploads: list[Uploads] = []
        traffic = Traffic()
        sent: set[Any] = set()
        failed: set[int] = set()
        for worked in self.work(trip):
            a, chunk, upload = worked.architecture, worked.clients, worked.upload
            kept = self.keep(worked, trip.answered)
            failed |= {chunk[k] for k in worked.broken} & trip.answered
            reached = [k for k in kept if chunk[k] in trip.averaged]
            if reached:
                uploads.append(
                    Uploads(
                        a, [chunk[k] for k in reached], pick_ordered(upload, reached, len(chunk))
                    )
                )
            down = count_download(worked.payloads, sent, trip.shared)
            up = count_upload(upload, len(trip.answered & trip.averaged & set(chunk)))
            traffic = traffic.plus(down._replace(up=up, **worked.effort._asdict()))
        replies = self.replies(uploads, trip.when)
        answered = set(trip.clients) & trip.answered - failed
        return ExchangeResult(replies, traffic, answered, frozenset(failed))

    def keep(self, worked: ChunkResult, answered: Set[int]) -> list[int]:
        """Store the new states of the clients that answered with numbers; their places in the
        chunk.
        """
        good = set(range(len(worked.clients))) - set(worked.broken)
        kept = [k for k in sorted(good) if worked.clients[k] in answered]
        if kept:
            clients = [worked.clients[k] for k in kept]
            # what is uploaded is the server's to do with as it likes
            own = not _storage_pointers(worked.state) & _storage_pointers(worked.upload)
            self.states[worked.architecture].scatter(
                clients, pick_ordered(worked.state, kept, len(worked.clients)), own
            )
        return kept

    @torch.no_grad()
    def work(self, trip: ExchangeRequest) -> Iterator[ChunkResult]:
        """Clients' new states and uploads, chunk by chunk; whoever asked decides what is kept."""
        for a in range(len(self.models)):
            crowd = self._select_group(a, trip)
            if not crowd.clients:
                continue
            self._choose_open_settings(crowd, trip)
            settings = self._settings_for(crowd)
            for chunk in split_chunks(crowd.clients, self._width(crowd, settings)):
                payloads = _collect_payloads(trip.send, chunk)
                before = self._gather(a, chunk, payloads, crowd.exchange)
                task = ChunkTask(
                    exchange=crowd.exchange,
                    number=trip.number,
                    when=trip.when,
                    clients=chunk,
                    states=before,
                    payloads=payloads,
                    counts=crowd.counts,
                )
                stepper = self._stepper(settings)
                state, upload, effort = run_exchange(task, stepper, self.feed)
                for why in stepper.why.values():
                    self._tell_uncompiled(a, why)
                if pytree.tree_structure(state) != pytree.tree_structure(before):
                    raise TypeError("a client's state must keep the structure that `join` gave it")
                yield ChunkResult(
                    architecture=a,
                    clients=chunk,
                    payloads=payloads,
                    state=state,
                    upload=upload,
                    effort=effort,
                    broken=find_non_finite(state, upload, len(chunk)),
                )

    @torch.no_grad()
    def choose(self, trip: ExchangeRequest) -> list[ExecutionSettings]:
        """The settings that suit the clients of a trip, what was open being chosen by timing."""
        for a in range(len(self.models)):
            crowd = self._select_group(a, trip)
            if crowd.clients:
                self._choose_open_settings(crowd, trip)
        return self.settings

    def _select_group(self, a: int, trip: ExchangeRequest) -> ClientGroup:
        """The clients of one architecture, most steps first, so that little work is padding."""
        exchange = self.method(a).round[trip.number]
        mine = [i for i in sorted(trip.clients) if self.architecture[i] == a]
        counts = (
            self._count_adaptive_steps(a, exchange, mine, trip.send) if exchange.steps else None
        )
        steps = np.zeros(len(mine), np.int64)
        for plan in (p.plan for p in exchange.passes if p.plan):
            steps += np.array(self.feed.steps_of(plan, mine, counts), np.int64)
        order = np.argsort(-steps, kind="stable")
        return ClientGroup(a, exchange, [mine[k] for k in order], counts, trip.number)

    def _count_adaptive_steps(
        self, a: int, exchange: Exchange, clients: list[int], send: Send
    ) -> StepCounts:
        """The number of steps of each client, as the method decides on it."""
        assert exchange.steps is not None
        counts = {}
        for chunk in split_chunks(clients, compute_cached_width(self.models[a].size)):
            payloads = _collect_payloads(send, chunk)
            states, spec = pytree.tree_flatten(self._gather(a, chunk, payloads, exchange))
            rows = zip(*(leaf.unbind() for leaf in states), strict=True)
            for i, payload, mine in zip(chunk, payloads, rows, strict=True):
                state = pytree.tree_unflatten(mine, spec)
                counts[i] = int(exchange.steps(state, payload, self.feed.training_rows(i)))
        return counts

    def _choose_open_settings(self, crowd: ClientGroup, trip: ExchangeRequest) -> None:
        """Choose what the settings of an architecture leave open."""
        a = crowd.architecture
        self._check_path(a)
        known = not self.settings[a].open
        if known and (not self._is_compiled(self.settings[a]) or a in self._compiled):
            return

        def ready(clients: list[int]) -> tuple[list[Tree], Tree]:
            payloads = _collect_payloads(trip.send, clients)
            return payloads, self._gather(a, clients, payloads, crowd.exchange)

        case = TuningCase(
            given=self.settings[a],
            exchange=crowd.exchange,
            when=trip.when,
            clients=crowd.clients,
            ready=ready,
            feed=self.feed,
            counts=crowd.counts,
            size=self.models[a].size,
            shapes=[*self.models[a].shapes.values()],
            rounds=self.rounds,
            worth=self._is_worth_compiling(crowd),
            waits=any(self._list_worthy(a).values()),
            strict=self.strict,
            tell=partial(self._tell_uncompiled, a),
        )
        self._compiled.add(a)
        if known:
            can_compile(case)  # refused where it must and cannot
            return
        choice = choose_settings(case, self._free_threads)
        self.settings[a] = choice.settings
        if choice.threads is not None:
            torch.set_num_threads(choice.threads)
            self._free_threads = False

    def _tell_uncompiled(self, a: int, why: str) -> None:
        """Say once that the steps of an architecture are slower than they could be."""
        line = f"{self.models[a].name} runs without machine code, which is slower ({why})"
        if line not in self._reported:
            self._reported.append(line)
            self._remarks.append(line)

    def take_remarks(self) -> list[str]:
        remarks, self._remarks = self._remarks, []
        return remarks

    def _is_worth_compiling(self, crowd: ClientGroup) -> bool:
        """Whether machine code repays its compiling in an exchange."""
        a = crowd.architecture
        if self.lengths:
            return self._list_worthy(a)[self.stage, crowd.number]
        plans = [p.plan for p in crowd.exchange.passes if p.plan]
        steps = sum(sum(self.feed.steps_of(p, crowd.clients, crowd.counts)) for p in plans)
        return is_worth_compiling(steps * self.rounds, is_dense(self.models[a].shapes.values()))

    def _list_worthy(self, a: int) -> dict[Any, bool]:
        """{exchange: whether machine code repays its compiling} of all exchanges of the run.

        It says the same whoever takes part in a round, so that a resumed run computes the same.
        """
        if a not in self._worthy and self.lengths:
            mine = np.flatnonzero(self.architecture == a)
            dense, found = is_dense(self.models[a].shapes.values()), {}
            for k, (stage, rounds) in enumerate(zip(self.programs[a], self.lengths, strict=True)):
                share = 1.0 if stage.everyone else self.share
                for number, exchange in enumerate(stage.method.round):
                    plans = [p.plan for p in exchange.passes if p.plan]
                    steps = sum(self.feed.count_all_steps(plan, mine) for plan in plans)
                    found[k, number] = is_worth_compiling(steps * share * rounds, dense)
            self._worthy[a] = found
        return self._worthy.get(a, {})

    def _settings_for(self, crowd: ClientGroup) -> ExecutionSettings:
        """The settings of an exchange: where `auto` took machine code, an exchange of too few steps
        is traced in chunks that suit that.
        """
        a = crowd.architecture
        settings = self.settings[a]
        if self.strict or settings.compile != "yes" or self._is_worth_compiling(crowd):
            return settings
        width = compute_cached_width(self.models[a].size, crowd.exchange.copies)
        return settings._replace(width=min(settings.width, width), compile="trace")

    def _check_path(self, a: int) -> None:
        """Let a network that cannot be stacked run one client after another, or refuse it."""
        given, why = self.settings[a], self._stacking_problem(a)
        if why and given.path == "vectorized":
            raise BadInput(
                f"{self.models[a].name} cannot run with path = vectorized ({why}): use auto or "
                "sequential"
            )
        if why and given.path == "auto":
            self.settings[a] = given._replace(path="sequential")

    def _stacking_problem(self, a: int) -> str:
        """Why an architecture cannot be stacked; "" where it can, or need not be."""
        if self.settings[a].path == "sequential":
            return ""
        if a not in self._why_alone:
            self._why_alone[a] = find_stacking_problem(self.models[a], self.feed)
        return self._why_alone[a]

    def _width(self, crowd: ClientGroup, settings: ExecutionSettings) -> int:
        """Clients per chunk; where clients train several models, the width was chosen for another
        exchange.
        """
        width, copies = settings.width, crowd.exchange.copies
        size = self.models[crowd.architecture].size
        return min(width, compute_max_width(size, copies)) if copies > 1 else width

    def _gather(
        self, a: int, chunk: list[int], payloads: list[Tree], exchange: Exchange | None = None
    ) -> Tree:
        """The states of a chunk as an exchange begins, stacked; nothing is stored."""
        store, pairs = self.states[a], list(zip(chunk, payloads, strict=True))
        if exchange and exchange.prepare:
            return self._prepare(exchange, self._gather(a, chunk, payloads), pairs)
        known = [i for i in chunk if i in store]
        new = [pair for pair in pairs if pair[0] not in store]
        if not new or not known:
            return self._join_clients(a, new) if new else store.lend(chunk)
        mixed = concat([store.gather(known), self._join_clients(a, new)])
        order = np.argsort(np.argsort([i not in store for i in chunk], kind="stable"))
        return pick(mixed, torch.as_tensor(order))

    def _prepare(self, exchange: Exchange, states: Tree, pairs: list[tuple[int, Tree]]) -> Tree:
        """The states of clients as an exchange prepares them one by one; what it leaves as it is
        stays stacked.
        """
        assert exchange.prepare is not None
        leaves, spec = pytree.tree_flatten(states)
        rows = list(zip(*(leaf.unbind() for leaf in leaves), strict=True)) or [()] * len(pairs)
        after = []
        for (i, payload), mine in zip(pairs, rows, strict=True):
            state = pytree.tree_unflatten(list(mine), spec)
            made = exchange.prepare(state, payload, self.feed.training_rows(i))
            after.append(pytree.tree_flatten(made))
        new_spec = after[0][1]
        if any(structure != new_spec for _, structure in after):
            raise TypeError("what prepares the clients of an exchange must give one structure")
        columns = list(zip(*(made for made, _ in after), strict=True))
        kept = dict(enumerate(zip(*rows, strict=True))) if new_spec == spec else {}
        found = [
            leaves[k]
            if all(map(operator.is_, column, kept.get(k, ()))) and k in kept
            else torch.stack([to_tensors(one) for one in column])
            for k, column in enumerate(columns)
        ]
        return pytree.tree_unflatten(found, new_spec)

    def _join_client(self, a: int, client: int, payload: Tree) -> tuple[Tree, bool]:
        """What a client makes of its first payload, and whether it drew anything for that."""
        rng = LazyStream(self.seed, "join", client)
        joined = self.method(a).join(payload, cast(Rng, rng))
        return joined if joined is payload else to_tensors(joined), rng.drawn

    def _join_clients(self, a: int, pairs: list[tuple[int, Tree]]) -> Tree:
        """The first states of clients, stacked; who gets the same and draws nothing joins alike."""
        states: list[Tree] = []
        last: tuple[Tree, Tree] | None = None  # a payload, and what all make of it
        for i, payload in pairs:
            if last is not None and last[0] is payload:
                states.append(last[1])
                continue
            state, drew = self._join_client(a, i, payload)
            states.append(state)
            last = None if drew else (payload, state)
        return _stack_states(
            states, shared=all(s is p for s, (_, p) in zip(states, pairs, strict=True))
        )

    def _is_compiled(self, settings: ExecutionSettings) -> bool:
        """Whether steps are compiled; what was chosen on the processor is traced elsewhere."""
        return settings.compile == "yes" and self.device == CPU

    def _stepper(self, settings: ExecutionSettings) -> Stepper:
        key = (settings.path, settings.compile)
        if key not in self._steppers:
            self._steppers[key] = Stepper(
                key[0] == "vectorized",
                compiled=self._is_compiled(settings),
                traced=key[1] in ("trace", "yes"),
            )
        return self._steppers[key]

    # Evaluation

    def _evaluation_settings(self, a: int) -> ExecutionSettings:
        """The settings to evaluate with."""
        self._check_path(a)
        given = self.settings[a]
        if not given.open:
            return given
        return (
            DEFAULT_SETTINGS
            if given.path != "sequential"
            else DEFAULT_SETTINGS._replace(path="sequential")
        )

    def _evaluation_width(self, a: int) -> int:
        """Clients whose models are made at once to be looked at."""
        size: int = self.models[a].size
        tuned = self.method(a).personalize
        most = max(1, min(EVAL_CLIENTS, EVAL_BYTES // (4 * size), self.feed.together))
        return (
            min(most, self._evaluation_settings(a).width, compute_max_width(size, tuned.copies))
            if tuned
            else most
        )

    @torch.no_grad()
    def points(self, clients: Sequence[int], send: Send, when: Moment) -> Views:
        for a in range(len(self.models)):
            mine = [i for i in sorted(clients) if self.architecture[i] == a]
            width = self._evaluation_width(a)
            if len(mine) > width and self._has_one_model(a, mine, send):
                width = min(EVAL_CLIENTS, self.feed.together)
            for chunk in split_chunks(mine, width):
                yield a, chunk, self._views(a, chunk, send, when)

    def _has_one_model(self, a: int, clients: list[int], send: Send) -> bool:
        """Whether all clients have the very model that is sent, which then takes the memory of
        one.
        """
        first = send(clients[0])
        state = self._gather(a, clients[:1], _collect_payloads(send, clients[:1]))
        return (
            self.method(a).personalize is None
            and not pytree.tree_leaves(state)
            and all(send(i) is first for i in clients)
        )

    def _views(self, a: int, chunk: list[int], send: Send, when: Moment) -> dict[str, Any]:
        """The own models and other views of a chunk, stacked."""
        method = self.method(a)
        payloads = _collect_payloads(send, chunk)
        state = self._gather(a, chunk, payloads)
        payload, dims = stack_payloads(payloads)
        views = {k: lift(f, len(chunk), 0, dims)(state, payload) for k, f in method.views.items()}
        if method.personalize:
            if method.personalize.prepare:
                state = self._gather(a, chunk, payloads, method.personalize)
            task = ChunkTask(
                exchange=method.personalize,
                number=0,
                when=when._replace(kind="personalize"),
                clients=chunk,
                states=state,
                payloads=payloads,
            )
            state, _, _ = run_exchange(task, self._stepper(self._evaluation_settings(a)), self.feed)
        own = lift(method.personal, len(chunk), 0, dims)(state, payload)
        return {"personal": own, **views}

    @torch.no_grad()
    def evaluate(
        self,
        clients: Sequence[int],
        send: Send,
        when: Moment,
        parts: Sequence[str] = PARTS,
        final: bool = False,
    ) -> Metrics:
        return self.measure_views(self.points(clients, send, when), clients, parts, final)

    @torch.no_grad()
    def measure_views(
        self,
        views: Views,
        clients: Sequence[int],
        parts: Sequence[str] = PARTS,
        final: bool = False,
    ) -> Metrics:
        """What models are worth on the clients' rows, whoever made them."""
        scored = final and "test" in parts
        return evaluate(
            views,
            clients,
            self.feed,
            stepper_of=lambda a: self._stepper(self._evaluation_settings(a)),
            model_of=self.model_of,
            parts=parts,
            scored=lambda a: scored and bool(find_task(self.models[a].task).scores),
            metric=self.metric,
            compiled=self._evaluates_compiled,
        )

    def _evaluates_compiled(self, a: int) -> bool:
        """Whether machine code repays its compiling in the evaluations of an architecture: it says
        the same in every round, so that a resumed run measures the same.
        """
        settings = self.settings[a]
        if settings.open or not self._is_compiled(settings) or not self.evaluations:
            return False
        rows = sum(int(part.counts.sum()) for part in self.feed.parts.values())
        return is_worth_judging(rows * self.evaluations, is_dense(self.models[a].shapes.values()))

    @torch.no_grad()
    def predictions(
        self, clients: Sequence[int], send: Send, when: Moment, part: str
    ) -> Predictions:
        for a, chunk, views in self.points(clients, send, when):
            model = self.model_of(a, "personal")
            for k, i in enumerate(chunk):
                yield i, *predict_client(self.feed, model, pick(views["personal"], k), i, part)

    def client_notes(self, clients: Sequence[int]) -> dict[str, dict[int, float]]:
        out: dict[str, dict[int, float]] = {}
        for a in range(len(self.models)):
            note = self.method(a).client_notes
            mine = [i for i in clients if self.architecture[i] == a and i in self.states[a]]
            if note is None or not mine:
                continue
            states = self.states[a].gather(mine)
            for k, i in enumerate(mine):
                for name, value in note(pick(states, k)).items():
                    out.setdefault(name, {})[i] = float(value)
        return out


def _collect_payloads(send: Send, clients: Sequence[int]) -> list[Tree]:
    """What is sent to each client; what is one object for several of them stays one."""
    sent: list[Tree] = []
    last: tuple[Any, Tree] | None = None
    for i in clients:
        value = send(i)
        if last is None or value is not last[0]:
            last = value, to_tensors(value)
        sent.append(last[1])
    return sent


def _storage_pointers(tree: Tree) -> set[int]:
    """Where the tensors of a tree lie."""
    return {leaf.untyped_storage().data_ptr() for leaf in pytree.tree_leaves(tree)}


def _stack_states(states: list[Tree], shared: bool) -> Tree:
    """States as one stack; what is one payload for all of them takes the memory of one."""
    if shared and all(state is states[0] for state in states):
        return tree_map(lambda a: a.expand(len(states), *a.shape), states[0])
    return stack(states)


def build_local_engine(setup: EngineSetup, threads: int, *, device: str = "cpu") -> LocalEngine:
    """The engine of this process; its threads are chosen where their number is 0.

    device: what holds the data, the states and the work: cpu, cuda, cuda:1, mps, or auto.
    """
    return LocalEngine(setup, not threads, device_of(device))
