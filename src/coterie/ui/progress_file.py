"""`progress.jsonl` as a file that grows: its two ends, and what was added since a place in it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from coterie.core.files import check_regular_file

TEXTS = ("stage", "measure")
FIELDS = (*TEXTS, "round", "rounds", "clients", "seconds", "accuracy", "loss", "value", "time")
TAIL, CHUNK = 2**13, 2**20  # bytes read from the end for the list, and at once for a page

MAX_SAFE_INTEGER = 2**53  # the largest number that JavaScript counts to

Line = dict[str, Any]


class ProgressNews(NamedTuple):
    """What was added to a file since a place in it."""

    rows: list[Line]
    after: int  # where to ask from next
    reset: bool  # the file was begun anew: forget what was told before


def read_since(path: Path, after: int) -> ProgressNews:
    """The whole lines after byte `after`, a megabyte at most; a file that has become shorter is
    told from its start.
    """
    try:
        with check_regular_file(path).open("rb") as file:
            size = file.seek(0, 2)
            reset = after > size
            start = 0 if reset else max(after, 0)
            file.seek(start)
            text = file.read(CHUNK)
    except FileNotFoundError:
        return ProgressNews([], 0, after > 0)
    whole = text.rfind(b"\n") + 1  # a line still being written waits for its end
    return ProgressNews(_parse_lines(text[:whole]), start + whole, reset)


def read_ends(path: Path) -> tuple[Line, Line, float | None]:
    """(first line, last line with the last accuracy and loss known, median seconds per round);
    empty where there is none.
    """
    try:
        with check_regular_file(path).open("rb") as file:
            head = file.read(TAIL)
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            tail = file.read(TAIL)
    except FileNotFoundError:
        return {}, {}, None
    first, last = (
        _parse_lines(head[: head.rfind(b"\n") + 1])[:1],
        _parse_lines(tail[: tail.rfind(b"\n") + 1]),
    )
    if not first or not last:
        return {}, {}, None
    known = {
        k: next((row[k] for row in reversed(last) if row.get(k) is not None), None)
        for k in ("accuracy", "loss", "value")
    }
    times = [row["time"] for row in last if row.get("time")]
    gaps = [b - a for a, b in pairwise(times) if b >= a]
    return first[0], last[-1] | known, median(gaps) if gaps else last[-1].get("seconds")


def _parse_lines(text: bytes) -> list[Line]:
    """The rows of whole lines, known fields only; what is not a row is left out."""
    found = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and _to_number(row.get("round")) is not None:
            found.append(
                {k: str(row[k]) if k in TEXTS else _to_number(row[k]) for k in FIELDS if k in row}
            )
    return found


def _to_number(value: Any) -> float | None:
    """A number that a page can show, else None: its JSON knows no NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -MAX_SAFE_INTEGER < value < MAX_SAFE_INTEGER else None
