"""The local engine: one process, clients of one architecture stacked and vectorized, or one after another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.analysis.scores import MORE, scores
from coterie.core import rng as streams
from coterie.core.method import Batch, Exchange, Pass, Plan, Tree
from coterie.core.point import Point, pick, stack
from coterie.data.federation import Federation
from coterie.engines.base import Effort, Engine, Measured, Moment, Outcome, Send, Settings, Traffic, Uploads, bytes_down, bytes_up
from coterie.engines.local.batches import FULL, batch_rows, count_steps, draw
from coterie.engines.local.choose import choose, fits
from coterie.engines.local.states import States, tensors
from coterie.engines.local.steps import Stepper


class Part(NamedTuple):
    """One part (train, validation, test, public) of all clients as one list of rows."""

    rows: Tensor  # [total]
    first: np.ndarray  # [N]
    counts: np.ndarray  # [N]
    largest: int

    @classmethod
    def of(cls, lists: Sequence[np.ndarray]) -> Part:
        counts = np.array([len(rows) for rows in lists], dtype=np.int64)
        rows = np.concatenate(lists) if len(lists) else np.zeros(0, dtype=np.int64)
        return cls(torch.as_tensor(rows, dtype=torch.int64), np.cumsum(counts) - counts, counts, int(counts.max(initial=0)))


class Worked(NamedTuple):
    """What a chunk of clients made of one exchange; nothing of it is stored yet."""

    architecture: int
    clients: list[int]
    payloads: list[Tree]
    state: Tree  # [m, ...]
    upload: Tree  # [m, ...]
    effort: Effort


class LocalEngine(Engine):
    """All clients in this process."""

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self.states = [States() for _ in self.models]
        self.free_threads = False  # whether the number of threads may be chosen
        self._steppers: dict[Any, Stepper] = {}

    def take(self, federation: Federation) -> None:
        super().take(federation)
        dtype = torch.get_default_dtype()
        self.x = federation.x.to(dtype) if federation.x.is_floating_point() else federation.x
        self.y = federation.y.to(dtype) if federation.y.is_floating_point() else federation.y
        self.parts = {name: Part.of(getattr(federation, name)) for name in ("train", "validation", "test")}

    def enter(self, stage: int) -> None:
        self.stage = stage
        for a, program in enumerate(self.programs):
            convert = program[stage].enter_state
            if convert is not None:
                self.states[a] = self.states[a].changed(convert)

    def dump(self) -> Tree:
        return [store.everything() for store in self.states]

    def restore(self, dumped: Tree, stage: int) -> None:
        self.stage = stage
        for store, (clients, stacked) in zip(self.states, dumped, strict=True):
            if clients:
                store.scatter(clients, stacked)

    # One trip to the clients and back

    @torch.no_grad()
    def exchange(
        self,
        index: int,
        when: Moment,
        clients: Sequence[int],
        send: Send,
        answered: set[int],
        averaged: set[int],
        shared: frozenset[int] = frozenset(),
    ) -> Outcome:
        uploads: list[Uploads] = []
        traffic = Traffic()
        sent: set[Any] = set()
        for a, chunk, payloads, state, upload, effort in self.work(index, when, clients, send):
            kept = [k for k, i in enumerate(chunk) if i in answered]
            reached = [k for k in kept if chunk[k] in averaged]
            if kept:
                self.states[a].scatter([chunk[k] for k in kept], pick(state, kept))
            if reached:
                uploads.append(Uploads(a, [chunk[k] for k in reached], pick(upload, reached)))
            down = bytes_down(payloads, sent, shared)
            traffic = traffic.plus(down._replace(up=bytes_up(upload, len(reached)), **effort._asdict()))
        return Outcome(self.replies(uploads, when), traffic, set(clients) & answered)

    @torch.no_grad()
    def work(self, index: int, when: Moment, clients: Sequence[int], send: Send) -> Iterator[Worked]:
        """Clients' new states and uploads, chunk by chunk; whoever asked decides what is kept."""
        for a, chunk, payloads, counts in self._chunks(index, when, clients, send):
            exchange = self.method(a).round[index]
            states = self._gather(a, chunk, payloads, exchange)
            state, upload, effort = self._work(self.settings[a], exchange, when, chunk, states, payloads, counts, index)
            if pytree.tree_structure(state) != pytree.tree_structure(states):
                raise TypeError("a client's state must keep the structure that `join` gave it")
            yield Worked(a, chunk, payloads, state, upload, effort)

    def _chunks(
        self, index: int, when: Moment, clients: Sequence[int], send: Send
    ) -> Iterator[tuple[int, list[int], list[Tree], dict[int, int] | None]]:
        """Clients of one architecture, most steps first, so that little work is padding."""
        for a in range(len(self.models)):
            mine = [i for i in sorted(clients) if self.architecture[i] == a]
            if not mine:
                continue
            exchange = self.method(a).round[index]
            counts = self._adaptive(a, exchange, when, mine, send) if exchange.steps else None
            mine.sort(key=lambda i: -sum(self._steps(p.plan, i, counts) for p in exchange.passes if p.plan))
            if self.settings[a].open:
                self.settings[a] = choose(self, a, exchange, when, mine, send, counts)
            width = self.settings[a].width
            if exchange.copies > 1:  # the width was chosen for another exchange
                width = min(width, fits(self.models[a].size, exchange.copies))
            for chunk in balanced(mine, width):
                yield a, chunk, [tensors(send(i)) for i in chunk], counts

    def _steps(self, plan: Plan, client: int, counts: dict[int, int] | None) -> int:
        if plan.adaptive and counts is not None:
            return counts[client]
        if plan.part == "public":
            return count_steps(plan, plan.draw or len(self.public.x) if self.public else 0)
        return count_steps(plan, int(self.parts[plan.part].counts[client]))

    def _adaptive(self, a: int, exchange: Exchange, when: Moment, clients: list[int], send: Send) -> dict[int, int]:
        assert exchange.steps is not None
        counts = {}
        for i in clients:
            payload = tensors(send(i))
            state = self._state(a, i, payload, exchange)
            counts[i] = int(exchange.steps(state, payload, self._rows(i)))
        return counts

    def _rows(self, client: int) -> Tensor:
        return torch.tensor(int(self.parts["train"].counts[client]))

    def _state(self, a: int, client: int, payload: Tree, exchange: Exchange | None = None) -> Tree:
        """A client's state as an exchange begins; at first contact what it makes of the payload, not stored yet."""
        if client in self.states[a]:
            state = pick(self.states[a].gather([client]), 0)
        else:
            state = tensors(self.method(a).join(payload, streams.stream(self.seed, "join", client)))
        if exchange and exchange.prepare:
            state = tensors(exchange.prepare(state, payload, self._rows(client)))
        return state

    def _gather(self, a: int, chunk: list[int], payloads: list[Tree], exchange: Exchange | None = None) -> Tree:
        if all(i in self.states[a] for i in chunk) and not (exchange and exchange.prepare):
            return self.states[a].gather(chunk)
        return stack([self._state(a, i, payload, exchange) for i, payload in zip(chunk, payloads, strict=True)])

    def stepper(self, settings: Settings) -> Stepper:
        key = (settings.path, settings.compile)
        if key not in self._steppers:
            self._steppers[key] = Stepper(settings.path == "vectorized", settings.compile == "yes")
        return self._steppers[key]

    def _work(
        self,
        settings: Settings,
        exchange: Exchange,
        when: Moment,
        chunk: list[int],
        states: Tree,
        payloads: list[Tree],
        counts: dict[int, int] | None,
        index: int,
    ) -> tuple[Tree, Tree, Effort]:
        """New states and uploads of a chunk, stacked, and what it took."""
        stepper = self.stepper(settings)
        if stepper.vectorized:
            return self._client(stepper, exchange, when, chunk, states, payloads, counts, index)
        alone = [
            self._client(stepper, exchange, when, [i], pick(states, k), payloads[k], counts, index) for k, i in enumerate(chunk)
        ]
        effort = reduce(Effort.plus, (e for _, _, e in alone))
        return stack([s for s, _, _ in alone]), stack([u for _, u, _ in alone]), effort

    def _client(
        self,
        stepper: Stepper,
        exchange: Exchange,
        when: Moment,
        chunk: list[int],
        state: Tree,
        payload: Any,
        counts: dict[int, int] | None,
        index: int,
    ) -> tuple[Tree, Tree, Effort]:
        """Start, passes and finish for stacked clients, or for one alone."""
        start, finish = exchange.start, exchange.finish
        if stepper.vectorized:
            payload, dims = share(payload)
            start, finish = lift(start, len(chunk), 0, dims), lift(finish, len(chunk), 0, 0, dims)
        else:
            state, payload = channels_last(state), channels_last(payload)
        carry = start(state, payload)
        effort = Effort()
        for number, work in enumerate(exchange.passes):
            carry, taken = self.run_pass(stepper, work, self._ordinal(exchange, index, number), when, chunk, carry, counts)
            effort = effort.plus(Effort(taken, taken * stepper.gradients.get(work.step, 0) * exchange.copies))
        state, upload = finish(carry, state, payload)
        return tensors(state), tensors(upload), effort

    def _ordinal(self, exchange: Exchange, index: int, number: int) -> str:
        """Names a pass by its part and place among the round's passes on that part: methods share streams where they can."""
        plan = exchange.passes[number].plan
        if plan is None:
            return ""
        before = sum(1 for p in exchange.passes[:number] if p.plan and p.plan.part == plan.part)
        return f"{plan.part}-{before}" if plan.part != "public" else f"public-{index}-{before}"

    def run_pass(
        self,
        stepper: Stepper,
        work: Pass,
        label: str,
        when: Moment,
        chunk: list[int],
        carry: Tree,
        counts: dict[int, int] | None = None,
        limit: int | None = None,
    ) -> tuple[Tree, int]:
        """One pass over the batches of stacked clients, or of one alone; the number of client-steps."""
        if work.plan is None:
            return stepper.once(work.step, carry), 0
        batches, each = self.batches(stepper, work.plan, label, when, chunk, counts)
        count = min(max(each, default=0), limit if limit is not None else sys.maxsize)
        return stepper.loop(work.step, carry, batches, count), sum(each)

    def batches(
        self, stepper: Stepper, plan: Plan, label: str, when: Moment, chunk: list[int], counts: dict[int, int] | None
    ) -> tuple[Callable[[int], tuple[Batch, Tensor | None]], list[int]]:
        """The batch of step s for every client of the chunk, and how many steps each takes."""
        x, y, part, sizes = self._source(plan, when, chunk)
        rows = batch_rows(plan, part.largest)
        draws = []
        for i, n in zip(chunk, sizes, strict=True):
            rng = streams.stream(self.seed, when.kind, when.stage, when.round, label, i)
            steps = self._steps(plan, i, counts) if plan.adaptive else None
            draws.append(draw(plan, int(n), rows, rng, steps))
        each = [len(d.places) for d in draws]
        longest = max(each, default=0)
        places = np.full((len(chunk), longest, plan.batches, rows), -1, dtype=np.int32)
        for k, d in enumerate(draws):
            places[k, : each[k]] = d.places
        where = torch.from_numpy(places).long()
        first = torch.as_tensor(part.first if plan.part == "public" else part.first[chunk])
        first = first.reshape(-1, *(1,) * (1 if plan.batches == 1 else 2))
        keys = torch.tensor([d.key for d in draws])
        several = keys[:, None] * plan.batches + torch.arange(plan.batches)  # a key for each of several batches a step
        each_tensor, shortest = torch.tensor(each), min(each, default=0)
        outside = plan.draw or part.largest
        dtype = torch.get_default_dtype()

        def at(s: int) -> tuple[Batch, Tensor | None]:
            place, key = (where[:, s, 0], keys + s) if plan.batches == 1 else (where[:, s], several + s * plan.batches)
            real = place >= 0
            index = part.rows[first + place.clamp(min=0)] if len(part.rows) else place.clamp(min=0)
            if not stepper.vectorized:
                index, real, place, key = index[0], real[0], place[0], key[0]
            flat_index = index.reshape(-1)
            batch = Batch(
                x.index_select(0, flat_index).reshape(*index.shape, *x.shape[1:]),
                y.index_select(0, flat_index).reshape(*index.shape, *y.shape[1:]),
                real.to(dtype),
                torch.where(real, place, outside),
                key,
            )
            if s < shortest:
                return batch if stepper.vectorized else channels_last(batch), None
            return batch if stepper.vectorized else channels_last(batch), each_tensor > s

        return at, each

    def _source(self, plan: Plan, when: Moment, chunk: list[int]) -> tuple[Tensor, Tensor, Part, np.ndarray]:
        if plan.part != "public":
            part = self.parts[plan.part]
            return self.x, self.y, part, part.counts[chunk]
        picked = self.public_draw(when, plan.draw)
        part = Part(torch.as_tensor(picked), np.zeros(1, dtype=np.int64), np.array([len(picked)]), len(picked))
        dtype = self.x.dtype if self.x.is_floating_point() else torch.get_default_dtype()
        return *self.public_rows(dtype), part, np.full(len(chunk), len(picked))

    # Evaluation

    def _closed(self, a: int) -> Settings:
        """Settings to evaluate with; nothing has been chosen before the first round."""
        return Settings("vectorized", 16, "no") if self.settings[a].open else self.settings[a]._replace(compile="no")

    @torch.no_grad()
    def points(self, clients: Sequence[int], send: Send, when: Moment) -> Iterator[tuple[int, list[int], dict[str, Point]]]:
        for a in range(len(self.models)):
            method, settings = self.method(a), self._closed(a)
            for chunk in balanced([i for i in sorted(clients) if self.architecture[i] == a], settings.width):
                payloads = [tensors(send(i)) for i in chunk]
                state = self._gather(a, chunk, payloads)
                payload, dims = share(payloads)
                views = {k: lift(f, len(chunk), 0, dims)(state, payload) for k, f in method.views.items()}
                if method.personalize:
                    if method.personalize.prepare:
                        state = self._gather(a, chunk, payloads, method.personalize)
                    moment = when._replace(kind="personalize")
                    state, _, _ = self._work(settings, method.personalize, moment, chunk, state, payloads, None, 0)
                own = lift(method.personal, len(chunk), 0, dims)(state, payload)
                yield a, chunk, {"personal": own, **views}

    @torch.no_grad()
    def evaluate(
        self,
        clients: Sequence[int],
        send: Send,
        when: Moment,
        parts: Sequence[str] = ("train", "validation", "test"),
        final: bool = False,
    ) -> Measured:
        place = {i: k for k, i in enumerate(clients)}
        out: Measured = {}

        def note(key: tuple[str, str, str], chunk: list[int], values: np.ndarray) -> None:
            column = out.setdefault(key, np.full(len(clients), np.nan))
            column[[place[i] for i in chunk]] = values

        for a, chunk, views in self.points(clients, send, when):
            stepper = self.stepper(self._closed(a))
            for view, points in views.items():
                for part in parts:
                    loss, right = self._measure(self.model_of(a, view), stepper, points, chunk, part)
                    n = self.parts[part].counts[chunk]
                    with np.errstate(invalid="ignore", divide="ignore"):
                        note((view, part, "loss"), chunk, loss / n)
                        note((view, part, "accuracy"), chunk, right / n)
            if final and "test" in parts and self.models[a].task != "squared":
                found = [scores(*self._predicted(a, views["personal"], k, i, "test")) for k, i in enumerate(chunk)]
                for name in (score.name for score in MORE):
                    note(("personal", "test", name), chunk, np.array([f[name] for f in found]))
        return out

    @torch.no_grad()
    def predictions(
        self, clients: Sequence[int], send: Send, when: Moment, part: str
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        for a, chunk, views in self.points(clients, send, when):
            for k, i in enumerate(chunk):
                yield i, *self._predicted(a, views["personal"], k, i, part)

    def _predicted(self, a: int, points: Point, k: int, client: int, part: str) -> tuple[np.ndarray, np.ndarray]:
        """Labels and probabilities that the k-th of stacked models gives its client's rows."""
        rows = self.parts[part]
        mine = rows.rows[rows.first[client] : rows.first[client] + rows.counts[client]]
        point, found = pick(points, k), []
        for block in mine.split(FULL):
            size = len(block)
            batch = Batch(self.x[block], self.y[block], torch.ones(size), torch.arange(size), torch.tensor(0))
            found.append(self.model_of(a, "personal").chances(point, batch))
        return self.y[mine].numpy(), torch.cat(found).numpy() if found else np.zeros((0, 2))

    def _measure(self, model: Any, stepper: Stepper, points: Point, chunk: list[int], part: str) -> tuple[np.ndarray, np.ndarray]:
        plan = Plan(part=part, batch=256, shuffle=False)

        def step(carry: tuple[Point, Tensor, Tensor], batch: Batch) -> tuple[Point, Tensor, Tensor]:
            point, loss, right = carry
            more_loss, more_right = model.measure(point, batch)
            return point, loss + more_loss, right + more_right

        zero = torch.zeros(len(chunk))
        when = Moment("", 0, "measure")
        if stepper.vectorized:
            (_, loss, right), _ = self.run_pass(stepper, Pass(step, plan), part, when, chunk, (points, zero, zero))
            return loss.numpy(), right.numpy()
        sums = []
        for k, i in enumerate(chunk):
            start = (channels_last(pick(points, k)), zero[0], zero[0])
            sums.append(self.run_pass(stepper, Pass(step, plan), part, when, [i], start)[0][1:])
        return np.array([float(s[0]) for s in sums]), np.array([float(s[1]) for s in sums])

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


# Trees of many clients


def lift(f: Callable[..., Any], width: int, *dims: Tree) -> Callable[..., Any]:
    """`f` over `width` stacked clients, even where every argument is shared by all of them."""
    over = torch.func.vmap(lambda _, *arguments: f(*arguments), in_dims=(0, *dims))
    return lambda *arguments: over(torch.zeros(width), *arguments)


def share(payloads: list[Tree]) -> tuple[Tree, Tree]:
    """Payloads stacked leaf by leaf; a leaf that is the same tensor for all stays single (in_dims None)."""
    flat = [pytree.tree_flatten(p) for p in payloads]
    spec = flat[0][1]
    if any(s != spec for _, s in flat):
        raise TypeError("payloads of one exchange must have one structure")
    leaves: list[Tensor] = []
    dims: list[int | None] = []
    for column in zip(*(leaves_ for leaves_, _ in flat), strict=True):
        same = all(t.data_ptr() == column[0].data_ptr() and t.shape == column[0].shape for t in column)
        leaves.append(column[0] if same else torch.stack(column))
        dims.append(None if same else 0)
    return pytree.tree_unflatten(leaves, spec), pytree.tree_unflatten(dims, spec)


def channels_last(tree: Tree) -> Tree:
    """Images and convolutions in the memory order that this kind of processor likes."""
    return pytree.tree_map(
        lambda t: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 and t.shape[1] > 1 else t, tree
    )


def balanced(clients: list[int], width: int) -> Iterator[list[int]]:
    """Chunks of nearly equal size, none wider than `width`."""
    chunks = -(-len(clients) // max(1, width))
    for k in range(chunks):
        yield clients[k * len(clients) // chunks : (k + 1) * len(clients) // chunks]
