"""An experiment as words: one table of fields, whether they come from TOML, the command line or
Python.

A field lives in a section, as in `[schedule] rounds = 50`. `rounds` alone is enough where only one
section knows the word, `schedule.rounds` always works. What a data set, split, network or method
takes is read from its signature.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

from coterie.core.errors import BadInput, nearest, shown
from coterie.core.files import read_text, there
from coterie.core.guard import Guard
from coterie.core.method import Train
from coterie.core.task import find_task
from coterie.core.values import Count, Known, Range, Seed, Whole, coerce, declared
from coterie.data.choices import Choices
from coterie.data.dataset import TEXTS, Source
from coterie.data.datasets import DATASETS, source_of
from coterie.data.own import is_path
from coterie.data.own import read as read_own
from coterie.data.partition import SPLITS, Split
from coterie.data.partition import usual_split as split_for
from coterie.engines.registry import ENGINES
from coterie.engines.settings import Precision, Settings
from coterie.experiment.schedule import Schedule
from coterie.methods.declare import check_options, was_nothing
from coterie.methods.declare import check_train as refuse_unused
from coterie.methods.registry import METHODS
from coterie.networks.nets import NETS, Net, read_spec

Words = dict[str, Any]


class Keep(NamedTuple):
    """The `[keep]` table: what a run leaves on disk."""

    checkpoint: Whole = 10  # every so many rounds; 0: never
    models: bool = True  # every client's own model at the end


@dataclass(frozen=True)
class Experiment:
    """One run, fully described."""

    method: str = "fedavg"  # "": none yet, as in what the methods of a comparison share
    seed: int = 0
    data: Words = field(default_factory=lambda: {"name": "digits"})
    split: Words = field(default_factory=dict)
    model: Words = field(default_factory=dict)
    train: Train = field(default_factory=Train)
    schedule: Schedule = field(default_factory=Schedule)
    options: Words = field(default_factory=dict)  # of the method
    engine: Words = field(default_factory=lambda: {"name": "local"})  # where and how clients run
    keep: Keep = field(default_factory=Keep)
    guard: Guard = field(default_factory=Guard)  # attacks, robust averages, privacy

    def words(self) -> Words:
        """Section by section, as TOML writes it."""
        top = {"method": self.method, "seed": self.seed}
        return top | {
            s: dict(v if isinstance(v := getattr(self, s), dict) else v._asdict()) for s in SECTIONS
        }


SECTIONS = ("data", "split", "model", "train", "schedule", "options", "engine", "keep", "guard")
# Sections whose name decides which other words they have; the section's own word sets it.
NAMED = ("data", "split", "model", "engine")
REGISTRIES: dict[str, Mapping[str, Any]] = {
    "data": DATASETS,
    "split": SPLITS,
    "model": NETS,
    "method": METHODS,
    "engine": ENGINES,
}
PYTHON = "python:"  # begins the name of data or a network that were given as Python objects
HANDED = {
    "input_shape",
    "classes",
    "table",
    "words",
    "folder",
    "seed",
}  # to a builder by the experiment


def _without(known: Known, words: set[str]) -> Known:
    return {k: v for k, v in known.items() if k not in words}


def options_of(kind: str, name: str) -> Known:
    """Options of a method, data set, split, network or engine."""
    registry = REGISTRIES[kind]
    if name not in registry:
        raise BadInput(
            f"unknown {'data set' if kind == 'data' else kind} {shown(name)}"
            f"{nearest(name, registry)}"
        )
    return _without(
        declared(_builder(registry[name])), set() if kind in ("method", "split") else HANDED
    )


def _builder(entry: Any) -> Callable[..., Any]:
    """The function of a registered entry whose signature holds the options."""
    match entry:
        case Source():
            return entry.load
        case Split():
            return entry.deal
        case Net():
            return entry.build
    function: Callable[..., Any] = entry  # a method is its builder
    return function


def data_options(name: str) -> Known:
    """Options that a data set, or a file or folder of one's own, has beyond those of every
    federation.
    """
    if name.startswith(PYTHON):
        return {}
    return (
        options_of("data", name) if name in DATASETS or not _own_path(name) else declared(read_own)
    )


def _own_path(name: str) -> bool:
    return is_path(name) or (name != "" and there(Path(name)))


def usual_split(data: Words) -> str:
    """The split where none is named; "" where only the data can tell."""
    name, client = str(data["name"]), data.get("client")
    if name in DATASETS:
        return split_for(DATASETS[name].natural)
    if name.startswith(PYTHON) or (client == "" and not Path(name).is_file()):
        return ""
    return split_for(client != "", not find_task(str(data.get("task"))).has_numbers)


def usual_model(data: str, texts: bool = False) -> tuple[str, Words]:
    """The network where none is named, and its options; texts: rows are read word by word."""
    source = TEXTS if texts else source_of(data.removeprefix(PYTHON))
    return source.network, dict(source.network_options)


def fields(experiment: Experiment) -> dict[str, Known]:
    """{section: {word: (type, default)}} for the names this experiment has chosen."""
    data = {
        "name": (str, "digits"),
        "data_dir": (str, ""),
        "seed": (Seed | None, None),
    }  # seed None: the run's
    data |= _dealt_words() | data_options(str(experiment.data["name"]))
    split, model = {"name": (str, "")}, {"name": (str, ""), "freeze": (str, "")}
    names = chosen_names(experiment)
    if names["split"]:
        split |= options_of("split", names["split"])
    for spec in _specs(names["model"]):
        net, own = read_spec(spec)
        known = options_of("model", net)
        for word in own:
            if word not in known:
                raise BadInput(f"network '{net}' has no option '{word}'{nearest(word, known)}")
        model |= known
    options = options_of("method", experiment.method) if experiment.method else {}
    engine = {"name": (str, "local"), **_every_engine(), "chosen": (str, "")}
    engine |= options_of("engine", experiment.engine["name"])
    tables = _tables()
    return {
        "data": data,
        "split": split,
        "model": model,
        "train": tables["train"],
        "schedule": tables["schedule"],
        "engine": engine,
        "keep": tables["keep"],
        "guard": tables["guard"],
        "options": options,
    }


@cache
def _every_engine() -> Known:
    """The words of `[engine]` that every engine has; what is left open is chosen by timing."""
    return {
        **_table(Settings),
        "threads": (Annotated[int, Range(0, 1024)], 0),  # of this process, or of each actor
        "precision": (Precision, "float32"),
    }


def _table(kind: Any) -> Known:
    hints = get_type_hints(kind, include_extras=True)
    return {k: (hints[k], kind._field_defaults[k]) for k in kind._fields}


@cache
def _dealt_words() -> Known:
    """The words of `[data]` that every data set has."""
    hints = get_type_hints(Choices, include_extras=True)
    return {"clients": (Count | None, None)} | {
        k: (hints[k], default) for k, default in Choices._field_defaults.items()
    }


@cache
def _tables() -> dict[str, Known]:
    """The sections that are the same for every experiment."""
    return {
        "train": _table(Train),
        "schedule": _table(Schedule),
        "keep": _table(Keep),
        "guard": _table(Guard),
    }


def chosen_names(experiment: Experiment) -> dict[str, str]:
    """The data, split and network of an experiment, named or usual."""
    data = str(experiment.data["name"])
    split = experiment.split.get("name") or usual_split(experiment.data)
    return {
        "data": data,
        "split": split,
        "model": experiment.model.get("name") or _usual_model(experiment)[0],
    }


def _usual_model(experiment: Experiment) -> tuple[str, Words]:
    return usual_model(str(experiment.data["name"]), bool(experiment.data.get("text")))


def _specs(text: str) -> list[str]:
    """Networks of coterie's own in a list, each with options of its own after a colon."""
    return [] if text.startswith(PYTHON) else [n.strip() for n in text.split(",") if n.strip()]


