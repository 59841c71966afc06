"""What a round of a long run costs at its end: memory of the table, and seconds per checkpoint.

`python benchmarks/long_run.py [clients]` plays rounds without training (20 clients unless told):
costs, a note and the measures of two views go into the table, and every tenth round is a
checkpoint with the states of a small network. It prints a line at round 100, 1,000 and 3,000.
"""

import resource
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import torch

from coterie.core.checkpoint import save_checkpoint
from coterie.results.metric_table import EVERYONE, MARK, ROWS, Table

EVERY, SHOWN = 10, (100, 1_000, 3_000)
COSTS = ("bytes_down", "bytes_broadcast", "bytes_up", "steps", "gradients", "clients", "seconds")


def note_round(table: Table, round: int, clients: int, rng: np.random.Generator) -> None:
    """What one round writes down."""
    everyone = np.arange(clients)
    for metric in COSTS:
        table.add("train", round, np.array([EVERYONE]), "", "", metric, rng.random(1))
    table.add("train", round, everyone, "", "", "alpha", rng.random(clients))
    for view in ("personal", "global"):
        for part in ("train", "validation", "test"):
            for metric in ("loss", "accuracy"):
                table.add("train", round, everyone, view, part, metric, rng.random(clients))


def play(clients: int, folder: Path) -> None:
    table, rng = Table(), np.random.default_rng(0)
    table.keep(folder / ROWS)
    states = torch.as_tensor(rng.random((clients, 2_410)), dtype=torch.float32)
    times: list[float] = []
    tracemalloc.start()
    for round in range(1, SHOWN[-1] + 1):
        note_round(table, round, clients, rng)
        if round % EVERY == 0:
            begin = time.perf_counter()
            tree = {"round": round, "states": states}
            save_checkpoint(folder, round, tree, {MARK: table.write_mark})
            times.append(time.perf_counter() - begin)
        if round in SHOWN:
            held = tracemalloc.get_traced_memory()[0] / 2**20
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
            print(
                f"round {round:,}: {1000 * sorted(times[-10:])[5]:.1f} ms per checkpoint (median "
                f"of the last ten), {held:.2f} MB held, {peak:.0f} MB peak of the process, "
                f"{(folder / ROWS).stat().st_size / 2**20:.1f} MB of rows on disk"
            )
    begin = time.perf_counter()
    table.write(folder / "metrics.parquet")
    print(f"the finished table of {table.whole().num_rows:,} rows: ", end="")
    print(f"{time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        play(int(sys.argv[1]) if len(sys.argv) > 1 else 20, Path(place))
