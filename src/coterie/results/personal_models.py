"""A client's own model, complete: rows as they are in, classes and probabilities out.

Network, weights, columns and their preparation, names of classes, task, measured values, method and
versions come from the folder of a run; the training data are not needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from coterie.analysis.calibration import prediction_sets, scale_probabilities
from coterie.analysis.intervals import share_interval
from coterie.core.errors import BadInput
from coterie.core.model import first_output
from coterie.core.task import Goal, find_task
from coterie.data.prepare.inputs import InputBuilder, to_frame_or_array
from coterie.data.prepare.preparation import Preparation, preparation_from_dict
from coterie.data.target import default_target_of
from coterie.data.target import task_of as learnt_of
from coterie.results.added_models import list_clients, read_added, select_newest
from coterie.results.data_files import PREPARATION, read_preparation
from coterie.results.folder import METRICS, read_about, read_experiment
from coterie.results.metric_table import Table, values_of
from coterie.results.models import (
    MODELS,
    Build,
    Weights,
    client_number_of,
    load_weights,
    make_module,
    newest_path_of,
    read_checksums,
    read_weights,
)
from coterie.results.sureness import Sureness, read_sureness

BLOCK = 4096  # rows predicted at once
NETWORK = ("model", "options", "shape", "classes", "outputs")  # what builds a network again
PARTS = ("test", "validation", "train")
Card = dict[str, Any]  # all that is known of a model, as JSON knows it


class ModelTask(NamedTuple):
    """What a model answers."""

    learnt: Goal
    names: tuple[str, ...]  # of the classes or labels; () for numbers

    @property
    def kind(self) -> str:
        """The name of the task, see coterie.core.task."""
        return self.learnt.name

    @property
    def several(self) -> bool:
        """Whether a row has several labels, each there or not."""
        return find_task(self.kind).several

    @property
    def classes(self) -> np.ndarray:
        """The classes as numbers where all of them are whole numbers, else as text."""
        whole = all(name.removeprefix("-").isdecimal() for name in self.names)
        exact = whole and all(str(int(name)) == name for name in self.names)
        return np.array([int(n) for n in self.names] if exact else list(self.names))

    def probabilities(self, outputs: Tensor) -> np.ndarray:
        """[n, classes or labels] from the outputs of a network [n, ...]."""
        if not self.names:
            raise BadInput("this model predicts numbers, not classes: there are no probabilities")
        return self.learnt.predict(outputs).numpy()

    def answers(self, outputs: Tensor) -> np.ndarray:
        """[n] classes or numbers, or [n, labels] 0 and 1, from the outputs of a network."""
        predicted = self.learnt.answer(outputs).numpy()
        return predicted if self.several or not self.names else self.classes[predicted]

    def schema(self) -> dict[str, Any]:
        """One answer as JSON has it."""
        return find_task(self.kind).form.schema(self.kind_of_names)

    @property
    def kind_of_names(self) -> str:
        """The type of the names of classes or labels in JSON; "number" where there are none."""
        if not self.names:
            return "number"
        return "integer" if self.classes.dtype.kind == "i" else "string"


def model_task_of(
    weights: Mapping[str, Any], labels: list[str] | None, preparation: Preparation | None
) -> ModelTask:
    """The task of a model, from what its file says, its classes and how its label was learnt."""
    count = int(weights["classes"])
    known = preparation.target if preparation else None
    target = known or default_target_of(count)
    learnt = learnt_of(target, find_task(str(weights.get("task"))).is_one_logit)
    if find_task(learnt.name).several:
        return ModelTask(learnt, target.columns)
    return ModelTask(learnt, tuple(labels or (str(k) for k in range(count))) if count else ())


@dataclass(frozen=True)
class PersonalModel:
    """One client's model in use."""

    client: str
    module: nn.Module = field(repr=False)
    intake: InputBuilder = field(repr=False)
    task: ModelTask
    tell: Callable[[], Card] = field(repr=False)
    folder: Path | None = field(default=None, repr=False)  # of its run

    @cached_property
    def sureness(self) -> Sureness:
        """Its temperature and conformal quantile, as `coterie explain` has fitted them."""
        if self.folder is None:
            raise BadInput("how sure a model is stands in its run's folder: load it from there")
        return read_sureness(self.folder, self.client, self.card["version"])

    @cached_property
    def card(self) -> Card:
        """All that is known of the model: what it was trained with and how good it is."""
        return self.tell()

    @property
    def classes_(self) -> np.ndarray:
        """The classes, in the order of the probabilities."""
        return self.task.classes

    def outputs(self, rows: Any, place: str = "rows") -> Tensor:
        """What the network says of rows, [n, ...]."""
        return run_module(self.module, self.intake.inputs(rows, place))

    def predict(self, rows: Any) -> np.ndarray:
        """[n] the class of every row, or its number where the model predicts numbers.

        Rows are a pandas, polars or pyarrow table, a dict of columns, a list of dicts or an array,
        with cells as they were before training; nothing of them has to be prepared.
        """
        return self.task.answers(self.outputs(rows))

    def predict_proba(self, rows: Any) -> np.ndarray:
        """[n, classes] the probability of every class."""
        return self.task.probabilities(self.outputs(rows))

    def predict_calibrated(self, rows: Any) -> np.ndarray:
        """[n, classes] probabilities at the model's own temperature."""
        return scale_probabilities(self.predict_proba(rows), self.sureness.temperature or 1.0)

    def predict_set(self, rows: Any) -> list[list[Any]]:
        """[n] the classes that hold the true one in as many rows as `sureness.confidence` says."""
        inside = prediction_sets(self.predict_proba(rows), self.sureness.quantile)
        return [self.classes_[row].tolist() for row in inside]

    def predict_interval(self, rows: Any) -> np.ndarray:
        """[n, 2] from where to where a number is in as many rows as `sureness.confidence` says."""
        if self.task.names:
            raise BadInput("this model predicts classes: predict_set has their sets")
        middle, reach = self.predict(rows), self.sureness.quantile
        return np.stack([middle - reach, middle + reach], 1)

    def __call__(self, x: Tensor) -> Any:
        """What the network itself makes of inputs that are prepared already."""
        return self.module(x)

    def state_dict(self) -> dict[str, Tensor]:
        """The weights by their plain names."""
        return self.module.state_dict()


