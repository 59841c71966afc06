"""What a comparison will run: one experiment per method, all on the same data; read from words
and written as a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from coterie.core.errors import BadInput, shown
from coterie.core.files import write
from coterie.core.values import Range, Seed, coerce
from coterie.experiment.build import anchored
from coterie.experiment.config import (
    Experiment,
    change,
    check_train,
    from_toml,
    options_of,
    read_toml,
)
from coterie.experiment.values import to_toml

Grids = Mapping[str, Mapping[str, Sequence[Any]]]  # {method: {option: values to try}}
FILE = "comparison.toml"
SEEDS = 10_000  # more repetitions than a comparison can have
TRIES = 10_000  # values of one option to try


class ComparisonPlan(NamedTuple):
    """What is compared: every experiment is run with every seed, after its grid was tried."""

    experiments: dict[str, Experiment]  # by the name of a row of the table
    seeds: list[int]
    grids: Grids


def plan(
    methods: Sequence[str],
    base: Experiment,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    grids: Grids | None = None,
    strict: bool = True,
) -> dict[str, Experiment]:
    """One experiment per method: the common words, then its own; every word is checked before
    anything runs.

    A method may be there several times with other options: "persfl" and "persfl@last" are two rows
    of the table.
    strict: a method that does not use a word of `[train]` is refused.
    """
    methods, own, grids = list(dict.fromkeys(methods)), own or {}, grids or {}
    for name in (*own, *grids):
        if name not in methods:
            raise BadInput(
                f"options are given for '{name}', which is not among the methods "
                f"{', '.join(methods)}"
            )
    base = anchored(base)
    experiments = {
        name: own_words(replace(base, method=method_of(name), options={}), own.get(name, {}))
        for name in methods
    }
    for name, grid in grids.items():
        for word, choices in grid.items():
            if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
                raise BadInput(f"{name}.{word} = {shown(choices)} is no list of values to try")
            if len(choices) > TRIES:
                raise BadInput(f"{name}.{word} has {len(choices):,} values: try at most {TRIES}")
            for choice in choices:
                _check(name, own_words(experiments[name], {word: choice}))
    for name, experiment in experiments.items() if strict else ():
        _check(name, experiment)
    return experiments


def _check(name: str, experiment: Experiment) -> None:
    """Refuse a word of `[train]` that a method does not use, and say how to give it to the
    others.
    """
    try:
        check_train(experiment)
    except BadInput as problem:
        raise BadInput(
            f"{problem}; in a comparison each method may have its own, as in [options.{name}] or "
            f"--{name}.WORD"
        ) from None


def method_of(name: str) -> str:
    """The method that a name of a comparison means: all of it, or what stands before @."""
    method, at, label = str(name).partition("@")
    options_of("method", method)
    if at and not re.fullmatch(r"[A-Za-z0-9._-]{1,60}", label):
        raise BadInput(
            f"{shown(name)}: write letters, digits, '.', '_' or '-' after @, at most 60, as in "
            f"{method}@second"
        )
    return method


def own_words(experiment: Experiment, words: Mapping[str, Any]) -> Experiment:
    """The experiment with words for its method alone; data and split stay those of all."""
    name = experiment.method
    options = options_of("method", name)
    changed = change(
        experiment,
        {f"{name}.{w}" if w.replace("-", "_") in options else w: v for w, v in words.items()},
    )
    shared = [(e.data, e.split, e.seed, e.method) for e in (experiment, changed)]
    if shared[0] != shared[1]:
        raise BadInput(
            f"{', '.join(words)} for {name} alone: the methods of a comparison share data, split "
            "and seeds"
        )
    return changed


def plan_of(
    words: Mapping[str, Any],
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    common: Mapping[str, Any] | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    grids: Grids | None = None,
    strict: bool = True,
) -> ComparisonPlan:
    """The plan that a comparison file's words give, with what was said beside the file.

    A file has methods, seeds, the common tables, `[options.METHOD]` and `[tune.METHOD]`; the file
    of a single run serves too.
    """
    tables = dict(words)
    listed, single = tables.pop("methods", None), tables.pop("method", None)
    first = tables.pop("seed", 0)
    numbers = tables.pop("seeds", [first])
    options, tune = tables.pop("options", {}), tables.pop("tune", {})
    if single is not None and not listed:
        options = {single: options}
    for table, place in ((options, "options"), (tune, "tune")):
        if not isinstance(table, Mapping):
            raise BadInput(f"{place} = {shown(table)}: give a table a method, as [{place}.ditto]")
        for name, inner in table.items():
            if not isinstance(inner, Mapping):
                raise BadInput(
                    f"[{place}] {name} = {shown(inner)}: a comparison has one table per method, "
                    f"as in [{place}.ditto]"
                )
            method_of(name)
    chosen = listed if methods is None else methods
    if not isinstance(chosen, Sequence) or isinstance(chosen, str) or not chosen:
        raise BadInput(
            "name the methods to compare, as in --methods local,fedavg,ditto or methods = [...] "
            "in the file"
        )
    # what the file says of methods that are not compared now waits for another time
    options, tune = ({k: v for k, v in table.items() if k in chosen} for table in (options, tune))
    for word in ("seed", "method"):
        if word in (common or {}):
            raise BadInput(f"a comparison has no single {word}: use --{word}s")
    base = change(change(Experiment(method=""), from_toml(tables)), common or {})
    own = {
        name: {**options.get(name, {}), **(own or {}).get(name, {})}
        for name in {**options, **(own or {})}
    }
    grids = {
        name: {**tune.get(name, {}), **(grids or {}).get(name, {})}
        for name in {**tune, **(grids or {})}
    }
    experiments = plan(chosen, base, own, grids, strict)
    return ComparisonPlan(experiments, _seeds(numbers if seeds is None else seeds), grids)


def _seeds(numbers: Any) -> list[int]:
    good = isinstance(numbers, Sequence) and all(
        isinstance(n, int) and not isinstance(n, bool) for n in numbers
    )
    if not good or not numbers or len(set(numbers)) < len(numbers):
        raise BadInput(f"seeds = {shown(numbers)}: give different whole numbers, such as [0, 1, 2]")
    return [coerce(Seed, n, "seeds") for n in numbers]


def first_seeds(count: int) -> range:
    """So many seeds, from 0."""
    return range(coerce(Annotated[int, Range(1, SEEDS)], count, "seeds", 3))


def write_plan(folder: Path, plan: ComparisonPlan) -> None:
    """Write the plan as a file that plan_of reads: the first method's words are common, the others
    write where they differ.
    """
    experiments, seeds, grids = plan
    base = next(iter(experiments.values())).words()
    own: dict[str, Any] = {
        "options": {name: _differences(base, e.words()) for name, e in experiments.items()}
    }
    if grids:
        own["tune"] = {name: {k: list(v) for k, v in grid.items()} for name, grid in grids.items()}
    common = {k: v for k, v in base.items() if k not in ("method", "seed", "options")}
    write(
        folder / FILE,
        to_toml({"methods": list(experiments), "seeds": list(seeds), **common, **own}),
    )


def _differences(base: Mapping[str, Any], words: Mapping[str, Any]) -> dict[str, Any]:
    """A method's options, and its words that are not those of `base`."""
    # another network has options of its own
    other = words["model"].get("name") != base["model"].get("name")
    found = dict(words["options"])
    for section in ("model", "train", "schedule", "engine", "keep"):
        for word, value in words[section].items():
            if (section == "model" and other) or base[section].get(word) != value:
                found[f"{section}.{word}"] = value
    return found


def read_plan(path: Path) -> ComparisonPlan:
    """The plan in a comparison file."""
    words = read_toml(path)
    try:
        return plan_of(words)
    except BadInput as problem:
        raise BadInput(f"{path}: {problem}") from None
