"""What the server of each method costs, by the number of clients: time, memory and traffic.

    python benchmarks/server_scale.py [--quick] [--accuracy] [--page] [--write docs/performance.md]

Every cell (a method, its options, a number of clients) is measured in a process of its own with a
limit of memory and of time. `--accuracy` also trains the methods whose servers compare clients with
each other, as published and with few peers, on 120 clients in four groups, three seeds each. Cells
that the JSON file beside the page has already are not measured again; `--page` measures none.
"""

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from server_cells import SENDS, Cell, Found, measure, run

import coterie
from coterie.core.memory import read_memory_limit
from coterie.core.version import __version__
from coterie.methods.registry import METHODS

TICK = 0.01  # seconds that the processor's clock may be off
LIMIT = 60  # seconds of the processor per cell
CROWD, SITES, PHONES, ACTIVE = (100, 1_000, 10_000, 100_000), 10_000, 1_000_000, 100
SMALL, LARGE = 578, 9_950  # parameters
Options = tuple[tuple[str, Any], ...]
SPLITS: Options = (("after", 0), ("eps1", 1e5), ("eps2", 1e-5))  # a split in the first round
PEERS: Options = (("peers", 50),)
PAIRS: dict[str, tuple[Options, Options]] = {  # as published, and the form that scales
    "ucfl": ((), PEERS),
    "fedamp": ((), PEERS),
    "heurfedamp": ((), PEERS),
    "fedfomo": ((), PEERS),
    "ktpfl": ((), PEERS),
    "ktpfl-h": ((), PEERS),
    "cfl": (SPLITS, (*SPLITS, ("bundles", 1_000))),
    "sim-pfl": ((), ()),
    "topk-pfl": ((), ()),
}
WIDE = ("ucfl", "fedamp", "fedfomo", "cfl")  # which keep a vector of d per client
GROUPED = {
    "dataset": "mnist",
    "partition": "iid",
    "permute": 4,
    "num_clients": 120,
    "model": "mlr",
    "batch_size": 50,
    "lr": 0.05,
    "rounds": 20,
    "eval_every": 20,
    "path": "vectorized",
    "width": 120,
    "compile": "no",
    "threads": 1,
}
TRIED: dict[str, tuple[dict[str, Any], ...]] = {
    "ucfl": ({}, {"peers": 5}, {"peers": 20}, {"peers": 50}, {"streams": 4, "peers": 20}),
    "fedamp": ({}, {"peers": 20}),
    "heurfedamp": ({}, {"peers": 20}),
    "fedfomo": ({}, {"peers": 20}),
    "ktpfl-h": ({"mu": 0.5}, {"mu": 0.5, "peers": 20}),
    "cfl": ({"after": 5}, {"after": 5, "bundles": 20}),
}
SEEDS = (0, 1, 2)


def scaling(method: str) -> Options:
    """The options with which a method scales best, without forced splits."""
    return tuple(o for o in PAIRS.get(method, ((), ()))[1] if o not in SPLITS)


def cells(quick: bool) -> list[Cell]:
    """All that is measured."""
    crowd, methods = (CROWD[:2], list(METHODS)[:2]) if quick else (CROWD, list(METHODS))
    found = [*pairs(SMALL, crowd[:3]), *pairs(LARGE, crowd[:2])]
    found += [
        Cell(name, n, active, SMALL, scaling(name))
        for n, active in ((SITES, SITES), (crowd[-1], ACTIVE), (PHONES, ACTIVE))
        for name in methods
    ]
    found += [Cell(name, SITES, ACTIVE, SMALL, scaling(name)) for name in PAIRS]
    return list(dict.fromkeys([*found, *pairs(SMALL, crowd), *pairs(LARGE, crowd)]))


def pairs(size: int, crowd: Sequence[int]) -> list[Cell]:
    """Exact and scaling forms with everyone active."""
    return [
        Cell(name, n, n, size, options)
        for n in crowd
        for name in (PAIRS if size == SMALL else WIDE)
        for options in dict.fromkeys(PAIRS[name])
    ]


def key(cell: Cell) -> str:
    """A cell's name in the JSON file."""
    options = ",".join(f"{k}={v}" for k, v in cell.options)
    return f"{cell.method} [{options}] N={cell.clients} active={cell.active} d={cell.size}"


# Accuracy


def accuracy(method: str, options: dict[str, Any], seed: int) -> float:
    """Mean over clients of the test accuracy, in percent."""
    with tempfile.TemporaryDirectory() as folder:
        done = coterie.run(
            method,
            out=Path(folder) / "run",
            seed=seed,
            watch=lambda report: None,
            **GROUPED,
            **options,
        )
        return 100 * float(np.nanmean(done.client_values("test")))


