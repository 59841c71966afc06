"""The Python face: the same words as on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from . import compare as comparisons
from . import experiment as experiments
from .compare import Comparison
from .config import Experiment, change, from_toml, read_toml
from .data.datasets import Dataset
from .data.federation import Federation
from .data.federation import build as build_data
from .data.own import Own
from .errors import BadInput
from .experiment import Run
from .methods import METHODS
from .model import Model


def methods() -> list[str]:
    """Names of all methods."""
    return list(METHODS)


def run(method: str, *, config: str | Path | None = None, out: str | Path | None = None, **words: Any) -> Run:
    """Train one method: `run("pfedme", data="digits", clients=20, rounds=50, lam=15)`.

    `data` may also be a Federation, a Dataset or your own arrays (coterie.data.own.from_arrays), `model` a function that makes
    an nn.Module.
    """
    base = change(Experiment(), from_toml(read_toml(Path(config)))) if config else Experiment()
    words, federation, models = _objects(words)
    experiment = change(base, {"method": method, **words})
    folder = Path(out) if out else experiments.run_folder(Path("runs"), f"{method}-{_data_name(experiment, federation)}")
    return experiments.execute(experiment, folder, federation=federation, models=models)


def compare(
    methods: Sequence[str],
    *,
    seeds: int | Sequence[int] = 1,
    config: str | Path | None = None,
    out: str | Path | None = None,
    options: dict[str, dict[str, Any]] | None = None,
    tune: dict[str, dict[str, list]] | None = None,
    **words: Any,
) -> Comparison:
    """Train several methods alike: `compare(["local", "fedavg", "ditto"], seeds=3, options={"ditto": {"lam": 0.5}})`."""
    base = change(Experiment(), from_toml(read_toml(Path(config)))) if config else Experiment()
    words, federation, models = _objects(words)
    planned = comparisons.plan(methods, change(base, words), options or {}, tune or {})
    folder = Path(out) if out else experiments.run_folder(Path("runs"), "compare")
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    return comparisons.compare(planned, numbers, folder, grids=tune or {}, federation=federation, models=models)


def resume(folder: str | Path) -> Run:
    """Go on with a run that was stopped."""
    return experiments.resume(Path(folder))


def load(folder: str | Path) -> Run:
    """A finished run."""
    return experiments.load(Path(folder))


def load_model(folder: str | Path, client: int, build: Callable[[], nn.Module] | None = None) -> nn.Module:
    """A client's own model as a plain nn.Module."""
    return experiments.load_model(Path(folder), client, build)


def _objects(words: dict[str, Any]) -> tuple[dict[str, Any], Federation | None, list[Model] | None]:
    """Python objects among the words: data at hand, networks of one's own."""
    words = dict(words)
    federation, models = None, None
    data, model = words.get("data"), words.get("model")
    if data is not None and not isinstance(data, str | Path):
        del words["data"]
        if isinstance(data, Federation):
            federation = data
        elif isinstance(data, Dataset | Own):
            keys = ("split", "clients", "validation", "test", "scale")
            federation = build_data(data, seed=int(words.get("seed", 0)), **{k: words.pop(k) for k in keys if k in words})
        else:
            raise BadInput(f"data is a {type(data).__name__}: give a name, a path, a Federation or coterie.data.own.from_arrays(...)")
    if callable(model):
        del words["model"]
        name = getattr(model, "__name__", "model")
        models = [Model(model, name="model" if name == "<lambda>" else name)]
    if isinstance(words.get("data"), Path):
        words["data"] = str(words["data"])
    return words, federation, models


def _data_name(experiment: Experiment, federation: Federation | None) -> str:
    return federation.name if federation else Path(str(experiment.data["name"])).stem
