"""The local engine: one process, clients of one architecture stacked and vectorized, or one after another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .. import rng as streams
from ..data.federation import Federation
from ..method import Batch, Exchange, Method, Pass, Plan, Replies, Stage, Tree
from ..point import Point, pick, stack
from .choose import choose, fits
from .plans import batch_rows, count_steps, draw
from .states import States, tensors
from .steps import Stepper

Send = Callable[[int], Tree]


class Settings(NamedTuple):
    """How an architecture's clients run; chosen once, written into the run's configuration and reused on resume."""

    path: str = "auto"  # "vectorized", "sequential"
    width: int = 0  # clients a chunk; 0: chosen
    compile: str = "auto"  # "yes", "no"

    @property
    def open(self) -> bool:
        """Whether anything is left to choose."""
        return self.path == "auto" or self.width == 0 or self.compile == "auto"


class Traffic(NamedTuple):
    """Bytes that crossed the border in one exchange, and the steps clients took."""

    down: int = 0  # to every client one by one
    broadcast: int = 0  # distinct payloads only
    up: int = 0
    steps: int = 0

    def plus(self, other: Traffic) -> Traffic:
        return Traffic(*(a + b for a, b in zip(self, other, strict=True)))


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


class Moment(NamedTuple):
    """When something happens: names the random streams."""

    stage: str
    round: int
    kind: str = "batches"


class LocalEngine:
    """Owns the clients' states and data; only payloads and uploads cross its border."""

    def __init__(
        self,
        federation: Federation,
        models: Sequence[Any],
        programs: Sequence[tuple[Stage, ...]],  # the method's stages, built for each model
        architecture: np.ndarray,  # [N] index into models
        seed: int = 0,
        settings: Sequence[Settings] | None = None,
    ):
        self.take(federation)
        self.models, self.programs, self.architecture, self.seed = models, programs, architecture, seed
        self.settings = list(settings or [Settings()] * len(models))
        self.states = [States() for _ in models]
        self.stage = 0
        self.free_threads = False  # whether the number of threads may be chosen
        self.rounds = 1  # rounds the run will take, for the choice of settings
        self._steppers: dict[Any, Stepper] = {}

    def take(self, federation: Federation) -> None:
        """The clients' data; taken again when clients have come."""
        dtype = torch.get_default_dtype()
        self.x = federation.x.to(dtype) if federation.x.is_floating_point() else federation.x
        self.y = federation.y.to(dtype) if federation.y.is_floating_point() else federation.y
        self.parts = {name: Part.of(getattr(federation, name)) for name in ("train", "validation", "test")}
        self.public = federation.public

    def method(self, architecture: int) -> Method:
        return self.programs[architecture][self.stage].method

    def model_of(self, architecture: int, view: str) -> Any:
        """The network whose points a view gives."""
        return self.method(architecture).model_of.get(view, self.models[architecture])

    def enter(self, stage: int) -> None:
        """Go to the next stage; its method may want client states of another form."""
        self.stage = stage
        for a, program in enumerate(self.programs):
            convert = program[stage].enter_state
            if convert is not None:
                self.states[a] = self.states[a].changed(convert)

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
    ) -> tuple[Replies, Traffic]:
        """Clients work; those that answer keep their new state, those also averaged reach the server.

        `shared` holds the addresses of the server's own storage: payloads that lie there count once for a broadcast.
        """
        uploads: list[tuple[int, list[int], Tree]] = []
        traffic = Traffic()
        sent: set[Any] = set()
        for a, chunk, payloads, counts in self._chunks(index, when, clients, send):
            exchange = self.method(a).round[index]
            states = self._gather(a, chunk, payloads, exchange)
            state, upload, steps = self._work(self.settings[a], exchange, when, chunk, states, payloads, counts, index)
            if pytree.tree_structure(state) != pytree.tree_structure(states):
                raise TypeError("a client's state must keep the structure that `join` gave it")
            kept = [k for k, i in enumerate(chunk) if i in answered]
            reached = [k for k, i in enumerate(chunk) if i in answered and i in averaged]
            if kept:
                self.states[a].scatter([chunk[k] for k in kept], pick(state, kept))
            if reached:
                uploads.append((a, [chunk[k] for k in reached], pick(upload, reached)))
            traffic = traffic.plus(_count(payloads, upload, len(reached), sent, shared)._replace(steps=steps))
        return self._replies(uploads, index, when), traffic

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
    ) -> tuple[Tree, Tree, int]:
        """New states and uploads of a chunk, stacked, and the client-steps taken."""
        stepper = self.stepper(settings)
        if stepper.vectorized:
            return self._client(stepper, exchange, when, chunk, states, payloads, counts, index)
        alone = [
            self._client(stepper, exchange, when, [i], pick(states, k), payloads[k], counts, index) for k, i in enumerate(chunk)
        ]
        return stack([s for s, _, _ in alone]), stack([u for _, u, _ in alone]), sum(n for _, _, n in alone)

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
    ) -> tuple[Tree, Tree, int]:
        """Start, passes and finish for stacked clients, or for one alone."""
        start, finish = exchange.start, exchange.finish
        if stepper.vectorized:
            payload, dims = share(payload)
            start, finish = lift(start, len(chunk), 0, dims), lift(finish, len(chunk), 0, 0, dims)
        else:
            state, payload = channels_last(state), channels_last(payload)
        carry = start(state, payload)
        steps = 0
        for number, work in enumerate(exchange.passes):
            carry, taken = self.run_pass(stepper, work, self._ordinal(exchange, index, number), when, chunk, carry, counts)
            steps += taken
        state, upload = finish(carry, state, payload)
        return tensors(state), tensors(upload), steps

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
        assert self.public is not None
        part = self.public_draw(when, plan.draw)
        labels = self.public.y if self.public.y is not None else torch.zeros(len(self.public.x), dtype=torch.int64)
        public = self.public.x.to(self.x.dtype) if self.x.is_floating_point() else self.public.x
        return public, labels, part, np.full(len(chunk), part.largest)

    def public_draw(self, when: Moment, rows: int) -> Part:
        """This round's common rows of the public set."""
        assert self.public is not None
        total = len(self.public.x)
        picked = np.arange(total)
        if rows:
            rng = streams.stream(self.seed, "public", when.stage, when.round)
            picked = rng.choice(total, min(rows, total), replace=False)
        return Part(torch.as_tensor(picked), np.zeros(1, dtype=np.int64), np.array([len(picked)]), len(picked))

    def _replies(self, uploads: list[tuple[int, list[int], Tree]], index: int, when: Moment) -> Replies:
        """Uploads in the order of client ids, stacked as one where all architectures send the same."""
        groups = []
        for a in sorted({a for a, _, _ in uploads}):
            ids = [i for b, chunk, _ in uploads if b == a for i in chunk]
            whole = cat([u for b, _, u in uploads if b == a])
            order = sorted(range(len(ids)), key=lambda k: ids[k])
            groups.append(self._one(a, [ids[k] for k in order], pick(whole, order)))
        if not groups:
            return Replies(torch.zeros(0, dtype=torch.int64), None, torch.zeros(0))
        public = self._public_batch(index, when)
        if len(groups) == 1:
            return groups[0]._replace(groups=(groups[0],), public=public)
        ids = [int(i) for g in groups for i in g.ids]
        order = sorted(range(len(ids)), key=lambda k: ids[k])
        upload = None
        if len({_shape(g.upload) for g in groups}) == 1:
            upload = pick(cat([g.upload for g in groups]), order)
        whole = self._one(0, [ids[k] for k in order], upload)
        return whole._replace(groups=tuple(groups), public=public)

    def _one(self, a: int, ids: list[int], upload: Tree) -> Replies:
        sizes = torch.as_tensor(self.parts["train"].counts[ids], dtype=torch.get_default_dtype())
        return Replies(torch.tensor(ids), upload, sizes, architecture=a, model=self.models[a])

    def _public_batch(self, index: int, when: Moment) -> Batch | None:
        plans = [p.plan for e in self.method(0).round for p in e.passes if p.plan and p.plan.part == "public"]
        if not plans or self.public is None:
            return None
        x, y, part, _ = self._source(plans[0], when, [0])
        rows = part.rows
        return Batch(x[rows], y[rows], torch.ones(len(rows)), torch.arange(len(rows)), torch.tensor(0))

    # Evaluation

    def _closed(self, a: int) -> Settings:
        """Settings to evaluate with; nothing has been chosen before the first round."""
        return Settings("vectorized", 16, "no") if self.settings[a].open else self.settings[a]._replace(compile="no")

    @torch.no_grad()
    def points(self, clients: Sequence[int], send: Send, when: Moment) -> Iterator[tuple[int, list[int], dict[str, Point]]]:
        """The clients' own models, chunk by chunk: after `personalize`, and every other view of the method."""
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
        self, clients: Sequence[int], send: Send, when: Moment, parts: Sequence[str] = ("train", "validation", "test")
    ) -> dict[tuple[str, str, str], np.ndarray]:
        """Loss and accuracy of every view on every part: {(view, part, metric): [N]}, NaN for an empty part."""
        place = {i: k for k, i in enumerate(clients)}
        out: dict[tuple[str, str, str], np.ndarray] = {}
        for a, chunk, views in self.points(clients, send, when):
            stepper = self.stepper(self._closed(a))
            for view, points in views.items():
                for part in parts:
                    loss, right = self._measure(self.model_of(a, view), stepper, points, chunk, part)
                    n = self.parts[part].counts[chunk]
                    for metric, total in (("loss", loss), ("accuracy", right)):
                        column = out.setdefault((view, part, metric), np.full(len(clients), np.nan))
                        with np.errstate(invalid="ignore", divide="ignore"):
                            column[[place[i] for i in chunk]] = total / n
        return out

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
        """What the method writes down of each client's state."""
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


