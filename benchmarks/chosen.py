"""What `auto` loses: whole runs of 5, 50 and 500 rounds against the best fixed settings.

A run begins with a new engine and an empty cache of earlier choices, so that choosing, tracing and
preparing count. Fixed settings that are slow in a first look are not played again.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, get_args

import torch
from workloads import Workload, engine_side

from coterie.engines.settings import Compile, Path, Settings

LENGTHS = (5, 50, 500)
FINAL = 2  # fixed settings that are played in turns with `auto`
LOOK = 20  # rounds of the first look
ALLOWED = 1.15
WORKLOADS = [
    Workload("MLR 784-10, 20 clients, 5 steps", "mlr", (1, 28, 28), 20, 10, 50),
    Workload("DNN 784-100-10, 20 clients, 5 steps", "dnn", (1, 28, 28), 20, 10, 50),
    Workload("small CNN 8x8, 10 clients, 2 steps", "smallcnn", (1, 8, 8), 10, 10, 20),
]


class Fixed(NamedTuple):
    """Settings and a number of threads."""

    settings: Settings
    threads: int

    def text(self) -> str:
        return f"{self.settings.text()}, {self.threads} thread{'s' * (self.threads > 1)}"


def candidates(work: Workload) -> list[Fixed]:
    """Everything that a user could write, torch's compiler left out: it alone takes longer than
    these runs.
    """
    words = [word for word in get_args(Compile) if word not in ("auto", "yes")]
    paths = [word for word in get_args(Path) if word != "auto"]
    threads = sorted({1, os.cpu_count() or 1})
    return [
        Fixed(Settings(path, work.clients, word), n)
        for path in paths
        for word in words
        for n in threads
    ]


@contextmanager
def forgetful() -> Iterator[None]:
    """A cache of choices that is empty."""
    before = os.environ.get("COTERIE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COTERIE_CACHE"] = folder
        try:
            yield
        finally:
            os.environ.pop("COTERIE_CACHE")
            if before is not None:
                os.environ["COTERIE_CACHE"] = before


def seconds(work: Workload, rounds: int, fixed: Fixed | None) -> tuple[float, str]:
    """What a whole run takes, and how it ran; None: as `auto` chooses."""
    torch.set_num_threads(fixed.threads if fixed else os.cpu_count() or 1)
    settings = fixed.settings if fixed else Settings()
    with forgetful():
        exchange, engine = engine_side(work, "fedavg", settings, fixed is None, rounds)
        begin = time.perf_counter()
        for _ in range(rounds):
            exchange()
        took = time.perf_counter() - begin
    return took, Fixed(engine.settings[0], torch.get_num_threads()).text()


def one(work: Workload, rounds: int, repeats: int) -> dict[str, Any]:
    """`auto` in turns with the most promising fixed settings."""
    look = min(rounds, LOOK)
    tried = {fixed: seconds(work, look, fixed)[0] for fixed in candidates(work)}
    best = sorted(tried, key=lambda fixed: tried[fixed])[:FINAL]
    times: dict[str, list[float]] = {fixed.text(): [] for fixed in best}
    times["auto"] = []
    chosen = ""
    for _ in range(repeats):
        for fixed in best:
            times[fixed.text()].append(seconds(work, rounds, fixed)[0])
        took, chosen = seconds(work, rounds, None)
        times["auto"].append(took)
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
        for rounds in LENGTHS if only.lower() in work.label.lower() else ():
            row = one(work, rounds, repeats)
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
