"""Arguments of the command line as options of an experiment, of one method, and as seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from coterie.comparison.plan import list_seeds
from coterie.core.errors import BadInput, format_value
from coterie.core.option_names import find_synonym
from coterie.methods.registry import METHODS

SEEDS = "How many seeds (7: 0 to 6), or a list such as 3,5,8 or 7, (that one)"
COMMAS = "separate methods by commas, as in --methods fedavg,ditto"
PASS_THROUGH = {"ignore_unknown_options": True}


def parse_arguments(arguments: Sequence[str], lone: str = "") -> tuple[str | None, dict[str, Any]]:
    """`--name value`, `--name=value` and `--name` alone (yes) as options, and the one argument that
    may stand alone.
    """
    settings: dict[str, Any] = {}
    found: str | None = None
    rest = list(arguments)
    while rest:
        option = rest.pop(0)
        if not option.startswith("-") and lone and found is None:
            found = option
            continue
        if not option.startswith("--") or len(option) < 3:
            raise BadInput(f"{format_value(option)} stands alone: {_suggest_way(option, lone)}")
        name, equals, value = option[2:].partition("=")
        settings[name] = (
            value if equals else rest.pop(0) if rest and not rest[0].startswith("--") else True
        )
        if find_synonym(name) == "method":  # told before anybody asks for a method
            way = "--methods" if lone == "DATA" else "--method, or the name alone"
            raise BadInput(f"unknown option '{name}': here it is {way}")
    return found, settings


def _suggest_way(option: str, lone: str) -> str:
    """What to write where an argument is no option and there is no place for it."""
    if option in METHODS and lone == "DATA":
        return COMMAS
    name = option.strip("-")
    if option.startswith("-") and name.isidentifier():
        return f"write --{(find_synonym(name) or name).replace('_', '-')}, with two hyphens"
    return f"write {lone + ' once, and ' if lone else ''}options as --name value"


def split_method_options(
    settings: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Options for all methods, and those that METHOD.OPTION gives to one: {method: options}."""
    common: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {}
    for option, value in settings.items():
        section, _, name = option.partition(".")
        if name and section.partition("@")[0] in METHODS:
            own.setdefault(section, {})[name] = value
        else:
            common[option] = value
    return common, own


def parse_seeds(text: str) -> list[int]:
    """`3` as three seeds from 0, `3,5,8` as these, `3,` as the one."""
    try:
        numbers = [int(n) for n in text.removesuffix(",").split(",")]
    except ValueError:
        raise BadInput(
            f"seeds = {format_value(text)}: give how many, or a list such as 3,5,8"
        ) from None
    return numbers if "," in text else list(list_seeds(numbers[0]))


def say_seeds(text: str) -> None:
    """Tell what a single number means before anything runs, beside the output."""
    seeds = parse_seeds(text)
    if "," not in text:
        which = f"{len(seeds)} seeds, 0 to {seeds[-1]}" if len(seeds) > 1 else "one seed, 0"
        click.echo(f"--seeds {text}: {which}; '{text},' names the single seed {text}", err=True)
