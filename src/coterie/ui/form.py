"""The form that starts a run, made from the options as they are declared: what a page may set, what
each option takes, and the line that refuses a bad one, as the terminal has it.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin

from coterie.comparison.defaults import DEFAULT_METHODS
from coterie.core.errors import BadInput, format_value
from coterie.core.options import Seed, choices_of, describe_type
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
from coterie.experiment.own_code import names_code
from coterie.experiment.reference import describe_experiment
from coterie.methods.declare import refused_of, unused_of
from coterie.methods.listing import describe_methods, paper_of
from coterie.methods.registry import METHODS

NAME_OPTIONS = (
    "method",
    "dataset",
    "partition",
    "model",
)  # they decide which other options there are
FIRST_OPTIONS = (
    "dataset.num_clients",
    "schedule.rounds",
    "train.lr",
    "train.local_epochs",
    "train.batch_size",
    "seed",
)
HIDDEN_OPTIONS = {"dataset.name", "partition.name", "model.name", "dataset.seed", "engine.chosen"}
MAX_OPTIONS = 200  # options of a run


def build_form(names: Mapping[str, str]) -> dict[str, Any]:
    """The options of a run with these names: method, data, split and network."""
    known = {option: value for option in NAME_OPTIONS if (value := names.get(option, "").strip())}
    experiment = change_options(Experiment(), known)
    builder = METHODS[experiment.method]
    unused = [option for option, when in unused_of(builder).items() if when is None]
    never = [f"train.{option}" for option in (*unused, *refused_of(builder))]
    meanings = {
        f"{section}.{entry.name}": entry.meaning
        for section, entries in describe_experiment(experiment).items()
        for entry in entries
    }
    settings = {
        f"{section}.{option}": describe_option(
            f"{section}.{option}", kind, default, meanings.get(f"{section}.{option}", "")
        )
        for section in SECTIONS
        for option, (kind, default) in known_options_of(experiment)[section].items()
        if f"{section}.{option}" not in {*HIDDEN_OPTIONS, *never}
    }
    settings["seed"] = describe_option("seed", Seed, 0, "seed of the run")
    own = [option for option in settings if option.startswith("options.")]
    more = [option for option in settings if option not in {*FIRST_OPTIONS, *own}]
    return {
        "chosen": {"method": experiment.method, **resolve_names(experiment)},
        "given": known,
        "choices": {option: sorted(REGISTRIES[option]) for option in NAME_OPTIONS}
        | {"dataset": list(DATASETS)},
        "usual": list(DEFAULT_METHODS),
        "about": describe_method(experiment.method),
        "groups": [
            {
                "title": "Run",
                "options": [settings[option] for option in FIRST_OPTIONS if option in settings],
            },
            {
                "title": f"Options of {experiment.method}",
                "options": [settings[option] for option in own],
            },
            {"title": "More options", "options": [settings[option] for option in more]},
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


def describe_option(option: str, kind: Any, default: Any, meaning: str = "") -> dict[str, Any]:
    """One option as a page shows it: its default, what it takes, and its choices if it has few."""
    return {
        "option": option,
        "label": option.rpartition(".")[2].replace("_", " "),
        "default": to_text(default),
        "takes": describe_type(kind),
        "meaning": meaning,
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
    """The values of an option that takes a few; none of one that takes numbers or text."""
    if kind is bool:
        return ["yes", "no"]
    if choices := choices_of(kind):
        return [str(value) for value in choices]
    if get_origin(kind) in (Union, types.UnionType):
        inner = [k for k in get_args(kind) if k is not type(None)]
        return _choices_of(inner[0]) if len(inner) == 1 else []
    return []


def parse_comparison(sent: Any, methods: Any) -> tuple[Experiment, list[str]]:
    """(one of the experiments, the options as `coterie compare` takes them); every method is
    checked with the options that all share.
    """
    if not isinstance(methods, list) or not all(isinstance(name, str) for name in methods):
        raise BadInput(f"methods = {format_value(methods)}: give a list of names")
    if not isinstance(sent, dict):
        raise BadInput(f"options = {format_value(sent)}: give at most {MAX_OPTIONS} of them")
    if any(str(option).startswith("options.") for option in sent):
        raise BadInput("options of one method are for a run of that method: leave them out")
    parsed = [parse_form({**sent, "method": name}) for name in methods]
    if len(parsed) < 2:
        raise BadInput("choose two methods or more to compare")
    experiment, (_, *settings) = parsed[0]
    shared = [option for option in settings if not option.startswith("--seed=")]
    seeds = [f"--seeds={experiment.seed},"] if "seed" in sent else []
    return experiment, ["--methods", ",".join(methods), *shared, *seeds]


def parse_form(sent: Any) -> tuple[Experiment, list[str]]:
    """(the experiment, its options as `coterie run` takes them) of what a page sent; refused with
    the line that the terminal would print.
    """
    if not isinstance(sent, dict) or len(sent) > MAX_OPTIONS:
        raise BadInput(f"options = {format_value(sent)}: give at most {MAX_OPTIONS} of them")
    for option, value in sent.items():
        if not isinstance(value, str) or "\0" in option + value:
            raise BadInput(f"{option} = {format_value(value)}: give its value as text")
    settings = {option: value.strip() for option, value in sent.items() if value.strip()}
    code = names_code(settings)
    if code:
        raise BadInput(
            f"'{code}' is code of your own, which no page starts: run it from the command line"
        )
    method = settings.pop("method", "")
    if not method:
        raise BadInput(f"name a method: {', '.join(METHODS)}")
    experiment = change_options(Experiment(), {"method": method, **settings})
    check_train(experiment)
    return experiment, [method, *(f"--{option}={value}" for option, value in settings.items())]
