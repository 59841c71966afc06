"""From words to a run on disk and back: build, train, checkpoint, resume, load."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from . import __version__
from .checkpoint import checkpoints, load_tree, place, save_checkpoint
from .config import Experiment, change, fields, from_toml, options_of, read_toml, to_toml
from .data.datasets import DATASETS
from .data.federation import Federation, checksum
from .data.federation import build as build_data
from .engines.local import LocalEngine, Settings
from .errors import BadInput
from .method import stages
from .methods import METHODS
from .metrics import Summary, Table, summarize, values
from .model import Model
from .models import nets
from .run import Loop, Position, Report, check

NOTES = 2**26  # bytes of server notes a run may write
Watch = Callable[[Report], None]
NATURAL = ("uci-har", "mnist-writers", "synthetic", "gaussian", "sent140", "leaf")  # data sets whose clients are given
USUAL_MODELS = {"digits": ("dnn", {"hidden": 32}), "synthetic": ("mlr", {}), "gaussian": ("mean", {}), "sent140": ("lstm", {})}


def federation_of(experiment: Experiment) -> Federation:
    """The data of an experiment."""
    words = dict(experiment.data)
    name, folder, seed = words.pop("name"), words.pop("data_dir", "") or None, words.pop("seed", None)
    seed = experiment.seed if seed is None else seed
    own = set(options_of("data", name)) if name in DATASETS else {"client", "label", "features", "separator"}
    extra = {k: words[k] for k in list(words) if k in own}
    words = {k: v for k, v in words.items() if k == "clients" or k not in own}
    if "seed" in own:
        extra["seed"] = seed
    split = dict(experiment.split)
    return build_data(
        data=name, split=split.pop("name", None) or None, seed=seed, folder=folder, options=split, data_options=extra, **words
    )


def models_of(experiment: Experiment, federation: Federation) -> list[Model]:
    """The networks of an experiment; several names, separated by commas, are dealt to clients in turn."""
    words = dict(experiment.model)
    name = words.pop("name", "")
    if not name:
        usual, options = USUAL_MODELS.get(federation.name, ("dnn", {}))
        name, words = usual, options | words
    task = "squared" if federation.classes == 0 else "binary" if name == "lstm" and federation.classes == 2 else "classes"
    models = []
    for net in name.split(","):
        options = {k: v for k, v in words.items() if k in options_of("model", net)}
        if net == "lstm" and federation.table is not None:
            options["table"] = federation.table
        shape, classes = federation.input_shape, federation.classes
        model = Model(lambda n=net, o=options: nets.build(n, shape, classes, **o), task, net, shape, options)
        model.check(shape, federation.x.dtype)
        models.append(model)
    return models


@dataclass(frozen=True)
class Run:
    """A finished (or stopped) run: its words, its table, its models."""

    folder: Path
    experiment: Experiment
    table: pa.Table
    rows: np.ndarray  # [N] test rows of each client

    @property
    def name(self) -> str:
        return self.experiment.method

    def accuracy(self, part: str = "test", view: str = "personal") -> np.ndarray:
        """[N] accuracy of every client at the last round."""
        return values(self.table, "accuracy", part, view)[1]

    def summary(self, part: str = "test", view: str = "personal") -> Summary:
        """Mean, size-weighted mean, sample deviation and worst client."""
        return summarize(self.accuracy(part, view), self.rows)

    def model(self, client: int) -> nn.Module:
        """A client's own model as a plain module, ready to use."""
        return load_model(self.folder, client)


