"""Whole commands as a user types them, from process start to end, in turns."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from against_peers import COMPARISONS

RUN = "from coterie.cli.main import main; main()"
DIGITS = COMPARISONS[0]
DATA = [
    text
    for option, value in DIGITS.settings.items()
    for text in (f"--{option.replace('_', '-')}", str(value))
]
COMMON = [*DATA, "--model", "mlr", "--batch-size", "10", "--lr", "0.01"]
SEEDS = (1, 5)
KNOWN = {"again": "a run again", "seeds 1": "one seed"}


def command(settings: list[str], cache: Path) -> float:
    """Seconds of a command of `coterie`."""
    with tempfile.TemporaryDirectory() as folder:
        out = [] if settings == ["--help"] else ["--quiet", "--out", str(Path(folder) / "out")]
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", RUN, *settings, *out],
            env=os.environ | {"COTERIE_CACHE": str(cache)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return time.perf_counter() - begin


def measure(repeats: int, only: str = "") -> dict[str, Any]:
    """The medians of every command whose name has `only` in it."""
    rounds = DIGITS.rounds
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        run = ["run", "fedavg", *COMMON, "--rounds", str(rounds), "--eval-every", str(rounds)]

        def first() -> float:
            shutil.rmtree(cache, ignore_errors=True)
            return command(run, cache)

        sides: dict[str, Callable[[], float]] = {
            "help": lambda: command(["--help"], cache),
            "first": first,
            "again": lambda: command(run, cache),
        }
        for seeds in SEEDS:
            settings = ["compare", "--methods", "fedavg", "--seeds", str(seeds), *COMMON]
            sides[f"seeds {seeds}"] = lambda settings=settings: command(
                [*settings, "--rounds", str(rounds), "--eval-every", str(rounds)], cache
            )
        times: dict[str, list[float]] = {name: [] for name in sides if only in name}
        for _ in range(repeats):
            for name in times:
                times[name].append(sides[name]())
                print(f"{name}: {times[name][-1]:.1f} s", flush=True)
    return {
        "rounds": rounds,
        "seconds": {name: statistics.median(each) for name, each in times.items()},
    }


def page(found: dict[str, Any]) -> list[str]:
    """The figures as Markdown."""
    took, rounds = found["seconds"], found["rounds"]
    titles = {
        "first": f"`coterie run fedavg`, {rounds} rounds, nothing remembered of earlier runs",
        "again": "the same again",
        "seeds 1": f"`coterie compare --methods fedavg --seeds 1`, {rounds} rounds",
        "seeds 5": "the same with `--seeds 5`",
        "help": "`coterie --help`",
    }
    base = {"first": "again", "seeds 5": "seeds 1"}
    lines = ["| from process start to end | seconds | ratio |", "|---|---|---|"]
    for name, title in titles.items():
        if name not in took:
            continue
        other = base.get(name, "")
        said = f"{took[name] / took[other]:.1f}x of {KNOWN[other]}" if other in took else ""
        lines.append(f"| {title} | {took[name]:.2f} | {said} |")
    return [*lines, "", f"All on {DIGITS.label.rpartition(',')[0]}."]
