"""An experiment as words: one table of fields, whether they come from TOML, the command line or Python.

A field lives in a section, as in `[schedule] rounds = 50`. `rounds` alone is enough where only one section knows the word,
`schedule.rounds` always works. What a data set, split, network or method takes is read from its signature.
"""

from __future__ import annotations

import inspect
import tomllib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from .data.datasets import DATASETS
from .data.federation import build as build_federation
from .data.own import read as read_own
from .data.partition import SPLITS
from .errors import BadInput, nearest
from .method import Train
from .methods import METHODS
from .models.nets import NETS
from .run import Schedule

Words = dict[str, Any]


class Engine(NamedTuple):
    """The `[engine]` table: how clients run on this machine; what is left open is chosen by timing and written down."""

    path: str = "auto"  # "vectorized", "sequential"
    width: int = 0  # clients a chunk
    compile: str = "auto"  # "yes", "no"
    threads: int = 0
    chosen: str = ""  # what was chosen for each architecture, as path:width:compile


class Keep(NamedTuple):
    """The `[keep]` table: what a run leaves on disk."""

    checkpoint: int = 10  # every so many rounds; 0: never
    models: bool = True  # every client's own model at the end


@dataclass(frozen=True)
class Experiment:
    """One run, fully described."""

    method: str = "fedavg"
    seed: int = 0
    data: Words = field(default_factory=lambda: {"name": "digits"})
    split: Words = field(default_factory=dict)
    model: Words = field(default_factory=dict)
    train: Train = Train()
    schedule: Schedule = Schedule()
    options: Words = field(default_factory=dict)  # of the method
    engine: Engine = Engine()
    keep: Keep = Keep()

    def words(self) -> Words:
        """Section by section, as TOML writes it."""
        return {
            "method": self.method,
            "seed": self.seed,
            "data": self.data,
            "split": self.split,
            "model": self.model,
            "train": self.train._asdict(),
            "schedule": self.schedule._asdict(),
            "options": self.options,
            "engine": self.engine._asdict(),
            "keep": self.keep._asdict(),
        }


NAMED = {"data": "name", "split": "name", "model": "name"}  # a section's own word is its name
SKIPPED = {"data", "split", "seed", "folder", "options", "data_options", "input_shape", "classes", "rng", "labels", "table"}


def _signature(function: Callable[..., Any], skip: set[str] = frozenset()) -> dict[str, tuple[Any, Any]]:  # type: ignore[assignment]
    """{option: (annotation, default)} of a builder; parameters without a default are the caller's business."""
    hints = get_type_hints(function)
    return {
        name: (hints.get(name, str), p.default)
        for name, p in inspect.signature(function).parameters.items()
        if p.default is not inspect.Parameter.empty and name not in skip
    }


def options_of(kind: str, name: str) -> dict[str, tuple[Any, Any]]:
    """Options of a method, data set, split or network."""
    registry: Mapping[str, Callable[..., Any]] = {"method": METHODS, "data": DATASETS, "split": SPLITS, "model": NETS}[kind]
    if name not in registry:
        raise BadInput(f"unknown {kind} '{name}'{nearest(name, registry)}")
    return _signature(registry[name], {"input_shape", "classes", "table", "folder"} if kind in ("model", "data") else set())


def fields(experiment: Experiment) -> dict[str, dict[str, tuple[Any, Any]]]:
    """{section: {word: (type, default)}} for the names this experiment has chosen."""
    name = str(experiment.data["name"])
    data = _signature(build_federation, SKIPPED) | {"name": (str, "digits"), "data_dir": (str, "")}
    data |= options_of("data", name) if name in DATASETS else _signature(read_own) if _is_path(name) else {}
    data["seed"] = (int | None, None)  # None: the run's seed
    split = {"name": (str, "")} | (options_of("split", experiment.split["name"]) if experiment.split.get("name") else {})
    model: dict[str, tuple[Any, Any]] = {"name": (str, "")}
    for net in str(experiment.model.get("name", "")).split(","):
        model |= options_of("model", net) if net else {}
    tables: dict[str, Any] = {"train": Train, "schedule": Schedule, "engine": Engine, "keep": Keep}
    plain = {
        section: {k: (get_type_hints(kind)[k], kind._field_defaults[k]) for k in kind._fields} for section, kind in tables.items()
    }
    return {"data": data, "split": split, "model": model, **plain, "options": options_of("method", experiment.method)}