def start(experiment: Experiment, federation: Federation | None = None, models: list[Model] | None = None) -> tuple[Loop, Experiment]:
    """Everything built and checked, nothing run; the experiment with every default filled in."""
    method = METHODS[experiment.method]
    federation = federation or federation_of(experiment)
    models = models or models_of(experiment, federation)
    architecture = np.arange(federation.clients) % len(models)
    programs = [stages(method(model, experiment.train, **experiment.options)) for model in models]
    _check_train(experiment)
    check(programs[0], federation, models, experiment.schedule, experiment.method)
    chosen = [Settings(*_settings(text)) for text in experiment.engine.chosen.split() if text]
    given = Settings(experiment.engine.path, experiment.engine.width, experiment.engine.compile)
    engine = LocalEngine(federation, models, programs, architecture, experiment.seed, chosen or [given] * len(models))
    return Loop(engine, federation, experiment.schedule, experiment.seed), _resolved(experiment, federation, models)


def _resolved(experiment: Experiment, federation: Federation, models: list[Model]) -> Experiment:
    """The experiment with every default written out, so that a later version's defaults do not change it."""
    name = str(experiment.data["name"])
    split = dict(experiment.split)
    if not split.get("name") and name in DATASETS:
        split["name"] = "user" if name in NATURAL else "classes"
    model = dict(experiment.model)
    if all(m.name in nets.NETS for m in models):
        model["name"] = ",".join(m.name for m in models)
    model |= {k: v for m in models for k, v in m.options.items() if isinstance(v, int | float | str | bool)}
    experiment = replace(experiment, split=split, model=model)
    known = fields(experiment)
    data = {k: d for k, (_, d) in known["data"].items()} | experiment.data | {"clients": federation.clients}
    data["seed"] = experiment.seed if data.get("seed") is None else data["seed"]
    return replace(
        experiment,
        data=data,
        split={k: d for k, (_, d) in known["split"].items()} | split,
        model={k: d for k, (_, d) in known["model"].items()} | model,
        options={k: d for k, (_, d) in known["options"].items()} | experiment.options,
    )


def _settings(text: str) -> tuple[str, int, str]:
    path, width, compile_ = text.split(":")
    return path, int(width), compile_


def _check_train(experiment: Experiment) -> None:
    train = experiment.train
    for word, bad, way in (
        ("batch", train.batch < 1, "give at least 1 row"),
        ("rate", not train.rate > 0, "give a positive step size"),
        ("epochs", train.epochs < 1 and train.steps < 1, "give epochs or steps of at least 1"),
        ("steps", train.steps < 0, "give 0 to count epochs, or a number of steps"),
        ("momentum", not 0 <= train.momentum < 1, "give a number in [0, 1)"),
        ("weighting", train.weighting not in ("size", "equal"), "choose 'size' or 'equal'"),
    ):
        if bad:
            raise BadInput(f"train.{word} = {getattr(train, word)}: {way}")
    if experiment.engine.path not in ("auto", "vectorized", "sequential"):
        raise BadInput(f"engine.path = '{experiment.engine.path}': choose auto, vectorized or sequential")
    if experiment.engine.compile not in ("auto", "yes", "no"):
        raise BadInput(f"engine.compile = '{experiment.engine.compile}': choose auto, yes or no")


def execute(
    experiment: Experiment,
    folder: Path,
    watch: Watch = lambda report: None,
    federation: Federation | None = None,
    models: list[Model] | None = None,
) -> Run:
    """Run an experiment in a new folder; bad input is refused before the folder exists."""
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} exists and is not empty: give another --out, or `coterie resume {folder}`")
    with _threads(experiment.engine.threads):
        loop, experiment = start(experiment, federation, models)
        loop.engine.free_threads = not experiment.engine.threads
        folder.mkdir(parents=True, exist_ok=True)
        return _play(loop, experiment, folder, watch)


def resume(folder: Path, watch: Watch = lambda report: None, federation: Federation | None = None, models: list[Model] | None = None) -> Run:
    """Go on where the last checkpoint stands, in the very same way: path, width, compilation and threads as written down."""
    experiment = read_experiment(folder)
    if _facts(folder).get("status") == "finished":
        return load(folder)
    with _threads(experiment.engine.threads):
        loop, experiment = start(experiment, federation, models)
        if _facts(folder)["data"] != checksum(loop.federation):
            raise BadInput(f"the data of {folder} are not those it was started with: the checksum differs")
        found = checkpoints(folder)
        if found:
            _restore(loop, found[-1])
        return _play(loop, experiment, folder, watch)


