"""The run loop: stages, rounds, exchanges, evaluation. It knows the server; clients are the
engine's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from coterie.analysis.nan_math import mean_of
from coterie.analysis.scores import LOSS
from coterie.core.device import CPU, use_device
from coterie.core.method import Facts, Method, Stage, Train
from coterie.core.quantities import check_client_logged, check_server_logged, merge_declarations
from coterie.core.rng import LazyStream, stream
from coterie.core.task import find_task
from coterie.data.federation import Federation
from coterie.engines.base import Engine, ExchangeRequest, Metrics, Moment, Traffic
from coterie.experiment.schedule import Schedule
from coterie.results.metric_table import DIVERGED, EVERYONE, LEFT_OUT, Table
from coterie.running.divergence import (
    Failure,
    RunDiverged,
    failure_of,
    find_unmeasurable,
    report_unmeasurable,
)
from coterie.running.sampling import sample_clients
from coterie.running.upload_guard import UploadGuard, hide_attackers

NO_UPLOAD_GUARD = UploadGuard()


class Position(NamedTuple):
    """Where a run stands: what a checkpoint holds beside the clients' states and the table."""

    stage: int
    round: int  # rounds of this stage that are done
    server: Any


class PlayedRound(NamedTuple):
    """One round, played: what it leaves, who took part, what it took, who failed in it."""

    server: Any
    clients: list[int]
    traffic: Traffic
    failure: Failure | None


class LatestRound(NamedTuple):
    """The numbers of the round that was played last."""

    costs: Mapping[str, float]
    measured: Metrics  # empty where nothing was measured


Answers = Mapping[tuple[str, int, int], set[int]]  # (stage, round, exchange): who answered


class RoundReport(NamedTuple):
    """What a round reports to those who watch."""

    stage: str
    round: int  # of all stages together
    rounds: int
    clients: int  # that took part
    seconds: float  # of the round, without evaluation
    accuracy: (
        float | None
    )  # mean over clients on validation where there is any, when it was measured
    loss: float | None
    left_out: int = 0  # clients whose update is not finite
    said: tuple[str, ...] = ()  # what is reported to whoever watches
    measure: str = "accuracy"  # what the run is judged by
    value: float | None = None  # of that, as accuracy and loss are


def print_messages(report: RoundReport, whose: str = "") -> None:
    """Say what must be said where nobody else watches."""
    for line in report.said:
        print(f"coterie: {whose}{line}", file=sys.stderr)


def message_report_of(line: str, round: int = 0, rounds: int = 0) -> RoundReport:
    """A report between two rounds, which only says something."""
    return RoundReport(
        stage="",
        round=round,
        rounds=rounds,
        clients=0,
        seconds=0.0,
        accuracy=None,
        loss=None,
        said=(line,),
    )


def facts_of(
    federation: Federation, models: Sequence[Any], architecture: np.ndarray, schedule: Schedule
) -> Facts:
    """What a server may know."""
    return Facts(
        clients=federation.clients,
        sizes=torch.as_tensor(federation.sizes, dtype=torch.get_default_dtype()),
        rate=schedule.sample_size(federation.clients) / federation.clients,
        groups=torch.as_tensor(np.asarray(federation.groups)),
        models=tuple(models),
        architecture=torch.as_tensor(architecture),
        classes=federation.classes,
        public=len(federation.public.x) if federation.public else 0,
    )


def stage_lengths_of(program: Sequence[Stage], schedule: Schedule) -> list[int]:
    """The rounds of each stage."""
    return [schedule.rounds if stage.rounds is None else stage.rounds for stage in program]