def _is_path(name: str) -> bool:
    return name not in DATASETS and (Path(name).exists() or "/" in name or Path(name).suffix != "")


def change(experiment: Experiment, words: Mapping[str, Any]) -> Experiment:
    """The experiment with some fields changed: names first, because they decide which other words there are."""
    first = {"method", "seed", "data", "split", "model", "data.name", "split.name", "model.name"}
    for word in sorted(words, key=lambda w: w not in first):
        experiment = _set(experiment, word, words[word])
    return experiment


def _set(experiment: Experiment, word: str, value: Any) -> Experiment:
    if word in ("method", "seed"):
        if word == "method":
            options_of("method", str(value))
        return replace(experiment, **{word: coerce(int if word == "seed" else str, value, word)})
    if word in NAMED:
        word = f"{word}.{NAMED[word]}"
    known = fields(experiment)
    section, _, name = word.rpartition(".")
    name = name.replace("-", "_")
    if not section:
        word = name
        homes = [s for s, names in known.items() if word in names]
        if len(homes) > 1 and "name" != word:
            raise BadInput(f"'{word}' may mean {' or '.join(f'{h}.{word}' for h in homes)}: say which")
        if not homes:
            everything = {w for names in known.values() for w in names} | {"method", "seed"}
            where = f"method '{experiment.method}', data '{experiment.data['name']}'"
            raise BadInput(f"unknown option '{word}' ({where}){nearest(word, everything)}")
        section, name = homes[0], word
    elif section == "method" or section == experiment.method:
        section = "options"
    if section not in known:
        raise BadInput(f"unknown section '{section}'{nearest(section, known)}")
    if name not in known[section]:
        raise BadInput(f"unknown option '{name}' in [{section}]{nearest(name, known[section])}")
    value = coerce(known[section][name][0], value, word)
    if name == "name" and section in NAMED:
        if section == "data" and value not in DATASETS and not _is_path(value):
            raise BadInput(f"unknown data set '{value}'{nearest(value, DATASETS)}")
        for part in value.split(",") if section != "data" and value else []:
            options_of(section, part)
    now = getattr(experiment, section)
    new = {**now, name: value} if isinstance(now, dict) else now._replace(**{name: value})
    return replace(experiment, **{section: new})


def coerce(kind: Any, value: Any, word: str) -> Any:
    """A value of the wanted type from text or TOML; one clear line where it is none."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        inner = [k for k in get_args(kind) if k is not type(None)]
        problem: BadInput | None = None
        for option in sorted(inner, key=lambda k: k is str):
            try:
                return coerce(option, value, word)
            except BadInput as bad:
                problem = bad
        raise problem  # type: ignore[misc]
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else list(value)
        return tuple(coerce(get_args(kind)[0], item, word) for item in items)
    try:
        if kind is bool:
            known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
            return value if isinstance(value, bool) else known[str(value).lower()]
        if kind is int:
            if isinstance(value, float) and value != int(value):
                raise ValueError
            return int(value)
        if kind is float:
            return float(value)
    except (KeyError, ValueError, TypeError):
        raise BadInput(f"{word} = '{value}' is no {_word_for(kind)}") from None
    return str(value) if kind is str else value


def _word_for(kind: Any) -> str:
    return {int: "whole number", float: "number", bool: "yes or no"}.get(kind, getattr(kind, "__name__", str(kind)))


def from_toml(words: Words) -> Words:
    """Nested tables as dotted words."""
    flat: Words = {}
    for key, value in words.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    return flat


def read_toml(path: Path) -> Words:
    """An experiment file as nested words."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}") from None
    except tomllib.TOMLDecodeError as problem:
        raise BadInput(f"{path} is not TOML: {problem}") from None


def to_toml(words: Words) -> str:
    """The words as TOML; what is None is left out."""
    top = [f"{k} = {_literal(v)}" for k, v in words.items() if not isinstance(v, dict) and v is not None]
    tables = [
        "\n".join([f"[{section}]", *(f"{k} = {_literal(v)}" for k, v in table.items() if v is not None)])
        for section, table in words.items()
        if isinstance(table, dict)
    ]
    return "\n\n".join(["\n".join(top), *tables]) + "\n"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_literal(v) for v in value) + "]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
