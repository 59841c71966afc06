"""An experiment as words: one table of fields, whether they come from TOML, the command line or Python.

A field lives in a section, as in `[schedule] rounds = 50`. `rounds` alone is enough where only one section knows the word,
`schedule.rounds` always works. What a data set, split, network or method takes is read from its signature.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

from coterie.core.errors import BadInput, nearest
from coterie.core.method import Train
from coterie.core.values import Known, coerce, declared
from coterie.data.datasets import DATASETS
from coterie.data.dealing import build as build_federation
from coterie.data.own import is_path
from coterie.data.own import read as read_own
from coterie.data.partition import SPLITS
from coterie.experiment.schedule import Schedule
from coterie.methods.declare import check_options
from coterie.methods.declare import check_train as refuse_unused
from coterie.methods.registry import METHODS
from coterie.networks.nets import NETS

Words = dict[str, Any]


class Engine(NamedTuple):
    """The `[engine]` table: where and how clients run; what is left open is chosen by timing and written down."""

    name: Literal["local", "ray"] = "local"  # this process, or actors of a Ray cluster
    path: Literal["auto", "vectorized", "sequential"] = "auto"
    width: int = 0  # clients a chunk
    compile: Literal["auto", "yes", "no"] = "auto"
    threads: int = 0  # of this process, or of each actor
    ray_address: str = ""  # HOST:PORT of a cluster; "": one is started on this machine for the run
    actors: int = 0  # of Ray; 0: one a core
    chosen: str = ""  # what was chosen for each architecture, as path:width:compile


class Keep(NamedTuple):
    """The `[keep]` table: what a run leaves on disk."""

    checkpoint: int = 10  # every so many rounds; 0: never
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
    engine: Engine = field(default_factory=Engine)
    keep: Keep = field(default_factory=Keep)

    def words(self) -> Words:
        """Section by section, as TOML writes it."""
        top = {"method": self.method, "seed": self.seed}
        return top | {s: dict(v if isinstance(v := getattr(self, s), dict) else v._asdict()) for s in SECTIONS}


SECTIONS = ("data", "split", "model", "train", "schedule", "options", "engine", "keep")
NAMED = ("data", "split", "model")  # sections whose name decides which other words they have
OWN_WORD = (*NAMED, "engine")  # sections with a name, which the section's own word sets
REGISTRIES: dict[str, Mapping[str, Callable[..., Any]]] = {"data": DATASETS, "split": SPLITS, "model": NETS, "method": METHODS}
NATURAL = ("uci-har", "mnist-writers", "synthetic", "gaussian", "sent140", "leaf")  # data sets whose clients are given
USUAL_MODELS = {"digits": ("dnn", {"hidden": 32}), "synthetic": ("mlr", {}), "gaussian": ("mean", {}), "sent140": ("lstm", {})}
PYTHON = "python:"  # begins the name of data or a network that were given as Python objects
_BUILT = {"data", "split", "seed", "folder", "options", "data_options"}  # of a federation, but no words of [data]
_HANDED = {"input_shape", "classes", "table", "folder", "seed"}  # to a builder by the experiment


def _without(known: Known, words: set[str]) -> Known:
    return {k: v for k, v in known.items() if k not in words}


def options_of(kind: str, name: str) -> Known:
    """Options of a method, data set, split or network."""
    registry = REGISTRIES[kind]
    if name not in registry:
        raise BadInput(f"unknown {'data set' if kind == 'data' else kind} '{name}'{nearest(name, registry)}")
    return _without(declared(registry[name]), set() if kind in ("method", "split") else _HANDED)


def data_options(name: str) -> Known:
    """Options that a data set, or a file or folder of one's own, has beyond those of every federation."""
    if name.startswith(PYTHON):
        return {}
    return options_of("data", name) if name in DATASETS or not _own_path(name) else declared(read_own)


def _own_path(name: str) -> bool:
    return is_path(name) or (name != "" and Path(name).exists())


def usual_split(data: Words) -> str:
    """The split where none is named; "" where only the data can tell."""
    name, client = str(data["name"]), data.get("client")
    if name in DATASETS:
        return "user" if name in NATURAL else "classes"
    if name.startswith(PYTHON) or (client == "" and not Path(name).is_file()):
        return ""
    return "classes" if client == "" else "user"


def usual_model(data: str) -> tuple[str, Words]:
    """The network where none is named, and its options."""
    name, options = USUAL_MODELS.get(data.removeprefix(PYTHON), ("dnn", {}))
    return name, dict(options)  # type: ignore[call-overload]


def fields(experiment: Experiment) -> dict[str, Known]:
    """{section: {word: (type, default)}} for the names this experiment has chosen."""
    data = {"name": (str, "digits"), "data_dir": (str, ""), "seed": (int | None, None)}  # seed None: the run's
    data |= _without(declared(build_federation), _BUILT) | data_options(str(experiment.data["name"]))
    split, model = {"name": (str, "")}, {"name": (str, "")}
    names = chosen_names(experiment)
    if names["split"]:
        split |= options_of("split", names["split"])
    for net in _names(names["model"]):
        model |= options_of("model", net)
    options = options_of("method", experiment.method) if experiment.method else {}
    return {"data": data, "split": split, "model": model, **_tables(), "options": options}


