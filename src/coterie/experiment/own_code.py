"""Code of one's own in an experiment: what the user names is loaded and made known; what a run's
folder names is only looked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput, format_value, suggest_name
from coterie.core.functions import GIVEN, is_function_name
from coterie.core.plugins import PLUGINS, Plugin, facts_of, forget_plugin, load_plugin
from coterie.experiment.config import (
    PYTHON,
    REGISTRIES,
    Experiment,
    Options,
    build_experiment,
    builder_of,
    data_options_of,
    options_of,
    parse_networks,
    read_toml,
)
from coterie.methods.registry import METHODS, add_method
from coterie.networks.registry import NETS, parse_spec

NAMING = ("dataset", "model", "loss", "metric", "name")  # options that may name code
STORED = ("run.json", "comparison.toml")  # of the folders that coterie writes
KINDS = {"method": "method", "dataset": "data set", "model": "network"}


def use_plugin(text: str | Path) -> Plugin:
    """Load a file or module of the user's and make its methods known by their names; its networks,
    data sets, losses and metrics are named as module:name.
    """
    plugin = load_plugin(text)
    known = [inspect.unwrap(builder) for builder in METHODS.values()]
    for name, value in list(vars(plugin.module).items()):
        if not _is_method(value, plugin) or inspect.unwrap(value) in known:
            continue
        if name in METHODS:
            forget_plugin(plugin.name)
            raise BadInput(
                f"plugin '{plugin.name}' defines a method '{name}', and there is one already: "
                "rename it"
            )
        add_method(name, value)
    return plugin


def _is_method(value: Any, plugin: Plugin) -> bool:
    """Whether a plugin's own function is the builder of a method: (model, train, ...)."""
    if not inspect.isfunction(value) or value.__module__ != plugin.name:
        return False
    return list(inspect.signature(value).parameters)[:2] == ["model", "train"] and (
        not value.__name__.startswith("_")
    )


def use_plugins(plugins: Any) -> None:
    """Load the plugins that the user names: one, or several."""
    several = [plugins] if isinstance(plugins, str | Path) else plugins or ()
    if not isinstance(several, Iterable):
        raise BadInput(f"plugin = {format_value(plugins)}: give a Python file, such as my.py")
    for text in several:
        use_plugin(text)


def names_code(settings: Mapping[str, Any]) -> str:
    """The first value among options that names code as module:name; "" where there is none."""
    names = (parse_spec(spec)[0] for text in _iter_names(settings) for spec in text.split(","))
    return next((n for n in names if is_function_name(n) and not n.startswith(PYTHON)), "")


def use_named(settings: Mapping[str, Any]) -> None:
    """Load the modules of what the user names as module:name among options."""
    for text in _iter_names(settings):
        for spec in text.split(","):
            name = parse_spec(spec)[0]
            module = name.partition(":")[0]
            if not is_function_name(name) or name.startswith(PYTHON) or name in GIVEN:
                continue
            if module not in PLUGINS:
                use_plugin(module)


def _iter_names(settings: Mapping[str, Any]) -> Iterator[str]:
    for option, value in settings.items():
        if isinstance(value, Mapping):
            yield from _iter_names(value)
        elif isinstance(value, str) and option.rpartition(".")[2] in NAMING:
            yield value


def read_user_file(path: Path) -> Options:
    """The options of a file that the user names; its `plugin` is loaded.

    The file of a run's or comparison's own folder may be anybody's: it loads nothing.
    """
    settings = read_toml(path)
    plugins = settings.pop("plugin", ())
    if path.name == STORED[1] or (path.parent / STORED[0]).exists():
        if plugins:
            raise BadInput(
                f"{path} names a plugin, which is not taken from the folder of a run: give it with "
                "--plugin"
            )
        return settings
    use_plugins(plugins)
    use_named(settings)
    return settings


def read_user_experiment(path: Path) -> Experiment:
    """The experiment of a file that the user names."""
    return build_experiment(read_user_file(path), path)


def plugins_of(experiment: Experiment) -> list[dict[str, str]]:
    """Name, file and checksum of every plugin that a run needs."""
    found: dict[str, dict[str, str]] = {}
    for value in _iter_code(experiment):
        facts = facts_of(inspect.unwrap(value))
        if facts:
            found[facts["name"]] = facts
    return [found[name] for name in sorted(found)]


def _iter_code(experiment: Experiment) -> Iterator[Any]:
    """The functions and classes that an experiment is made of."""
    nets = [parse_spec(spec)[0] for spec in parse_networks(str(experiment.model.get("name", "")))]
    chosen = {"method": [experiment.method], "dataset": [experiment.dataset["name"]], "model": nets}
    for kind, names in chosen.items():
        registry = REGISTRIES[kind]
        yield from (builder_of(registry[name]) for name in names if name in registry)
    for name in _functions_of(experiment):
        yield from [GIVEN[name]] if name in GIVEN else []


def _functions_of(experiment: Experiment) -> list[str]:
    named = (experiment.dataset.get("loss"), experiment.schedule.metric)
    return [name for name in named if isinstance(name, str) and is_function_name(name)]


def find_unknown(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(kind, name) of the method, data set and networks of a stored experiment that nothing here
    defines.
    """
    found = []
    method, data, net = (_name_in(settings, kind) for kind in ("method", "dataset", "model"))
    if method and method not in METHODS:
        found.append(("method", method))
    if data and not _is_known(lambda: data_options_of(data)):
        found.append(("dataset", data))
    for name in [parse_spec(spec)[0] for spec in parse_networks(net)]:
        if name not in NETS and not _is_known(lambda: options_of("model", name)):
            found.append(("model", name))
    return found


def _name_in(settings: Mapping[str, Any], kind: str) -> str:
    found = settings.get(kind, "")
    if isinstance(found, Mapping):
        found = found.get("name", "")
    return found if isinstance(found, str) else ""


def _is_known(ask: Any) -> bool:
    try:
        ask()
    except BadInput:
        return False
    return True


def check_code(experiment: Experiment, recorded: Iterable[Mapping[str, str]], place: Path) -> None:
    """Refuse to go on with a run whose code is not here; `recorded` is what it wrote down of it."""
    missing = find_unknown(experiment.to_dict())
    lacking = [name for name in _functions_of(experiment) if not _has_function(name)]
    if not missing and not lacking:
        return
    kind, name = missing[0] if missing else ("function", lacking[0])
    files = [str(one.get("file") or one.get("name", "")) for one in recorded]
    files = [f for f in files if Path(f).stem not in PLUGINS]
    if files:
        raise BadInput(
            f"{place} needs the {KINDS.get(kind, kind)} '{name}' of the plugin {files[0]}: give it "
            f"with --plugin {files[0]}"
        )
    alike = suggest_name(name, REGISTRIES[kind]) if kind in REGISTRIES else ""
    raise BadInput(
        f"{place} needs the {KINDS.get(kind, kind)} '{name}', which nothing here defines: name the "
        f"file that does with --plugin{alike}"
    )


def _has_function(name: str) -> bool:
    return name in GIVEN or name.partition(":")[0] in PLUGINS


def changed_plugins(
    recorded: Iterable[Mapping[str, str]], experiment: Experiment
) -> dict[str, tuple[str, str]]:
    """{plugin: (checksum when a run began, checksum now)} of those that have changed since."""
    now = {one["name"]: one["digest"] for one in plugins_of(experiment)}
    then = {str(one.get("name")): str(one.get("digest")) for one in recorded}
    return {
        name: (digest, now[name])
        for name, digest in then.items()
        if name in now and now[name] != digest
    }
