"""A client's model goes on learning from new rows, after a report of their drift."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.analysis.drift import Drift, loss_drift, share_drift
from coterie.analysis.scores import find_score
from coterie.core.errors import BadInput
from coterie.core.method import Batch, Tree
from coterie.core.model import Model
from coterie.core.point import Point, pick
from coterie.core.task import find_task
from coterie.core.tree import load_tree
from coterie.data.arrays import as_tensor
from coterie.data.federation import Federation
from coterie.data.messages import silence
from coterie.data.newcomers import with_newcomers
from coterie.experiment.config import Experiment
from coterie.results.added_models import AddedModel, read_added, select_newest
from coterie.results.folder import read_experiment
from coterie.results.models import MODELS, Build, load_weights
from coterie.results.personal_models import Card, Models
from coterie.running.newcomer_training import (
    FinishedRun,
    ServedNewcomers,
    continue_training,
    resume_client,
    state_of,
    train_newcomers,
    with_rows,
)
from coterie.serving.labelled_rows import (
    LabelledRows,
    load_labelled_rows,
    load_trained_rows,
    own_rows_of,
)
from coterie.serving.personalizing import (
    STATES,
    Way,
    card_measurements,
    evaluate_way,
    placeholder_federation,
    rebuild_run,
    save_version,
)

HOW = "went on training from version {} on {} new rows, {}"
CLOSE = 1e-5  # how far a model may be from what its client's state and the server give


class Updated(NamedTuple):
    """What came of an update."""

    client: str
    version: int  # that was made
    how: str  # whether the method's own rule trained it, and which that is or why not
    rows: dict[str, int]
    drift: list[Drift]  # of the model before, on all new rows
    verdict: str
    before: Way  # the model before, on the new test rows
    after: Way  # the new model, on the same
    old_before: Way | None  # the model before, on the client's test rows of training
    old_after: Way | None
    old_rows: int  # how many these are
    unmeasured: str  # why there are none of them; "" where there are


def update(
    folder: Path,
    rows: Any,
    client: str,
    separator: str = "",
    build: Build | None = None,
    force: bool = False,
) -> Updated:
    """Measure drift on a client's new rows, train its newest model on, and save it as one more
    version; not one that is worse on new test rows and no better on old ones, unless `force`.
    """
    models = Models(folder, build)
    number = models.number(client)
    name = models.names[number]
    experiment = read_experiment(folder)
    trained_on, unmeasured = _load_data_of(models, experiment, number)
    before_rows = own_rows_of(trained_on, number) if trained_on else None
    found = load_labelled_rows(models, experiment, rows, name, before_rows, separator=separator)
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
    trained = _train_on(models, run, experiment.method, number, start, a)
    new = trained.model

    def compare(rows: LabelledRows, run: FinishedRun) -> tuple[Way, Way]:
        """The model before and the new one on test rows."""
        still = [run._replace(few=0, starts=_replace_start(run, a, p)) for p in (start, new)]
        served = [train_newcomers(each, "finetune").measure() for each in still]
        before, after = (evaluate_way("finetune", m, rows, experiment, model) for m in served)
        return before, after

    before, after = compare(found, run)
    old = _list_test_rows(trained_on, number) if trained_on else None
    if trained_on and old is None:
        unmeasured = "the client had none"
    known: tuple[Way, Way] | None = None
    if old is not None:
        late = placeholder_federation(models, old, name, run.setup.federation.public)
        known = compare(old, with_rows(run, with_newcomers(late)))
    version = card["version"] + 1
    if not force and _is_worse(before, after) and (known is None or _is_worse(*known)):
        lines = [describe_scores(*known, len(old.y), "old")] if known and old else []
        raise BadInput(
            f"version {version} of '{name}' would be worse, and is not saved: "
            + "; ".join([*lines, describe_scores(before, after, found.counts["test"], "new")])
            + "; give more rows, or --force (force=True)"
        )
    entry = AddedModel(
        client=name,
        version=version,
        file="",
        how=HOW.format(card["version"], f"{found.counts['train']:,}", trained.how),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        architecture=a,
        rows=found.counts,
        measured=card_measurements(after, found.counts["test"]),
        drift=verdict,
        scale=found.scale,
    )
    save_version(models, run, model, new, entry, trained.state)
    return Updated(
        client=name,
        version=version,
        how=trained.how,
        rows=found.counts,
        drift=drift,
        verdict=verdict,
        before=before,
        after=after,
        old_before=known[0] if known else None,
        old_after=known[1] if known else None,
        old_rows=len(old.y) if old else 0,
        unmeasured=unmeasured,
    )


class _Trained(NamedTuple):
    """A model that went on with new rows."""

    model: Point
    state: Tree | None  # the client's, where the method's rule has trained
    how: str


def _train_on(
    models: Models, run: FinishedRun, method: str, number: int, start: Point, a: int
) -> _Trained:
    """Train a client's newest model on: by the method's own rule from the client's own state, the
    server as it was at the end; plainly where there is no such rule or state.
    """
    rule, state = run.methods[a].newcomer, None
    if rule is None:
        why = f"{method} has no rule for a client by itself"
    elif rule.rounds not in ("few", "all"):
        why = f"{method} makes a client's model anew from what it is sent"
    else:
        state, why = _load_state(models, run, number)
    if state is not None:
        mine = run._replace(number=number)
        client = resume_client(mine, state)
        if _is_close(_personal_point(client), start):
            state = continue_training(mine, client)
            new = _personal_point(client)
            if rule and not _is_close(new, start):
                return _Trained(new, state, f"as {method} does: it {rule.rule}")
        why = f"{method}'s rule leaves a client's model as it is"
    plain = train_newcomers(run._replace(starts=_replace_start(run, a, start)), "finetune")
    return _Trained(_personal_point(plain), None, f"plainly: {why}")


def _load_state(models: Models, run: FinishedRun, number: int) -> tuple[Tree | None, str]:
    """The state that belongs to a client's newest model, or why there is none."""
    if number >= len(models.about["clients"]):
        return None, "the client came after training"
    newest = select_newest(read_added(models.folder / MODELS)).get(models.names[number])
    if newest is None:
        return state_of(run, number), "the client took part in no round"
    stem = Path(newest.file).stem
    folder = models.folder / MODELS / STATES
    if not (folder / f"{stem}.json").exists():
        return None, f"version {newest.version} was trained plainly"
    return load_tree(folder, stem), ""