def change(experiment: Experiment, words: Mapping[str, Any]) -> Experiment:
    """The experiment with some fields changed: names first, because they decide which other words
    there are.
    """
    first = {"method", "seed", *NAMED, *(f"{s}.name" for s in NAMED)}
    last = {"chosen", "engine.chosen"}
    for word in sorted(words, key=lambda w: (w in last) - (w in first)):
        experiment = _set(experiment, word, words[word])
    return experiment


def _set(experiment: Experiment, word: str, value: Any) -> Experiment:
    if word == "seed":
        return replace(experiment, seed=coerce(Seed, value, word, 0))
    if word == "method":
        options_of("method", method := coerce(str, value, word, "fedavg"))
        fresh = (
            experiment if method == experiment.method else _anew(replace(experiment, options={}))
        )
        return replace(fresh, method=method)
    if was_nothing(METHODS.get(experiment.method), word.removeprefix("options."), value):
        return experiment
    section, name = find(experiment, f"{word}.name" if word in NAMED else word)
    kind, default = fields(experiment)[section][name]
    if section == "options":
        value = check_options(experiment.method, METHODS[experiment.method], {name: value})[name]
    else:
        value = coerce(kind, value, word, default)
    if section in NAMED and name == "name":
        return _rename(experiment, section, value)
    now = getattr(experiment, section)
    if section in ("split", "model") and not now.get(
        "name"
    ):  # an option of the usual one settles which it is
        now = (
            (_usual_model(experiment)[1] if section == "model" else {})
            | {"name": chosen_names(experiment)[section]}
            | now
        )
    if section == "engine" and name != "chosen":
        now = _unchosen(now)  # what was chosen before no longer holds
    return _with(
        experiment,
        section,
        {**now, name: value} if isinstance(now, dict) else now._replace(**{name: value}),
    )


