"""Runs that reports are tested on, and how to find a table or figure in a report's data."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from coterie import __version__
from coterie.core.quantities import LoggedQuantity, QuantityKind, to_json
from coterie.experiment.config import Experiment, change_options
from coterie.results.folder import write_config
from coterie.results.metric_table import Table

METHODS = ["local", "fedavg", "persfl", "ktpfl", "ucfl", "selffl", "apfl", "cfl"]
WORDS = {
    "dataset": "digits",
    "num_clients": 4,
    "rounds": 3,
    "eval_every": 1,
    "public": "held-out",
    "public_rows": 40,
    "batch_size": 64,
}
FAST = {"path": "vectorized", "width": 8, "compile": "no", "threads": 1}
OWN = {"persfl": {"distil_epochs": 1}, "ktpfl": {"draw": 20}}


def base(**settings) -> Experiment:
    return change_options(Experiment(method=""), WORDS | FAST | settings)


def change_about(run: Path, **settings) -> None:
    """Change words of run.json."""
    known = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(known | settings))


def table(data: dict, key: str) -> dict[str, dict]:
    """{method: {column: cell}} of a table."""
    found = next(t for t in data["tables"] if t["key"] == key)
    names = [c["name"] for c in found["columns"]]
    return {row[0]: dict(zip(names, row, strict=True)) for row in found["rows"]}


def figure(data: dict, key: str) -> dict:
    return next(f for f in data["figures"] if f["key"] == key)


def pretend(place: Path, name: str, n: int, rounds: int) -> None:
    """The folder of a run of many clients that nobody had time to train."""
    rng = np.random.default_rng(len(name))
    place.mkdir(parents=True)
    whole = Experiment(method=name)
    write_config(place, replace(whole, schedule=whole.schedule._replace(rounds=rounds)))
    known = {
        "status": "finished",
        "coterie": __version__,
        "data": "d",
        "clients": [f"site {i:04d}" for i in range(n)],
        "classes": 10,
    }
    sizes = {
        part: rng.integers(5, 200, n).tolist() for part in ("train", "validation", "select", "test")
    }
    network = {"models": [{"name": "dnn", "parameters": 2410}], "architecture": [0] * n}
    notes = to_json(
        {
            "alpha": LoggedQuantity("alpha", QuantityKind.COURSE),
            "W": LoggedQuantity("weights W", QuantityKind.MATRIX),
        }
    )
    about = {**known, **network, "rows": sizes, "groups": [0] * n, "notes": notes}
    (place / "run.json").write_text(json.dumps(about))
    found, everyone = Table(), np.arange(n)
    for r in range(1, rounds + 1):
        for metric in ("bytes_down", "bytes_broadcast", "bytes_up", "steps", "seconds", "clients"):
            found.add("train", r, np.array([-1]), "", "", metric, np.array([100.0 * n]))
        found.add("train", r, everyone, "", "", "alpha", rng.random(n))
        for view in ("personal", "global"):
            for part in ("train", "validation", "select", "test"):
                found.add("train", r, everyone, view, part, "accuracy", rng.random(n))
    found.write(place / "metrics.parquet")
    (place / "notes").mkdir()
    for r in (1, rounds):
        save_file(
            {"W": rng.random((n, n)).astype(np.float32)},
            place / "notes" / f"round-{r:05d}.safetensors",
        )
    client, label = np.divmod(np.arange(10 * n), 10)
    counts = pa.table(
        {
            "client": client,
            "part": ["train"] * 10 * n,
            "label": label,
            "rows": rng.integers(0, 30, 10 * n),
        }
    )
    pq.write_table(counts, place / "split.parquet")
