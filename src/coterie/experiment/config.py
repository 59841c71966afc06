"""An experiment as options: one table of fields, whether they come from TOML, the command line or
Python.

A field lives in a section, as in `[schedule] rounds = 50`. `rounds` alone is enough where only one
section knows the option, `schedule.rounds` always works. What a data set, split, network or method
takes is read from its signature.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from coterie.core.errors import BadInput, format_value, suggest_name
from coterie.core.files import path_exists, read_text
from coterie.core.functions import is_function_name
from coterie.core.guard import Guard
from coterie.core.method import Train
from coterie.core.option_names import FORMER_SECTIONS, find_alike, find_synonym, rename_former
from coterie.core.options import (
    DeclaredOptions,
    NonNegativeInt,
    PositiveInt,
    Range,
    Seed,
    coerce,
    declared_options,
)
from coterie.core.plugins import PLUGINS
from coterie.core.task import find_task
from coterie.data.dataset import UNREGISTERED_TEXTS, Source
from coterie.data.options import DataOptions
from coterie.data.partition.registry import PARTITIONERS, Partitioner
from coterie.data.partition.registry import default_partition_of as split_for
from coterie.data.read.catalog import DATASETS, add_own_dataset, source_of
from coterie.data.read.index_files import is_index_file
from coterie.data.read.user_data import is_path
from coterie.data.read.user_data import read_user_data as read_own
from coterie.engines.registry import ENGINES
from coterie.engines.settings import ExecutionSettings, Precision
from coterie.experiment.schedule import Schedule
from coterie.methods.declare import check_options, was_nothing
from coterie.methods.declare import check_train as refuse_unused
from coterie.methods.registry import METHODS
from coterie.networks.registry import NETS, Net, add_own_network, parse_spec

Options = dict[str, Any]


class Keep(NamedTuple):
    """The `[keep]` table: what a run leaves on disk."""

    checkpoint: NonNegativeInt = 10  # rounds between checkpoints; 0: none
    models: bool = True  # keep every client's own model at the end
    # tools that show the run while it goes on: tensorboard, mlflow, wandb, separated by commas
    track: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] = ()


class DatasetSection(NamedTuple):
    """What `[dataset]` has beside the options of every federation and those of a data set."""

    name: str = "digits"  # a data set, or a file or folder of one's own
    data_dir: str = ""  # folder of downloaded files; empty: `$COTERIE_DATA`, else the cache
    seed: Seed | None = None  # seed of data and partition; none: that of the run
    num_clients: PositiveInt | None = None  # number of clients; none: the default of the partition


class PartitionSection(NamedTuple):
    """What `[partition]` has beside the options of a partition."""

    name: str = ""  # how rows are partitioned over clients; empty: the default of the data


class ModelSection(NamedTuple):
    """What `[model]` has beside the options of a network."""

    # the network, or one per architecture separated by commas; empty: the default of the data
    name: str = ""
    # parameters that are not trained, by the beginnings of their names or patterns such as conv*
    freeze: str = ""


class EngineSection(NamedTuple):
    """What `[engine]` has beside how clients run and the options of an engine."""

    name: str = "local"  # where clients run
    # threads of this process, or of each actor; 0: chosen
    threads: Annotated[int, Range(0, 1024)] = 0
    precision: Precision = "float32"  # number format of a network's training passes
    chosen: str = ""  # settings that an earlier part of the run chose; written by coterie


@dataclass(frozen=True)
class Experiment:
    """One run, fully described."""

    method: str = "fedavg"  # "": none yet, as in what the methods of a comparison share
    seed: int = 0
    dataset: Options = field(default_factory=lambda: {"name": "digits"})
    partition: Options = field(default_factory=dict)
    model: Options = field(default_factory=dict)
    train: Train = field(default_factory=Train)
    schedule: Schedule = field(default_factory=Schedule)
    options: Options = field(default_factory=dict)  # of the method
    engine: Options = field(default_factory=lambda: {"name": "local"})  # where and how clients run
    keep: Keep = field(default_factory=Keep)
    guard: Guard = field(default_factory=Guard)  # attacks, robust averages, privacy

    def to_dict(self) -> Options:
        """Section by section, as TOML writes it."""
        top = {"method": self.method, "seed": self.seed}
        return top | {
            s: dict(v if isinstance(v := getattr(self, s), dict) else v._asdict()) for s in SECTIONS
        }


SECTIONS = (
    *("dataset", "partition", "model", "train", "schedule"),
    *("options", "engine", "keep", "guard"),
)
# Sections whose name decides which other options they have; the section's own option sets it.
NAMED = ("dataset", "partition", "model", "engine")
# The tables whose fields, with the comments beside them, are the options of a section.
TABLES: dict[str, tuple[Any, ...]] = {
    "dataset": (DatasetSection, DataOptions),
    "partition": (PartitionSection,),
    "model": (ModelSection,),
    "train": (Train,),
    "schedule": (Schedule,),
    "options": (),  # those of the method
    "engine": (EngineSection, ExecutionSettings),
    "keep": (Keep,),
    "guard": (Guard,),
}
REGISTRIES: dict[str, Mapping[str, Any]] = {
    "dataset": DATASETS,
    "partition": PARTITIONERS,
    "model": NETS,
    "method": METHODS,
    "engine": ENGINES,
}
PYTHON = "python:"  # begins the name of data or a network that were given as Python objects
SUPPLIED = {
    "input_shape",
    "classes",
    "table",
    "words",
    "digest",
    "task",
    "folder",
    "seed",
}  # to a builder by the experiment


def _exclude_options(known: DeclaredOptions, settings: set[str]) -> DeclaredOptions:
    return {k: v for k, v in known.items() if k not in settings}


def options_of(kind: str, name: str) -> DeclaredOptions:
    """Options of a method, data set, split, network or engine."""
    registry = REGISTRIES[kind]
    if kind == "partition" and is_index_file(name):
        return {}
    if name not in registry:
        _find_own(kind, name)
    if name not in registry:
        raise BadInput(
            f"unknown {'data set' if kind == 'dataset' else kind} {format_value(name)}"
            f"{suggest_name(name, registry)}"
        )
    return _exclude_options(
        declared_options(builder_of(registry[name])),
        set() if kind in ("method", "partition") else SUPPLIED,
    )


def _find_own(kind: str, name: str) -> None:
    """Make a network or data set of a plugin that is loaded known, where a name is module:name."""
    add = {"model": add_own_network, "dataset": add_own_dataset}.get(kind)
    if add is None or not is_function_name(name):
        return
    if name.partition(":")[0] not in PLUGINS:
        raise BadInput(
            f"{kind} = '{name}' is code of your own that is not loaded: name its file with "
            f"--plugin, as in --plugin {name.partition(':')[0]}.py"
        )
    add(name)


def builder_of(entry: Any) -> Callable[..., Any]:
    """The function of a registered entry whose signature holds the options."""
    match entry:
        case Source():
            return entry.load
        case Partitioner():
            return entry.deal
        case Net():
            return entry.build
    function: Callable[..., Any] = entry  # a method is its builder
    return function


def data_options_of(name: str) -> DeclaredOptions:
    """Options that a data set, or a file or folder of one's own, has beyond those of every
    federation.
    """
    if name.startswith(PYTHON):
        return {}
    return (
        options_of("dataset", name)
        if name in DATASETS or not _is_user_path(name)
        else declared_options(read_own)
    )


def _is_user_path(name: str) -> bool:
    return is_path(name) or (name != "" and path_exists(Path(name)))


def default_partition_name(data: Options) -> str:
    """The split where none is named; "" where only the data can tell."""
    name, client = str(data["name"]), data.get("client")
    if name in DATASETS:
        return split_for(DATASETS[name].natural)
    if name.startswith(PYTHON) or (client == "" and not Path(name).is_file()):
        return ""
    return split_for(client != "", not find_task(str(data.get("task"))).has_numbers)


def default_model_of(data: str, texts: bool = False) -> tuple[str, Options]:
    """The network where none is named, and its options; texts: rows are read word by word."""
    source = UNREGISTERED_TEXTS if texts else source_of(data.removeprefix(PYTHON))
    return source.network, dict(source.network_options)


def known_options_of(experiment: Experiment) -> dict[str, DeclaredOptions]:
    """{section: {option: (type, default)}} for the names this experiment has chosen."""
    known = {section: common_options_of(section) for section in SECTIONS}
    known["dataset"] |= data_options_of(str(experiment.dataset["name"]))
    names = resolve_names(experiment)
    if names["partition"]:
        known["partition"] |= options_of("partition", names["partition"])
    for spec in parse_networks(names["model"]):
        net, own = parse_spec(spec)
        mine = options_of("model", net)
        for option in own:
            if option not in mine:
                raise BadInput(
                    f"network '{net}' has no option '{option}'{suggest_name(option, mine)}"
                )
        known["model"] |= mine
    known["engine"] |= options_of("engine", experiment.engine["name"])
    known["options"] = options_of("method", experiment.method) if experiment.method else {}
    return known


def common_options_of(section: str) -> DeclaredOptions:
    """Options of a section that every experiment has, whatever names it has chosen."""
    return {k: v for table in TABLES[section] for k, v in _options_of_table(table).items()}


@cache
def _options_of_table(kind: Any) -> DeclaredOptions:
    hints = get_type_hints(kind, include_extras=True)
    return {k: (hints[k], default) for k, default in kind._field_defaults.items()}


def resolve_names(experiment: Experiment) -> dict[str, str]:
    """The data, split and network of an experiment, named or default."""
    data = str(experiment.dataset["name"])
    split = experiment.partition.get("name") or default_partition_name(experiment.dataset)
    return {
        "dataset": data,
        "partition": split,
        "model": experiment.model.get("name") or _default_model(experiment)[0],
    }


def _default_model(experiment: Experiment) -> tuple[str, Options]:
    return default_model_of(str(experiment.dataset["name"]), bool(experiment.dataset.get("text")))


def parse_networks(text: str) -> list[str]:
    """Networks of coterie's own in a list, each with options of its own after a colon."""
    return [] if text.startswith(PYTHON) else [n.strip() for n in text.split(",") if n.strip()]


