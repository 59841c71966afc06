"""Flower's programs as children of ours: started with our defaults, their words kept in a log,
stopped by their number.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput
from coterie.deploy.logs import RotatingLog

HERE = "127.0.0.1"
HOME = "flower"  # Flower's own files, in the folder of a server or site
LONGEST_SOCKET = 100  # bytes of a Unix socket's path; systems allow 104 to 108
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
PARENT_DIES = 1  # PR_SET_PDEATHSIG
ENVIRONMENT_SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # else SuperLink fetches what an app lists, such as another torch
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # seconds between two looks for work; Flower's own is 1
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.4",
    "OTEL_SDK_DISABLED": "true",
    "NO_COLOR": "1",
}
LogLine = Callable[[str], None]


class Stopped(BaseException):  # not an Exception: nothing that deals with mistakes may swallow it
    """SIGTERM or Ctrl-C: stop the children and go."""


class Child:
    """One program: every line it says goes to its log and to `hear`; it dies with us, however we
    die.
    """

    def __init__(
        self, command: Sequence[str], home: Path, log: Path, hear: LogLine = lambda line: None
    ) -> None:
        self.name, self.log = Path(command[0]).name, log
        pipes: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "stdin": subprocess.DEVNULL,
        }
        self._process = subprocess.Popen(
            command,
            env=build_environment(home),
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_die_with_parent,
            **pipes,
        )
        self._hear = hear
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        keep = RotatingLog(self.log)
        with self._process.stdout:
            for line in self._process.stdout:
                plain = COLOURS.sub("", line.rstrip())
                keep(plain)
                self._hear(plain)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def ended(self) -> int | None:
        """Its exit code, or None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._reader.join(2)  # its last words; a grandchild may hold the pipe open
        return code

    def wait(self) -> int:
        """Its exit code, when it is over."""
        while (code := self.ended()) is None:
            time.sleep(0.1)
        return code

    def ask_to_stop(self) -> None:
        """SIGTERM, without waiting."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self, patience: float = 8.0) -> None:
        """Ask it to end, then end it."""
        if self._process.poll() is None:
            self.ask_to_stop()
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def last_words(self, lines: int = 3) -> str:
        """The end of its log, for an error message."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return " / ".join(line.strip() for line in text.splitlines()[-lines:])


def _die_with_parent() -> None:
    """Where the system can: end this child when the thread that started it ends, even by
    SIGKILL.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DIES, signal.SIGTERM)


def build_environment(home: Path) -> dict[str, str]:
    """What Flower's programs see: our switches, their files in `home`, and the programs beside this
    Python first.
    """
    here = str(Path(sys.executable).parent)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FLWR_")}
    return (
        kept
        | ENVIRONMENT_SWITCHES
        | {
            "FLWR_HOME": str(home),
            "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        }
    )


def find_program(name: str) -> str:
    """The path of one of Flower's programs, which stand beside this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise BadInput(f"{name} is not installed: pip install 'coterie[federation]'")
    return str(path)


def run_flwr(home: Path, *arguments: str) -> dict[str, Any]:
    """What one call of Flower's command line answers."""
    done = subprocess.run(
        [find_program("flwr"), *arguments, "--format", "json"],
        env=build_environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        answer = {
            "success": False,
            "error-message": COLOURS.sub("", done.stderr or done.stdout).strip()[-500:],
        }
    return answer


def find_free_port(host: str = HERE) -> int:
    """A port that no one has at this moment."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, child: Child, seconds: float = 90.0) -> None:
    """Come back when a child listens on this machine; say its last words where it ends instead."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if child.ended() is not None:
            raise BadInput(
                f"{child.name} did not start: {child.last_words()} (all of it in {child.log})"
            )
        try:
            socket.create_connection((HERE, port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise BadInput(f"{child.name} does not listen after {seconds:g} s: see {child.log}")


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM and SIGINT raise Stopped, once; a second one waits until the children are gone."""

    def stop(number: int, frame: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