@contextmanager
def _threads(wanted: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(wanted or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _play(loop: Loop, experiment: Experiment, folder: Path, watch: Watch) -> Run:
    """Train to the end, writing down what is needed to go on or to run again."""
    _write_config(folder, experiment)
    _write_facts(folder, loop, "running")
    keep = experiment.keep
    spacing = _note_spacing(loop)

    def after(loop: Loop, report: Report) -> None:
        if not experiment.engine.chosen and loop.done == 1:
            _write_config(folder, _with_choice(experiment, loop))
        notes = loop.server_notes()
        if notes and loop.done % spacing(notes) == 0:
            _write_notes(folder, loop.done, notes)
        if keep.checkpoint and loop.done % keep.checkpoint == 0 and loop.done < report.rounds:
            checkpoint(loop, folder)
        watch(report)

    loop.go(after)
    experiment = _with_choice(experiment, loop)
    if keep.models:
        save_models(loop, folder)
    _write_config(folder, experiment)
    loop.table.write(folder / "metrics.parquet")
    if keep.checkpoint:
        checkpoint(loop, folder)
    _write_facts(folder, loop, "finished")
    return Run(folder, experiment, loop.table.whole(), _test_rows(loop.federation))


def _with_choice(experiment: Experiment, loop: Loop) -> Experiment:
    chosen = " ".join(f"{s.path}:{s.width}:{s.compile}" for s in loop.engine.settings)
    return replace(experiment, engine=experiment.engine._replace(chosen=chosen, threads=torch.get_num_threads()))


def _write_config(folder: Path, experiment: Experiment) -> None:
    _write(folder / "config.toml", to_toml(experiment.words()))


def _note_spacing(loop: Loop) -> Callable[[dict[str, Any]], int]:
    """Every round where all notes fit in NOTES bytes, else as many as do."""

    def spacing(notes: dict[str, Any]) -> int:
        size = sum(torch.as_tensor(v).nbytes for v in notes.values())
        return max(1, -(-size * sum(loop.lengths) // NOTES))

    return spacing


def _write_notes(folder: Path, round: int, notes: dict[str, Any]) -> None:
    target = folder / "notes" / f"round-{round:05d}.safetensors"
    target.parent.mkdir(exist_ok=True)
    save_file({k: torch.as_tensor(v).contiguous().clone() for k, v in notes.items()}, target)


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text)
    place(temporary, path)


def _write_facts(folder: Path, loop: Loop, status: str) -> None:
    """What a run was, for whoever finds the folder: versions, machine, data, and whether it is finished."""
    _write(
        folder / "run.json",
        json.dumps(
            {
                "status": status,
                "coterie": __version__,
                "versions": {name: _version(name) for name in ("torch", "numpy", "scikit-learn", "scipy", "pyarrow", "safetensors")},
                "python": platform.python_version(),
                "machine": f"{platform.machine()}, {os.cpu_count()} cores",
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "data": checksum(loop.federation),
                "clients": loop.federation.names,
                "rows": {p: [len(r) for r in getattr(loop.federation, p)] for p in ("train", "validation", "test")},
                "groups": np.asarray(loop.federation.groups).tolist(),
                "classes": loop.federation.classes,
                "models": [{"name": m.name, "parameters": m.size} for m in loop.engine.models],
                "architecture": loop.engine.architecture.tolist(),
                "input_shape": list(loop.federation.input_shape),
            },
            indent=1,
        ),
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _facts(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "run.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"{folder} is not a run: it has no run.json") from None
    except json.JSONDecodeError:
        raise BadInput(f"{folder / 'run.json'} is damaged") from None


def _test_rows(federation: Federation) -> np.ndarray:
    return np.array([len(rows) for rows in federation.test])


def checkpoint(loop: Loop, folder: Path) -> None:
    """All that a run is at this moment; `coterie resume` goes on from it."""
    states = [store.everything() for store in loop.engine.states]
    stage, round, server = loop.position
    tree = {"stage": stage, "round": round, "server": server, "states": states, "settings": [tuple(s) for s in loop.engine.settings]}
    loop.table.write(folder / "metrics.parquet")
    save_checkpoint(folder, loop.done, tree, {"metrics.parquet": loop.table.write})


def _restore(loop: Loop, folder: Path) -> None:
    tree = load_tree(folder, "state")
    loop.position = Position(tree["stage"], tree["round"], tree["server"])
    loop.engine.stage = tree["stage"]
    loop.engine.settings = [Settings(*s) for s in tree["settings"]]
    for store, (clients, stacked) in zip(loop.engine.states, tree["states"], strict=True):
        if clients:
            store.scatter(clients, stacked)
    loop.table = Table.read(folder / "metrics.parquet")


def read_experiment(folder: Path) -> Experiment:
    """The words a run was started with, every default filled in."""
    if not (folder / "config.toml").exists():
        raise BadInput(f"{folder} is not a run: it has no config.toml")
    return change(Experiment(), from_toml(read_toml(folder / "config.toml")))


def load(folder: Path) -> Run:
    """A run from its folder."""
    facts = _facts(folder)
    table = folder / "metrics.parquet"
    if not table.exists():
        raise BadInput(f"{folder} has no metrics yet ({facts['status']}): `coterie resume {folder}` goes on with it")
    return Run(folder, read_experiment(folder), Table.read(table).whole(), np.array(facts["rows"]["test"]))


def save_models(loop: Loop, folder: Path) -> None:
    """Every client's own model as a safetensors file of plain parameter names, with what it takes to build it again."""
    target = folder / "models"
    target.mkdir(exist_ok=True)
    for a, chunk, views in loop.engine.points(loop.everyone, loop.payload(), loop.when()):
        model: Model = loop.engine.model_of(a, "personal")
        known = {k: v for k, v in model.options.items() if isinstance(v, int | float | str | bool)}
        shape = model.input_shape or loop.federation.input_shape
        about = {"model": model.name, "options": json.dumps(known), "shape": json.dumps(shape), "classes": str(loop.federation.classes)}
        for k, i in enumerate(chunk):
            point = views["personal"]
            tensors = {n: t[k].contiguous().clone() for n, t in (point.params | point.buffers).items()}
            save_file(tensors, target / f"client-{i:05d}.safetensors", {"client": loop.federation.names[i], **about})


def load_model(folder: Path, client: int, build: Callable[[], nn.Module] | None = None) -> nn.Module:
    """A client's own model as a plain `nn.Module`; `build` makes the module where it is not one of coterie's networks."""
    path = folder / "models" / f"client-{client:05d}.safetensors"
    if not path.exists():
        raise BadInput(f"{path} does not exist: the run kept no models, or has fewer clients")
    with safe_open(path, "pt") as file:
        about = file.metadata()
    if build is None:
        if about["model"] not in nets.NETS:
            raise BadInput(f"'{about['model']}' is a network of your own: give load_model the function that builds it")
        shape = tuple(json.loads(about["shape"]))
        build = lambda: nets.build(about["model"], shape, int(about["classes"]), **json.loads(about["options"]))  # noqa: E731
    module = build()
    module.load_state_dict(load_file(path))
    return module.eval()


def run_folder(base: Path, name: str) -> Path:
    """A folder name that says what and when."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = base / f"{stamp}-{name}"
    for k in range(2, 1000):
        if not folder.exists():
            break
        folder = base / f"{stamp}-{name}-{k}"
    return folder
