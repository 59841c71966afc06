"""Clients that come after training: each gets a model by the method's own rule, and beside it two
that every reader understands, the global model fine-tuned and a model trained alone.

Newcomers see what the server would send them now. Nobody else's model changes, and the rows of one
newcomer reach no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.core.method import (
    Exchange,
    Method,
    Newcomer,
    Pass,
    Stage,
    Train,
    Tree,
    keep_server,
    return_nothing,
)
from coterie.core.model import Model, optimize
from coterie.core.point import Point, mean, pick, stack, tree_map
from coterie.core.rng import stream
from coterie.data.federation import Federation
from coterie.engines.base import Engine, EngineSetup, ExchangeRequest, Metrics, Moment, Send, Views
from coterie.engines.local.engine import LocalEngine
from coterie.running.loop import Loop, extend_server

FINE_TUNE_RULE = Newcomer("fine-tunes the model it is sent (the method has no rule of its own)")
WAYS = ("rule", "finetune", "local")  # how a newcomer gets a model


class FinishedRun(NamedTuple):
    """What a finished run is to newcomers."""

    setup: EngineSetup  # of an engine for all clients, the newcomers at the end
    methods: list[Method]  # of the last stage, one per architecture
    stage: str
    round: int  # of the stage, the last one that was played
    server: Any  # with room for the newcomers
    came: list[int]  # the newcomers
    starts: list[Point]  # the global model of each architecture
    train: Train
    few: int  # rounds of local work for newcomers
    rounds: int  # that the run's clients had
    states: Tree = ()  # of its clients, as an engine dumps them, where somebody goes on with one
    # by which the server knows the newcomer, which is a client of the run with other rows
    number: int | None = None


class ServedNewcomers(NamedTuple):
    """Newcomers that have a model."""

    engine: Engine
    send: Send
    when: Moment
    came: list[int]

    def measure(self) -> Metrics:
        """The newcomers' values on their test rows, in their order."""
        return self.engine.evaluate(self.came, self.send, self.when, ("test",), True)

    def points(self) -> Views:
        """The newcomers' models."""
        return self.engine.points(self.came, self.send, self.when)


def finished_run_of(
    loop: Loop, federation: Federation, starts: list[Point] | None = None
) -> FinishedRun:
    """A run at its end; `federation` is its own with newcomers behind its clients.

    starts: the global models, where the clients' own rows are not at hand to find them.
    """
    old, new = loop.federation.clients, federation.clients
    engine, stage = loop.engine, loop.program[loop.position.stage]
    more = np.arange(old, new) % len(engine.models)
    setup = EngineSetup(
        federation=federation,
        models=engine.models,
        programs=[],
        architecture=np.concatenate([engine.architecture, more]),
        seed=loop.seed,
        settings=engine.settings,
        metric=engine.metric,
        strict=False,  # what a newcomer does may have no C where the clients' steps have
    )
    return FinishedRun(
        setup=setup,
        methods=[program[loop.position.stage].method for program in engine.programs],
        stage=stage.name,
        round=max(0, loop.position.round - 1),
        server=extend_server(stage.method, loop.position.server, new - old),
        came=list(range(old, new)),
        starts=starts or global_models(loop),
        train=loop.train or Train(),
        few=loop.schedule.newcomer_rounds,
        rounds=loop.schedule.rounds,
    )


def with_rows(run: FinishedRun, federation: Federation) -> FinishedRun:
    """The same newcomers with other rows."""
    return run._replace(setup=run.setup._replace(federation=federation))


def global_models(loop: Loop) -> list[Point]:
    """The method's global model, for each architecture; where it has none, the mean of the clients'
    own models, weighted by their training rows.
    """
    sums: dict[int, list[tuple[Point, float]]] = {}
    for a, chunk, views in loop.engine.points(*loop.ask()):
        if "global" in views:
            sums.setdefault(a, [(pick(views["global"], 0), 1.0)])
            continue
        n = torch.as_tensor(loop.federation.sizes[chunk], dtype=torch.get_default_dtype())
        sums.setdefault(a, []).append(
            (_weighted_mean(views["personal"], n / n.sum()), float(n.sum()))
        )
    starts = []
    for a, model in enumerate(loop.engine.models):
        found = sums.get(a, [])
        weights = torch.tensor([n for _, n in found])
        starts.append(
            _weighted_mean(stack([p for p, _ in found]), weights / weights.sum())
            if found
            else model.start(loop.seed)  # nobody has this network yet
        )
    return starts


def _weighted_mean(stacked: Point, weights: torch.Tensor) -> Point:
    """The weighted mean of models; where all are one, exactly that one."""
    first = pick(stacked, 0)
    same = tree_map(lambda a, b: torch.tensor(bool((a == b).all())), stacked, first)
    if all(bool(t) for part in (same.params, same.buffers) for t in part.values()):
        return first
    middle: Point = mean(stacked, weights)
    return middle


def rule_of(run: FinishedRun) -> Newcomer:
    """The method's own rule, or what stands for it."""
    return run.methods[0].newcomer or FINE_TUNE_RULE


def train_newcomers(run: FinishedRun, way: str) -> ServedNewcomers:
    """The newcomers with models that they got in one of WAYS."""
    if way == "rule":
        own = run.methods[0].newcomer
        return _apply_rule(run) if own else _train_alone(run, _sent_models_of(run), run.few)
    starts, rounds = run.starts, run.few
    if way == "local":
        starts, rounds = [model.start(run.setup.seed) for model in run.setup.models], run.rounds
    return _train_alone(run, lambda i: starts[run.setup.architecture[i]], rounds)


def state_of(run: FinishedRun, client: int) -> Tree | None:
    """A client's state at the end; None where it never took part."""
    for clients, stacked in run.states:
        if client in clients:
            return pick(stacked, list(clients).index(client))
    return None