def run_module(module: nn.Module, x: np.ndarray) -> Tensor:
    """The outputs of a network for prepared inputs, a block at a time."""
    starts = range(0, max(len(x), 1), BLOCK)
    with torch.no_grad():
        found = [
            first_output(module(torch.from_numpy(np.ascontiguousarray(x[at : at + BLOCK]))))
            for at in starts
        ]
    return torch.cat(found)


class Models:
    """The models of a run, opened once: what they share is read once, each model when asked for."""

    def __init__(self, folder: Path, build: Build | None = None) -> None:
        self.folder, self.build = folder, build
        self.about = read_about(folder)
        self.later = read_added(folder / MODELS)
        self._newest = select_newest(self.later)
        self.names: list[str] = list_clients(self.about["clients"], self.later)
        self.numbers = {name: k for k, name in enumerate(self.names)}
        self._listed = read_checksums(folder)
        has = (folder / PREPARATION).exists()
        self.preparation: Preparation | None = self._read_preparation() if has else None

    def _read_preparation(self) -> Preparation:
        """How rows become inputs; clients that came later may have scales of their own."""
        kept = read_preparation(self.folder)
        own = {e.client: (e.scale[0], e.scale[1]) for e in self.later if e.scale}
        return kept._replace(clients={**kept.clients, **own}) if own else kept

    @property
    def architecture(self) -> list[int]:
        """[clients] which of the run's networks each has."""
        trained = self.about["clients"]
        known = self.about.get("architecture") or [0] * len(trained)
        return [*known, *(self._newest[n].architecture for n in self.names[len(trained) :])]

    def path(self, number: int) -> Path:
        """The file of a client's newest model."""
        return newest_path_of(self.folder, self.names, self._newest, number, self._listed)

    def number(self, client: int | str) -> int:
        """The number of a client, by its number or name."""
        if isinstance(client, str) and client in self.numbers:
            return self.numbers[client]
        return client_number_of(self.folder, self.names, client)

    def weights(self, number: int) -> Weights:
        """What the file of a client's model holds."""
        return read_weights(self.path(number), self._listed)

    def network(self, about: Mapping[str, Any]) -> nn.Module:
        """The network that the file of a model speaks of, with weights of nobody."""
        return make_module(about, self.build).eval()

    def intake(self, number: int, about: Mapping[str, Any]) -> InputBuilder:
        """How rows of a client become inputs."""
        return InputBuilder(self.preparation, tuple(about["shape"]), self.names[number])

    def task(self, about: Mapping[str, Any]) -> ModelTask:
        """What a model of the run answers."""
        return model_task_of(about, self.about.get("labels"), self.preparation)

    def model(self, client: int | str) -> PersonalModel:
        """One client's model."""
        number = self.number(client)
        weights = self.weights(number)
        return PersonalModel(
            client=self.names[number],
            module=load_weights(self.path(number), weights, self.build),
            intake=self.intake(number, weights.about),
            task=self.task(weights.about),
            tell=lambda: self.card(number, weights),
            folder=self.folder,
        )

    @cached_property
    def table(self) -> Any:
        """The measured values of all clients."""
        return Table.read(self.folder / METRICS).whole()

    def version(self, number: int) -> int:
        """The version of a client's model; that of training is the first."""
        entry = self._newest.get(self.names[number])
        return entry.version if entry else 1

    def card(self, number: int, weights: Weights) -> Card:
        """All that is known of one client's model, as JSON knows it."""
        settings = read_experiment(self.folder).to_dict()
        about, name = self.about, self.names[number]
        task, entry = self.task(weights.about), self._newest.get(self.names[number])
        return {
            "client": name,
            "task": task.kind,
            "classes": list(task.names),
            "network": {k: weights.about.get(k) for k in NETWORK}
            | {"parameters": sum(t.numel() for t in weights.tensors.values())},
            "method": settings["method"],
            "options": settings["options"],
            "train": settings["train"],
            "seed": settings["seed"],
            "rows": {
                part: entry.rows[part] if entry else about["rows"][part][number] for part in PARTS
            },
            "measured": entry.measured if entry else self._measure(number, task),
            "version": self.version(number),
            "history": self._history(number, task),
            "data": about["data"],
            "date": entry.date if entry else about["date"],
            "versions": {
                "coterie": about["coterie"],
                "python": about["python"],
                **about["versions"],
            },
            "preparation": self._own_preparation(name),
            "privacy": about.get("privacy"),
        }

    def _history(self, number: int, task: ModelTask) -> list[dict[str, Any]]:
        """Every version of a client's model, the newest last; what training made is the first."""
        later = [e for e in self.later if e.client == self.names[number]]
        found = [
            {
                "version": e.version,
                "date": e.date,
                "how": e.how,
                "drift": e.drift,
                "measured": e.measured,
            }
            for e in later
        ]
        if number >= len(self.about["clients"]):
            return found
        first = {
            "version": 1,
            "date": self.about["date"],
            "how": "trained in the run",
            "drift": "",
            "measured": self._measure(number, task),
        }
        return [first, *found]

    def _measure(self, number: int, task: ModelTask) -> list[dict[str, Any]]:
        """The values of the model that training made, on every part that was measured."""

        def value(metric: str, part: str) -> float:
            clients, numbers = values_of(self.table, metric, part)
            found = numbers[clients == number]
            return float(found[0]) if len(found) else float("nan")

        rows = self.about["rows"]
        return metrics_of(task, {part: rows[part][number] for part in PARTS}, value)

    def _own_preparation(self, name: str) -> dict[str, Any] | None:
        """The preparation without what it knows of other clients."""
        if self.preparation is None:
            return None
        kept = {k: v for k, v in self.preparation.clients.items() if k == name}
        return json.loads(
            json.dumps(self.preparation._replace(clients=kept, left_out=()).to_dict())
        )


