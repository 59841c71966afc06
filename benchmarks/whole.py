"""Whole commands as a user types them, from process start to end, in turns."""

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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
KNOWN = {"again": "a run again", "seeds 1": "one seed", "ucfl yes": "`--compile yes`"}
UCFL = ["run", "ucfl", *DATA, "--model", "dnn", "--batch-size", "10", "--lr", "0.01"]
UCFL += ["--rounds", "20"]
# a hundred of many clients per round, all else as it is by default
CROWD = ["run", "fedavg", "--dataset", "synthetic", "--num-clients", "10000"]
CROWD += ["--participation", "0.01", "--rounds", "20"]


class Took(NamedTuple):
    """Seconds of a command."""

    whole: float
    outside: float  # of the rounds; NaN where it is not one run


def command(settings: list[str], cache: Path) -> Took:
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
        whole = time.perf_counter() - begin
        progress = Path(folder) / "out" / "progress.jsonl"
        if not progress.exists():
            return Took(whole, math.nan)
        rounds = map(json.loads, progress.read_text(encoding="utf-8").splitlines())
        return Took(whole, whole - sum(one["seconds"] for one in rounds))


def measure(repeats: int, only: str = "") -> dict[str, Any]:
    """The medians of every command whose name has `only` in it."""
    rounds = DIGITS.rounds
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        plain = ["run", "fedavg", *COMMON, "--rounds", str(rounds)]
        run = [*plain, "--eval-every", str(rounds)]

        def first() -> Took:
            shutil.rmtree(cache, ignore_errors=True)
            return command(run, cache)

        sides: dict[str, Callable[[], Took]] = {
            "help": lambda: command(["--help"], cache),
            "first": first,
            "again": lambda: command(run, cache),
            "evaluated": lambda: command(plain, cache),
            "ucfl": lambda: command(UCFL, cache),
            "ucfl yes": lambda: command([*UCFL, "--compile", "yes"], cache),
            "many": lambda: command(CROWD, cache),
        }
        for seeds in SEEDS:
            settings = ["compare", "--methods", "fedavg", "--seeds", str(seeds), *COMMON]
            sides[f"seeds {seeds}"] = lambda settings=settings: command(
                [*settings, "--rounds", str(rounds), "--eval-every", str(rounds)], cache
            )
        times: dict[str, list[Took]] = {name: [] for name in sides if only in name}
        for _ in range(repeats):
            for name in times:
                times[name].append(sides[name]())
                print(f"{name}: {times[name][-1].whole:.1f} s", flush=True)
    outside = {
        name: statistics.median(one.outside for one in each)
        for name, each in times.items()
        if not math.isnan(each[0].outside)
    }
    return {
        "rounds": rounds,
        "seconds": {
            name: statistics.median(one.whole for one in each) for name, each in times.items()
        },
        "outside": outside,
    }


def page(found: dict[str, Any]) -> list[str]:
    """The figures as Markdown."""
    took, rounds = found["seconds"], found["rounds"]
    titles = {
        "first": f"`coterie run fedavg`, {rounds} rounds, nothing remembered of earlier runs",
        "again": "the same again",
        "evaluated": "the same with twenty evaluations, which is the default",
        "seeds 1": f"`coterie compare --methods fedavg --seeds 1`, {rounds} rounds",
        "seeds 5": "the same with `--seeds 5`",
        "ucfl": "`coterie run ucfl --model dnn`, 20 rounds",
        "ucfl yes": "the same with `--compile yes`",
        "many": f"`coterie {' '.join(CROWD)}`",
        "help": "`coterie --help`",
    }
    base = {"first": "again", "evaluated": "again", "seeds 5": "seeds 1", "ucfl": "ucfl yes"}
    lines = [
        "| from process start to end | seconds | outside the rounds | ratio |",
        "|---|---|---|---|",
    ]
    outside = found.get("outside", {})  # figures of earlier releases have none
    for name, title in titles.items():
        if name not in took:
            continue
        other = base.get(name, "")
        said = f"{took[name] / took[other]:.1f}x of {KNOWN[other]}" if other in took else ""
        rest = f"{outside[name]:.2f}" if name in outside else ""
        lines.append(f"| {title} | {took[name]:.2f} | {rest} | {said} |")
    place = DIGITS.label.rpartition(",")[0]
    return [*lines, "", f"All on {place}, where nothing else is named."]
