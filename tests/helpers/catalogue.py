"""The table of docs/methods.md, measured from the code, and the list of methods that the command
line reads: `make docs` writes both.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from coterie.analysis.nan_math import nan_max
from coterie.lab.arena.results import BOUNDS, read_results
from coterie.lab.arena.summary import compute_points, summarize_results
from coterie.methods.listing import FILE, describe_methods, text_of
from coterie.methods.registry import METHODS
from helpers.federations import MODELS, play, tiny, tiny_model

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
# Parts of the tiny network 6-h-3: what layer-wise methods send and keep. Two floats are the 8-byte
# seed of the common start.
BASE, HEAD, MEANS = lambda h: 7 * h, lambda h: 3 * h + 3, lambda h: 3 * (h + 1)
LIKE_FEDPER = {
    "up": ("base", BASE),
    "client": ("head", HEAD),
    **{way: ("base + 2", lambda h: BASE(h) + 2) for way in ("down", "server")},
}
PARTS = {
    **{(name, "up"): ("base", BASE) for name in ("fedper", "fedrep")},
    **{
        (name, way): ("base + 2", lambda h: BASE(h) + 2)
        for name in ("fedper", "fedrep")
        for way in ("down", "server")
    },
    **{(name, "client"): ("head", HEAD) for name in ("fedper", "fedrep")},
    ("lgfedavg", "up"): ("head", HEAD),
    **{("lgfedavg", way): ("head + 2", lambda h: HEAD(h) + 2) for way in ("down", "server")},
    ("lgfedavg", "client"): ("base", BASE),
    **{("fedbabu", way): parts for way, parts in LIKE_FEDPER.items()},
    ("fedrod", "client"): ("head", HEAD),
    ("feddbe", "client"): ("f", lambda h: h),
    **{("feddbe", way): ("d + f", lambda h: 11 * h + 3) for way in ("down", "server")},
    ("fedpac", "down"): ("d + K (f + 1)", lambda h: 13 * h + 6),
    ("fedpac", "up"): ("d + K (2 f + 1) + 1", lambda h: 16 * h + 7),
    **{("fedas", way): LIKE_FEDPER[way] for way in ("down", "server")},
    ("fedas", "up"): ("base + 1", lambda h: BASE(h) + 1),
    **{(name, "up"): ("K (f + 1)", MEANS) for name in ("fedproto", "fedtgp")},
    **{
        place: ("K (f + 1) + 2", lambda h: MEANS(h) + 2)
        for place in (("fedproto", "down"), ("fedproto", "server"), ("fedtgp", "down"))
    },
    ("fedtgp", "server"): ("2 f (f + K + 1) + K + 2", lambda h: 2 * h * (h + 4) + 5),
    ("fedkd", "client"): ("d + f^2 + 1", lambda h: 10 * h + 3 + h * h + 1),
    **{
        ("fedcp", way): ("d + 2 f (f + 3)", lambda h: 10 * h + 3 + 2 * h * (h + 3))
        for way in ("down", "up", "server")
    },
    ("fedcp", "client"): ("head", HEAD),
    ("gpfl", "up"): ("base + f (2 f + 6 + K)", lambda h: BASE(h) + h * (2 * h + 9)),
    **{
        ("gpfl", way): ("base + f (2 f + 6 + K) + 2", lambda h: BASE(h) + h * (2 * h + 9) + 2)
        for way in ("down", "server")
    },
    ("gpfl", "client"): ("head + K", lambda h: HEAD(h) + 3),
    ("fedala", "client"): ("d + head + 2", lambda h: 13 * h + 8),
    ("fedbn", "client"): ("norm and its statistics", lambda h: 4 * h + 2),
    ("fedbn", "up"): ("d - norm", lambda h: 10 * h + 3),
    **{("fedbn", way): ("d - norm + 2", lambda h: 10 * h + 5) for way in ("down", "server")},
}


def floats(tree) -> float:
    """Numbers of four bytes in a tree."""
    return sum(t.nbytes / 4 for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor))


def measured(name: str, hidden: int, clients: int) -> dict[str, float]:
    """Floats down and up a client and round in the main stage, and floats of state kept."""
    norm = name in MODELS
    loop = play(name, tiny(clients), [tiny_model(hidden, norm=norm)], rounds=3)
    rows = loop.table.whole().to_pylist()
    last = max(r["round"] for r in rows if r["stage"] == "train")
    cost = {r["metric"]: r["value"] for r in rows if r["round"] == last and r["client"] == -1}
    stack = loop.engine.states[0].everything()[1]
    return {
        "down": cost["bytes_down"] / 4 / clients,
        "up": cost["bytes_up"] / 4 / clients,
        "client": floats(stack) / clients,
        "server": float(floats(loop.position.server)),
    }


def size(name: str, hidden: int) -> int:
    return tiny_model(hidden, norm=name in MODELS).size


def formula(name: str, key: str, figures: dict[tuple[int, int], float]) -> str:
    """A named part of the model where a method sends one, else a d + c N d + b + e N + f N^2 fitted
    to all measurements.
    """
    if (name, key) in PARTS:
        settings, part = PARTS[name, key]
        assert all(round(value) == part(h) for (h, _), value in figures.items()), (
            name,
            key,
            figures,
        )
        return settings
    if (name, key) == ("pfedhn", "server"):
        return "the hyper-network and its momentum: some 200 d"
    matrix = np.array([[size(name, h), n * size(name, h), 1.0, n, n * n] for h, n in figures])
    fit, *_ = np.linalg.lstsq(matrix, np.array(list(figures.values())), rcond=None)
    shown = [
        _term(value, unit)
        for value, unit in zip(fit, ("d", "N d", "", "N", "N^2"), strict=True)
        if abs(value) > 0.02
    ]
    return " + ".join(shown).replace("+ -", "- ") or "0"


def _term(value: float, unit: str) -> str:
    number = f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{number} {unit}".strip() if not unit or number not in ("1",) else unit


def newcomer(method) -> str:
    """What a client that comes after training does."""
    return method.newcomer.rule if method.newcomer else "fine-tunes the model that it is sent"


def table() -> str:
    """One row a method."""
    places = [(hidden, clients) for hidden in (4, 9) for clients in (6, 8, 11)]
    lines = [
        "| method | down | up | kept by a client | kept by the server | mixed networks "
        "| newcomer |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in METHODS:
        figures = {place: measured(name, *place) for place in places}
        columns = {
            key: formula(name, key, {p: f[key] for p, f in figures.items()})
            for key in ("down", "up", "client", "server")
        }
        program = play(name, until=0).program
        mixed = "yes" if all(s.method.mixed for s in program) else "no"
        lines.append(
            f"| [{name}](methods/{name}.md) | {columns['down']} | {columns['up']} | "
            f"{columns['client']} | {columns['server']} | {mixed} | "
            f"{newcomer(program[-1].method)} |"
        )
    return "\n".join(lines)


def written() -> str:
    """The table as the page has it."""
    return PAGE.read_text().split(BEGIN)[1].split(END)[0].strip()


def read_traffic() -> dict[str, str]:
    """{method: floats down / up} of the table as the page has it."""
    rows = [line.split("|")[1:4] for line in written().splitlines()[2:]]
    return {
        name.strip().split("]")[0].strip("["): f"{down.strip()} / {up.strip()}"
        for name, down, up in rows
    }


def arena_records() -> dict[str, dict[str, Any]]:
    """{method: rank, wins and work} of the stored results of the arena."""
    results = read_results(PAGE.parent / "results" / "arena.parquet")
    found, points = summarize_results(results), compute_points(results)
    real = [k for k, name in enumerate(points.methods) if name not in BOUNDS]
    best = nan_max(points.values[:, real], 1)[:, 0]
    return {
        name: {
            "rank": round(float(found.rank[k]), 1),
            "wins": [
                place
                for place, most, own in zip(
                    points.federations,
                    best,
                    points.values[:, points.methods.index(name)],
                    strict=True,
                )
                if name not in BOUNDS and round(most - own, 9) <= 0
            ],
            "work": round(float(found.gradients[k]), 1),
        }
        for k, name in enumerate(found.methods)
    }


if __name__ == "__main__":
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}")
    FILE.write_text(
        text_of(describe_methods(METHODS, read_traffic(), arena_records())), encoding="utf-8"
    )
    print(f"wrote the table of {len(METHODS)} methods")