def metrics_of(
    task: ModelTask, rows: Mapping[str, int], value_of: Callable[[str, str], float]
) -> list[dict[str, Any]]:
    """A client's own values on every part that was measured; value_of: (metric, part) -> it."""
    found, learnt = [], find_task(task.kind)
    for part in PARTS:
        for metric in (task.learnt.measure, "loss") if learnt.scores else ("loss",):
            value = value_of(metric, part) if rows[part] else float("nan")
            if np.isnan(value):
                continue
            one = {"part": part, "metric": metric, "value": value, "rows": rows[part]}
            if metric == "accuracy" and learnt.has_classes:
                low, high = share_interval(round(value * rows[part]), rows[part])
                one |= {"low": low, "high": high}
            found.append(one)
    return found


class SingleModel:
    """The model of one client in a file of its own, as a real site keeps it."""

    def __init__(self, path: Path, build: Build | None = None) -> None:
        try:
            with safe_open(path, "pt") as file:
                about = json.loads(file.metadata()["coterie"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self._model = from_card(about["card"], Weights(about, tensors), path, build)
        except FileNotFoundError:
            raise BadInput(f"{path} is not there: this site has no model yet") from None
        except (ValueError, KeyError, TypeError, SafetensorError) as damage:
            if isinstance(damage, BadInput):
                raise
            raise BadInput(f"{path} is damaged or of another version ({damage})") from None
        self.names = [self._model.client]

    def number(self, client: int | str) -> int:
        """0, if the client is that of this model."""
        if client not in (0, *self.names):
            raise BadInput(f"this is the model of '{self.names[0]}', not of '{client}'")
        return 0

    def model(self, client: int | str) -> PersonalModel:
        """The model, if the client is its own."""
        self.number(client)
        return self._model


def from_card(
    card: Card, weights: Weights, place: Path, build: Build | None = None
) -> PersonalModel:
    """A model from its card and weights alone, away from its run."""
    prepared = preparation_from_dict(card["preparation"]) if card["preparation"] else None
    return PersonalModel(
        client=card["client"],
        module=load_weights(place, weights, build),
        intake=InputBuilder(prepared, tuple(weights.about["shape"]), card["client"]),
        task=model_task_of(weights.about, card["classes"] or None, prepared),
        tell=lambda: card,
    )


def predict_rows(
    model_of: Callable[[str], PersonalModel], rows: Any, clients: str | Sequence[str]
) -> np.ndarray:
    """[n] the answers of each row's own client's model, in the order of the rows."""
    found = to_frame_or_array(rows)
    if isinstance(clients, str):
        if not isinstance(found, pl.DataFrame) or clients not in found.columns:
            raise BadInput(f"the rows have no column '{clients}' that names their clients")
        owners = found[clients].cast(pl.String).to_numpy()
        found = found.drop(clients)
    else:
        owners = np.asarray([str(name) for name in clients])
    if len(owners) != len(found):
        raise BadInput(f"clients names {len(owners):,} clients for {len(found):,} rows")
    out: np.ndarray | None = None
    for name in dict.fromkeys(owners.tolist()):
        if name is None:
            raise BadInput(f"column '{clients}' is empty in a row: name its client")
        at = np.flatnonzero(owners == name)
        answers = model_of(name).predict(found[at])
        out = np.empty((len(owners), *answers.shape[1:]), answers.dtype) if out is None else out
        out[at] = answers
    return np.empty(0) if out is None else out
