"""`coterie data` and `coterie compare` of a large table: rows x 30 columns, 200 rows a client.

It has numbers with gaps, texts, a date and a binary label.

    python benchmarks/large_compare.py                    # 20,000 rows: a minute
    python benchmarks/large_compare.py --rows 1000000     # 224 MB, 5,000 clients

Both commands run in processes of their own, so that each peak is its own. Seconds are those of the
processor. What is not training is what a comparison of one round costs without its rounds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

CLIENT_ROWS, NUMBERS, METHODS = 200, 24, "local,fedavg"
COLORS, TOWNS = ("red", "green", "blue", "grey"), 60


class Cost(NamedTuple):
    """What a process took."""

    seconds: float  # of the processor
    memory: float  # GB at its peak


def make(path: Path, rows: int) -> None:
    """Clients whose label depends on the same columns, each in its own way."""
    rng = np.random.default_rng(0)
    clients = max(2, rows // CLIENT_ROWS)
    owner = np.sort(rng.integers(0, clients, rows))
    x = rng.normal(size=(rows, NUMBERS))
    weights = 0.3 * rng.normal(size=NUMBERS) + 0.25 * rng.normal(size=(clients, NUMBERS))[owner]
    columns: dict[str, object] = {"client": [f"c{k:05d}" for k in owner.tolist()]}
    for k in range(NUMBERS):
        cells = np.round(x[:, k] * (k + 1) + 3 * k, 4)
        cells[(rng.random(rows) < 0.02) & (k % 4 == 0)] = np.nan
        columns[f"number{k:02d}"] = pl.Series(cells, nan_to_null=True)
    columns["colour"] = np.array(COLORS)[rng.integers(0, len(COLORS), rows)]
    columns["town"] = np.array([f"town {k}" for k in range(TOWNS)])[rng.integers(0, TOWNS, rows)]
    columns["seen"] = np.datetime64("2020-01-01") + rng.integers(0, 1500, rows).astype("m8[D]")
    columns["smokes"] = np.array(["yes", "no"])[rng.integers(0, 2, rows)]
    noisy = (x * weights).sum(1) + rng.normal(size=rows)
    columns["outcome"] = np.where(noisy > 0, "ill", "well")
    pl.DataFrame(columns).write_csv(path)


def measure(folder: Path, *command: str) -> Cost:
    """A command of coterie, in a process of its own."""
    whole = [sys.executable, "-W", "ignore", "-m", "coterie", *command]
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(whole, cwd=folder, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit((folder / "said.txt").read_text()[-2000:])
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make(folder / "large.csv", given.rows)
        size = (folder / "large.csv").stat().st_size / 1e9
        roles = ("--client", "client", "--label", "outcome")
        read = measure(folder, "data", "large.csv", *roles)
        compare = ["compare", "large.csv", *roles, "--methods", METHODS]
        once = measure(folder, *compare, "--rounds", "1", "--out", "once")
        whole = measure(folder, *compare, "--rounds", str(given.rounds), "--out", "whole")
    each = (whole.seconds - once.seconds) / max(1, given.rounds - 1)
    rest = once.seconds - each
    print(f"{given.rows:,} rows of {max(2, given.rows // CLIENT_ROWS):,} clients, {size:.3f} GB")
    for name, cost in (("data", read), (f"compare, {given.rounds} rounds", whole)):
        print(
            f"{name}: {cost.seconds:.1f} s, peak {cost.memory:.2f} GB = "
            f"{cost.memory / size:.1f} x the file"
        )
    print(
        f"a round of {METHODS}: {each:.2f} s; not training: {rest:.1f} s = "
        f"{rest / whole.seconds:.0%} of all, {rest / read.seconds:.1f} x `coterie data`"
    )


if __name__ == "__main__":
    main()