def label(method: str, options: dict[str, Any]) -> str:
    """A method and its options in words."""
    return " ".join([method, *(f"--{k} {v}" for k, v in options.items())])


# The page


def gigabytes(size: float) -> str:
    """Bytes with a unit that fits."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} B"


def seconds(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.3g} s"


def exponent(found: Sequence[tuple[int, float]]) -> float:
    """The slope of log y by log n between the last two points; NaN where there are fewer."""
    if len(found) < 2:
        return math.nan
    (n, y), (m, z) = found[-2:]
    return math.log(z / y) / math.log(m / n)


Table = dict[str, Found]
Part = Callable[[Found], float]


def work(found: Found) -> float:
    """Seconds of a round and of what comes once."""
    return found.seconds + found.once


def grown(table: Table, name: str, options: Options, size: int, part: Part) -> str:
    """The exponent of a form's cells, as text."""
    points = [
        (n, part(found))
        for n in CROWD
        if (found := table.get(key(Cell(name, n, n, size, options)))) and found.state == "measured"
    ]
    value = exponent(points)
    small = not points or points[-1][0] < SITES  # fixed costs hide the growth
    return "" if math.isnan(value) or small else f"{value:.1f}"


def pair_rows(table: Table, size: int) -> list[str]:
    """Time and memory of exact and scaling forms by the number of clients, everyone active; an
    empty cell was not measured."""
    lines = [
        f"| d = {size:,} | {' | '.join(f'N = {n:,}' for n in CROWD)} | time ~ N^ | memory ~ N^ |",
        "|---" * (len(CROWD) + 3) + "|",
    ]
    for name in PAIRS if size == SMALL else WIDE:
        for options in dict.fromkeys(PAIRS[name]):
            shown = [_cell(table.get(key(Cell(name, n, n, size, options)))) for n in CROWD]
            settings = label(name, {k: v for k, v in options if (k, v) not in SPLITS})
            grows = [grown(table, name, options, size, part) for part in (work, lambda f: f.peak)]
            lines.append(f"| {settings} | {' | '.join(shown)} | {' | '.join(grows)} |")
    return lines


def _cell(found: Found | None) -> str:
    if found is None:
        return ""
    if found.state != "measured":
        return _short(found.state)
    return f"{seconds(work(found))}, {gigabytes(found.peak)}"


def _short(state: str) -> str:
    """Why a cell is empty, in a few words."""
    if state.startswith("refused"):
        most = state.split("at most ")[1].split(" clients")[0]
        return f"refused: at most {most}"
    return state


def cost_rows(table: Table) -> list[str]:
    """Every method with 10,000 sites that are all active and 1,000,000 phones, 100 active."""
    lines = [
        "| method | sites: memory | per round | down | up | phones: kept | memory | per round | "
        "down | up |",
        "|---" * 10 + "|",
    ]
    for name in METHODS:
        form = scaling(name)
        sites = table.get(key(Cell(name, SITES, SITES, SMALL, form)))
        phones, mark = _phones(table, name, form)
        settings = label(name, dict(form))
        lines.append(f"| {settings} | {_cost(sites, '')} | {_cost(phones, mark, kept=True)} |")
    return lines


def _phones(table: Table, name: str, form: Options) -> tuple[Found | None, str]:
    """The cell of the phones; from those of fewer clients, marked, where it did not fit."""
    at = {n: table.get(key(Cell(name, n, ACTIVE, SMALL, form))) for n in (SITES, CROWD[-1], PHONES)}
    last = at[PHONES]
    known = [(n, f) for n, f in at.items() if f and f.state == "measured"]
    if len(known) < 2 or (last and last.state.startswith(("measured", "refused"))):
        return last, ""
    return _extrapolated(known), "*"


def _extrapolated(known: Sequence[tuple[int, Found]]) -> Found:
    """The two largest cells carried on by their exponents."""
    n, found = known[-1]
    made = {
        part: getattr(found, part)
        * (PHONES / n) ** exponent([(m, max(getattr(f, part), 1e-9)) for m, f in known])
        for part in ("once", "seconds", "peak", "kept")
    }
    return found._replace(**made)


def _at_least(value: float, tick: float) -> str:
    """Seconds, or that they are fewer than can be told."""
    return f"under {seconds(tick)}" if value < tick else seconds(value)