def resume_client(run: FinishedRun, state: Tree) -> ServedNewcomers:
    """A client of the run as it was, with the rows of the one newcomer in whose place it is."""
    engine = _build_engine(run, _rule_methods_of(run))
    (place,) = run.came
    mine = run.setup.architecture[place]
    empty: tuple[list[int], Tree] = ([], ())
    states = [([place], stack([state])) if a == mine else empty for a in range(len(run.methods))]
    engine.restore(states, engine.stage)
    send = _sender_of(run, run.methods[0].round[0].send, run.server, "evaluation")
    return ServedNewcomers(engine, send, _moment_of(run), run.came)


def continue_training(run: FinishedRun, client: ServedNewcomers) -> Tree:
    """Train a resumed client by the method's rule, and give its new state; no server hears of
    it.
    """
    exchanges = _rule_methods_of(run)[0].round
    for visit in range(run.few):
        _run_visit(run, client.engine, exchanges, run.server, visit, False)
    state = state_of(run._replace(states=client.engine.dump()), run.came[0])
    assert state is not None
    return state


def _rule_methods_of(run: FinishedRun) -> list[Method]:
    """The methods with the rounds of a newcomer's rule."""
    return [
        m._replace(round=m.newcomer.round) if m.newcomer and m.newcomer.round else m
        for m in run.methods
    ]


def _apply_rule(run: FinishedRun) -> ServedNewcomers:
    rule, methods = rule_of(run), _rule_methods_of(run)
    engine = _build_engine(run, methods)
    rounds = {"few": run.few, "all": run.rounds}.get(str(rule.rounds), rule.rounds)
    server = run.server
    for visit in range(int(rounds)):
        server = _run_visit(run, engine, methods[0].round, server, visit, bool(rule.round))
    send = run.methods[0].round[0].send  # what every client is sent
    return ServedNewcomers(
        engine, _sender_of(run, send, server, "evaluation"), _moment_of(run), run.came
    )


def _run_visit(
    run: FinishedRun,
    engine: Engine,
    exchanges: Sequence[Exchange],
    server: Any,
    visit: int,
    heard: bool,
) -> Any:
    """One round of newcomers by themselves; the server as it is to them afterwards."""
    everyone = set(run.came)
    for k, exchange in enumerate(exchanges):
        trip = ExchangeRequest(
            number=k,
            when=_moment_of(run, visit),
            clients=run.came,
            send=_sender_of(run, exchange.send, server, visit, k),
            answered=everyone,
            averaged=everyone if heard else set(),
        )
        replies = engine.exchange(trip).replies
        if heard and len(replies.ids):
            with torch.no_grad():
                rng = stream(run.setup.seed, "receive", run.stage, "newcomers", visit, k)
                server = exchange.receive(server, replies, rng)
    return server


def _moment_of(run: FinishedRun, visit: int = 0) -> Moment:
    """The last round of training, whose draw of public rows newcomers share; the order of their own
    rows is theirs.
    """
    return Moment(run.stage, run.round, f"newcomers {visit}")


def _sender_of(run: FinishedRun, send: Any, server: Any, *when: object) -> Send:
    seed, place = run.setup.seed, (run.stage, "newcomers", *when)

    def sent(i: int) -> Any:
        known = i if run.number is None else run.number
        return send(server, known, stream(seed, "send", *place, i))

    return sent


def _build_engine(run: FinishedRun, methods: Sequence[Method]) -> LocalEngine:
    programs = [(Stage(run.stage, method),) for method in methods]
    return LocalEngine(run.setup._replace(programs=programs))


def _sent_models_of(run: FinishedRun) -> Callable[[int], Point]:
    """The model that each newcomer would use if it did nothing."""
    engine = _build_engine(run, run.methods)
    send = _sender_of(run, run.methods[0].round[0].send, run.server, "evaluation")
    found = {
        i: pick(views["personal"], k)
        for _, chunk, views in engine.points(run.came, send, _moment_of(run))
        for k, i in enumerate(chunk)
    }
    return found.__getitem__


def _train_alone(run: FinishedRun, start: Callable[[int], Point], rounds: int) -> ServedNewcomers:
    """Newcomers that train by themselves, each from its start; their rows have the same order
    whatever the method.
    """
    run = run._replace(stage="newcomers", round=0)
    methods = [build_training(model, run.train) for model in _networks_of(run, start)]
    engine = _build_engine(run, methods)
    for visit in range(rounds):
        _run_visit(run, engine, methods[0].round, start, visit, False)
    return ServedNewcomers(engine, start, _moment_of(run), run.came)


def _networks_of(run: FinishedRun, start: Callable[[int], Point]) -> list[Model]:
    """The network of the newcomers' starts, for each architecture: what a method's clients use may
    be put together around the one that they train.
    """
    first = {int(run.setup.architecture[i]): start(i) for i in reversed(run.came)}
    found = []
    for a, model in enumerate(run.setup.models):
        whole: Model = run.methods[a].model_of.get("personal", model)
        fits = a in first and set(first[a].params) == set(whole.shapes)
        found.append(whole if fits else model)
    return found


def build_training(model: Model, train: Train) -> Method:
    """Plain training from a given start; the server is the function that gives it."""
    begin, step = optimize(model, train)
    return Method(
        init=return_nothing,
        join=lambda w, rng: w,
        round=(
            Exchange(
                send=lambda start, i, rng: start(i),
                start=lambda w, sent: begin(w),
                passes=(Pass(step, train.plan()),),
                finish=lambda c, w, sent: (c.w, ()),
                receive=keep_server,
            ),
        ),
        personal=lambda w, sent: w,
        model_of={"personal": model},
    )