def _with(experiment: Experiment, section: str, table: Any) -> Experiment:
    changed: dict[str, Any] = {section: table}
    return replace(experiment, **changed)


def _rename(experiment: Experiment, section: str, name: str) -> Experiment:
    """Another data set, split, network or engine: the options of the one before go with it."""
    if section == "data":
        data_options(name)
        mine = {*_dealt_words(), "data_dir", "seed"}
    elif section == "engine":
        options_of("engine", name)
        mine = set(_every_engine())
    else:
        mine = set()
        parts = [name] if name else []
        if section == "model":
            parts = [read_spec(spec)[0] for spec in _specs(name)]
        for part in parts:
            options_of(section, part)
    now = getattr(experiment, section)
    if now.get("name") == name:
        return experiment
    return _anew(
        _with(experiment, section, {k: v for k, v in now.items() if k in mine} | {"name": name})
    )


def _anew(experiment: Experiment) -> Experiment:
    return replace(experiment, engine=_unchosen(experiment.engine))


def _unchosen(engine: Words) -> Words:
    return {k: v for k, v in engine.items() if k != "chosen"}


def check_train(experiment: Experiment) -> None:
    """Refuse words of `[train]` that the method of an experiment does not use."""
    method = experiment.method
    refuse_unused(method, METHODS[method], experiment.train, experiment.options)


def find(experiment: Experiment, word: str) -> tuple[str, str]:
    """(section, field) of a word, if it means exactly one."""
    known = fields(experiment)
    section, _, name = word.rpartition(".")
    name = name.replace("-", "_")
    if section == "method" or (section and section == experiment.method):
        section = "options"
    if not section:
        homes = [s for s, names in known.items() if name in names]
        if len(homes) > 1:
            ways = [f"{experiment.method if h == 'options' else h}.{name}" for h in homes]
            raise BadInput(f"'{word}' may mean {' or '.join(ways)}: write one of these")
        if not homes:
            every = {w for names in known.values() for w in names} | {"method", "seed", *NAMED}
            raise BadInput(f"unknown option {shown(word)}{_way_out(experiment, name, every)}")
        section = homes[0]
    if section in METHODS:
        raise BadInput(
            f"'{word}' is for method '{section}', but the method is '{experiment.method}'"
        )
    if section not in known:
        raise BadInput(f"unknown section '{section}' in '{word}'{nearest(section, known)}")
    if name not in known[section]:
        raise BadInput(
            f"unknown option '{name}' in "
            f"[{section}]{_way_out(experiment, name, set(known[section]))}"
        )
    return section, name


def _way_out(experiment: Experiment, word: str, valid: set[str]) -> str:
    """Who knows the word, else the word that is nearest."""
    if word in ("methods", "seeds"):
        return ": it belongs to `coterie compare`"
    owners = {
        k: [n for n in registry if word in options_of(k, n)] for k, registry in REGISTRIES.items()
    }
    known = ", ".join(f"{kind} {_listed(names)}" for kind, names in owners.items() if names)
    if owners["engine"] and not any(owners[kind] for kind in owners if kind != "engine"):
        name = owners["engine"][0]
        return (
            f" for engine {experiment.engine['name']}: it belongs to engine {name}, add --engine "
            f"{name}"
        )
    if known:
        hint = (
            f": for one method write METHOD.{word}"
            if owners["method"] and not experiment.method
            else ""
        )
        return f" for {_chosen(experiment)}: it belongs to {known}{hint}"
    close = get_close_matches(word, sorted(valid), n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{close[0]}'?"
    return (
        f"; choose from {', '.join(sorted(valid))}"
        if 0 < len(valid) < 20
        else "; `coterie run --help` lists the words"
    )


def _listed(names: list[str]) -> str:
    return "|".join(names[:3]) + ("|..." if len(names) > 3 else "")


def _chosen(experiment: Experiment) -> str:
    names = {**chosen_names(experiment), "method": experiment.method}
    return ", ".join(f"{kind} {name}" for kind, name in names.items() if name)


def from_toml(words: Mapping[str, Any]) -> Words:
    """Nested tables as dotted words."""
    flat: Words = {}
    for key, value in words.items():
        if not isinstance(value, dict):
            flat[key] = value
        elif key not in (*SECTIONS, "method", *METHODS):
            raise BadInput(f"unknown section '{key}'{nearest(key, SECTIONS)}")
        else:
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
    return flat


def read_toml(path: Path) -> Words:
    """An experiment file as nested words."""
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
    words = read_toml(path)
    if "methods" in words:
        raise BadInput(f"{path} describes a comparison: use `coterie compare --config {path}`")
    try:
        return change(Experiment(), from_toml(words))
    except BadInput as problem:
        raise BadInput(f"{path}: {problem}") from None
