"""The bytes of a recipe's methods as arithmetic: what a round sends, times clients and rounds.

Nothing is trained. Methods over soft predictions send, per client and round, a seed and a target
down and predictions up, `draw` rows of as many numbers as there are outputs; the others send their
model, with its buffers, down and up. A test holds both to what the engine counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from coterie.comparison.plan import plan_of
from coterie.core.files import read_text, write_text
from coterie.core.model import Model
from coterie.data.federation import Federation
from coterie.experiment.build import models_of
from coterie.experiment.config import Experiment, read_toml
from coterie.experiment.recipes import find_config
from coterie.lab.papers.measures import MB
from coterie.lab.papers.paper_tables import PaperColumn, methods_named
from coterie.results.folder import describe_environment
from coterie.running.assembly import load_federation

SOFT = ("fedmd", "ktpfl", "sim-pfl", "topk-pfl")  # methods over soft predictions
SEED = torch.tensor(0).nbytes  # what they are sent first
FLOAT = torch.tensor(0.0).nbytes


def traffic(experiment: Experiment, federation: Federation) -> int:
    """The bytes that a run sends, down and up."""
    models = models_of(experiment, federation)
    asked = experiment.schedule.sample_size(federation.clients)
    if experiment.method in SOFT:
        said = int(experiment.options["draw"]) * models[0].outputs * FLOAT
        each = SEED + 2 * said
        return asked * experiment.schedule.rounds * each
    dealt = np.arange(federation.clients) % len(models)
    mean = float(np.mean([_size(models[a]) for a in dealt]))
    return round(asked * experiment.schedule.rounds * 2 * mean)


def _size(model: Model) -> int:
    """Bytes of a model with its buffers."""
    point = model.start(0)
    return sum(leaf.nbytes for leaf in pytree.tree_leaves((point.params, point.buffers)))


def count_traffic(column: PaperColumn, out: Path) -> None:
    """Compute the bytes of a column's methods and keep them in a file below `out`."""
    plan = plan_of(read_toml(find_config(column.recipe)), seeds=[0])
    federation = load_federation(next(iter(plan.experiments.values())))
    found = {m: traffic(plan.experiments[m], federation) for m in methods_named(column)}
    out.mkdir(parents=True, exist_ok=True)
    write_text(
        _file(column, out),
        json.dumps({"about": describe_environment(), "bytes": found}, indent=1) + "\n",
    )


def _file(column: PaperColumn, out: Path) -> Path:
    return out / f"{column.recipe}.bytes.json"


def stored_traffic(column: PaperColumn, out: Path) -> dict[str, Any]:
    """A column of a results file from what was computed; empty where nothing was."""
    path = _file(column, out)
    if not path.exists():
        return {}
    found = json.loads(read_text(path))
    methods = {
        m: [{"seed": 0, "figures": {column.view: round(n / MB, 4)}}]
        for m, n in found["bytes"].items()
    }
    return {
        "column": column.name,
        "recipe": column.recipe,
        "scale": 1.0,
        "finished": [f"{m}-seed0" for m in methods],
        "wanted": len(methods),
        "seeds": 1,
        "about": found["about"],
        "claims": [],
        "methods": methods,
    }
