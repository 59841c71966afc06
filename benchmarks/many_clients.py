"""What idle clients cost: Ditto on Synthetic(0.5, 0.5), 100 active clients per round out of 1,000
to 1,000,000, every client with 5 rows.

`python benchmarks/many_clients.py [--most N] [--rows 5] [--rounds 20] [--json FILE] [--write PAGE]`
runs each number of clients in a process of its own, so that memory is measured alone, and prints
the growth exponents: a cost that grows as clients ** 0 is flat, one that grows as clients ** 1 is
the clients' own. `--write docs/performance.md` puts them into that page.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import about

BEGIN, END = "<!-- idle: begin -->", "<!-- idle: end -->"
CROWDS = (1_000, 10_000, 100_000, 1_000_000)
ACTIVE = 100
# word: (heading, digits after the point)
SHOWN = {
    "setup_s": ("set-up s", 2),
    "round_ms": ("round ms", 1),
    "rounds_per_s": ("rounds/s", 1),
    "peak_gb": ("peak GB", 2),
    "checkpoint_kb": ("checkpoint kB", 0),
    "checkpoint_ms": ("checkpoint ms", 1),
    "evaluation_s": ("evaluation s", 2),
    "peak_evaluated_gb": ("peak GB then", 2),
}


def memory() -> float:
    """The most memory this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(clients: int, rows: int, rounds: int) -> dict[str, Any]:
    """One number of clients, in this process."""
    import numpy as np
    import torch

    from coterie.core.method import Train, stages_of
    from coterie.core.model import Model
    from coterie.data.pipeline import build_federation
    from coterie.engines.base import EngineSetup
    from coterie.engines.local.engine import LocalEngine
    from coterie.engines.settings import ExecutionSettings
    from coterie.experiment.schedule import Schedule
    from coterie.methods.registry import METHODS
    from coterie.networks import registry
    from coterie.running.execute import write_checkpoint
    from coterie.running.loop import Loop

    torch.set_num_threads(1)
    start = memory()
    begin = time.perf_counter()
    options = {"num_clients": clients, "draws": "streams", "rows_each": rows}
    data = build_federation("synthetic", num_clients=clients, data_options=options)
    model = Model(lambda: registry.build_network("mlr", (60,), 10), input_shape=(60,))
    program = stages_of(METHODS["ditto"](model, Train(batch_size=10, lr=0.01, local_steps=20)))
    setup = EngineSetup(
        federation=data,
        models=[model],
        programs=[program],
        architecture=np.zeros(clients, dtype=int),
        settings=[ExecutionSettings("vectorized", ACTIVE, "trace")],
    )
    schedule = Schedule(
        rounds=rounds + 1, participation=min(ACTIVE, clients), eval_every=rounds + 1
    )
    loop = Loop(LocalEngine(setup), data, schedule, 0)
    found: dict[str, Any] = {"clients": clients, "rows_per_client": rows, "start_gb": start}
    found["setup_s"] = time.perf_counter() - begin
    times: list[float] = []
    loop.go(lambda loop, report: times.append(report.seconds), until=rounds)
    typical = sorted(times)[len(times) // 2]
    found |= {"round_ms": 1000 * typical, "rounds_per_s": 1 / typical, "peak_gb": memory()}
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        write_checkpoint(loop, Path(folder))
        found["checkpoint_ms"] = 1000 * (time.perf_counter() - begin)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        found["checkpoint_kb"] = size / 1000
    begin = time.perf_counter()
    loop.evaluate(final=True)
    found["evaluation_s"] = time.perf_counter() - begin
    found["peak_evaluated_gb"] = memory()
    return found


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of the line through the logarithms."""
    x, y = [math.log(n) for n in sizes], [math.log(max(v, 1e-9)) for v in values]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    away = [a - middle_x for a in x]
    return sum(a * (b - middle_y) for a, b in zip(away, y, strict=True)) / sum(a * a for a in away)


def table(found: list[dict[str, Any]]) -> str:
    """All numbers, one column per number of clients."""
    lines = [
        "".join([f"{'clients':<15}", *(f"{one['clients']:>12,}" for one in found), "  exponent"])
    ]
    sizes = [one["clients"] for one in found]
    for option, (heading, digits) in SHOWN.items():
        values = [one[option] for one in found]
        grows = f"{exponent(sizes, values):>10.2f}" if len(found) > 1 else ""
        lines.append(f"{heading:<15}" + "".join(f"{v:>12,.{digits}f}" for v in values) + grows)
    return "\n".join(lines)


def page(found: list[dict[str, Any]]) -> str:
    """The same as Markdown."""
    sizes = [one["clients"] for one in found]
    lines = ["| clients | " + " | ".join(f"{n:,}" for n in sizes) + " | exponent |"]
    lines.append("|---" * (len(found) + 2) + "|")
    for option, (heading, digits) in SHOWN.items():
        values = [one[option] for one in found]
        cells = [heading, *(f"{v:,.{digits}f}" for v in values), f"{exponent(sizes, values):.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    facts = about()
    return "\n".join(
        [
            *lines,
            "",
            f"Measured {facts['date']} at commit {facts['commit']} (coterie {facts['coterie']}, "
            f"torch {facts['torch']}) on {facts['machine']}, load {facts['load']} at the end; one "
            "thread.",
        ]
    )


def write(path: Path, found: list[dict[str, Any]]) -> None:
    """Put the figures into a page."""
    text = path.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n{page(found)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--most", type=int, default=CROWDS[-1], help="most clients")
    parser.add_argument("--rows", type=int, default=5, help="of every client")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    parser.add_argument("--write", type=Path, help="put the numbers into this page")
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)  # one crowd, in this process
    asked = parser.parse_args()
    if asked.alone:
        print(json.dumps(measure(asked.alone, asked.rows, asked.rounds)))
        return
    found = []
    for clients in [n for n in CROWDS if n <= asked.most] or [asked.most]:
        settings = ["--alone", clients, "--rows", asked.rows, "--rounds", asked.rounds]
        command = [sys.executable, __file__, *map(str, settings)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    print(table(found))
    if asked.write and len(found) > 1:
        write(asked.write, found)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