def cat(trees: list[Tree]) -> Tree:
    """Stacks of trees joined into one stack."""
    return trees[0] if len(trees) == 1 else pytree.tree_map(lambda *leaves: torch.cat(leaves), *trees)


def balanced(clients: list[int], width: int) -> Iterator[list[int]]:
    """Chunks of nearly equal size, none wider than `width`."""
    chunks = -(-len(clients) // max(1, width))
    for k in range(chunks):
        yield clients[k * len(clients) // chunks : (k + 1) * len(clients) // chunks]


def _shape(tree: Tree) -> Any:
    leaves, spec = pytree.tree_flatten(tree)
    return str(spec), tuple((tuple(a.shape[1:]), a.dtype) for a in leaves)


def _count(payloads: list[Tree], upload: Tree, reached: int, sent: set[Any], shared: frozenset[int]) -> Traffic:
    """Bytes of a chunk; a payload tensor that lies in the server's own storage is broadcast, any other is for one client."""
    down = broadcast = 0
    for payload in payloads:
        for leaf in pytree.tree_leaves(payload):
            down += leaf.nbytes
            known = (leaf.data_ptr(), tuple(leaf.shape)) if leaf.untyped_storage().data_ptr() in shared else None
            if known is None or known not in sent:
                broadcast += leaf.nbytes
                sent.add(known)
    each = sum(leaf[0].nbytes for leaf in pytree.tree_leaves(upload))
    return Traffic(down, broadcast, each * reached)
