"""Lines that hold words of strangers: one line each, printable, not too many."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST = 500  # characters of what someone else says
QUIET = 60.0  # seconds before the same line is told again
MOST = 30  # different lines per QUIET seconds
Say = Callable[[str], None]


def plain(text: object, longest: int = LONGEST) -> str:
    """What someone else said as one harmless line: no control characters, no endless text."""
    words = " ".join(str(text)[: 4 * longest].split())
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in words)
    return shown if len(shown) <= longest else f"{shown[:longest]}..."


class Ration:
    """Says lines that strangers cause: the same one once per minute, and only so many in all."""

    def __init__(self, say: Say, most: int = MOST, quiet: float = QUIET) -> None:
        self._say, self._most, self._quiet = say, most, quiet
        self._told: dict[str, float] = {}  # since the window began
        self._begin, self._hidden = -quiet, 0
        self.count = 0  # all that happened, told or not

    def __call__(self, line: str) -> None:
        now = time.monotonic()
        self.count += 1
        if now - self._begin >= self._quiet:
            if self._hidden:
                self._say(f"{self._hidden} more refusals of the last minute were not shown")
            self._told, self._begin, self._hidden = {}, now, 0
        if line in self._told:
            return
        if len(self._told) >= self._most:
            self._hidden += 1
            return
        self._told[line] = now
        self._say(line)
