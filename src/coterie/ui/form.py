"""The form that starts a run, made from the options as they are declared: what a page may set, what
each word takes, and the line that refuses a bad one, as the terminal has it.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from coterie.core.errors import BadInput, format_value
from coterie.core.options import Range, choices_of, describe_type
from coterie.data.read.catalog import DATASETS
from coterie.experiment.config import (
    REGISTRIES,
    SECTIONS,
    Experiment,
    change_options,
    check_train,
    known_options_of,
    resolve_names,
)
from coterie.methods.declare import unused_of
from coterie.methods.listing import describe_methods, paper_of
from coterie.methods.registry import METHODS

NAME_OPTIONS = ("method", "data", "split", "model")  # they decide which other words there are
FIRST_OPTIONS = (
    "data.clients",
    "schedule.rounds",
    "train.rate",
    "train.epochs",
    "train.batch",
    "seed",
)
HIDDEN_OPTIONS = {"data.name", "split.name", "model.name", "data.seed", "engine.chosen"}
MAX_OPTIONS = 200  # words of a run


def build_form(names: Mapping[str, str]) -> dict[str, Any]:
    """The words of a run with these names: method, data, split and network."""
    known = {word: value for word in NAME_OPTIONS if (value := names.get(word, "").strip())}
    experiment = change_options(Experiment(), known)
    never = [
        f"train.{w}" for w, when in unused_of(METHODS[experiment.method]).items() if when is None
    ]
    words = {
        f"{section}.{word}": describe_option(f"{section}.{word}", kind, default)
        for section in SECTIONS
        for word, (kind, default) in known_options_of(experiment)[section].items()
        if f"{section}.{word}" not in {*HIDDEN_OPTIONS, *never}
    }
    words["seed"] = describe_option("seed", Annotated[int, Range(0, 2**32 - 1)], 0)
    own = [word for word in words if word.startswith("options.")]
    more = [word for word in words if word not in {*FIRST_OPTIONS, *own}]
    return {
        "chosen": {"method": experiment.method, **resolve_names(experiment)},
        "given": known,
        "choices": {word: sorted(REGISTRIES[word]) for word in NAME_OPTIONS}
        | {"data": list(DATASETS)},
        "about": describe_method(experiment.method),
        "groups": [
            {"title": "Run", "words": [words[word] for word in FIRST_OPTIONS if word in words]},
            {"title": f"Options of {experiment.method}", "words": [words[word] for word in own]},
            {"title": "More words", "words": [words[word] for word in more]},
        ],
    }


def describe_method(method: str) -> dict[str, Any]:
    """What a method is, when to use it, and what it needs."""
    builder = METHODS[method]
    (listed,) = describe_methods({method: builder})
    return {
        "paper": paper_of(inspect.getdoc(inspect.getmodule(builder)) or ""),
        "does": " ".join((inspect.getdoc(builder) or "").replace("`", "").split()),
        "when": listed.when,
        "needs": listed.needs,
    }


def describe_option(word: str, kind: Any, default: Any) -> dict[str, Any]:
    """One word as a page shows it: its default, what it takes, and its choices where it has few."""
    return {
        "word": word,
        "label": word.rpartition(".")[2].replace("_", " "),
        "default": to_text(default),
        "takes": describe_type(kind),
        "choices": _choices_of(kind),
    }


def to_text(value: Any) -> str:
    """A value as it is written on the command line; "" of none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ",".join(map(to_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choices_of(kind: Any) -> list[str]:
    """The values of a word that takes a few; none of one that takes numbers or text."""
    if kind is bool:
        return ["yes", "no"]
    if choices := choices_of(kind):
        return [str(value) for value in choices]
    if get_origin(kind) in (Union, types.UnionType):
        inner = [k for k in get_args(kind) if k is not type(None)]
        return _choices_of(inner[0]) if len(inner) == 1 else []
    return []


def parse_form(sent: Any) -> tuple[Experiment, list[str]]:
    """(the experiment, its words as `coterie run` takes them) of what a page sent; refused with the
    line that the terminal would print.
    """
    if not isinstance(sent, dict) or len(sent) > MAX_OPTIONS:
        raise BadInput(f"words = {format_value(sent)}: give at most {MAX_OPTIONS} words of a run")
    for word, value in sent.items():
        if not isinstance(value, str) or "\0" in word + value:
            raise BadInput(f"{word} = {format_value(value)}: give its value as text")
    words = {word: value.strip() for word, value in sent.items() if value.strip()}
    method = words.pop("method", "")
    if not method:
        raise BadInput(f"name a method: {', '.join(METHODS)}")
    experiment = change_options(Experiment(), {"method": method, **words})
    check_train(experiment)
    return experiment, [method, *(f"--{word}={value}" for word, value in words.items())]
