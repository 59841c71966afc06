"""One more client for a finished run: a model by the method's own rule for newcomers.

The training data are not needed: what the server and the clients had at the end lies in the last
checkpoint, and rows of the newcomer become inputs as the run's preparation says. Only public rows,
where a method uses them, are read again.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.analysis.intervals import share_interval
from coterie.analysis.scores import default_measure_of, find_score
from coterie.core.checkpoint import find_newest_checkpoint
from coterie.core.errors import BadInput
from coterie.core.method import Tree
from coterie.core.model import Model
from coterie.core.point import Point, pick
from coterie.core.task import find_task
from coterie.core.tree import save_tree
from coterie.data.arrays import as_tensor
from coterie.data.dataset import Public
from coterie.data.federation import PARTS, Federation, Newcomers, checksum_of
from coterie.data.newcomers import with_newcomers
from coterie.engines.base import Metrics
from coterie.engines.local.engine import LocalEngine
from coterie.engines.settings import ExecutionSettings
from coterie.experiment.build import Networks
from coterie.experiment.config import PYTHON, Experiment
from coterie.results.added_models import AddedModel, append_added
from coterie.results.folder import read_experiment
from coterie.results.models import (
    MODELS,
    Build,
    add_model,
    describe_network,
    find_free_file,
    load_weights,
)
from coterie.results.personal_models import Models
from coterie.running.assembly import Assembly, assemble, load_federation, open_loop
from coterie.running.loop import Loop, Position
from coterie.running.newcomer_training import (
    WAYS,
    FinishedRun,
    ServedNewcomers,
    finished_run_of,
    rule_of,
    train_newcomers,
)
from coterie.running.progress import lock_folder
from coterie.serving.labelled_rows import LabelledRows, load_labelled_rows

STATES = "states"  # folder of the states that belong to models which came later


class Way(NamedTuple):
    """A newcomer's model that was made in one way, on its test rows."""

    way: str  # one of WAYS
    measure: str
    value: float
    low: float  # 95 % interval of a share of so many rows; NaN of other measures
    high: float
    loss: float


class Personalized(NamedTuple):
    """What came of it."""

    client: str
    rule: str  # the method's, as the predicate of a sentence
    rows: dict[str, int]
    ways: list[Way]
    version: int = 1


def personalize(
    folder: Path,
    rows: Any,
    client: str,
    separator: str = "",
    build: Build | None = None,
) -> Personalized:
    """Give a client that was not there a model of its own, and save it beside the others."""
    models = Models(folder, build)
    check_name(models, client)
    experiment = read_experiment(folder)
    found = load_labelled_rows(models, experiment, rows, client, separator=separator)
    run = rebuild_run(models, experiment, found, client)
    ways, chosen = [], None
    for way in WAYS:
        served = train_newcomers(run, way)
        ways.append(evaluate_way(way, served.measure(), found, experiment, run.setup.models[0]))
        chosen = served if way == "rule" else chosen
    assert chosen is not None
    rule = rule_of(run).rule
    _save(models, run, chosen, found, client, rule, ways[0])
    return Personalized(client, rule, found.counts, ways)


def check_name(models: Models, client: str) -> None:
    """Refuse a name that no new client can have."""
    if not client.strip() or "\0" in client:
        raise BadInput("name the new client, as in --client north")
    if client in models.names:
        raise BadInput(
            f"{models.folder} has a client '{client}' already: give another --client, or "
            f"`coterie update {models.folder} --client {client}` with its new rows"
        )


def rebuild_run(
    models: Models, experiment: Experiment, rows: LabelledRows, client: str
) -> FinishedRun:
    """The run at its end, with one newcomer."""
    folder, about = models.folder, models.about
    found = find_newest_checkpoint(folder)
    if about["status"] != "finished" or found is None:
        why = "it is not finished" if found else "it kept no checkpoint (keep.checkpoint = 0)"
        raise BadInput(f"{folder} cannot take newcomers: {why}")
    networks: Networks = None
    if str(experiment.model.get("name", "")).startswith(PYTHON) and models.build:
        networks = [models.build]
    schedule = experiment.schedule._replace(few_shot=())
    settings = replace(experiment, schedule=schedule, engine={"name": "local"})
    federation = placeholder_federation(models, rows, client, _load_public(experiment, about))
    assembly = assemble(settings, federation, networks, about.get("architecture"), clients=[])
    loop = _restore_loop(assembly, found.tree)
    run = finished_run_of(loop, with_newcomers(federation), _mean_models(models, loop))
    return run._replace(states=loop.engine.dump())


def _load_public(experiment: Experiment, about: dict[str, Any]) -> Public | None:
    """The public rows of a run that has any, as long as its data are still there."""
    if not experiment.dataset.get("public"):
        return None
    federation = load_federation(experiment)
    if checksum_of(federation) != about["data"]:
        raise BadInput(
            f"the data of '{experiment.dataset['name']}' have changed since the run, and its "
            "public rows with them: restore them"
        )
    return federation.public