def _is_close(a: Point, b: Point) -> bool:
    """Whether two models are the same up to rounding."""
    if a.params.keys() != b.params.keys():
        return False
    pairs = [(v, b.params[k]) for k, v in a.params.items()]
    return all(v.shape == w.shape and torch.allclose(v, w, CLOSE, CLOSE) for v, w in pairs)


def _load_data_of(
    models: Models, experiment: Experiment, number: int
) -> tuple[Federation | None, str]:
    """The data of training where the client was there, or why they cannot be had."""
    if number >= len(models.about["clients"]):
        return None, "the client came after training"
    try:
        with silence():
            return load_trained_rows(models.folder, experiment), ""
    except BadInput as problem:
        return None, str(problem)


def _list_test_rows(federation: Federation, number: int) -> LabelledRows | None:
    """A client's test rows of training; None where it had none."""
    test = np.asarray(federation.test[number])
    if not len(test):
        return None
    every, none = np.arange(len(test)), np.zeros(0, np.int64)
    parts = {"train": every, "validation": none, "select": none, "test": every}
    x, y = federation.x[test].numpy(), federation.y[test].numpy()
    return LabelledRows(x=x, y=y, parts=parts, scale=None)


def _is_worse(before: Way, after: Way) -> bool:
    """Whether a score fell; a new one that is no number is worse too."""
    return not find_score(after.measure).sign * (after.value - before.value) >= 0


def describe_scores(before: Way, after: Way, rows: int, age: str) -> str:
    """One line on the score before and after on `rows` test rows; `age`: old or new ones."""
    score = find_score(after.measure)
    unit = " %" if score.share else ""

    def value(way: Way) -> str:
        known = f" ({score.text(way.low)} to {score.text(way.high)})" if way.low == way.low else ""
        return f"{score.text(way.value)}{unit}{known}"

    return f"{rows:,} {age} test rows: {score.label} {value(before)} before, {value(after)} after"


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
