"""Measure Coterie beside a plain PyTorch loop, its peers, and what the machine can do.

    python benchmarks/bench.py [--only steps,peers] [--repeats 3] [--write docs/performance.md]

Sections: steps (the engine's steps against the plain loop and the roofline), gradients (what a
gradient costs with each method), whole (commands from process start to end), peers (Flower, pfl
and fedjax, each in an environment of its own), auto (what choosing settings loses), ray (the Ray
engine). Each runs in a process of its own. --pick takes the workloads whose name holds a text.

--write puts the figures into the page, and into the JSON beside it; sections that were not run keep
their figures. Environments of peers lie in .bench/envs, or where COTERIE_BENCH_ENVS says.
"""

import argparse
import datetime
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from coterie.core.version import __version__

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


class Section(NamedTuple):
    """A part of the benchmark: the module that measures it, and what its table shows."""

    module: str
    title: str
    text: str


SECTIONS = {
    "steps": Section(
        "steps",
        "Steps",
        "The local engine with `auto` settings against the plain loop, which has one thread or all "
        "of them, whatever suits it better. A ratio is the median over turns. Of the roofline: the "
        "least time in which this machine could do a step's operations or move its bytes "
        "(parameters read and written, rows read) over the time it took.",
    ),
    "gradients": Section(
        "gradients",
        "Cost per gradient",
        "What one gradient of one mini-batch costs with each method, everything else of an "
        "exchange included, against FedAvg's with batches of the same size.",
    ),
    "whole": Section("whole", "Whole commands", "What a user waits for."),
    "peers": Section(
        "against_peers",
        "Beside other simulators",
        "The same federated averaging run from the same first parameters on the same rows, each "
        "side a program of its own, in turns. Coterie's writes its run folder, but no copies of "
        "the one model.",
    ),
    "auto": Section(
        "chosen",
        "What `auto` loses",
        "Whole runs with a new engine, against the best of all fixed settings.",
    ),
    "ray": Section("ray_engine", "The Ray engine", "Rounds of all clients, in turns."),
}


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


def run(name: str, repeats: int, pick: str) -> dict[str, Any] | None:
    """A section in a process of its own; None where it failed."""
    facts = about() | {"repeats": repeats, "picked": pick}
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        settings = [str(repeats), pick, str(path)]
        done = subprocess.run([sys.executable, __file__, "--section", name, *settings], check=False)
        if done.returncode:
            print(f"{name} failed and is left out", flush=True)
            return None
        found = json.loads(path.read_text())
    return {"about": facts | {"seconds": round(time.perf_counter() - begin)}, "found": found}


def measure(name: str, repeats: str, pick: str, path: str) -> None:
    """What a section's process does."""
    module = importlib.import_module(SECTIONS[name].module)
    Path(path).write_text(json.dumps(module.measure(int(repeats), pick)))


def page(known: dict[str, Any]) -> str:
    """All figures as Markdown."""
    lines: list[str] = []
    for name, section in SECTIONS.items():
        if name not in known:
            continue
        module = importlib.import_module(section.module)
        lines += [f"### {section.title}", "", section.text, "", *module.page(known[name]["found"])]
        lines += ["", *sources(known[name]), ""]
    return "\n".join(lines).rstrip()


def sources(section: dict[str, Any]) -> list[str]:
    """Where and when a section was measured, or each of its comparisons."""
    comparisons = section["found"].get("comparisons", [])
    if not all("measured" in each for each in comparisons) or not comparisons:
        return [source(section["about"])]
    return [f"- {each['label']}: {each['measured']}" for each in comparisons]


def source(facts: dict[str, Any]) -> str:
    """Where and when a section was measured."""
    # a section that was stopped before its end has no more than its lines told
    load = f", load {facts['load']} at the start" if "load" in facts else ""
    took = f"; {facts['seconds']} s in all" if "seconds" in facts else ", stopped before its end"
    some = f', only "{facts["picked"]}"' if facts["picked"] else ""
    return (
        f"Measured {facts['date']} at commit {facts['commit']} (coterie {facts['coterie']}, torch "
        f"{facts['torch']}, Python {facts['python']}) on {facts['machine']}{load}; turns: "
        f"{facts['repeats']}{some}{took}."
    )


def write(path: Path, known: dict[str, Any]) -> None:
    """Put the figures into the page, and beside it as JSON."""
    text = path.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n{page(known)}\n{END}{after}", encoding="utf-8")
    whole = json.dumps({"sections": known}, indent=1)
    path.with_suffix(".json").write_text(whole + "\n", encoding="utf-8")


def earlier(path: Path | None) -> dict[str, Any]:
    """The sections that were measured before."""
    held = path.with_suffix(".json") if path else None
    if held is None or not held.exists():
        return {}
    return json.loads(held.read_text(encoding="utf-8")).get("sections", {})


def beside(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Picked comparisons beside those that were measured before; the others' sections are new."""
    if old is None or "comparisons" not in new["found"]:
        return new
    for each in old["found"]["comparisons"]:
        each.setdefault("measured", source(old["about"]))
    for each in new["found"]["comparisons"]:
        each["measured"] = source(new["about"] | {"picked": ""})
    now = {each["label"]: each for each in new["found"]["comparisons"]}
    found = [now.pop(each["label"], each) for each in old["found"]["comparisons"]]
    versions = old["found"]["versions"] | new["found"]["versions"]
    return new | {"found": {"comparisons": [*found, *now.values()], "versions": versions}}


def main() -> None:
    if sys.argv[1:2] == ["--section"]:
        measure(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas")
    parser.add_argument("--repeats", type=int, default=3, help="turns of every side")
    parser.add_argument("--pick", default="", help="a text that the names of workloads hold")
    parser.add_argument("--write", type=Path, help="the page to put the figures into")
    settings = parser.parse_args()
    names = settings.only.split(",")
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        parser.error(f"unknown section '{unknown[0]}': give {', '.join(SECTIONS)}")
    known = earlier(settings.write)
    for name in names:
        print(f"== {name}", flush=True)
        found = run(name, settings.repeats, settings.pick)
        if found:
            known[name] = beside(known.get(name), found) if settings.pick else found
            print(page({name: found}), flush=True)
            if settings.write:  # section by section: what was measured is kept
                write(settings.write, known)


if __name__ == "__main__":
    main()
