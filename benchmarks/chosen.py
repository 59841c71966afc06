"""What `auto` loses: whole runs of 5, 50 and 500 rounds against the best fixed settings.

A run begins in a new process with a new engine and an empty cache of earlier choices and compiled
steps, so that choosing, tracing and compiling count; imports do not. A first look at every fixed
setting tells which ones can be the best at each length; those take turns with `auto`.
"""

import itertools
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, get_args

import torch
from workloads import Workload, engine_side

from coterie.core.errors import BadInput
from coterie.engines.settings import CompileMode, ExecutionPath, ExecutionSettings

LENGTHS = (5, 50, 500)
FINAL = 2  # fixed settings that are played in turns with `auto`
LOOK = 12  # rounds of the first look
ALLOWED = 1.15
WORKLOADS = [
    Workload("MLR 784-10, 20 clients, 5 steps", "mlr", (1, 28, 28), 20, 10, 50),
    Workload("DNN 784-100-10, 20 clients, 5 steps", "dnn", (1, 28, 28), 20, 10, 50),
    Workload("small CNN 8x8, 10 clients, 2 steps", "smallcnn", (1, 8, 8), 10, 10, 20),
]


class Fixed(NamedTuple):
    """Settings and a number of threads."""

    settings: ExecutionSettings
    threads: int

    def text(self) -> str:
        return f"{self.settings.text()}, {self.threads} thread{'s' * (self.threads > 1)}"


def candidates(work: Workload) -> list[Fixed]:
    """Everything that a user could write."""
    settings = [option for option in get_args(CompileMode) if option != "auto"]
    paths = [option for option in get_args(ExecutionPath) if option != "auto"]
    threads = sorted({1, os.cpu_count() or 1})
    return [
        Fixed(ExecutionSettings(path, work.clients, option), n)
        for path in paths
        for option in settings
        for n in threads
    ]


class Played(NamedTuple):
    """A run: when each of its rounds was over, in seconds from its start, and how it ran."""

    ends: list[float]
    how: str

    def after(self, rounds: int) -> float:
        """What so many rounds take, those that were not played as the last ones that were."""
        known = min(rounds, len(self.ends))
        each = [b - a for a, b in itertools.pairwise(self.ends[-10:])]
        more = (rounds - known) * statistics.median(each) if rounds > known else 0.0
        return self.ends[known - 1] + more


def played(work: Workload, rounds: int, fixed: Fixed | None) -> Played | None:
    """A run in a process of its own, a copy of this one, which has computed nothing yet; None
    where the network cannot run with these settings, which are `auto` where none are given.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_play, args=(there, work, rounds, fixed))
    process.start()
    there.close()
    try:
        found: Played | None = here.recv()
    except EOFError:
        raise RuntimeError(f"{work.label}: a run with {fixed or 'auto'} ended early") from None
    process.join()
    return found


def _play(there: Connection, work: Workload, rounds: int, fixed: Fixed | None) -> None:
    torch.set_num_threads(fixed.threads if fixed else os.cpu_count() or 1)
    settings = fixed.settings if fixed else ExecutionSettings()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COTERIE_CACHE"] = folder
        exchange, engine = engine_side(work, "fedavg", settings, fixed is None, rounds)
        ends = []
        begin = time.perf_counter()
        try:
            for _ in range(rounds):
                exchange()
                ends.append(time.perf_counter() - begin)
        except BadInput:
            there.send(None)
            return
        there.send(Played(ends, Fixed(engine.settings[0], torch.get_num_threads()).text()))


def looked(work: Workload) -> dict[Fixed, Played]:
    """A few rounds with every fixed setting that the network can run with."""
    tried = {fixed: played(work, LOOK, fixed) for fixed in candidates(work)}
    return {fixed: found for fixed, found in tried.items() if found}


def one(work: Workload, rounds: int, repeats: int, look: dict[Fixed, Played]) -> dict[str, Any]:
    """`auto` in turns with the most promising fixed settings."""
    best = sorted(look, key=lambda fixed: look[fixed].after(rounds))[:FINAL]
    sides: dict[str, Fixed | None] = {fixed.text(): fixed for fixed in best} | {"auto": None}
    times: dict[str, list[float]] = {name: [] for name in sides}
    chosen = ""
    for _ in range(repeats):
        for name, fixed in sides.items():
            found = played(work, rounds, fixed)
            assert found is not None
            times[name].append(found.ends[-1])
            chosen = found.how if fixed is None else chosen
    medians = {name: statistics.median(each) for name, each in times.items()}
    auto = medians.pop("auto")
    winner = min(medians, key=lambda name: medians[name])
    return {
        "workload": work.label,
        "rounds": rounds,
        "auto": auto,
        "best": medians[winner],
        "chosen": chosen,
        "winner": winner,
        "ratio": auto / medians[winner],
    }


def measure(repeats: int, only: str = "") -> dict[str, Any]:
    """Every workload whose label has `only` in it, at every length."""
    rows = []
    for work in WORKLOADS:
        if only.lower() not in work.label.lower():
            continue
        look = looked(work)
        for rounds in LENGTHS:
            row = one(work, rounds, repeats, look)
            rows.append(row)
            print(
                f"{work.label}, {rounds} rounds: auto {row['ratio']:.2f}x of the best fixed",
                flush=True,
            )
    return {"rows": rows}


def page(found: dict[str, Any]) -> list[str]:
    """The figures as Markdown."""
    lines = [
        "| workload | rounds | auto, s | best fixed, s | auto / best | choice | best fixed |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        lines.append(
            f"| {row['workload']} | {row['rounds']} | {row['auto']:.2f} | {row['best']:.2f} "
            f"| {row['ratio']:.2f} | {row['chosen']} | {row['winner']} |"
        )
    within = sum(row["ratio"] <= ALLOWED for row in found["rows"])
    return [
        *lines,
        "",
        f"`auto` is at most {100 * (ALLOWED - 1):.0f} % slower in {within} of "
        f"{len(found['rows'])} runs; a run of `auto` begins with nothing remembered.",
    ]