def placeholder_federation(
    models: Models, rows: LabelledRows, client: str, public: Public | None
) -> Federation:
    """A federation with the numbers of rows that the run's clients had, and the newcomer's rows.

    No trained client's row is ever looked at: their lists have the right lengths, all of row 0.
    """
    about = models.about
    late = Newcomers(
        **{part: [numbers] for part, numbers in rows.parts.items()},
        groups=np.zeros(1, np.int64),
        names=[client],
    )
    held = {part: [np.zeros(n, np.int64) for n in about["rows"][part]] for part in PARTS}
    return Federation(
        name="newcomer",
        x=as_tensor(rows.x),
        y=as_tensor(rows.y),
        classes=about["classes"],
        train=held["train"],
        validation=held["validation"],
        select=held["select"],
        test=held["test"],
        groups=np.array(about["groups"]),
        names=list(about["clients"]),
        public=public,
        labels=about.get("labels"),
        preparation=models.preparation,
        newcomers=late,
    )


def _restore_loop(assembly: Assembly, tree: Any) -> Loop:
    """The run where its last checkpoint stands, in this process."""
    loop = open_loop(assembly, LocalEngine)
    loop.position = Position(tree["stage"], tree["round"], tree["server"])
    loop.engine.use([ExecutionSettings.read(str(text)) for text in tree["settings"]])
    loop.engine.restore(tree["states"], tree["stage"])
    return loop


def _mean_models(models: Models, loop: Loop) -> list[Point] | None:
    """The mean of the clients' models as they were saved, for a method without a global model."""
    method = loop.program[loop.position.stage].method
    if "global" in method.views:
        return None
    sums: dict[int, Point] = {}
    sizes, architecture = loop.federation.sizes, loop.engine.architecture
    totals = [float(sizes[architecture == a].sum()) for a in range(len(loop.engine.models))]
    for i in range(loop.federation.clients):
        a = int(architecture[i])
        model: Model = loop.engine.models[a]
        module = load_weights(models.folder / MODELS, models.weights(i), models.build)
        point = model.point(module)
        share = float(sizes[i]) / totals[a]
        part = Point(
            {k: share * v for k, v in point.params.items()},
            {k: share * v if v.is_floating_point() else v for k, v in point.buffers.items()},
        )
        before = sums.get(a)
        sums[a] = part if before is None else _add_points(before, part)
    return [sums.get(a, m.start(loop.seed)) for a, m in enumerate(loop.engine.models)]


def _add_points(a: Point, b: Point) -> Point:
    return Point(
        {k: v + b.params[k] for k, v in a.params.items()},
        {k: v + b.buffers[k] if v.is_floating_point() else v for k, v in a.buffers.items()},
    )


def evaluate_way(
    way: str, measured: Metrics, rows: LabelledRows, experiment: Experiment, model: Model
) -> Way:
    """A model's value on the newcomer's test rows, with its interval where it is a share of
    rows.
    """
    name = experiment.schedule.metric or default_measure_of(model.task)
    value = float(measured["personal", "test", name][0])
    low = high = float("nan")
    if name == "accuracy" and find_task(model.task).has_classes:
        n = rows.counts["test"]
        low, high = share_interval(round(value * n), n)
    loss = float(measured["personal", "test", "loss"][0])
    return Way(way=way, measure=find_score(name).name, value=value, low=low, high=high, loss=loss)


def card_measurements(way: Way, rows: int) -> list[dict[str, Any]]:
    """The same as a card has it."""
    one: dict[str, Any] = {
        "part": "test",
        "metric": way.measure,
        "value": way.value,
        "rows": rows,
    }
    if way.low == way.low:
        one |= {"low": way.low, "high": way.high}
    if way.measure == "loss":
        return [one]
    return [one, {"part": "test", "metric": "loss", "value": way.loss, "rows": rows}]


def _save(
    models: Models,
    run: FinishedRun,
    served: ServedNewcomers,
    rows: LabelledRows,
    client: str,
    rule: str,
    way: Way,
) -> None:
    (a, _, views), *_ = list(served.points())
    model = served.engine.model_of(a, "personal")
    save_version(
        models,
        run,
        model,
        pick(views["personal"], 0),
        AddedModel(
            client=client,
            version=1,
            file="",
            how=f"came after training: {rule}",
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            architecture=a,
            rows=rows.counts,
            measured=card_measurements(way, rows.counts["test"]),
            scale=rows.scale,
        ),
    )


def save_version(
    models: Models,
    run: FinishedRun,
    model: Model,
    point: Point,
    entry: AddedModel,
    state: Tree | None = None,
) -> None:
    """Write a model as one more file of the run, the client's state beside it, and then its
    entry.
    """
    tensors: dict[str, torch.Tensor] = dict(model.tensors(point))
    if not all(torch.isfinite(t).all() for t in tensors.values() if t.is_floating_point()):
        raise BadInput(
            f"the model of '{entry.client}' is not finite, and is not saved: its rows differ too "
            "much from those of training; look at their numbers"
        )
    about = describe_network(model, run.setup.federation) | {"client": entry.client}
    with lock_folder(models.folder):
        file = find_free_file(models.folder)
        add_model(models.folder, file, about, tensors)
        if state is not None:
            folder = models.folder / MODELS / STATES
            folder.mkdir(exist_ok=True)
            save_tree(state, folder, Path(file).stem)
        append_added(models.folder / MODELS, entry._replace(file=file))
