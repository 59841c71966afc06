"""Coterie beside its peers: the same federated averaging run, each from process start to end.

The sides take turns: a plain PyTorch loop, Flower's simulation, Apple's pfl, fedjax and Coterie.
All read the same rows and the same first parameters from one file.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from environments import NotInstalled, python_of, versions
from exported import Comparison, export
from peers import common

HERE = Path(__file__).resolve().parent
LIMIT = 1800  # seconds that one run of a side may take
FIELDS = ("net", "rounds", "cohort", "batch", "rate")
TIMES = ("seconds", "round_seconds")
DIGITS = {"dataset": "mnist", "partition": "classes", "classes_each": 2, "num_clients": 20}
DIGITS |= {"validation": 0, "test": 0.2614}  # 5,178 client-steps per round
IMAGES = {
    "dataset": "cifar10",
    "partition": "iid",
    "num_clients": 1000,
    "validation": 0,
    "test": 1 / 6,
}
COMPARISONS = [
    Comparison(
        label="MLR, MNIST, 20 clients of two digits, B 10, 50 rounds",
        net="mlr",
        settings=DIGITS,
        rounds=50,
        cohort=20,
        rate=0.01,
        sides=("plain", "fedjax", "coterie"),
    ),
    Comparison(
        label="DNN 784-100-10, the same clients, 50 rounds",
        net="dnn",
        settings=DIGITS,
        rounds=50,
        cohort=20,
        rate=0.01,
        sides=("fedjax", "coterie"),
    ),
    Comparison(
        label="MLR, the same clients, 4 rounds",
        net="mlr",
        settings=DIGITS,
        rounds=4,
        cohort=20,
        rate=0.01,
        sides=("plain", "flower", "pfl", "coterie"),
    ),
    Comparison(
        label="CIFAR-10, 1,000 users of 50 images, cohort 50, B 10, rate 0.1, 3 rounds",
        net="cnn",
        settings=IMAGES,
        rounds=3,
        cohort=50,
        rate=0.1,
        sides=("plain", "flower", "pfl", "coterie"),
    ),
    Comparison(
        label="CIFAR-10, the same users, 50 rounds",
        net="cnn",
        settings=IMAGES,
        rounds=50,
        cohort=50,
        rate=0.1,
        sides=("pfl", "coterie"),
    ),
]


class Side(NamedTuple):
    """A program that plays comparisons."""

    title: str
    script: str
    peer: str = ""  # whose environment it runs in; "": this one


SIDES = {
    "plain": Side("plain PyTorch loop", "plain.py"),
    "flower": Side("Flower, simulation", "flower_sim.py", "flower"),
    "pfl": Side("pfl (Apple)", "pfl_sim.py", "pfl"),
    "fedjax": Side("fedjax", "fedjax_sim.py", "fedjax"),
    "coterie": Side("Coterie", "ours.py"),
}


def play(side: Side, comparison: Comparison, data: Path, cache: Path) -> dict[str, Any]:
    """One run of one side; its own figures and the seconds from process start to end."""
    python = str(python_of(side.peer)) if side.peer else sys.executable
    paths = [str(HERE / "peers"), *([] if side.peer else [str(HERE.parent / "src")])]
    # a peer would take a GPU where there is one; Coterie runs as after many runs: it remembers
    more = {"PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
    more["COTERIE_CACHE"] = str(cache)
    more["RAY_worker_niceness"] = "0"  # Ray's workers step back for others, where no side does
    begin = time.perf_counter()
    done = subprocess.run(
        [python, side.script, str(data), *comparison.arguments],
        cwd=HERE / "peers",
        env=os.environ | more,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    seconds = time.perf_counter() - begin
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        why = [line for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        raise RuntimeError(f"{side.title}: {why[-1].strip()[:300]}")
    return json.loads(lines[-1]) | {"seconds": seconds}


def one(comparison: Comparison, folder: Path, repeats: int) -> dict[str, Any]:
    """All sides of a comparison in turns; a side that fails is left out with the reason."""
    data = export(comparison, folder)
    job = common.read(data, **{k: getattr(comparison, k) for k in FIELDS})
    wanted = sum(job.steps(job.asked(k)) for k in range(job.rounds))
    del job
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in comparison.sides}
    missing: dict[str, str] = {}
    for turn in range(repeats):
        names = [*runs][turn % len(runs) :] + [*runs][: turn % len(runs)]
        for name in names:
            if name in missing:
                continue
            try:
                found = play(SIDES[name], comparison, data, folder / "cache")
            except (NotInstalled, RuntimeError, subprocess.TimeoutExpired) as problem:
                missing[name] = str(problem)
                print(f"  {name} is left out: {problem}", flush=True)
                continue
            runs[name].append(found)
            print(
                f"  {name}: {found['seconds']:.1f} s, {found['round_seconds']:.3f} s per round, "
                f"accuracy {found['accuracy']:.3f}, {gigabytes(found)} GB",
                flush=True,
            )
    sides = {name: summary(found, wanted) for name, found in runs.items() if found}
    return {"label": comparison.label, "steps": wanted, "sides": sides, "missing": missing}


def summary(runs: list[dict[str, Any]], wanted: int) -> dict[str, Any]:
    """The medians of a side's runs; `lost` is the share of client-steps that it did not take."""
    out = {
        option: statistics.median(run[option] for run in runs)
        for option in ("seconds", "round_seconds", "accuracy", "loss", "steps")
    }
    held = [run["memory"] for run in runs if run["memory"]]
    out["memory"] = max(held, default=None)
    return out | {"runs": len(runs), "lost": 1 - out["steps"] / wanted}


