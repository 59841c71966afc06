"""The data of a report with a figure of every kind, for as many clients and methods as wanted."""

from typing import Any

import numpy as np

SOME = ["local", "fedavg", "ditto", "persfl", "ktpfl"]
PARTS = ("train", "validation", "select", "test")


def line(name: str, x: Any, y: Any, **more: Any) -> dict[str, Any]:
    """One series."""
    return {
        "name": name,
        "x": list(x),
        "y": [float(v) for v in y],
        "low": [],
        "high": [],
        "text": [],
    } | more


def figure(
    key: str, kind: str, section: str, x: str, y: str, series: Any = (), heat: dict | None = None
) -> dict[str, Any]:
    """One figure; its key says its title."""
    title, note = (
        key.replace("-", " ").capitalize(),
        "The mean over clients; the band holds the middle half of them.",
    )
    fields = {
        "key": key,
        "title": title,
        "note": note,
        "kind": kind,
        "x": x,
        "y": y,
        "section": section,
    }
    return fields | {"series": list(series), "heat": heat}


def heat(
    rows: list[str], columns: list[str], frames: list, diverging: bool = False
) -> dict[str, Any]:
    """The matrices of a heat map."""
    return {"rows": rows, "columns": columns, "frames": frames, "diverging": diverging}


def figures(
    accuracy: dict[str, np.ndarray], names: list[str], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Lines, dots, densities, bars of two sorts, points, heat maps with and without a slider."""
    methods, rounds, gain = list(accuracy), np.arange(1, 13), np.linspace(-20, 20, 50)
    curves, points = [], []
    for method, values in accuracy.items():
        mean = 100 * float(values.mean())
        y = mean * (1 - np.exp(-rounds / 3))
        curves.append(line(method, rounds.tolist(), y, low=(y - 4).tolist(), high=(y + 4).tolist()))
        points.append(
            line(method, [float(rng.uniform(1, 90))], [mean], low=[mean - 9], high=[mean + 9])
        )
    groups = [f"group {g}" for g in range(min(len(names), 12))]
    frames = [
        (f"round {r}", rng.random((len(groups), len(groups))).round(4).tolist()) for r in (1, 5, 10)
    ]
    grid = [("", rng.normal(0, 1, (3, 4)).round(3).tolist())]
    clients = [line(m, names, 100 * v) for m, v in accuracy.items()]
    densities = [
        line(m, gain.tolist(), np.exp(-((gain - i) ** 2) / 40)) for i, m in enumerate(methods)
    ]
    indices = [line(m, ["Jain", "cosine", "evenness"], rng.uniform(0.8, 1, 3)) for m in methods]
    deviation = [line("deviation", methods, rng.uniform(5, 15, len(methods)))]
    return [
        figure("accuracy-by-round", "lines", "accuracy", "round", "accuracy, %", curves),
        figure("each-client", "dots", "accuracy", "client", "accuracy, %", clients),
        figure("improvement", "density", "accuracy", "points", "density", densities),
        figure("fairness", "bars", "fairness", "", "index", indices),
        figure("deviation", "bars", "fairness", "", "points", deviation),
        figure("accuracy-and-bytes", "points", "cost", "MB a client", "accuracy, %", points),
        figure("weights", "heat", "collaboration", "from", "to", heat=heat(groups, groups, frames)),
        figure(
            "grid",
            "heat",
            "inside",
            "lambda",
            "T",
            heat=heat(["1", "2", "4"], ["0.1", "0.3", "0.5", "0.9"], grid, True),
        ),
    ]


def tables(accuracy: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """The table of methods, and one more."""
    columns = [
        {"name": "method"},
        {"name": "mean accuracy", "unit": "%", "better": "high", "format": ".2f"},
        {"name": "deviation over clients", "unit": "points", "better": "low", "format": ".2f"},
        {"name": "MB up", "better": "low", "format": ",.1f"},
        {"name": "over seeds", "better": "", "format": ".2f"},
    ]
    rows = [
        [
            method,
            round(100 * float(values.mean()), 6),
            round(100 * float(values.std()), 6),
            float(place % 3),
            None,
        ]
        for place, (method, values) in enumerate(accuracy.items())
    ]
    note = "Test accuracy of each client's own model."
    return [
        {"key": "methods", "title": "All methods", "note": note, "columns": columns, "rows": rows},
        {
            "key": "gains",
            "title": "Gains",
            "note": "",
            "columns": columns[:2],
            "rows": [row[:2] for row in rows],
        },
    ]


def run(method: str) -> dict[str, Any]:
    """A run's configuration and versions."""
    about = {
        "seed": 0,
        "method": method,
        "versions": {"torch": "2"},
        "date": "2026-03-01",
        "status": "finished",
    }
    return about | {
        "name": f"{method}, seed 0",
        "folder": f"{method}-seed0",
        "config": "[schedule]\nrounds = 12\n",
    }


def sample(
    clients: int = 6, methods: list[str] = SOME, names: list[str] | None = None
) -> dict[str, Any]:
    """All of it, the same numbers each time."""
    rng = np.random.default_rng(clients)
    names = names or [f"client {i}" for i in range(clients)]
    centre = 0.7 + 0.01 * (np.arange(len(methods)) % 9)
    accuracy = {
        m: np.clip(rng.normal(c, 0.1, clients), 0, 1).round(4)
        for m, c in zip(methods, centre, strict=True)
    }
    peers = [
        [[int(p), round(1 / (k + 2), 4)] for k, p in enumerate(rng.permutation(clients)[:10])]
        for _ in range(clients)
    ]
    return {
        "title": f"{len(methods)} methods on digits",
        "made": {"coterie": "0.2.0", "date": "2026-03-01", "command": "coterie report runs/digits"},
        "answer": [
            f"Use {methods[-1]}: it serves the clients best, and nobody loses.",
            "Every number is the mean over clients.",
        ],
        "warnings": ["runs/broken-seed0 was left out: run.json is damaged"],
        "methods": methods,
        "tables": tables(accuracy),
        "figures": figures(accuracy, names, rng),
        "clients": {
            "names": names,
            "rows": {part: rng.integers(10, 300, clients).tolist() for part in PARTS},
            "groups": [i % 3 for i in range(clients)],
            "labels": list(range(10)),
            "counts": rng.integers(0, 40, (clients, 10)).tolist(),
            "accuracy": {method: values.tolist() for method, values in accuracy.items()},
            "learned_from": {methods[-1]: peers},
            "notes": {
                methods[0]: [
                    ["round of the teacher", [5] * clients],
                    ["chosen lambda", [0.3] * clients],
                ]
            },
        },
        "runs": [run(method) for method in methods],
    }
