"""Processes of a deployment as children of ours: their words kept in a log, stopped by their
number; and how a server or a site is stopped.
"""

from __future__ import annotations

import ctypes
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
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
STUCK_SECONDS = 5.0  # seconds for a call that does not hear signals, once there was one
PARENT_DIES = 1  # PR_SET_PDEATHSIG
LogLine = Callable[[str], None]


class Stopped(BaseException):  # not an Exception: nothing that deals with mistakes may swallow it
    """SIGTERM or Ctrl-C: close everything and go."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number  # of the signal


class Child:
    """One program: every line it says goes to its log and to `hear`; it dies with us, however we
    die.
    """

    def __init__(
        self, command: Sequence[str], log: Path, hear: LogLine = lambda line: None
    ) -> None:
        self.log = log
        pipes: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "stdin": subprocess.DEVNULL,
        }
        self._process = subprocess.Popen(
            command,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
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

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._reader.join(2)  # its last words; a grandchild may hold the pipe open
        return code

    def wait(self) -> int:
        """Its exit code, when it is over."""
        while (code := self.poll()) is None:
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


def _die_with_parent() -> None:
    """Where the system can: end this child when the thread that started it ends, even by
    SIGKILL.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DIES, signal.SIGTERM)


def find_program(name: str) -> str:
    """The path of a program that stands beside this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise BadInput(f"{name} is not installed: pip install 'coterie[federation]'")
    return str(path)


def find_free_port(host: str = HERE) -> int:
    """A port that no one has at this moment."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def end_by_signal(number: int) -> None:
    """End this process, in which everything is closed, by the signal that stopped it. To take
    torch's modules apart first takes a second of a processor, so on a busy machine many.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container is not ended by a signal of its own


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM and SIGINT raise Stopped, once; a second one waits until the children are gone.

    Python hears of a signal when the call it is in returns, and looking up a name may take a
    minute. Where that lasts longer than STUCK_SECONDS the process ends as if killed, which loses
    nothing.
    """
    heard = threading.Event()

    def stop(number: int, frame: object) -> None:
        heard.set()
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    def watch() -> None:
        while got := ours.recv(1):
            if got[0] in before and not heard.wait(STUCK_SECONDS):
                os._exit(128 + got[0])

    ours, of_signals = socket.socketpair()
    of_signals.setblocking(False)
    wakeup = signal.set_wakeup_fd(of_signals.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        heard.set()
        of_signals.close()
        watcher.join()
        ours.close()