def _cost(found: Found | None, mark: str, kept: bool = False) -> str:
    if found is None or found.state != "measured":
        why = _short(found.state) if found else ""
        return " | ".join([why, *[""] * (4 if kept else 3)])
    tick = TICK * max(1, (ACTIVE if kept else SITES) // SENDS)
    once = f" (once {seconds(found.once)}{mark})" if found.once > 0.5 else ""
    return " | ".join(
        [
            *([f"{gigabytes(found.kept)}{mark}"] if kept else []),
            f"{gigabytes(found.peak)}{mark}",
            f"{_at_least(found.seconds, tick)}{mark}{once}",
            gigabytes(found.down),
            gigabytes(found.up),
        ]
    )


def accuracy_rows(found: dict[str, list[float]]) -> list[str]:
    """Mean and spread over seeds, and the difference from the method as published, seed by seed."""
    lines = ["| method | test accuracy, % | against all pairs, points |", "|---|---|---|"]
    for name, forms in TRIED.items():
        exact = found.get(label(name, forms[0]))
        for options in forms:
            mine = found.get(label(name, options))
            if not mine or not exact:
                continue
            apart = [a - b for a, b in zip(mine, exact, strict=True)]
            least = f"{np.mean(apart):+.2f} ({min(apart):+.2f} to {max(apart):+.2f})"
            lines.append(
                f"| {label(name, options)} | {np.mean(mine):.2f} | "
                f"{'' if options == forms[0] else least} |"
            )
    return lines


def about() -> dict[str, Any]:
    """The machine, the versions and the moment."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "machine": (
            f"{platform.machine()}, {os.cpu_count()} cores, {gigabytes(read_memory_limit())}"
        ),
        "torch": torch.__version__,
        "coterie": __version__,
        "commit": commit or "unknown",
        "date": datetime.date.today().isoformat(),
    }


def pages(store: dict[str, Any]) -> dict[str, list[str]]:
    """What stands between each pair of marks."""
    table = {name: Found(*row) for name, row in store["cells"].items()}
    facts = store["about"]
    small, large = pair_rows(table, SMALL), pair_rows(table, LARGE)
    measured = (
        f"Measured {facts['date']} at commit {facts['commit']} (coterie {facts['coterie']}, torch "
        f"{facts['torch']}) on {facts['machine']}, one thread, other work beside it."
    )
    return {
        "pairs": [*small, "", *large, "", measured],
        "costs": cost_rows(table),
        "accuracy": accuracy_rows(store["accuracy"]),
    }


def write(path: Path, store: dict[str, Any]) -> None:
    """Put the figures into the page, and beside it as JSON."""
    text = path.read_text(encoding="utf-8")
    for name, lines in pages(store).items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, after = text.split(begin)[0], text.split(end)[1]
        text = "\n".join([f"{before}{begin}", *lines, f"{end}{after}"])
    path.write_text(text, encoding="utf-8")
    save(path.with_suffix(".json"), store)


def save(path: Path, store: dict[str, Any]) -> None:
    path.write_text(json.dumps(store, indent=1) + "\n", encoding="utf-8")


def measure_all(wanted: Sequence[Cell], store: dict[str, Any], beside: Path | None) -> None:
    """Add the cells that are not in the store yet."""
    for name in METHODS:  # so that no cell pays for what is loaded once
        for options in (scaling(name), *PAIRS.get(name, ())):
            run(Cell(name, 60, 60, SMALL, options))
    for cell in wanted:
        if key(cell) not in store["cells"]:
            found = measure(cell, read_memory_limit() // 2, LIMIT)
            store["cells"][key(cell)] = found
            print(f"{key(cell)}: {_cell(found)}", flush=True)
            if beside:
                save(beside, store)


def train_all(store: dict[str, Any], beside: Path | None) -> None:
    """Add the accuracies that are not in the store yet."""
    for name, forms in TRIED.items():
        for options in forms:
            if label(name, options) not in store["accuracy"]:
                reached = [accuracy(name, options, seed) for seed in SEEDS]
                store["accuracy"][label(name, options)] = reached
                print(f"{label(name, options)}: {np.mean(reached):.2f}", flush=True)
                if beside:
                    save(beside, store)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few clients, two other methods")
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--page", action="store_true", help="only from the JSON file")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    beside = settings.write.with_name("scale.json") if settings.write else None
    known = json.loads(beside.read_text()) if beside and beside.exists() else {}
    store = {"about": about(), "cells": {}, "accuracy": {}} | known
    if not settings.page:
        measure_all(cells(settings.quick), store, beside)
    if settings.accuracy:
        train_all(store, beside)
    store["cells"] = {name: tuple(row) for name, row in store["cells"].items()}
    for lines in pages(store).values():
        print("\n".join(lines))
    if settings.write:
        write(settings.write, store)


if __name__ == "__main__":
    main()