@cache
def _tables() -> dict[str, Known]:
    """The sections that are the same for every experiment."""
    tables: dict[str, Any] = {"train": Train, "schedule": Schedule, "engine": Engine, "keep": Keep}
    hints = {section: get_type_hints(table, include_extras=True) for section, table in tables.items()}
    return {s: {k: (hints[s][k], t._field_defaults[k]) for k in t._fields} for s, t in tables.items()}


def chosen_names(experiment: Experiment) -> dict[str, str]:
    """The data, split and network of an experiment, named or usual."""
    data = str(experiment.data["name"])
    split = experiment.split.get("name") or usual_split(experiment.data)
    return {"data": data, "split": split, "model": experiment.model.get("name") or usual_model(data)[0]}


def _names(text: str) -> list[str]:
    """Networks of coterie's own in a list of names."""
    return [] if text.startswith(PYTHON) else [n.strip() for n in text.split(",") if n.strip()]


def change(experiment: Experiment, words: Mapping[str, Any]) -> Experiment:
    """The experiment with some fields changed: names first, because they decide which other words there are."""
    first = {"method", "seed", *NAMED, *(f"{s}.name" for s in NAMED)}
    last = {"chosen", "engine.chosen"}
    for word in sorted(words, key=lambda w: (w in last) - (w in first)):
        experiment = _set(experiment, word, words[word])
    return experiment


def _set(experiment: Experiment, word: str, value: Any) -> Experiment:
    if word == "seed":
        return replace(experiment, seed=coerce(int, value, word, 0))
    if word == "method":
        options_of("method", method := coerce(str, value, word, "fedavg"))
        fresh = experiment if method == experiment.method else _anew(replace(experiment, options={}))
        return replace(fresh, method=method)
    section, name = find(experiment, f"{word}.name" if word in OWN_WORD else word)
    kind, default = fields(experiment)[section][name]
    if section == "options":
        value = check_options(experiment.method, METHODS[experiment.method], {name: value})[name]
    else:
        value = coerce(kind, value, word, default)
    if section in NAMED and name == "name":
        return _rename(experiment, section, value)
    now = getattr(experiment, section)
    if section in ("split", "model") and not now.get("name"):  # an option of the usual one settles which it is
        now = (
            (usual_model(experiment.data["name"])[1] if section == "model" else {})
            | {"name": chosen_names(experiment)[section]}
            | now
        )
    if section == "engine" and name != "chosen":
        now = now._replace(chosen="")  # what was chosen before no longer holds
    return _with(experiment, section, {**now, name: value} if isinstance(now, dict) else now._replace(**{name: value}))


def _with(experiment: Experiment, section: str, table: Any) -> Experiment:
    changed: dict[str, Any] = {section: table}
    return replace(experiment, **changed)


def _rename(experiment: Experiment, section: str, name: str) -> Experiment:
    """Another data set, split or network: the options of the one before go with it."""
    if section == "data":
        data_options(name)
        mine = set(declared(build_federation)) | {"data_dir", "seed"}
    else:
        mine = set()
        for part in [name] if section == "split" and name else _names(name) if section == "model" else []:
            options_of(section, part)
    now = getattr(experiment, section)
    if now.get("name") == name:
        return experiment
    return _anew(_with(experiment, section, {k: v for k, v in now.items() if k in mine} | {"name": name}))


def _anew(experiment: Experiment) -> Experiment:
    return replace(experiment, engine=experiment.engine._replace(chosen=""))


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
            every = {w for names in known.values() for w in names} | {"method", "seed", *OWN_WORD}
            raise BadInput(f"unknown option '{word}'{_way_out(experiment, name, every)}")
        section = homes[0]
    if section in METHODS:
        raise BadInput(f"'{word}' is for method '{section}', but the method is '{experiment.method}'")
    if section not in known:
        raise BadInput(f"unknown section '{section}' in '{word}'{nearest(section, known)}")
    if name not in known[section]:
        raise BadInput(f"unknown option '{name}' in [{section}]{_way_out(experiment, name, set(known[section]))}")
    return section, name


def _way_out(experiment: Experiment, word: str, valid: set[str]) -> str:
    """Who knows the word, else the word that is nearest."""
    if word in ("methods", "seeds"):
        return ": it belongs to `coterie compare`"
    owners = {k: [n for n in registry if word in options_of(k, n)] for k, registry in REGISTRIES.items()}
    known = ", ".join(f"{kind} {_listed(names)}" for kind, names in owners.items() if names)
    if known:
        hint = f": for one method write METHOD.{word}" if owners["method"] and not experiment.method else ""
        return f" for {_chosen(experiment)}: it belongs to {known}{hint}"
    close = get_close_matches(word, sorted(valid), n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; choose from {', '.join(sorted(valid))}" if 0 < len(valid) < 20 else "; `coterie run --help` lists the words"


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
        return tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}") from None
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise BadInput(f"{path} is no TOML file: {problem}") from None


def read_experiment_file(path: Path) -> Experiment:
    """The experiment that a TOML file describes."""
    words = read_toml(path)
    if "methods" in words:
        raise BadInput(f"{path} describes a comparison: use `coterie compare --config {path}`")
    try:
        return change(Experiment(), from_toml(words))
    except BadInput as problem:
        raise BadInput(f"{path}: {problem}") from None
