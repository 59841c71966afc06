"""A run as it goes: a line per round that others may read, and a lock that keeps a second process
out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.core.errors import BadInput
from coterie.core.files import append_line, catch_write_errors, check_regular_file, write_text
from coterie.running.loop import RoundReport

FILE, LOCK = "progress.jsonl", ".lock"
# seconds: whoever looks whether a folder is in use holds its lock for an instant
TRIES, GLANCE = (
    5,
    0.05,
)


class Progress:
    """`progress.jsonl`: what each round said, appended at once; on resume the rounds that are
    played again go.
    """

    def __init__(self, folder: Path, done: int):
        self.path = folder / FILE
        kept = [line for line in read_lines(folder) if line["round"] <= done]
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def add(self, report: RoundReport) -> None:
        said = {k: None if v != v else v for k, v in report._asdict().items()}  # NaN is no JSON
        append_line(self.path, json.dumps({**said, "time": time.time()}))


def read_lines(folder: Path) -> list[dict]:
    """The rounds a run has reported; a line that was cut off is left out."""
    found = []
    path = folder / FILE
    if not path.exists():
        return []
    with check_regular_file(path).open(encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict) and isinstance(line.get("round"), int):
                found.append(line)
    return found


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Nobody else works on the folder meanwhile; the lock goes with the process, however it
    ends.
    """
    with catch_write_errors(folder):
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _acquire_lock(descriptor):
            raise BadInput(
                f"{folder} is being worked on by another process: wait for it, or stop it first"
            )
        yield
    finally:
        os.close(descriptor)


def is_busy(folder: Path) -> bool:
    """Whether a process works on the folder now."""
    if not (folder / LOCK).exists():
        return False
    descriptor = os.open(folder / LOCK, os.O_RDWR)
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _acquire_lock(descriptor: int) -> bool:
    for _ in range(TRIES):
        if _try_lock(descriptor):
            return True
        time.sleep(GLANCE)
    return False


def _try_lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
