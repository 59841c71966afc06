"""A log that cannot be changed unseen: every line holds the hash of the line before it.

A server and every site keep one, `audit.jsonl` in their folder: who joined, what was agreed to,
what left, how many bytes, and what it tells by the site's own count. A line that was changed, taken
out or put in breaks the chain. Lines cut off the end are seen by whoever wrote down the last hash,
which `coterie federation audit` prints.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from coterie.core.errors import BadInput
from coterie.core.files import catch_write_errors

AUDIT = "audit.jsonl"
START = "0" * 64  # what the first line holds of the one before it
Event = dict[str, Any]


class AuditLog:
    """The log of one folder; what was written before is read and verified when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = read_audit(path)
        self._last = self.events[-1]["hash"] if self.events else START

    def add(self, event: str, **facts: Any) -> Event:
        """Write an event; it is on the disk when this comes back."""
        line: Event = {"time": round(time.time(), 3), "event": event, **facts}
        line |= {"previous": self._last}
        line |= {"hash": _compute_hash(line)}
        with catch_write_errors(self.path.parent):
            number = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            with os.fdopen(number, "rb+") as file:
                _seek_last_line_end(file)
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self.events.append(line)
        self._last = line["hash"]
        return line


def read_audit(path: Path) -> list[Event]:
    """The events of a log; BadInput where a line is not what was written."""
    if not path.exists():
        return []
    events: list[Event] = []
    last = START
    # what follows the last line end was being written when the machine went dark: it never counted
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            line = json.loads(text)
            body = {key: value for key, value in line.items() if key != "hash"}
            good = line["previous"] == last and line["hash"] == _compute_hash(body)
            last = line["hash"]
        except (ValueError, KeyError, TypeError, AttributeError):
            good = False
        if not good:
            raise BadInput(
                f"{path}: line {number} was changed, or lines before it are missing: restore the "
                "file from a copy, or move it away to begin a new one"
            )
        events.append(line)
    return events


def summarize_audit(events: Sequence[Event]) -> str:
    """What a log says, in a line."""
    kinds = Counter(event["event"] for event in events)
    counted = ", ".join(f"{number:,} {kind}" for kind, number in sorted(kinds.items()))
    size = sum(event.get("bytes", 0) for event in events)
    spent = [event["epsilon"] for event in events if "epsilon" in event]
    last = events[-1]["hash"] if events else START
    epsilon = f", epsilon {spent[-1]:.4g}" if spent and spent[-1] else ""
    return (
        f"{len(events):,} lines are whole ({counted}), {size:,} bytes{epsilon}; the last is {last}"
    )


def _compute_hash(line: Event) -> str:
    return hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()


def _seek_last_line_end(file: IO[bytes]) -> None:
    """Go to the end of the last whole line, and cut off what was being written after it."""
    size = file.seek(0, os.SEEK_END)
    if size:
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.seek(0, os.SEEK_END)
