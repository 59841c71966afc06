"""Kill a command at every change that it makes to files, and see that nothing is lost or counted
twice.

Python tells an audit hook of every file that is opened for writing, renamed, removed or cut, and of
every folder made or removed, just before it happens: there the process ends itself.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FIXED = "--path vectorized --width 20 --compile no --threads 1 --quiet"
SMALLEST = f"--num-clients 4 --rows 120 --hidden 4 --batch-size 8 --rounds 2 --checkpoint 1 {FIXED}"
RUNS = {
    "plain": f"run ditto {SMALLEST}",
    "newcomers": f"run ditto --newcomers 0.3 --few-shot 4 {SMALLEST}",
    "comparison with tuning": f"compare --methods local,ditto --tune ditto.lam=0.1,1 {SMALLEST} "
    "--no-report",
}
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Killed(NamedTuple):
    """What came of the kills of one command."""

    points: int  # changes to files that the command makes
    hits: int  # kills, those of resumed commands included
    failures: list[str]


def is_change(event: str, given: tuple[Any, ...], folder: str) -> bool:
    """Whether an event changes something in a folder; a name within an open folder counts too."""
    if event == "open":
        path, _, flags = given
        return isinstance(path, str) and path.startswith(folder) and bool(flags & WRITING)
    if event not in CHANGES:
        return False
    return any(str(one).startswith(folder) for one in given if isinstance(one, str | Path)) or (
        isinstance(given[-1], int) and given[-1] >= 0 and event != "os.truncate"
    )


def watch_changes(folder: Path, last: int, tally: Path) -> Callable[[], None]:
    """End this process before its change number `last` (0: never); the function that is returned
    writes down how many there were.
    """
    count = 0

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal count
        if is_change(event, given, str(folder)):
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: print(count, file=tally.open("w"))


def kill_everywhere(
    line: str,
    folder: Path,
    run_command: Callable[[str, Path, Path, int], int],  # (line, place, tally, last): exit code
    go_on: Callable[[str, Path], str],
    same: Callable[[Path, Path], bool],
    chance: random.Random,
) -> Iterator[Killed]:
    """Kill a command at each of its changes, and its resume at one of its own; after each, what is
    known so far.
    """
    whole, place, tally = folder / "whole", folder / "run", folder / "tally.txt"
    if run_command(f"{line} --out {whole}", whole, tally, 0):
        yield Killed(0, 0, ["the command itself failed"])
        return
    points, hits, failures = int(tally.read_text()), 0, list[str]()
    for k in range(1, points + 1):
        shutil.rmtree(place, ignore_errors=True)
        code = -signal.SIGKILL
        for last in (k, chance.randint(1, points - k + 5), 0):
            if code == -signal.SIGKILL:
                code = run_command(go_on(line, place), place, tally, last)
                hits += code == -signal.SIGKILL
        left = [p.name for p in place.rglob("*.part")]
        if code or left or not same(place, whole):
            what = f"exit {code}" if code else f"{left[0]} is left" if left else "differs"
            failures.append(f"killed at change {k}: {what}")
        yield Killed(points, hits, failures)
