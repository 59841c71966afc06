"""A client's model goes on learning from new rows, after a report of their drift."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.analysis.drift import Drift, loss_drift, share_drift
from coterie.core.errors import BadInput
from coterie.core.method import Batch
from coterie.core.model import Model
from coterie.core.point import Point, pick
from coterie.core.task import find_task
from coterie.data.arrays import as_tensor
from coterie.results.added_models import AddedModel
from coterie.results.folder import read_experiment
from coterie.results.models import Build, load_weights
from coterie.results.personal_models import Card, Models
from coterie.running.newcomer_training import FinishedRun, ServedNewcomers, train_newcomers
from coterie.serving.labelled_rows import LabelledRows, load_labelled_rows
from coterie.serving.personalizing import (
    Way,
    card_measurements,
    evaluate_way,
    rebuild_run,
    save_version,
)

HOW = "went on training from version {} on {} new rows"


class Updated(NamedTuple):
    """What came of an update."""

    client: str
    version: int  # that was made
    rows: dict[str, int]
    drift: list[Drift]  # of the model before, on all new rows
    verdict: str
    before: Way  # the model before, on the new test rows
    after: Way  # the new model, on the same


def update(
    folder: Path, rows: Any, client: str, separator: str = "", build: Build | None = None
) -> Updated:
    """Measure drift on a client's new rows, train its newest model on, and save it as one more
    version.
    """
    models = Models(folder, build)
    number = models.number(client)
    name = models.names[number]
    experiment = read_experiment(folder)
    found = load_labelled_rows(models, experiment, rows, name, separator=separator)
    weights = models.weights(number)
    card = models.card(number, weights)
    run = rebuild_run(models, experiment, found, name)
    a = models.architecture[number]
    if a:
        run = run._replace(
            setup=run.setup._replace(architecture=_replace_last(run.setup.architecture, a))
        )
    model: Model = run.setup.models[a]
    start = model.point(load_weights(models.path(number), weights, build))
    if {k: tuple(v.shape) for k, v in start.params.items()} != dict(model.shapes):
        raise BadInput(
            f"the model of '{name}' is not the network that clients share ({model.name}), but one "
            "of its own: run again with the new rows"
        )
    drift = drift_of(card, model, start, found)
    verdict = verdict_of(drift)
    old = train_newcomers(run._replace(few=0, starts=_replace_start(run, a, start)), "finetune")
    new = train_newcomers(run._replace(starts=_replace_start(run, a, start)), "finetune")
    before, after = (
        evaluate_way("finetune", each.measure(), found, experiment, model) for each in (old, new)
    )
    version = card["version"] + 1
    entry = AddedModel(
        client=name,
        version=version,
        file="",
        how=HOW.format(card["version"], f"{found.counts['train']:,}"),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        architecture=a,
        rows=found.counts,
        measured=card_measurements(after, found.counts["test"]),
        drift=verdict,
        scale=found.scale,
    )
    save_version(models, run, model, _personal_point(new), entry)
    return Updated(
        client=name,
        version=version,
        rows=found.counts,
        drift=drift,
        verdict=verdict,
        before=before,
        after=after,
    )


def _replace_last(architecture: np.ndarray, a: int) -> np.ndarray:
    return np.concatenate([architecture[:-1], [a]])


def _replace_start(run: FinishedRun, a: int, start: Point) -> list[Point]:
    return [start if k == a else point for k, point in enumerate(run.starts)]


def _personal_point(served: ServedNewcomers) -> Point:
    (_, _, views), *_ = list(served.points())
    point: Point = pick(views["personal"], 0)
    return point


def drift_of(card: Card, model: Model, point: Point, rows: LabelledRows) -> list[Drift]:
    """What the card says of the model against what all new rows say of it."""
    n = len(rows.y)
    batch = Batch(
        x=as_tensor(rows.x),
        y=as_tensor(rows.y),
        mask=torch.ones(n),
        place=torch.zeros(n, dtype=torch.int64),
        key=torch.tensor(0),
    )
    with torch.no_grad():
        losses, right = (values.numpy() for values in model.judge(point, batch))
    measured = {m["metric"]: m for m in card["measured"] if m["part"] == "test"}
    found = []
    if "accuracy" in measured and find_task(model.task).has_classes:
        known = measured["accuracy"]
        found.append(share_drift(known["value"], known["rows"], right))
    if "loss" in measured:
        found.append(loss_drift(measured["loss"]["value"], measured["loss"]["rows"], losses))
    return found


def verdict_of(drift: list[Drift]) -> str:
    """One line on whether the rows have drifted: by accuracy where there are classes, else by
    loss.
    """
    if not drift:
        return "Whether the rows have drifted is not known: the card has no test results."
    first = drift[0]
    share = first.measure == "accuracy"
    scale, unit, form = (100, " %", ".1f") if share else (1, "", ".3g")
    figures = (
        f"{first.measure} {scale * first.now:{form}}{unit} on {first.rows:,} new rows "
        f"({scale * first.low:{form}} to {scale * first.high:{form}}), "
        f"{scale * first.before:{form}}{unit} on {first.rows_before:,} test rows of its card, "
        f"p = {first.p:.2g}"
    )
    if first.worse:
        return f"Drift: the model does worse on the new rows than chance explains ({figures})."
    return f"No drift shown: the new rows are served as its test rows were ({figures})."
