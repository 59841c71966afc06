"""A site's own model in one file, complete: weights, network, preparation of rows and its card.

The file is put in place whole, so that whoever predicts with it while the federation goes on reads
the old model or the new one.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.core.files import save_tensors
from coterie.core.model import Model
from coterie.core.point import pick
from coterie.core.version import __version__
from coterie.data.federation import Federation, checksum_of
from coterie.engines.base import Engine, Metrics, Moment, Send
from coterie.results.models import copy_tensors, describe_network
from coterie.results.personal_models import NETWORK, PARTS, Card, metrics_of, model_task_of

MODEL, OLD = "model.safetensors", "models"
Config = Mapping[str, Any]


def write_current_model(
    engine: Engine,
    federation: Federation,
    number: int,
    send: Send,
    when: Moment,
    path: Path,
    settings: Config,  # of the experiment
    found: Metrics,  # what was measured of it; {}: nothing
) -> None:
    """The model of a client as it is now."""
    for a, _, views in engine.points([number], send, when):
        model: Model = engine.model_of(a, "personal")
        tensors = copy_tensors(model.tensors(pick(views["personal"], 0)))
        about = describe_network(model, federation) | {"client": federation.names[number]}
        about["card"] = _build_card(about, federation, number, settings, found) | {
            "when": f"{when.stage}, after round {when.round}"
        }
        about["card"]["network"]["parameters"] = sum(t.numel() for t in tensors.values())
        save_tensors(tensors, path, {"coterie": json.dumps(about)})


def keep_old_model(folder: Path, run: str) -> None:
    """Put the model of a run that is over beside the one that begins: models/RUN.safetensors."""
    place = folder / OLD
    place.mkdir(exist_ok=True)
    (folder / MODEL).replace(place / f"{run}.safetensors")


def _build_card(
    about: Config, federation: Federation, number: int, settings: Config, found: Metrics
) -> Card:
    """What the card of any personal model says, see coterie.results.personal_models."""
    task = model_task_of(about, federation.labels, federation.preparation)
    rows = {part: len(getattr(federation, part)[number]) for part in PARTS}

    def value(metric: str, part: str) -> float:
        column = found.get(("personal", part, metric))
        return float("nan") if column is None else float(column[0])

    kept = federation.preparation
    return {
        "client": about["client"],
        "task": task.kind,
        "classes": list(task.names),
        "network": {k: about.get(k) for k in NETWORK},
        "method": settings["method"],
        "options": settings["options"],
        "train": settings["train"],
        "seed": settings["seed"],
        "rows": rows,
        "measured": metrics_of(task, rows, value),
        "data": checksum_of(federation),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"coterie": __version__, "python": platform.python_version()},
        "preparation": kept.to_dict() if kept else None,
        "privacy": None,  # told by the server, in its run.json
    }
