"""What every side of a comparison reads and says: the same rows, network, rate and steps in, one
line of JSON out.

It needs NumPy alone, since every peer runs in an environment of its own.
"""

import argparse
import json
import statistics
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Job(NamedTuple):
    """A federated averaging run on rows that lie in one file, client after client."""

    net: str  # "mlr", "dnn" or "cnn"
    batch: int
    rate: float
    rounds: int
    cohort: int  # clients per round
    every_x: np.ndarray  # [n, ...] training rows, client after client, and then test rows
    every_y: np.ndarray  # [n]
    starts: np.ndarray  # [clients + 1] where the training rows of each client begin
    init: list[np.ndarray]  # the parameters of the network before the first round, in its order

    @property
    def clients(self) -> int:
        return len(self.starts) - 1

    @property
    def test_x(self) -> np.ndarray:
        return self.every_x[self.starts[-1] :]

    @property
    def test_y(self) -> np.ndarray:
        return self.every_y[self.starts[-1] :]

    def rows(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """A client's training rows and labels."""
        mine = slice(self.starts[client], self.starts[client + 1])
        return self.every_x[mine], self.every_y[mine]

    def asked(self, number: int) -> list[int]:
        """The clients of a round."""
        rng = np.random.default_rng([0, number])
        return sorted(rng.choice(self.clients, self.cohort, replace=False).tolist())

    def steps(self, clients: list[int]) -> int:
        """The mini-batches of some clients in one epoch."""
        sizes = np.diff(self.starts)[clients]
        return int(np.ceil(sizes / self.batch).sum())


@cache
def job(settings: tuple[str, ...] | None = None) -> Job:
    """What the command line, or its words, ask for; read once per process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--net", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--cohort", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    asked = vars(parser.parse_args(settings))
    return read(asked.pop("data"), **asked)


def read(path: Path, *, net: str, rounds: int, cohort: int, batch: int, rate: float) -> Job:
    """The job on the rows of a file."""
    with np.load(path) as held:
        init = [held[f"init{k}"] for k in range(sum(n.startswith("init") for n in held.files))]
        return Job(
            net=net,
            batch=batch,
            rate=rate,
            rounds=rounds,
            cohort=cohort,
            every_x=held["x"],
            every_y=held["y"],
            starts=held["starts"],
            init=init,
        )


def report(seconds: list[float], steps: int, accuracy: float, loss: float) -> None:
    """Say what a run took and reached: seconds of each round, client-steps of all of them, what the
    last model is worth on test rows, and the most bytes that this process has held.
    """
    said = {
        "round_seconds": statistics.median(seconds),
        "rounds": len(seconds),
        "steps": steps,
        "accuracy": accuracy,
        "loss": loss,
        "memory": peak_memory(),
    }
    print(json.dumps(said), flush=True)


def peak_memory() -> int | None:
    """The most bytes that this process has held; None where the system does not say. What
    `getrusage` says begins with the parent's.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)
