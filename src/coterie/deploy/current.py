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
from coterie.data.federation import Federation, checksum
from coterie.engines.base import Engine, Measured, Moment, Send
from coterie.results.models import apart, network_words
from coterie.results.personal import NETWORK, PARTS, Card, measured_of, task_of

MODEL = "model.safetensors"
Words = Mapping[str, Any]


def write_current(
    engine: Engine,
    federation: Federation,
    number: int,
    send: Send,
    when: Moment,
    path: Path,
    words: Words,  # of the experiment
    found: Measured,  # what was measured of it; {}: nothing
) -> None:
    """The model of a client as it is now."""
    for a, _, views in engine.points([number], send, when):
        model: Model = engine.model_of(a, "personal")
        tensors = apart(model.tensors(pick(views["personal"], 0)))
        about = network_words(model, federation) | {"client": federation.names[number]}
        about["card"] = _card(about, federation, number, words, found) | {
            "when": f"{when.stage}, after round {when.round}"
        }
        about["card"]["network"]["parameters"] = sum(t.numel() for t in tensors.values())
        save_tensors(tensors, path, {"coterie": json.dumps(about)})


def _card(about: Words, federation: Federation, number: int, words: Words, found: Measured) -> Card:
    """What the card of any personal model says, see coterie.results.personal."""
    task = task_of(about, federation.labels, federation.preparation)
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
        "method": words["method"],
        "options": words["options"],
        "train": words["train"],
        "seed": words["seed"],
        "rows": rows,
        "measured": measured_of(task, rows, value),
        "data": checksum(federation),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"coterie": __version__, "python": platform.python_version()},
        "preparation": kept.words() if kept else None,
        "privacy": None,  # told by the server, in its run.json
    }
