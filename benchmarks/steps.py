"""How fast the local engine takes steps: against a plain PyTorch loop, and against what the machine
can do.
"""

import os
import statistics
from typing import Any

import torch
from roofline import Machine, machine, need
from workloads import (
    INNER,
    WORKLOADS,
    Workload,
    engine_side,
    in_turns,
    on_threads,
    plain_side,
    quicker,
    ratio,
)

from coterie.engines.settings import ExecutionSettings

GRADIENTS = {"fedavg": 1, "ditto": 2, "pfedme": INNER}  # per step


def one(work: Workload, method: str, turns: int, best: Machine) -> dict[str, Any]:
    """The plain loop and the engine as it chooses to run, in turns."""
    plain = quicker(plain_side(work, method))
    torch.set_num_threads(os.cpu_count() or 1)
    auto, engine = engine_side(work, method, ExecutionSettings())
    auto()  # it chooses, threads included
    threads = torch.get_num_threads()
    chosen = engine.settings[0]
    traced, _ = engine_side(work, method, chosen._replace(compile="trace"))
    sides = {"plain": plain, "auto": on_threads(auto, threads)}
    if chosen.compile == "yes":
        sides["trace"] = on_threads(traced, threads)
    times = in_turns(sides, turns)
    ours = statistics.median(times["auto"])
    least = best.seconds(need(work.network(), work.shape, work.batch, GRADIENTS[method]))
    return {
        "workload": work.label,
        "method": method,
        "steps": work.steps,
        "plain_us": 1e6 * statistics.median(times["plain"]),
        "auto_us": 1e6 * ours,
        "ratio": ratio(times, "plain", "auto"),
        "over_trace": ratio(times, "trace", "auto") if "trace" in times else None,
        "roofline": least / ours,
        "choice": chosen.text(),
        "threads": threads,
    }


def measure(turns: int, only: str = "") -> dict[str, Any]:
    """Every workload whose label has `only` in it, with its methods."""
    best = machine()
    rows = []
    for work in WORKLOADS:
        for method in work.methods if only.lower() in work.label.lower() else ():
            row = one(work, method, turns, best)
            rows.append(row)
            print(
                f"{work.label}, {method}: {row['ratio']:.1f}x, {100 * row['roofline']:.0f} % of "
                f"the roofline ({row['choice']})",
                flush=True,
            )
    return {"machine": best._asdict(), "rows": rows}


def page(found: dict[str, Any]) -> list[str]:
    """The figures as Markdown."""
    lines = [
        "| workload | method | plain, µs per step | engine, µs | engine, ms per round | faster "
        "| machine code over trace | of the roofline | auto's choice |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        plural = "s" * (row["threads"] > 1)
        over = f"{row['over_trace']:.1f}x" if row.get("over_trace") else ""
        lines.append(
            f"| {row['workload']} | {row['method']} | {row['plain_us']:.0f} | {row['auto_us']:.0f} "
            f"| {row['auto_us'] * row['steps'] / 1000:.0f} | **{row['ratio']:.1f}x** "
            f"| {over} | {100 * row['roofline']:.0f} % | {row['choice']}, "
            f"{row['threads']} thread{plural} |"
        )
    best = found["machine"]
    return [
        *lines,
        "",
        f"The machine's roofline in this run: {best['flops'] / 1e9:.0f} GFLOP/s of a large matrix "
        f"product, {best['bytes'] / 1e9:.0f} GB/s of a large copy, all threads.",
    ]
