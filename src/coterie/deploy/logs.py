"""Lines that hold words of strangers: one line each, printable, not too many."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MAX_CHARACTERS = 500  # characters of what someone else says
QUIET_SECONDS = 60.0  # seconds before the same line is told again
MAX_LINES = 30  # different lines per QUIET seconds
MAX_LOG_BYTES = 10_000_000  # bytes of a log before it is moved away
MAX_LOGS = 3  # logs beside the newest
LogLine = Callable[[str], None]


def sanitize(text: object, longest: int = MAX_CHARACTERS) -> str:
    """What someone else said as one harmless line: no control characters, no endless text."""
    words = " ".join(str(text)[: 4 * longest].split())
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in words)
    return shown if len(shown) <= longest else f"{shown[:longest]}..."


class RotatingLog:
    """A file of lines with their time; where it gets too large it is moved to NAME.1, and so on."""

    def __init__(self, path: Path, largest: int = MAX_LOG_BYTES, kept: int = MAX_LOGS) -> None:
        self.path, self._largest, self._kept = path, largest, kept

    def __call__(self, line: str) -> None:
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".encode(errors="replace")
        with suppress(FileNotFoundError):
            if self.path.stat().st_size + len(text) > self._largest:
                self._rotate()
        with self.path.open("ab") as file:
            file.write(text)

    def _rotate(self) -> None:
        for number in range(self._kept, 0, -1):
            old = self.path if number == 1 else self._numbered_path(number - 1)
            with suppress(FileNotFoundError):
                old.replace(self._numbered_path(number))

    def _numbered_path(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


class LogLimiter:
    """Says lines that strangers cause: the same one once per minute, and only so many in all."""

    def __init__(self, say: LogLine, most: int = MAX_LINES, quiet: float = QUIET_SECONDS) -> None:
        self._log, self._most, self._quiet = say, most, quiet
        self._shown: dict[str, float] = {}  # since the window began
        self._begin, self._hidden = -quiet, 0
        self.count = 0  # all that happened, told or not

    def __call__(self, line: str) -> None:
        now = time.monotonic()
        self.count += 1
        if now - self._begin >= self._quiet:
            if self._hidden:
                self._log(f"{self._hidden} more refusals of the last minute were not shown")
            self._shown, self._begin, self._hidden = {}, now, 0
        if line in self._shown:
            return
        if len(self._shown) >= self._most:
            self._hidden += 1
            return
        self._shown[line] = now
        self._log(line)
