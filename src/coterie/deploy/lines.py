"""Lines that hold words of strangers: one line each, printable, not too many."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LONGEST = 500  # characters of what someone else says
QUIET = 60.0  # seconds before the same line is told again
MOST = 30  # different lines per QUIET seconds
LARGEST_LOG = 10_000_000  # bytes of a log before it is moved away
KEPT_LOGS = 3  # logs beside the newest
Say = Callable[[str], None]


def plain(text: object, longest: int = LONGEST) -> str:
    """What someone else said as one harmless line: no control characters, no endless text."""
    words = " ".join(str(text)[: 4 * longest].split())
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in words)
    return shown if len(shown) <= longest else f"{shown[:longest]}..."


class Log:
    """A file of lines with their time; where it gets too large it is moved to NAME.1, and so on."""

    def __init__(self, path: Path, largest: int = LARGEST_LOG, kept: int = KEPT_LOGS) -> None:
        self.path, self._largest, self._kept = path, largest, kept

    def __call__(self, line: str) -> None:
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".encode(errors="replace")
        with suppress(FileNotFoundError):
            if self.path.stat().st_size + len(text) > self._largest:
                self._turn()
        with self.path.open("ab") as file:
            file.write(text)

    def _turn(self) -> None:
        for number in range(self._kept, 0, -1):
            old = self.path if number == 1 else self._numbered(number - 1)
            with suppress(FileNotFoundError):
                old.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


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
