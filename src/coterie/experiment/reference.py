"""Every option with its meaning, range and default, as help and the reference page show it.

Meanings stand beside the fields of a section's tables and in the docstrings of builders
(`core.meanings`); nothing is said here a second time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.core.meanings import about, meanings_of
from coterie.core.options import DeclaredOptions, declared_options, describe_type
from coterie.data.read.user_data import read_user_data
from coterie.experiment.config import (
    REGISTRIES,
    TABLES,
    Experiment,
    builder_of,
    common_options_of,
    known_options_of,
    options_of,
    parse_networks,
    resolve_names,
)
from coterie.networks.registry import parse_spec

WRITTEN = ("chosen",)  # options that coterie writes itself


class OptionEntry(NamedTuple):
    """One option as it is shown."""

    name: str
    takes: str  # its type and range
    default: str
    meaning: str

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    def __str__(self) -> str:
        return f"{self.meaning} [{self.takes}; default {self.default or 'empty'}]"


def describe_section(section: str) -> list[OptionEntry]:
    """The options of a section that every experiment has."""
    meanings = {k: v for table in TABLES[section] for k, v in meanings_of(table).items()}
    return _describe(common_options_of(section), meanings)


def describe_named(kind: str, name: str) -> list[OptionEntry]:
    """The options that a method, data set, partition, network or engine has of its own."""
    builder = builder_of(REGISTRIES[kind][name])
    return _describe(options_of(kind, name), meanings_of(builder))


def describe_own_data() -> list[OptionEntry]:
    """The options of a file or folder of one's own."""
    return _describe(declared_options(read_user_data), meanings_of(read_user_data))


def about_named(kind: str, name: str) -> str:
    """What a method, data set, partition, network or engine is."""
    return about(builder_of(REGISTRIES[kind][name]))


def describe_experiment(experiment: Experiment) -> dict[str, list[OptionEntry]]:
    """{section: its options}, with those of the names that an experiment has chosen."""
    builders = _builders_of(experiment)
    found = {}
    for section, options in known_options_of(experiment).items():
        sources = [*TABLES[section], *builders.get(section, ())]
        meanings = {k: v for source in sources for k, v in meanings_of(source).items()}
        found[section] = _describe(options, meanings)
    return found


def _builders_of(experiment: Experiment) -> dict[str, list[Any]]:
    """{section: builders of the names that are chosen there}."""
    names = resolve_names(experiment) | {"engine": experiment.engine["name"]}
    nets = [parse_spec(spec)[0] for spec in parse_networks(names["model"])]
    chosen = {kind: [name] for kind, name in names.items()} | {"model": nets}
    chosen["method"] = [experiment.method]
    found = {
        "options" if kind == "method" else kind: [
            builder_of(registry[name]) for name in chosen[kind] if name in registry
        ]
        for kind, registry in REGISTRIES.items()
    }
    return found if found["dataset"] else found | {"dataset": [read_user_data]}


def format_default(value: Any) -> str:
    """A default as it is written on the command line; "none" where there is none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ",".join(map(format_default, value))
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _describe(options: DeclaredOptions, meanings: dict[str, str]) -> list[OptionEntry]:
    return [
        OptionEntry(name, describe_type(kind), format_default(default), meanings.get(name, ""))
        for name, (kind, default) in options.items()
        if name not in WRITTEN
    ]
