"""What a run leaves on disk: its words (config.toml), facts (run.json), table (metrics.parquet), and every client's model."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from . import __version__
from .checkpoint import checkpoints, place
from .config import Experiment, read_experiment_file, to_toml
from .data.counts import label_counts
from .data.federation import Federation, checksum
from .errors import BadInput
from .metrics import Summary, Table, summarize, values
from .model import Model
from .models import nets
from .run import Loop
from .scores import FILE as SCORES

CONFIG, FACTS, METRICS = "config.toml", "run.json", "metrics.parquet"
SPLIT = "split.parquet"
LIBRARIES = ("torch", "numpy", "scikit-learn", "scipy", "pyarrow", "safetensors")


@dataclass(frozen=True)
class Run:
    """A finished (or stopped) run: its words, its table, its models."""

    folder: Path
    experiment: Experiment
    table: pa.Table = field(repr=False)
    facts: dict[str, Any] = field(repr=False)  # run.json

    @property
    def name(self) -> str:
        return self.experiment.method

    @property
    def rows(self) -> np.ndarray:
        """[N] test rows of each client."""
        return np.array(self.facts["rows"]["test"])

    @property
    def measure(self) -> str:
        """What clients are judged by: "accuracy", or "loss" where the data have no classes."""
        return "accuracy" if self.facts["classes"] else "loss"

    @property
    def part(self) -> str:
        """The part that results are shown on: "test", unless the run did not measure it."""
        parts = self.experiment.schedule.parts
        return "test" if "test" in parts else parts[-1]

    @property
    def views(self) -> list[str]:
        """The models measured at the end: "personal", and what else the method looks at."""
        last = pc.max(self.table["round"])
        rows = self.table.filter((pc.field("round") == last) & (pc.field("part") == self.part))
        return [str(view) for view in rows["view"].unique().to_pylist()]

    def accuracy(self, part: str = "test", view: str = "personal") -> np.ndarray:
        """[N] accuracy of every client at the last round; NaN without rows in the part."""
        return values(self.table, "accuracy", part, view)[1]

    def measured(self, part: str = "test", view: str = "personal") -> np.ndarray:
        """[N] accuracy, or loss where the data have no classes, at the last round."""
        return values(self.table, self.measure, part, view)[1]

    def summary(self, part: str = "test", view: str = "personal") -> Summary:
        """Mean, size-weighted mean, sample deviation and worst client."""
        rows = np.array(self.facts["rows"][part])
        found = self.measured(part, view)
        return summarize(found, rows if len(found) else found, least_is_worst=self.measure == "accuracy")

    def model(self, client: int | str, build: Callable[[], nn.Module] | None = None) -> nn.Module:
        """A client's own model, by its number or name, as a plain module ready to use."""
        return load_model(self.folder, client, build)


def load(folder: Path) -> Run:
    """A run from its folder; one that was stopped as it stood at its last checkpoint."""
    known = facts(folder)
    found = [p for p in (folder / METRICS, *(c / METRICS for c in reversed(checkpoints(folder)))) if p.exists()]
    if not found:
        raise BadInput(f"{folder} has no metrics yet: `coterie resume {folder}` goes on with it")
    return Run(folder, read_experiment(folder), Table.read(found[0]).whole(), known)


def status(folder: Path) -> str:
    """How far a run has come: "", "running" (or stopped) or "finished"."""
    return str(facts(folder).get("status")) if (folder / FACTS).exists() else ""


def facts(folder: Path) -> dict[str, Any]:
    """What a run was: see write_facts."""
    try:
        known = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"{folder} is not the folder of a run: it has no {FACTS}") from None
    except ValueError:
        raise BadInput(f"{folder / FACTS} is damaged: restore it from a copy, or run again") from None
    return dict(known)


def read_experiment(folder: Path) -> Experiment:
    """The words a run was started with, every default filled in."""
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}")
    if not (folder / CONFIG).exists():
        raise BadInput(f"{folder} is not the folder of a run: it has no {CONFIG}")
    return read_experiment_file(folder / CONFIG)


def write_config(folder: Path, experiment: Experiment) -> None:
    """The words of a run, so that `coterie run --config` does it again."""
    write(folder / CONFIG, to_toml(experiment.words()))


def write_facts(folder: Path, loop: Loop, status: str) -> dict[str, Any]:
    """What a run was, for whoever finds the folder: versions, machine, data, and whether it is finished."""
    federation, engine = loop.federation, loop.engine
    known = {
        "status": status,
        "coterie": __version__,
        "versions": {name: _version(name) for name in LIBRARIES},
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": checksum(federation),
        "clients": federation.names,
        "rows": {part: [len(rows) for rows in getattr(federation, part)] for part in ("train", "validation", "test")},
        "groups": np.asarray(federation.groups).tolist(),
        "classes": federation.classes,
        "models": networks(loop),
        "architecture": engine.architecture.tolist(),
        "input_shape": list(federation.input_shape),
    }
    write(folder / FACTS, json.dumps(known, indent=1))
    return known