class Loop:
    """A run under way: `go()` plays it to the end.

    `position`, `table` and the engine's states are all it is.
    """

    def __init__(
        self,
        engine: Engine,
        federation: Federation,
        schedule: Schedule,
        seed: int,
        answers: Answers | None = None,  # who answered, to play a run again
        train: Train | None = None,  # named where training goes out of bounds
        gate: UploadGuard = NO_UPLOAD_GUARD,  # what every upload passes on its way to the server
    ):
        self.gate = gate
        self.answers, self.train = answers, train
        self.engine, self.federation, self.schedule, self.seed = engine, federation, schedule, seed
        self.program = engine.programs[0]
        self.everyone = list(range(federation.clients))
        self.table = Table()
        self.warned = False  # whether it was said that training goes out of bounds
        self.latest = LatestRound({}, {})
        first = self.program[0].method
        with use_device(engine.device):
            facts = facts_of(federation, engine.models, engine.architecture, schedule)
            sizes = torch.as_tensor(engine.sizes, dtype=torch.get_default_dtype())
            self.facts = facts._replace(sizes=sizes)  # as the engine believes them
            self.position = Position(0, 0, first.init(stream(seed, "init"), self.facts))
        self.lengths = stage_lengths_of(self.program, schedule)
        self.describes = merge_declarations(
            s.method.describes for program in engine.programs for s in program
        )
        self.server_notes()  # a logged quantity without a meaning is refused before the first round

    @property
    def done(self) -> int:
        """Rounds done in all stages."""
        return sum(self.lengths[: self.position.stage]) + self.position.round

    def go(
        self,
        after: Callable[[Loop, RoundReport], None] = lambda loop, report: None,
        until: int | None = None,
    ) -> None:
        """Play rounds to the end (or until so many are done); `after` sees the run between
        rounds.
        """
        while self.position.stage < len(self.program) and (until is None or self.done < until):
            stage, number, server = self.position
            if number >= self.lengths[stage]:
                if stage + 1 == len(self.program):
                    return
                self._enter(stage + 1)
                continue
            begin = time.perf_counter()
            played = self._round(self.program[stage], number, server)
            seconds = time.perf_counter() - begin
            self.position = Position(stage, number + 1, played.server)
            after(self, self._note(self.program[stage], played, seconds))

    def _enter(self, stage: int) -> None:
        enter = self.program[stage].enter
        server = self.position.server if enter is None else enter(self.position.server, self.facts)
        self.engine.enter(stage)
        self.position = Position(stage, 0, server)

    def _round(self, stage: Stage, number: int, server: Any) -> PlayedRound:
        """All exchanges of one round."""
        asked, averaged, answered = self._select_clients(stage, number)
        took_part = set(asked)
        worked: set[int] = set()
        broken: set[int] = set()
        failure: Failure | None = None
        when = Moment(stage.name, number)
        traffic = Traffic()
        for k, exchange in enumerate(stage.method.round):
            send = self._sender(exchange.send, server, stage.name, number, k)
            if self.answers is not None:
                answered = self.answers.get((stage.name, number, k), set())
            trip = ExchangeRequest(
                number=k,
                when=when,
                clients=asked,
                send=send,
                answered=answered,
                averaged=averaged,
                shared=_storage_of(server),
            )
            replies, cost, took_part, failed = self.engine.exchange(trip)
            traffic = traffic.plus(cost)
            worked, broken = worked | took_part | failed, broken | failed
            if failed:
                failure = failure_of(
                    self.done + 1, broken, len(worked), self.federation, self.train
                )
                if failure.fatal:
                    raise RunDiverged(failure)
            if not len(replies.ids):
                break  # nothing reached the server: it has nothing to base the next exchange on
            with torch.no_grad():
                replies = self.gate.filter(replies, send, stage.name, number, k)
                server = exchange.receive(
                    server, replies, stream(self.seed, "receive", stage.name, number, k)
                )
            asked = [
                i for i in asked if i in took_part
            ]  # who was lost in one exchange is not asked in the next
        return PlayedRound(server, sorted(took_part), traffic, failure)

    def _sender(self, send: Any, server: Any, *when: object) -> Callable[[int], Any]:
        return lambda i: send(server, i, LazyStream(self.seed, "send", *when, i))

    def _select_clients(self, stage: Stage, number: int) -> tuple[list[int], set[int], set[int]]:
        """Who is asked to train, who is averaged, who answers."""
        n = self.federation.clients
        poisson = self.gate.guard.dp == "client"
        averaged = (
            set(range(n))
            if stage.everyone
            else set(sample_clients(self.schedule, n, stage.name, number, self.seed, poisson))
        )
        asked = self.everyone if self.schedule.trains == "all" else sorted(averaged)
        answered = set(asked)
        if self.schedule.dropout_clients:
            answered = {
                i
                for i in asked
                if stream(self.seed, "drop", stage.name, number, i).random()
                >= self.schedule.dropout_clients
            }
        return asked, averaged, answered

    def _note(self, stage: Stage, played: PlayedRound, seconds: float) -> RoundReport:
        """Write the round into the table: costs, logged quantities, and the evaluation when it is
        due.
        """
        done, total = self.done, sum(self.lengths)
        clients, traffic = played.clients, played.traffic
        broken = played.failure.clients if played.failure else []
        said = self.engine.take_remarks()
        said += [played.failure.line()] if played.failure else []
        costs = {
            "bytes_down": traffic.down,
            "bytes_broadcast": traffic.broadcast,
            "bytes_up": traffic.up,
            "steps": traffic.steps,
            "gradients": traffic.gradients,
            "clients": len(clients),
            LEFT_OUT: len(broken),
            "seconds": seconds,
        }
        for metric, value in costs.items():
            self.table.add(
                stage.name, done, np.array([EVERYONE]), "", "", metric, np.array([value])
            )
        self._mark_clients(stage, broken, LEFT_OUT)
        written = self.engine.client_notes(clients)
        check_client_logged(written, self.describes)
        for metric, noted in written.items():
            ids = sorted(noted)
            self.table.add(
                stage.name, done, np.array(ids), "", "", metric, np.array([noted[i] for i in ids])
            )
        measured: Metrics = {}
        accuracy: float | None = None
        loss: float | None = None
        reached: float | None = None
        last_of_stage = self.position.round == self.lengths[self.position.stage]
        if last_of_stage and stage.method.remark:
            said += filter(None, [stage.method.remark(self.position.server)])
        if done % self.schedule.every == 0 or done == total or last_of_stage:
            measured = self.evaluate(final=done == total)
            for (view, part, metric), column in measured.items():
                self.table.add(stage.name, done, np.arange(len(column)), view, part, metric, column)
            found = find_unmeasurable(measured, self.federation, self.engine.unmeasured).values()
            lost = sorted({client for clients in found for client in clients})
            self._mark_clients(stage, lost, DIVERGED)
            if lost and not said:
                said = [report_unmeasurable(done, lost, self.federation, self.train)]
            part = "validation" if "validation" in self.schedule.parts else self.schedule.parts[-1]
            nothing = np.full(1, np.nan)  # where no site has answered
            if np.isnan(measured.get(("personal", part, self.measure), nothing)).all():
                part = self.schedule.parts[0]
            if not np.isnan(measured["personal", part, "loss"]).all():  # else sites keep it
                reached, loss = (
                    mean_of(measured.get(("personal", part, self.measure), nothing)),
                    mean_of(measured["personal", part, "loss"]),
                )
                if ("personal", part, "accuracy") in measured:
                    accuracy = mean_of(measured["personal", part, "accuracy"])
        self.latest = LatestRound(costs, measured)
        said, self.warned = [] if self.warned else said, self.warned or bool(said)
        return RoundReport(
            stage=stage.name,
            round=done,
            rounds=total,
            clients=len(clients),
            seconds=seconds,
            accuracy=accuracy,
            loss=loss,
            left_out=len(broken),
            said=tuple(said),
            measure=self.measure,
            value=reached,
        )

    def _mark_clients(self, stage: Stage, clients: list[int], metric: str) -> None:
        """Write down which clients something happened to in the round that is over."""
        if clients:
            ones = np.ones(len(clients))
            self.table.add(stage.name, self.done, np.array(clients), "personal", "", metric, ones)

    def admit(self, federation: Federation) -> None:
        """Newcomers after training: `federation` is this one with more clients at its end.

        The server makes room where it keeps something for each client; then every newcomer joins
        and does one round's local work by itself. Nobody else's model changes, and nothing is
        averaged.
        """
        old, new = self.federation.clients, federation.clients
        method = self.program[self.position.stage].method
        server = extend_server(method, self.position.server, new - old)
        more = np.arange(old, new) % len(self.engine.models)
        self.engine.take(federation, np.concatenate([self.engine.architecture, more]))
        self.federation, self.everyone = federation, list(range(new))
        self.position = self.position._replace(server=server)
        came = self.everyone[old:]
        trip = ExchangeRequest(
            number=0,
            when=self.when(),
            clients=came,
            send=self.payload(),
            answered=set(came),
            averaged=set(),
        )
        self.engine.exchange(trip)

    def payload(self) -> Callable[[int], Any]:
        """What the server would send now, for evaluation; not counted as traffic."""
        stage = self.program[self.position.stage]
        return self._sender(
            stage.method.round[0].send, self.position.server, stage.name, "evaluation"
        )

    def ask(self) -> tuple[list[int], Callable[[int], Any], Moment]:
        """Who there is, what each would be sent now, and when: the arguments of an engine's
        questions.
        """
        return self.everyone, self.payload(), self.when()

    def when(self) -> Moment:
        return Moment(self.program[self.position.stage].name, self.position.round)

    def evaluate(self, final: bool = False) -> Metrics:
        """All clients, active or not, on every part of their data."""
        found = self.engine.evaluate(
            self.everyone, self.payload(), self.when(), self.schedule.measured, final
        )
        return {key: hide_attackers(self.gate, column) for key, column in found.items()}

    @property
    def measure(self) -> str:
        """What is shown of a round: what the run is judged by, or what its task always measures."""
        model = self.engine.models[0]
        usual = model.goal.measure if find_task(model.task).scores else LOSS.name
        return self.schedule.metric or str(usual)

    def server_notes(self) -> dict[str, Any]:
        """Matrices and vectors the method writes down (mixing weights, streams, ...)."""
        method: Method = self.program[self.position.stage].method
        found = method.notes(self.position.server) if method.notes else {}
        notes = {k: torch.as_tensor(v, device=CPU) for k, v in found.items()}
        check_server_logged(notes, self.describes, self.federation.clients)
        return notes


def extend_server(method: Method, server: Any, newcomers: int) -> Any:
    """The server's state with a place for each newcomer, where it keeps something per client."""
    for _ in range(newcomers):
        server = method.admit(server) if method.admit else server
    return server


def _storage_of(server: Any) -> frozenset[int]:
    """The addresses of the server's own memory."""
    leaves = (t for t in pytree.tree_leaves(server) if isinstance(t, torch.Tensor))
    return frozenset(t.untyped_storage().data_ptr() for t in leaves)
