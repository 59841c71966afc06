"""Runs that were started from a page: each is a process of its own, `coterie run` or `coterie
resume` with a list of arguments, whose output is kept beside the runs.

They stop when the server does, and can be resumed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Lock, Timer
from typing import Any, NamedTuple

from coterie.core.errors import BadInput
from coterie.core.files import catch_write_errors

LOGS = ".ui-logs"  # the list passes over names that begin with a dot
CHUNK = 2**16  # bytes of a log at once
GRACE_SECONDS = 15.0  # seconds to write what a run has, before it is ended
# Ctrl-C is heard even where whoever started the server had switched it off; and a run whose server
# is gone, however it ended, stops too: its input is a pipe that the server alone holds open.
# Windows has Ctrl-Break in the place of Ctrl-C for a group of processes.
LEASH = (
    "import _thread, os, signal, threading; "
    "heard = getattr(signal, 'SIGBREAK', signal.SIGINT); "
    "signal.signal(heard, signal.default_int_handler); "
    "stop = _thread.interrupt_main if os.name == 'nt' else "
    "lambda: os.kill(os.getpid(), signal.SIGINT); "
    "gone = lambda: (os.read(0, 1), stop()); "
    "threading.Thread(target=gone, daemon=True).start(); "
)
STOP = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGINT)
# Ctrl-C at the server reaches a child through `close` alone
APART: dict[str, Any] = (
    {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    if os.name == "nt"
    else {"start_new_session": True}
)
MAIN = LEASH + "from coterie.cli.main import main; main()"


class Job(NamedTuple):
    """A process, the run that it works on, and where its output goes."""

    process: subprocess.Popen
    folder: Path
    log: Path
    arguments: list[str]

    @property
    def state(self) -> str:
        """One of "running", "finished", "stopped" and "failed"."""
        code = self.process.poll()
        if code is None:
            return "running"
        return {0: "finished", 130: "stopped", -signal.SIGTERM: "stopped"}.get(code, "failed")


class Jobs:
    """The processes that this server has started, by the ids of their runs."""

    def __init__(self, root: Path, most: int = 0):
        self.root, self.most = root.resolve(), most or max(1, os.cpu_count() or 1)
        self._lock, self._jobs = Lock(), dict[str, Job]()
        self._pipe = (-1, -1)  # what children read, and what is held open as long as this lives

    def start(self, name: str, folder: Path, arguments: Sequence[str]) -> Job:
        """`coterie WORDS`, which works on a folder, under the id of its run."""
        with self._lock:
            if name in self._jobs and self._jobs[name].state == "running":
                raise BadInput(f"{folder.name} is at work already")
            busy = sum(job.state == "running" for job in self._jobs.values())
            if busy >= self.most:
                raise BadInput(
                    f"{busy} runs that were started here are at work, as many as this machine has "
                    "cores: wait for one, or stop one"
                )
            if self._pipe == (-1, -1):
                self._pipe = os.pipe()
            log = self._log(folder)
            if log.parent.is_symlink() or log.is_symlink():
                raise BadInput(f"{LOGS} is a link: coterie ui writes only into the folder itself")
            with catch_write_errors(self.root):
                log.parent.mkdir(parents=True, exist_ok=True)
                output = log.open("wb")
            with output:
                process = subprocess.Popen(
                    [sys.executable, "-c", MAIN, *arguments],
                    stdin=self._pipe[0],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=os.environ | {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1"},
                    **APART,
                )
            self._jobs[name] = Job(process, folder, log, list(arguments))
            return self._jobs[name]

    def _log(self, folder: Path) -> Path:
        inside = folder.relative_to(self.root).parts
        return self.root / LOGS / f"{'+'.join(inside)[-200:]}.log"

    def find(self, name: str) -> Job | None:
        return self._jobs.get(name)

    def stop(self, name: str) -> None:
        """Ctrl-C for a run that was started here; SIGTERM where that does not end it soon."""
        job = self.find(name)
        if job is None:
            raise BadInput(
                "this run was not started from the page: press Ctrl-C where it was started"
            )
        if job.state == "running":
            job.process.send_signal(STOP)
            later = Timer(GRACE_SECONDS, _terminate, [job])
            later.daemon = True
            later.start()

    def describe(self, name: str, after: int) -> dict[str, Any]:
        """What a job is doing, and its output since a byte of it."""
        job = self.find(name)
        if job is None:
            return {"state": "", "code": None, "text": "", "after": 0, "command": ""}
        state = job.state  # before its output: a process that is over says no more
        try:
            with job.log.open("rb") as file:
                file.seek(max(0, after))
                text = file.read(CHUNK)
        except FileNotFoundError:
            text = b""
        if state == "running":  # a line that is still being written waits for its end
            text = text[: text.rfind(b"\n") + 1]
        return {
            "state": state,
            "code": job.process.returncode,
            "text": text.decode("utf-8", "replace"),
            "after": max(0, after) + len(text),
            "command": " ".join(["coterie", *job.arguments]),
        }

    def states(self) -> dict[str, str]:
        """{id: state} of all that were started here."""
        return {name: job.state for name, job in list(self._jobs.items())}

    def close(self) -> None:
        """Stop what is still at work, and wait for it."""
        left = [job for job in self._jobs.values() if job.state == "running"]
        for job in left:
            job.process.send_signal(STOP)
        end = time.monotonic() + GRACE_SECONDS
        for job in left:
            try:
                job.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                _terminate(job)
                job.process.wait()


def _terminate(job: Job) -> None:
    if job.process.poll() is None:
        job.process.terminate()