def write_split(folder: Path, federation: Federation) -> None:
    """How many rows of each class every client holds, where there are classes."""
    if federation.classes and len(federation.y) and not (folder / SPLIT).exists():  # a server of real sites has no labels
        _write_table(label_counts(federation), folder / SPLIT)


def save_scores(loop: Loop, folder: Path) -> None:
    """What every client's own model says to its test rows, where there are two classes: false accepts are counted from it."""
    if loop.federation.classes != 2 or "test" not in loop.schedule.parts:
        return
    found = [
        {"client": np.full(len(y), i, dtype=np.int32), "label": y.astype(np.int8), "score": p[:, 1].astype(np.float64)}
        for i, y, p in loop.engine.predictions(loop.everyone, loop.payload(), loop.when(), "test")
    ]
    if found:
        _write_table(pa.table({k: np.concatenate([f[k] for f in found]) for k in found[0]}), folder / SCORES)


def _write_table(table: pa.Table, path: Path) -> None:
    temporary = path.with_suffix(".part")
    pq.write_table(table, temporary, compression="zstd")
    place(temporary, path)


def networks(loop: Loop) -> list[dict[str, Any]]:
    """The architectures of a run."""
    return [{"name": m.name, "parameters": m.size} for m in loop.engine.models]


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def write(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    place(temporary, path)


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a network that a file can hold; a table of word vectors is none."""
    return {k: v for k, v in options.items() if isinstance(v, int | float | str | bool)}


def save_models(loop: Loop, folder: Path) -> None:
    """Every client's own model as a safetensors file of plain parameter names, with what it takes to build it again."""
    target = folder / "models"
    for a, chunk, views in loop.engine.points(loop.everyone, loop.payload(), loop.when()):
        model: Model = loop.engine.model_of(a, "personal")
        about = {
            "model": model.name,
            "options": _plain(model.options),
            "lacks": [k for k in model.options if k not in _plain(model.options)],
            "shape": model.input_shape or loop.federation.input_shape,
            "classes": loop.federation.classes,
        }
        point = views["personal"]
        target.mkdir(exist_ok=True)
        for k, i in enumerate(chunk):
            tensors = {n: t[k].contiguous().clone() for n, t in (point.params | point.buffers).items()}
            # one entry, because a file with several may have them in any order and be another at every run
            about["client"] = loop.federation.names[i]
            save_file(tensors, target / f"client-{i:05d}.safetensors", {"coterie": json.dumps(about)})


def load_model(folder: Path, client: int | str, build: Callable[[], nn.Module] | None = None) -> nn.Module:
    """A client's own model as a plain `nn.Module`; `build` makes the module where it is not one of coterie's networks."""
    names = facts(folder)["clients"]
    if isinstance(client, str):
        if client not in names:
            raise BadInput(
                f"{folder} has no client '{client}': its clients are {', '.join(names[:10])}{', ...' * (len(names) > 10)}"
            )
        client = int(names.index(client))
    if not 0 <= client < len(names):
        raise BadInput(f"{folder} has no client {client}: its clients are 0 to {len(names) - 1}")
    path = folder / "models" / f"client-{client:05d}.safetensors"
    if not path.exists():
        raise BadInput(f"{path} does not exist: the run is not finished, or was told to keep no models")
    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["coterie"])
        module = (build or _builder(about))()
        module.load_state_dict(load_file(path))
    except SafetensorError as damage:
        raise BadInput(f"{path} is damaged ({damage}): run again, or restore it from a copy") from None
    except RuntimeError as mismatch:
        raise BadInput(f"{path} does not fit the network that `build` makes: {mismatch}") from None
    return module.eval()


def _builder(about: dict[str, Any]) -> Callable[[], nn.Module]:
    name, lacks = about["model"], ", ".join(about["lacks"])
    if name not in nets.NETS or lacks:
        why = f"its {lacks} is not in the file" if lacks else "it is a network of your own"
        raise BadInput(f"'{name}' cannot be built from the file alone, because {why}: pass the function that makes it as build=")
    return lambda: nets.build(name, tuple(about["shape"]), about["classes"] or 1, **about["options"])


def run_folder(base: Path, name: str) -> Path:
    """An unused folder name that says what and when."""
    first = base / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    folder, k = first, 2
    while folder.exists():
        folder, k = first.with_name(f"{first.name}-{k}"), k + 1
    return folder
