"""The Python interface: the same options as on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from torch import nn

from coterie.comparison import execute as comparisons
from coterie.comparison.defaults import DEFAULT_METHODS, find_runnable
from coterie.comparison.limits import read_limits
from coterie.comparison.plan import FILE, list_seeds, plan_of
from coterie.core.errors import BadInput, format_value
from coterie.core.files import path_exists
from coterie.core.functions import name_function
from coterie.core.model import Model
from coterie.core.option_names import FORMER_SECTIONS
from coterie.core.options import coerce, declared_options
from coterie.data.dataset import Dataset
from coterie.data.federation import Federation
from coterie.data.read import user_data
from coterie.data.read.file_rows import UserData
from coterie.data.read.flower_partitions import is_partitions
from coterie.experiment.build import Given, Networks, fill_text_settings, network_name_of
from coterie.experiment.config import (
    PYTHON,
    Experiment,
    change_options,
    flatten_options,
)
from coterie.experiment.own_code import (
    read_user_experiment,
    read_user_file,
    use_named,
    use_plugins,
)
from coterie.experiment.recipes import data_name_of, find_config
from coterie.methods.registry import METHODS, add_method
from coterie.reports.plots import Plots
from coterie.reports.report import write_and_warn, write_report
from coterie.results.comparison import Comparison
from coterie.results.folder import make_run_folder
from coterie.results.models import load_model as load_client_model
from coterie.results.personal_models import Models, PersonalModel
from coterie.results.plotting import register_plots
from coterie.results.run import Run
from coterie.results.run import load_run as load_run
from coterie.running import execute as experiments
from coterie.running.loop import RoundReport
from coterie.running.notebook import show_progress
from coterie.serving import explaining, personalizing, updating
from coterie.serving.explaining import Explained
from coterie.serving.hosting import serve as serve_models
from coterie.serving.personalizing import Personalized
from coterie.serving.service import ServiceLimits
from coterie.serving.updating import Updated

Options = dict[str, Any]
Plugins = str | Path | Iterable[str | Path] | None  # files or modules of one's own

register_plots(Plots)


def method_names() -> list[str]:
    """Names of all methods."""
    return list(METHODS)


def register(builder: Callable[..., Any], name: str | None = None) -> None:
    """Make a method of your own known by its name: `builder(model, train, option=default, ...)`
    returns a Method.
    """
    _check_callable(builder, "builder")
    add_method(_check_text(name or getattr(builder, "__name__", ""), "name"), builder)


def use_plugin(plugin: str | Path) -> None:
    """Load a Python file or module of your own: its methods are then known by their names, its
    networks, data sets, losses and metrics as module:name.
    """
    use_plugins(plugin)


def run(
    method: str,
    *,
    config: str | Path | None = None,
    out: str | Path | None = None,
    plugin: Plugins = None,
    watch: Callable[[RoundReport], None] | None = None,
    **settings: Any,
) -> Run:
    """Train one method: `run("pfedme", dataset="digits", num_clients=20, rounds=50, lam=15)`.

    `config` is a TOML file or the name of a recipe, which the options change. `dataset` may also be
    a pandas or polars frame (with client="..." and label="..."), a Federation, a Dataset or arrays
    of your own (coterie.data.read.user_data.from_arrays), `model` a function that makes an
    nn.Module, or a list of them. `plugin` names files of your own, see `use_plugin`. `watch` is
    called after every round; without it a notebook shows a bar, and others see a line now and then.
    """
    if watch is not None:
        _check_callable(watch, "watch")
    use_plugins(plugin)
    settings, data, models = _extract_objects(settings)
    experiment = read_user_experiment(_find_config(config)) if config is not None else Experiment()
    settings = {"method": _check_text(method, "method")} | flatten_options(settings)
    experiment = _set_partition(change_options(experiment, settings), data)
    place = None if out is None else _check_path(out, "out")
    with make_run_folder(place, f"{method}-{data_name_of(experiment)}") as folder:
        if watch is not None:
            return experiments.execute(experiment, folder, watch, data, models)
        with show_progress() as show:
            return experiments.execute(
                experiment, folder, lambda report: show(method, None, report), data, models
            )


def compare(
    methods: Iterable[str] | None = None,
    *,
    seeds: int | Iterable[int] | None = None,
    config: str | Path | None = None,
    out: str | Path | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    tune: Mapping[str, Mapping[str, Any]] | None = None,
    trials: int | None = None,
    budget: str | int | None = None,
    report: bool = True,
    references: bool = True,
    plugin: Plugins = None,
    watch: Callable[[str, int, RoundReport], None] | None = None,
    **settings: Any,
) -> Comparison:
    """Train several methods alike: `compare(["local", "fedavg", "ditto"], seeds=3,
    options={"ditto": {"lam": 0.5}})`.

    `dataset` and `model` are as for `run`; `tune` lists values to try, as in {"ditto": {"lam":
    [0.1, 1]}}: validation data choose. `trials` searches the options of every method with so many
    trials each, `budget` for so long, as "15m"; methods may then be left out. On your own tables
    validation data also choose learning rates and networks that are not given, unless `budget` is
    0. `report` writes report.html into the folder. `references`: on your own tables, also what
    scikit-learn reaches alone and pooled. `plugin` and `watch` are as for `run`.
    """
    if watch is not None:
        _check_callable(watch, "watch")
    use_plugins(plugin)
    settings, data, models = _extract_objects(settings)
    file = read_user_file(_find_config(config)) if config is not None else {}
    use_named({"options": options or {}, "tune": tune or {}})
    search, choose = read_limits(trials, budget)
    said = (
        _parse_seeds(seeds),
        flatten_options(settings),
        _check_table(options, "options"),
        _check_table(tune, "tune"),
    )
    names = _parse_methods(methods)
    if names is None and search and not {"methods", "method"} & set(file):
        usual = plan_of(file, DEFAULT_METHODS, *said, strict=False, search=search).experiments
        names, _ = find_runnable(
            {n: _set_partition(e, data) for n, e in usual.items()}, data, models
        )
    plan = plan_of(file, names, *said, search=search, choose=choose)
    planned = {
        name: _set_partition(experiment, data) for name, experiment in plan.experiments.items()
    }
    place = None if out is None else _check_path(out, "out")
    with (
        make_run_folder(place, "compare") as folder,
        show_progress(comparisons.count_runs(plan)) as show,
    ):
        made = comparisons.compare(
            planned,
            plan.seeds,
            folder,
            watch or show,
            plan.grids,
            data,
            models,
            plan.search,
            references=references,
        )
    if report:
        write_report([made.folder])
    return made


def report(
    runs: Run | Comparison | str | Path | Iterable[Run | Comparison | str | Path],
    out: str | Path | None = None,
    files: str | Path | None = None,
) -> Path:
    """Write what runs and comparisons say as one page, as `coterie report`, and give its path.

    Without `out` it is report.html in a single folder, else in the working folder; `files` is a
    folder for every figure and table.
    """
    several = [runs] if isinstance(runs, Run | Comparison | str | Path) else runs
    if not isinstance(several, Iterable):
        raise BadInput(f"runs = {format_value(runs)}: give a run, a comparison or its folder")
    folders = [
        one.folder if isinstance(one, Run | Comparison) else _check_path(one, "runs")
        for one in several
    ]
    page, warnings = write_and_warn(folders, out, files)
    for line in warnings:
        print(f"coterie: {line}", file=sys.stderr)
    return page


def resume(
    folder: str | Path,
    dataset: Any = None,
    model: Any = None,
    allow_change: bool = False,
    *,
    plugin: Plugins = None,
    data: Any = None,  # what `dataset` was called
) -> Run | Comparison:
    """Go on with a run or comparison that was stopped; give `dataset` and `model` again where
    they were Python objects, and `plugin` where it is made with code of your own.

    A run goes on with the options it began with. allow_change: where its config.toml has others in
    [train], [schedule] or [options], they count from the last checkpoint on, in a new folder.
    """
    path = _check_path(folder, "folder")
    use_plugins(plugin)
    dataset = data if dataset is None else dataset
    _, given, models = _extract_objects(
        {k: v for k, v in (("dataset", dataset), ("model", model)) if v is not None}
    )
    if path_exists(path / FILE):
        comparisons.check_no_branch(path, allow_change)
        return comparisons.resume_comparison(path, data=given, models=models)
    return experiments.resume(path, data=given, models=models, allow_change=allow_change)


@overload
def load(folder: str | Path) -> Run | Comparison: ...


@overload
def load(
    folder: str | Path, client: int | str, build: Callable[[], nn.Module] | None = None
) -> PersonalModel: ...


def load(
    folder: str | Path,
    client: int | str | None = None,
    build: Callable[[], nn.Module] | None = None,
) -> Run | Comparison | PersonalModel:
    """A finished run or comparison, whatever code it was made with; with `client` that client's own
    model, to predict with.

    `build` makes a network that is not coterie's own, if `use_plugin` has not made it known.
    """
    path = _check_path(folder, "folder")
    if client is not None:
        return Models(path, _check_builder(build)).model(_check_client(client))
    if build is not None:
        raise BadInput("build makes the network of one client's model: name the client too")
    return comparisons.load_comparison(path) if path_exists(path / FILE) else load_run(path)


def load_model(
    folder: str | Path, client: int | str, build: Callable[[], nn.Module] | None = None
) -> nn.Module:
    """A client's own model, by its number or name, as a plain nn.Module; `build` makes one that is
    not coterie's own.
    """
    return load_client_model(
        _check_path(folder, "folder"), _check_client(client), _check_builder(build)
    )


def personalize(
    run: Run | str | Path,
    rows: Any,
    client: str,
    *,
    build: Callable[[], nn.Module] | None = None,
) -> Personalized:
    """Give a client that was not there a model of a finished run, by the method's own rule, and
    save it as one more client: `personalize(run, frame, "north").ways`.

    `rows` is a table of any kind, or a file, with the columns and the label of training.
    """
    return personalizing.personalize(
        _folder_of(run), rows, _check_text(client, "client"), build=_check_builder(build)
    )


def update(
    run: Run | str | Path,
    rows: Any,
    client: str,
    *,
    build: Callable[[], nn.Module] | None = None,
    force: bool = False,
) -> Updated:
    """Train a client's model on with new rows, after measuring whether they have drifted; the
    result is a new version beside the old one, and `load` takes it from then on. One that is worse
    on test rows both old and new is refused, unless `force`.
    """
    return updating.update(
        _folder_of(run),
        rows,
        _check_text(client, "client"),
        build=_check_builder(build),
        force=force,
    )


def _folder_of(run: Any) -> Path:
    return run.folder if isinstance(run, Run) else _check_path(run, "run")


def explain(
    run: str | Path | Run,
    client: int | str | None = None,
    confidence: float = 0.9,
    dataset: Any = None,
    build: Callable[[], nn.Module] | None = None,
    **settings: Any,
) -> Explained:
    """What the models of a run look at and how sure they are, for all clients or one; as `coterie
    explain`. Its temperatures and quantiles stay in the run's folder.

    Give `dataset` again where it was a Python object, with the columns' roles.
    """
    folder = run.folder if isinstance(run, Run) else _check_path(run, "run")
    named = {} if dataset is None else {"dataset": dataset}
    _, given, _ = _extract_objects({**named, **settings})
    return explaining.explain(folder, client, confidence, given, _check_builder(build))


def serve(
    folder: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8766,
    tokens: str | Path | None = None,
    open_to_all: bool = False,
    watch: float = 0.0,
    limits: ServiceLimits | None = None,
    build: Callable[[], nn.Module] | None = None,
) -> None:
    """Serve the clients' own models of a run over HTTP until it is stopped, as `coterie serve`.

    `tokens` is a file, made where it is not there (tokens.json in the folder); `open_to_all` does
    without them, on this machine only. `build` makes a network that is not coterie's own.
    """
    serve_models(
        _check_path(folder, "folder"),
        host,
        port,
        None if tokens is None else Path(tokens),
        open_to_all,
        watch=watch,
        limits=limits or ServiceLimits(),
        build=_check_builder(build),
    )


def _check_builder(build: Any) -> Callable[[], nn.Module] | None:
    if build is not None:
        _check_callable(build, "build")
    return build


def _check_client(client: Any) -> int | str:
    if isinstance(client, bool) or not isinstance(client, int | str | np.integer):
        raise BadInput(f"client = {format_value(client)}: give its number or its name")
    return client if isinstance(client, str) else int(client)


def _check_callable(value: Any, option: str) -> None:
    if not callable(value):
        raise BadInput(f"{option} = {format_value(value)}: give a function")


def _check_text(value: Any, option: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadInput(f"{option} = {format_value(value)}: give a name, such as 'fedavg'")
    return value


def _check_path(value: Any, option: str) -> Path:
    if not isinstance(value, str | Path) or "\0" in str(value):
        raise BadInput(f"{option} = {format_value(value)}: give the path of a folder")
    try:
        Path(value).stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except UnicodeEncodeError:  # half a character
        raise BadInput(f"{option} = {format_value(str(value))}: no file has such a name") from None
    except OSError as problem:  # a name that is too long, or a folder that is not ours
        raise BadInput(f"{option} = {format_value(str(value))}: {problem.strerror}") from None
    return Path(value)


def _find_config(value: Any) -> Path:
    if not isinstance(value, str | Path):
        raise BadInput(f"config = {format_value(value)}: give a TOML file or the name of a recipe")
    return find_config(value)


def _check_table(value: Any, option: str) -> Any:
    """A table of methods, each with a table of its own."""
    tables = value.values() if isinstance(value, Mapping) else [value]
    if value is not None and not all(isinstance(inner, Mapping) for inner in tables):
        raise BadInput(
            f"{option} = {format_value(value)}: give a table a method, as {{'ditto': {{...}}}}"
        )
    return value


def _parse_methods(methods: Any) -> list[str] | None:
    """Names of methods from a list or a generator; one name alone is one method."""
    if methods is None:
        return None
    if isinstance(methods, str):
        return [methods]
    if not isinstance(methods, Iterable):
        raise BadInput(
            f"methods = {format_value(methods)}: give a list of names, as ['local', 'fedavg']"
        )
    return [_check_text(name, "methods") for name in methods]


def _parse_seeds(seeds: Any) -> list[int] | None:
    """Seeds from how many there are, a list or a generator."""
    if seeds is None:
        return None
    if isinstance(seeds, Iterable) and not isinstance(seeds, str | Mapping):
        return [int(n) if isinstance(n, np.integer) else n for n in seeds]
    return list(list_seeds(seeds))


def _extract_objects(settings: Options) -> tuple[Options, Given, Networks]:
    """Python objects among the options, which then hold their names: data at hand, networks of
    one's own.
    """
    settings = dict(settings)
    use_named(settings)
    for before, now in FORMER_SECTIONS.items():
        if before in settings and now not in settings:
            settings[now] = settings.pop(before)
    for option in ("loss", "metric"):
        if settings.get(option) is not None:
            settings[option] = name_function(settings[option], option)
    data, model = settings.get("dataset"), settings.get("model")
    given: Given = None
    models: Networks = None
    if isinstance(data, Federation | Dataset | UserData):
        given = data
        settings["dataset"] = PYTHON + (data.data.name if isinstance(data, UserData) else data.name)
    elif user_data.is_frame(data) or is_partitions(data):
        opens = user_data.from_frame if user_data.is_frame(data) else user_data.from_partitions
        declared = {k: v for k, v in declared_options(opens).items() if k != "name"}
        for option in declared.keys() & settings.keys():
            kind, default = declared[option]
            settings[option] = coerce(kind, settings[option], option, default)
        settings = fill_text_settings(settings, model if isinstance(model, str) else "")
        given = opens(data, **{k: settings.pop(k) for k in declared if k in settings})
        settings["dataset"] = PYTHON + given.data.name
    elif isinstance(data, Path):
        settings["dataset"] = str(data)
    elif data is not None and not isinstance(data, str | Mapping):
        raise BadInput(
            f"dataset is a {type(data).__name__}: give a name, a path, a frame, partitions, a "
            "Federation or coterie.data.read.user_data.from_arrays(x, y, clients)"
        )
    nets: list[Any] = list(model) if isinstance(model, list | tuple) else [model]
    if not nets:
        raise BadInput("model is an empty list: give a network, or functions that make them")
    if all(isinstance(m, Model) or callable(m) for m in nets):
        if any(isinstance(m, nn.Module) for m in nets):
            raise BadInput(
                "model is a module: give the function or class that makes it, as in model=lambda: "
                "Net(10)"
            )
        models = nets
        settings["model"] = PYTHON + ",".join(
            m.name if isinstance(m, Model) else network_name_of(m) for m in nets
        )
    return settings, given, models


def _set_partition(experiment: Experiment, data: Given) -> Experiment:
    """Refuse options that would partition a federation again; name the split that data of one's own
    usually have.
    """
    if isinstance(data, Federation):
        said = [k for k in experiment.dataset if k not in ("name", "newcomers")] + [
            f"partition.{k}" for k in experiment.partition
        ]
        if said:
            options = ", ".join(said)
            raise BadInput(f"dataset is a Federation, partitioned already: leave out {options}")
    elif data is not None and not experiment.partition.get("name"):
        users = data.data.users if isinstance(data, UserData) else data.users
        return replace(
            experiment,
            partition=experiment.partition | {"name": "classes" if users is None else "user"},
        )
    return experiment
