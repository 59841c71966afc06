"""What tests of whole runs share: few words, a run that stops, what must not change, a small
table.
"""

from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.compute as pc

from coterie.data.read.user_data import from_arrays
from coterie.experiment.config import Experiment, change_options
from coterie.results.run import load_run
from coterie.running.identity import identity_of

SMALL = {
    "num_clients": 4,
    "rows": 160,
    "classes-each": 4,
    "hidden": 6,
    "batch_size": 8,
    "rounds": 4,
    "eval_every": 2,
    "checkpoint": 1,
}
FAST = {"path": "vectorized", "width": 20, "compile": "no", "threads": 1}
IMAGES = SMALL | FAST  # a few digits for a few clients, in one fixed way


class Stopped(Exception):
    pass


def stop_at(round: int):
    def watch(report):
        if report.round == round:
            raise Stopped

    return watch


def experiment(**settings) -> Experiment:
    return change_options(Experiment(), IMAGES | settings)


@contextmanager
def settings_written(more: dict | None = None, lacks: tuple[str, ...] = ()):
    """Runs as another version of coterie writes them: with more words, or without some."""

    def shape(experiment: Experiment) -> dict:
        return {w: v for w, v in identity_of(experiment).items() if w not in lacks} | (more or {})

    with mock.patch("coterie.running.execute.identity_of", shape):
        yield


def results(folder: Path) -> tuple[dict[str, bytes], list]:
    """All that must not change: the models, byte by byte, and the metrics but the seconds."""
    table = load_run(folder).table
    rows = table.filter(pc.field("metric") != "seconds").to_pylist()
    for row in rows:
        row["value"] = np.float64(row["value"]).tobytes()  # bits, and NaN equal to itself
    return {p.name: p.read_bytes() for p in sorted((folder / "models").iterdir())}, rows


def write_csv(path: Path, rows: int = 60, clients: int = 3, cell: str = "") -> Path:
    rng = np.random.default_rng(0)
    lines = ["client,a,b,label"]
    for r in range(rows):
        a, b = rng.normal(size=2)
        first = cell if cell and r == 7 else f"{a:.4f}"
        lines.append(f"site{r % clients},{first},{b:.4f},{'yes' if a > b else 'no'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def arrays(clients: bool = True):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 6)).astype(np.float32)
    y = np.where(x[:, 0] > 0, "up", "down")
    return from_arrays(x, y, np.arange(120) % 4 if clients else None, name="mine")


def wild(clients: int = 4, bad: tuple[int, ...] = (3,), size: float = 1e37):
    """Rows of a few clients, some of whom have numbers that no network can take."""
    rng = np.random.default_rng(1)
    owner = np.arange(30 * clients) % clients
    x = rng.normal(size=(len(owner), 6)).astype(np.float32)
    y = np.where(x[:, 0] > 0, "up", "down")
    x[np.isin(owner, bad)] *= np.float32(size)
    return from_arrays(x, y, owner, name="wild")