def gigabytes(found: dict[str, Any]) -> str:
    """The most memory of a side's own process; "" where it is not known."""
    return f"{found['memory'] / 1e9:.2f}" if found.get("memory") else ""


def measure(repeats: int, only: str = "") -> dict[str, Any]:
    """Every comparison whose label has `only` in it, and the versions of the peers."""
    chosen = [c for c in COMPARISONS if only.lower() in c.label.lower()]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for comparison in chosen:
            print(f"{comparison.label}:", flush=True)
            found.append(one(comparison, Path(folder), repeats))
    used = {SIDES[name].peer for each in found for name in each["sides"]} - {""}
    return {"comparisons": found, "versions": {peer: versions(peer) for peer in sorted(used)}}


def page(found: dict[str, Any]) -> list[str]:
    """The figures as Markdown: a row per side."""
    lines = [
        "| run | side | start to end, s | Coterie faster | per round, s | Coterie faster "
        "| accuracy | main process, GB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in found["comparisons"]:
        ours = each["sides"].get("coterie")
        for number, (name, side) in enumerate(each["sides"].items()):
            times = [f"{side[option] / ours[option]:.1f}x" if ours else "" for option in TIMES]
            whole, per_round = ("", "") if name == "coterie" else times
            lines.append(
                f"| {'' if number else each['label']} | {SIDES[name].title} "
                f"| {side['seconds']:.1f} | {whole} | {side['round_seconds']:.3f} "
                f"| {per_round} | {side['accuracy']:.3f} | {gigabytes(side)} |"
            )
    lines.append("")
    for each in found["comparisons"]:
        for name, side in each["sides"].items():
            if abs(side.get("lost", 0.0)) > 0.01:
                lines.append(
                    f"{SIDES[name].title} took {100 * (1 - side['lost']):.0f} % of the "
                    f"client-steps in: {each['label']}."
                )
        for name, why in each["missing"].items():
            lines.append(f"{SIDES[name].title} is left out of {each['label']}: {why}")
    said = [", ".join(f"{k} {v}" for k, v in pins.items()) for pins in found["versions"].values()]
    return [*lines, f"Peers: {'; '.join(said) or 'none'}."]
