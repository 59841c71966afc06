"""The Python face: the same words as on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from coterie.comparison import execute as comparisons
from coterie.comparison.plan import FILE, plan_of
from coterie.core.errors import BadInput
from coterie.core.model import Model
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation
from coterie.data.pieces import Own
from coterie.experiment.build import Given, Networks, net_name
from coterie.experiment.config import (
    PYTHON,
    Experiment,
    change,
    from_toml,
    read_experiment_file,
    read_toml,
)
from coterie.experiment.recipes import config_path, data_name
from coterie.methods.registry import METHODS, add
from coterie.results.comparison import Comparison
from coterie.results.folder import run_folder
from coterie.results.models import load_model as load_client_model
from coterie.results.run import Run
from coterie.results.run import load as load_run
from coterie.running import execute as experiments
from coterie.running.loop import RoundReport

Words = dict[str, Any]


def methods() -> list[str]:
    """Names of all methods."""
    return list(METHODS)


def register(builder: Callable[..., Any], name: str | None = None) -> None:
    """Make a method of your own known by its name: `builder(model, train, option=default, ...)`
    returns a Method.
    """
    add(name or builder.__name__, builder)


def run(
    method: str,
    *,
    config: str | Path | None = None,
    out: str | Path | None = None,
    watch: Callable[[RoundReport], None] = lambda report: None,
    **words: Any,
) -> Run:
    """Train one method: `run("pfedme", data="digits", clients=20, rounds=50, lam=15)`.

    `config` is a TOML file or the name of a recipe, which the words change. `data` may also be a
    Federation, a Dataset or your own arrays (coterie.data.own.from_arrays), `model` a function that
    makes an nn.Module, or a list of them. `watch` is called after every round.
    """
    words, data, models = _objects(words)
    experiment = read_experiment_file(config_path(config)) if config else Experiment()
    experiment = _dealt(change(experiment, {"method": method} | from_toml(words)), data)
    folder = Path(out) if out else run_folder(Path("runs"), f"{method}-{data_name(experiment)}")
    return experiments.execute(experiment, folder, watch, data, models)


def compare(
    methods: Sequence[str] | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    config: str | Path | None = None,
    out: str | Path | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    tune: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
    watch: Callable[[str, int, RoundReport], None] = lambda method, seed, report: None,
    **words: Any,
) -> Comparison:
    """Train several methods alike: `compare(["local", "fedavg", "ditto"], seeds=3,
    options={"ditto": {"lam": 0.5}})`.

    `data` and `model` are as for `run`; `tune` lists values to try, as in {"ditto": {"lam": [0.1,
    1]}}: validation data choose.
    """
    words, data, models = _objects(words)
    numbers = list(range(seeds)) if isinstance(seeds, int) else seeds
    file = read_toml(config_path(config)) if config else {}
    planned, numbers, grids = plan_of(file, methods, numbers, from_toml(words), options, tune)
    planned = {name: _dealt(experiment, data) for name, experiment in planned.items()}
    folder = Path(out) if out else run_folder(Path("runs"), "compare")
    return comparisons.compare(planned, numbers, folder, watch, grids, data, models)


def resume(folder: str | Path, data: Any = None, model: Any = None) -> Run | Comparison:
    """Go on with a run or comparison that was stopped; give `data` and `model` again where they
    were Python objects.
    """
    _, given, models = _objects(
        {k: v for k, v in (("data", data), ("model", model)) if v is not None}
    )
    if (Path(folder) / FILE).exists():
        return comparisons.resume_comparison(Path(folder), data=given, models=models)
    return experiments.resume(Path(folder), data=given, models=models)


def load(folder: str | Path) -> Run | Comparison:
    """A finished run or comparison."""
    path = Path(folder)
    return comparisons.load_comparison(path) if (path / FILE).exists() else load_run(path)


def load_model(
    folder: str | Path, client: int | str, build: Callable[[], nn.Module] | None = None
) -> nn.Module:
    """A client's own model, by its number or name, as a plain nn.Module; `build` makes one that is
    not coterie's own.
    """
    return load_client_model(Path(folder), client, build)


def _objects(words: Words) -> tuple[Words, Given, Networks]:
    """Python objects among the words, which then hold their names: data at hand, networks of one's
    own.
    """
    words = dict(words)
    data, model = words.get("data"), words.get("model")
    given: Given = None
    models: Networks = None
    if isinstance(data, Federation | Dataset | Own):
        given = data
        words["data"] = PYTHON + (data.data.name if isinstance(data, Own) else data.name)
    elif isinstance(data, Path):
        words["data"] = str(data)
    elif data is not None and not isinstance(data, str | Mapping):
        raise BadInput(
            f"data is a {type(data).__name__}: give a name, a path, a Federation or "
            "coterie.data.own.from_arrays(x, y, clients)"
        )
    nets: list[Any] = list(model) if isinstance(model, list | tuple) else [model]
    if all(isinstance(m, Model) or callable(m) for m in nets):
        if any(isinstance(m, nn.Module) for m in nets):
            raise BadInput(
                "model is a module: give the function or class that makes it, as in model=lambda: "
                "Net(10)"
            )
        models = nets
        words["model"] = PYTHON + ",".join(
            m.name if isinstance(m, Model) else net_name(m) for m in nets
        )
    return words, given, models


def _dealt(experiment: Experiment, data: Given) -> Experiment:
    """Refuse words that would deal a federation again; name the split that data of one's own
    usually have.
    """
    if isinstance(data, Federation):
        said = [k for k in experiment.data if k != "name"] + [
            f"split.{k}" for k in experiment.split
        ]
        if said:
            raise BadInput(f"data is a Federation, dealt already: leave out {', '.join(said)}")
    elif data is not None and not experiment.split.get("name"):
        users = data.data.users if isinstance(data, Own) else data.users
        return replace(
            experiment, split=experiment.split | {"name": "classes" if users is None else "user"}
        )
    return experiment
