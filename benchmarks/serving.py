"""How fast `coterie serve` answers: requests per second and p99 at 1, 100 and 10,000 clients.

    python benchmarks/serving.py --write

Every client's model is a small network of its own. A real server runs in a process of its own;
64 connections ask for one row of a random client each, over and over.
Beside it stands the same server without stacking, which answers one request at a time. --write
puts the table into docs/serving.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import coterie
from coterie.core.files import digest, save_tensors
from coterie.data.read.user_data import from_arrays
from coterie.results.models import LIST, MODELS

PAGE = Path(__file__).parents[1] / "docs" / "serving.md"
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
CONNECTIONS = 64
FEATURES, HIDDEN, CLASSES = 20, 32, 5
PROGRAM = """
import sys
from pathlib import Path
from coterie.serving import batching
from coterie.serving.hosting import serve
from coterie.serving.service import ServiceLimits
batching.MAX_GROUP = int(sys.argv[2])
serve(Path(sys.argv[1]), port=0, open_to_all=True, limits=ServiceLimits(models=int(sys.argv[3])),
      say=lambda line: print(line, flush=True))
"""


def make_run(folder: Path, clients: int) -> None:
    """A run of many clients: a few are trained, the others get noise of their own added."""
    rng = np.random.default_rng(0)
    rows = 20 * 4
    x = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    y = rng.integers(0, CLASSES, rows)
    data = from_arrays(x, y, np.arange(rows) % 4)
    settings = {"rounds": 1, "hidden": HIDDEN, "threads": 1, "compile": "no", "validation": 0}
    run = coterie.run("local", dataset=data, out=folder, watch=lambda report: None, **settings)
    about = json.loads((folder / "run.json").read_text())
    trained = [run.model(k) for k in range(4)]
    listed = {}
    for i in range(clients):
        model = trained[i % 4]
        tensors = {k: t + 0.01 * np.float32(rng.normal()) for k, t in model.state_dict().items()}
        path = folder / MODELS / f"client-{i:05d}.safetensors"
        known = {
            "model": "dnn",
            "options": {"hidden": HIDDEN},
            "lacks": [],
            "shape": [FEATURES],
            "classes": CLASSES,
            "task": "classes",
            "client": str(i),
        }
        save_tensors(tensors, path, {"coterie": json.dumps(known)})
        listed[path.name] = digest(path)
    (folder / MODELS / LIST).write_text(json.dumps(listed))
    about["clients"] = [str(i) for i in range(clients)]
    about["rows"] = {part: [1] * clients for part in about["rows"]}
    about["groups"] = about["architecture"] = [0] * clients
    (folder / "run.json").write_text(json.dumps(about))


async def ask(port: int, clients: int, connections: int, seconds: float) -> list[float]:
    """Seconds of every request that was answered."""
    rng = np.random.default_rng(1)
    bodies = [
        json.dumps({"rows": rng.normal(size=(1, FEATURES)).round(3).tolist()}).encode()
        for _ in range(64)
    ]
    taken: list[float] = []
    end = time.perf_counter() + seconds

    async def one(seed: int) -> None:
        draw = random.Random(seed)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end:
            body, client = draw.choice(bodies), draw.randrange(clients)
            head = (
                f"POST /clients/{client}/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            began = time.perf_counter()
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            taken.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(one(seed) for seed in range(connections)))
    return taken


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, from Linux's own account."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    folder: Path, clients: int, connections: int, together: int, seconds: float
) -> tuple[float, float, float, float]:
    """(requests per second, p50 and p99 in ms, processor ms per request) of a server."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(together), "10000"],
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        asyncio.run(ask(port, clients, connections, seconds / 2))  # models are read meanwhile
        before = cpu_seconds(process.pid)
        taken = np.array(asyncio.run(ask(port, clients, connections, seconds)))
        spent = cpu_seconds(process.pid) - before
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
    middle, slow = (1000 * np.quantile(taken, (0.5, 0.99))).tolist()
    return len(taken) / seconds, middle, slow, 1000 * spent / len(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    lines = [
        "| clients | answers | requests per second | p50, ms | p99, ms | processor ms each |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as held:
        for clients in (1, 100, 10_000):
            folder = Path(held) / f"run-{clients}"
            make_run(folder, max(clients, 4))
            for settings, together in (("one at a time", 1), ("stacked", 256)):
                rate, middle, slow, spent = measure(
                    folder, clients, CONNECTIONS, together, chosen.seconds
                )
                lines.append(
                    f"| {clients:,} | {settings} | {rate:,.0f} | {middle:.0f} | {slow:.0f} | "
                    f"{spent:.2f} |"
                )
                print(lines[-1], flush=True)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    note = (
        f"Measured by `python benchmarks/serving.py --write` on {machine}, load average "
        f"{os.getloadavg()[0]:.0f}, with the asker on the same machine: {CONNECTIONS} "
        f"connections, one row of {FEATURES} numbers per request, networks of "
        f"{FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES:,} parameters."
    )
    if chosen.write:
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        table = "\n".join(lines)
        page = f"{before}{BEGIN}\n{table}\n\n{note}\n{END}{rest.split(END)[1]}"
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
