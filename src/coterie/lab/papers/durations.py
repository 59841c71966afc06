"""How long the papers' recipes take: measured in a round, stored, shown in the list.

A round is measured in the processor's seconds, so that a busy machine does not matter: in machine
code where there is some, else client by client, which runs that stack clients are faster than. A
round that takes too long is measured on a few of its clients, and counted for all; where even these
take too long, the time is a lower bound.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from coterie.comparison.plan import plan_of
from coterie.comparison.tune import list_points
from coterie.core.errors import BadInput
from coterie.core.files import read_text, write_text
from coterie.data.federation import Federation
from coterie.experiment.config import Experiment, read_toml
from coterie.experiment.recipes import find_config
from coterie.lab.papers.miniatures import first_clients
from coterie.lab.papers.paper_tables import PAPERS, PaperTable
from coterie.running.assembly import assemble, load_federation, open_loop
from coterie.running.execute import threads_of
from coterie.running.loop import Loop, RoundReport

DURATIONS_FILE = PAPERS / "seconds.json"
LIMIT = 5.0  # seconds that a method may take to play the first rounds of all its stages
FEW = 4  # clients of a round that takes too long: one of each of KT-pFL's networks
REPEAT_SECONDS = 0.1  # seconds after which it is asked once more to stop
COMPILED_ROUNDS = (
    3  # rounds of each stage in machine code: the first compiles, the last is evaluated
)
# engines that try nothing out
MACHINE = {"path": "vectorized", "width": 0, "compile": "yes"}
PLAIN = {"path": "sequential", "width": 1, "compile": "no"}

Seconds = dict[str, float]  # of one seed by method; below zero: more than that


class Estimate(NamedTuple):
    """What a table costs on the machine that measured it."""

    seconds: float
    least: bool  # whether it is only a lower bound

    def __str__(self) -> str:
        if not self.seconds:
            return "-"
        hours = self.seconds / 3600
        about = f"{hours:.3g} h" if hours >= 1 else f"{max(1, round(60 * hours))} min"
        return f"over {about}" if self.least else about


class Clocks(NamedTuple):
    """Seconds by two clocks."""

    work: float  # of this process: may stand still in a short round, where it counts in ticks
    wall: float


def _read_clocks() -> Clocks:
    return Clocks(time.process_time(), time.perf_counter())


class TooLong(Exception):
    """A method played longer than it may."""


def measure_recipe(recipe: str) -> Seconds:
    """The processor seconds that one seed of each method of a recipe takes on one thread, the runs
    that choose its options counted.
    """
    plan = plan_of(read_toml(find_config(recipe)), seeds=[0], common={"threads": 1})
    found: Seconds = {}
    federation = None
    for name, experiment in plan.experiments.items():
        federation = federation or load_federation(experiment)
        runs = 1 + len(list_points(plan.grids.get(name, {})))
        found[name] = float(f"{runs * _measure_run(experiment, federation):.3g}")
    return found


def _measure_run(experiment: Experiment, federation: Federation) -> float:
    machine, plain = (
        replace(experiment, engine=experiment.engine | settings) for settings in (MACHINE, PLAIN)
    )
    try:
        found = time_rounds(machine, federation, COMPILED_ROUNDS)
    except BadInput:  # there is no machine code for it
        found = time_rounds(plain, federation, 1)
    if found >= 0 or federation.clients <= FEW:
        return found
    whole_round = replace(plain, schedule=plain.schedule._replace(participation=1.0))
    asked = experiment.schedule.sample_size(federation.clients)
    few = asked / FEW * time_rounds(whole_round, first_clients(federation, FEW), 1)
    return few if few >= 0 else min(few, found)


def time_rounds(experiment: Experiment, federation: Federation, most: int) -> float:
    """What a run takes by the shortest of the first rounds of each stage."""
    each: dict[int, float] = {}
    with threads_of(experiment):
        loop = open_loop(assemble(experiment, federation))
        rounds, loop.lengths = loop.lengths, [min(most, n) for n in loop.lengths]
        mark = _read_clocks()

        def after(loop: Loop, report: RoundReport) -> None:
            nonlocal mark
            now, stage = _read_clocks(), loop.position.stage
            taken = now.work - mark.work or now.wall - mark.wall
            each[stage], mark = min(taken, each.get(stage, taken)), now

        try:
            with _limit_time(LIMIT):
                loop.go(after)
        except TooLong:
            each.setdefault(loop.position.stage, LIMIT)
            return -_total_seconds_of(rounds, each)
    return _total_seconds_of(rounds, each)


def _total_seconds_of(rounds: Sequence[int], each: Mapping[int, float]) -> float:
    return sum(rounds[stage] * seconds for stage, seconds in each.items())


@contextmanager
def _limit_time(seconds: float) -> Iterator[None]:
    """Stop what runs within after so many seconds of this process's work: again and again, since an
    exception is lost where it meets a finalizer.
    """

    def stop(*_: Any) -> None:
        raise TooLong

    if not hasattr(signal, "setitimer"):
        raise BadInput("Windows has no timer of a process's work: measure on Linux or macOS")
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, REPEAT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def read_durations() -> dict[str, Seconds]:
    """What was measured, by recipe."""
    return json.loads(read_text(DURATIONS_FILE)) if DURATIONS_FILE.exists() else {}


def write_durations(found: Mapping[str, Seconds]) -> Path:
    """Add to what was measured; the file's path."""
    write_text(
        DURATIONS_FILE,
        json.dumps(dict(sorted({**read_durations(), **found}.items())), indent=1) + "\n",
    )
    return DURATIONS_FILE


def estimate_table(table: PaperTable, known: Mapping[str, Seconds]) -> Estimate:
    """What all runs of a table cost; recipes that it shares with others are counted here too."""
    total, least = 0.0, False
    columns = [c for c in table.columns if c.recipe and not c.arithmetic]
    for recipe in {c.cheaper or c.recipe for c in columns}:
        seeds = len(read_toml(find_config(recipe)).get("seeds", [0]))
        mine = estimate_seed(known.get(recipe, {}))
        total, least = total + seeds * mine.seconds, least or mine.least
    return Estimate(total, least)


def estimate_seed(found: Seconds) -> Estimate:
    """What one seed of a recipe costs."""
    return Estimate(sum(map(abs, found.values())), not found or min(found.values()) < 0)
