"""How fast the local engine is: against a plain PyTorch loop, and from process start to end.

    python benchmarks/engine.py [--turns N] [--quick] [--write docs/performance.md]

Prints ratios and writes them as Markdown, and as JSON beside it.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from workloads import MLR, WORKLOADS, Workload, engine_side, in_turns, plain_side, products_side
from workloads import ratio as ratio_of

from coterie.core.version import __version__
from coterie.engines.settings import Settings

METHODS = ("fedavg", "ditto", "pfedme")
RUN = "from coterie.cli.main import main; main()"
WHOLE = ["run", "fedavg", "--data", "mnist", "--split", "classes", "--clients", "20"]
WHOLE += ["--model", "mlr", "--batch", "10", "--rate", "0.01", "--evaluate", "10", "--quiet"]


def one(work: Workload, method: str, turns: int) -> dict[str, Any]:
    """The plain loop, the engine as steps are written, and the engine as it chooses to run."""
    torch.set_num_threads(os.cpu_count() or 1)
    chosen, engine = engine_side(work, method, Settings())
    chosen()
    choice = engine.settings[0]
    written, _ = engine_side(work, method, choice._replace(compile="no"), free_threads=False)
    sides = {"plain": plain_side(work, method), "written": written, "auto": chosen}
    products = products_side(work)
    if products and method == "fedavg":
        sides["products"] = products
    times = in_turns(sides, turns)
    return {
        "workload": work.label,
        "method": method,
        "plain_us": 1e6 * min(times["plain"]),
        "auto_us": 1e6 * min(times["auto"]),
        "written_ratio": ratio_of(times, "plain", "written"),
        "ratio": ratio_of(times, "plain", "auto"),
        "roofline": ratio_of(times, "products", "auto") if "products" in times else None,
        "choice": choice.text(),
        "threads": torch.get_num_threads(),
    }


def whole(rounds: int) -> list[dict[str, Any]]:
    """Seconds of the same command, from process start to end, twice: with nothing remembered, and
    again.
    """
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, label in enumerate(("first run", "second run")):
            out = ["--rounds", str(rounds), "--out", str(Path(folder) / str(number))]
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", RUN, *WHOLE, *out],
                env=os.environ | {"COTERIE_CACHE": str(Path(folder) / "cache")},
                check=True,
                stdout=subprocess.DEVNULL,
            )
            found.append({"label": label, "seconds": time.perf_counter() - begin})
    return found


def help_seconds() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", RUN, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def about() -> dict[str, Any]:
    """The machine, the versions and the moment."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "coterie": __version__,
        "commit": commit or "unknown",
        "date": datetime.date.today().isoformat(),
    }


def page(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    facts = found["about"]
    lines = [
        "| workload | method | plain loop, µs per step | engine, µs per client-step | as written "
        "| auto | of the roofline | auto's choice |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found["steps"]:
        share = f"{100 * row['roofline']:.0f} %" if row["roofline"] else ""
        plural = "s" * (row["threads"] > 1)
        lines.append(
            f"| {row['workload']} | {row['method']} | {row['plain_us']:.0f} | {row['auto_us']:.0f} "
            f"| {row['written_ratio']:.1f}x | **{row['ratio']:.1f}x** | {share} "
            f"| {row['choice']}, {row['threads']} thread{plural} |"
        )
    if found["whole"]:
        said = ", ".join(f"{one['label']} {one['seconds']:.1f} s" for one in found["whole"])
        lines += ["", f"FedAvg on MNIST, {found['rounds']} rounds, process start to end: {said}."]
    lines += [
        "",
        f"`coterie --help`: {found['help']:.2f} s.",
        "",
        f"Measured {facts['date']} at commit {facts['commit']} (coterie {facts['coterie']}, torch "
        f"{facts['torch']}, Python {facts['python']}) on {facts['machine']}, load "
        f"{facts['load']} at the start.",
    ]
    return "\n".join(lines)


BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write(path: Path, found: dict[str, Any]) -> None:
    """Put the figures into the page, and beside it as JSON."""
    text = path.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n{page(found)}\n{END}{after}", encoding="utf-8")
    path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="FedAvg on MLR alone")
    parser.add_argument("--rounds", type=int, default=50, help="of the whole run; 0: none")
    parser.add_argument("--write", type=Path)
    words = parser.parse_args()
    found: dict[str, Any] = {"about": about(), "help": help_seconds(), "steps": []}
    for work in [MLR] if words.quick else WORKLOADS:
        for method in METHODS[:1] if words.quick else METHODS:
            row = one(work, method, words.turns)
            found["steps"].append(row)
            print(f"{work.label}, {method}: {row['ratio']:.1f}x ({row['choice']})", flush=True)
    found |= {"rounds": words.rounds, "whole": whole(words.rounds) if words.rounds else []}
    print(page(found))
    if words.write:
        write(words.write, found)


if __name__ == "__main__":
    main()
