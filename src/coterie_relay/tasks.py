"""Flower's SuperExec, with tokens in files of their owner instead of on command lines.

A task's token lets its holder take the message and answer it. Flower's own SuperExec hands it to
the process of the task as an argument, which every user of the machine can read (`ps`). Here it
lies in a file that only its owner can read, in the folder FLWR_HOME, until the process is over.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from flwr.supercore.cli import flower_superexec
from flwr.supercore.constant import TASK_TYPE_TO_APPIO_API_ADDRESS_ARG, TASK_TYPE_TO_COMMAND
from flwr.supercore.superexec import run_superexec as running
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult


class QuietExecutor(SubprocessExecutor):
    """Starts the processes of tasks; no argument of theirs is a secret."""

    def __init__(self) -> None:
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of a task."""
        number, name = tempfile.mkstemp(prefix="token-", dir=os.environ["FLWR_HOME"])
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(spec.token)
        command = [
            TASK_TYPE_TO_COMMAND[spec.task_type],
            TASK_TYPE_TO_APPIO_API_ADDRESS_ARG[spec.task_type],
            spec.runtime_api_address,
            "--token-file",
            name,
        ]
        if spec.insecure:
            command.append("--insecure")
        elif spec.root_certificates_path is not None:
            command += ["--root-certificates", spec.root_certificates_path]
        if spec.parent_pid is not None:
            command += ["--parent-pid", str(spec.parent_pid)]
        quiet = subprocess.DEVNULL if spec.suppress_output else None
        self._started.append((subprocess.Popen(command, stdout=quiet, stderr=quiet), Path(name)))
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Forget tasks that are over, and their tokens."""
        over = [(process, path) for process, path in self._started if process.poll() is not None]
        for one in over:
            self._started.remove(one)
            one[1].unlink(missing_ok=True)

    def close(self) -> None:
        """Forget all tokens."""
        for _, path in self._started:
            path.unlink(missing_ok=True)


def main() -> None:
    """What `flower-superexec` does, with our way to start a task."""
    running.get_executor = lambda *given, **named: QuietExecutor()
    flower_superexec()


if __name__ == "__main__":
    main()