def change_options(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """The experiment with some fields changed: names first, because they decide which other options
    there are.
    """
    first = {"method", "seed", *NAMED, *(f"{s}.name" for s in NAMED)}
    last = {"chosen", "engine.chosen"}
    settings = _rename_sections(settings)
    for option in sorted(settings, key=lambda w: (w in last) - (w in first)):
        experiment = _set_option(experiment, option, settings[option])
    return experiment


def _rename_sections(settings: Mapping[str, Any]) -> Options:
    """The settings with the sections of now; one that is given by both of its names is refused."""
    found: Options = {}
    given: dict[str, str] = {}
    for option, value in settings.items():
        section, dot, name = option.rpartition(".")
        now = f"{FORMER_SECTIONS.get(section, section)}{dot}{name}"
        now = now if dot else FORMER_SECTIONS.get(option, option)
        if (same := rename_former(now.replace("-", "_"))) in given:
            raise BadInput(f"{given[same]} and {option} are the same option: give one")
        given[same] = option
        found[now] = value
    return found


def _set_option(experiment: Experiment, option: str, value: Any) -> Experiment:
    if option == "seed":
        return replace(experiment, seed=coerce(Seed, value, option, 0))
    if option == "method":
        options_of("method", method := coerce(str, value, option, "fedavg"))
        fresh = (
            experiment
            if method == experiment.method
            else _reset_engine(replace(experiment, options={}))
        )
        return replace(fresh, method=method)
    if was_nothing(METHODS.get(experiment.method), option.removeprefix("options."), value):
        return experiment
    section, name = find_option(experiment, f"{option}.name" if option in NAMED else option)
    kind, default = known_options_of(experiment)[section][name]
    if section == "options":
        value = check_options(experiment.method, METHODS[experiment.method], {name: value})[name]
    else:
        value = coerce(kind, value, option, default)
    if section in NAMED and name == "name":
        return _replace_name(experiment, section, value)
    now = getattr(experiment, section)
    if section in ("partition", "model") and not now.get(
        "name"
    ):  # an option of the default one settles which it is
        now = (
            (_default_model(experiment)[1] if section == "model" else {})
            | {"name": resolve_names(experiment)[section]}
            | now
        )
    if section == "engine" and name != "chosen":
        now = _drop_chosen(now)  # what was chosen before no longer holds
    return _replace_section(
        experiment,
        section,
        {**now, name: value} if isinstance(now, dict) else now._replace(**{name: value}),
    )


def _replace_section(experiment: Experiment, section: str, table: Any) -> Experiment:
    changed: dict[str, Any] = {section: table}
    return replace(experiment, **changed)


def _replace_name(experiment: Experiment, section: str, name: str) -> Experiment:
    """Another data set, split, network or engine: the options of the one before go with it."""
    if section == "dataset":
        data_options_of(name)
        mine = set(common_options_of("dataset"))
    elif section == "engine":
        options_of("engine", name)
        mine = set(common_options_of("engine"))
    else:
        mine = set()
        parts = [name] if name else []
        if section == "model":
            parts = [parse_spec(spec)[0] for spec in parse_networks(name)]
        for part in parts:
            options_of(section, part)
    now = getattr(experiment, section)
    if now.get("name") == name:
        return experiment
    return _reset_engine(
        _replace_section(
            experiment, section, {k: v for k, v in now.items() if k in mine} | {"name": name}
        )
    )


def _reset_engine(experiment: Experiment) -> Experiment:
    return replace(experiment, engine=_drop_chosen(experiment.engine))


def _drop_chosen(engine: Options) -> Options:
    return {k: v for k, v in engine.items() if k != "chosen"}


def check_train(experiment: Experiment) -> None:
    """Refuse options of `[train]` that the method of an experiment does not use."""
    method = experiment.method
    refuse_unused(method, METHODS[method], experiment.train, experiment.options)


def find_option(experiment: Experiment, option: str) -> tuple[str, str]:
    """(section, field) of an option, if it means exactly one."""
    known = known_options_of(experiment)
    section, _, name = option.rpartition(".")
    name, section = name.replace("-", "_"), FORMER_SECTIONS.get(section, section)
    if section == "method" or (section and section == experiment.method):
        section = "options"
    if name not in (known.get(section, ()) if section else {n for t in known.values() for n in t}):
        name = rename_former(f"{section}.{name}" if section else name).rpartition(".")[2]
    if not section:
        homes = [s for s, names in known.items() if name in names]
        if len(homes) > 1:
            ways = [f"{experiment.method if h == 'options' else h}.{name}" for h in homes]
            raise BadInput(f"'{option}' may mean {' or '.join(ways)}: write one of these")
        if not homes:
            every = {w for names in known.values() for w in names} | {"method", "seed", *NAMED}
            raise BadInput(
                f"unknown option {format_value(option)}{_suggest_fix(experiment, name, every)}"
            )
        section = homes[0]
    if section in METHODS:
        raise BadInput(
            f"'{option}' is for method '{section}', but the method is '{experiment.method}'"
        )
    if section not in known:
        raise BadInput(f"unknown section '{section}' in '{option}'{suggest_name(section, known)}")
    if name not in known[section]:
        raise BadInput(
            f"unknown option '{name}' in "
            f"[{section}]{_suggest_fix(experiment, name, set(known[section]))}"
        )
    return section, name


def _suggest_fix(experiment: Experiment, option: str, valid: set[str]) -> str:
    """Who knows the option, else the option that is nearest."""
    if option in ("methods", "seeds"):
        return ": it belongs to `coterie compare`"
    if experiment.method and (here := find_synonym(option, experiment.method)):
        return f" of method {experiment.method}; here it is '{here}'"
    owners = {
        k: [n for n in registry if option in options_of(k, n)] for k, registry in REGISTRIES.items()
    }
    known = ", ".join(f"{kind} {_format_names(names)}" for kind, names in owners.items() if names)
    if owners["engine"] and not any(owners[kind] for kind in owners if kind != "engine"):
        name = owners["engine"][0]
        return (
            f" for engine {experiment.engine['name']}: it belongs to engine {name}, add --engine "
            f"{name}"
        )
    if known:
        hint = (
            f": for one method write METHOD.{option}"
            if owners["method"] and not experiment.method
            else ""
        )
        if owners["partition"]:
            hint = f": add --partition {owners['partition'][0]}{hint and f', or {hint[2:]}'}"
        return f" for {_format_choices(experiment)}: it belongs to {known}{hint}"
    if here := find_synonym(option):
        return f"; here it is '{here}'"
    if close := find_alike(option, valid):
        return f"; did you mean '{close}'?"
    return (
        f"; choose from {', '.join(sorted(valid))}"
        if 0 < len(valid) < 20
        else "; `coterie run --help` lists the options"
    )


def _format_names(names: list[str]) -> str:
    return "|".join(names[:3]) + ("|..." if len(names) > 3 else "")


def _format_choices(experiment: Experiment) -> str:
    names = {**resolve_names(experiment), "method": experiment.method}
    return ", ".join(f"{kind} {name}" for kind, name in names.items() if name)


def flatten_options(settings: Mapping[str, Any]) -> Options:
    """Nested tables as dotted options."""
    flat: Options = {}
    for key, value in settings.items():
        if not isinstance(value, dict):
            flat[key] = value
        elif key not in (*SECTIONS, *FORMER_SECTIONS, "method", *METHODS):
            raise BadInput(f"unknown section '{key}'{suggest_name(key, SECTIONS)}")
        else:
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
    return flat


def read_toml(path: Path) -> Options:
    """An experiment file as nested options."""
    try:
        return tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}") from None
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}") from None
    except BadInput:
        raise
    except (ValueError, OverflowError) as problem:  # of dates and numbers too
        raise BadInput(f"{path} is no TOML file: {problem}") from None
    except RecursionError:
        raise BadInput(f"{path} is no TOML file: its lists or tables are nested too deep") from None


def read_experiment_file(path: Path) -> Experiment:
    """The experiment that a TOML file describes."""
    return build_experiment(read_toml(path), path)


def build_experiment(settings: Mapping[str, Any], path: Path) -> Experiment:
    """The experiment of the options that were read from a file."""
    if "methods" in settings:
        raise BadInput(f"{path} describes a comparison: use `coterie compare --config {path}`")
    try:
        return change_options(Experiment(), flatten_options(settings))
    except BadInput as problem:
        raise BadInput(f"{path}: {problem}") from None
