"""What a comparison will run: one experiment per method, all on the same data; read from options
and written as a file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

from coterie.comparison.limits import SearchLimits, limits_of
from coterie.comparison.steps import DENSE, LINEAR, MOST_TRIALS, USUAL, rates_around
from coterie.core.errors import BadInput, format_value
from coterie.core.files import write_text
from coterie.core.option_names import rename_former, rename_options, rename_tables
from coterie.core.options import Range, Seed, coerce
from coterie.data.read.catalog import DATASETS
from coterie.experiment.build import anchor_paths
from coterie.experiment.column_roles import with_columns
from coterie.experiment.config import (
    Experiment,
    change_options,
    check_train,
    find_option,
    flatten_options,
    known_options_of,
    options_of,
    read_toml,
)
from coterie.experiment.own_code import find_unknown
from coterie.experiment.smaller import ratios_of
from coterie.experiment.stored import restore_experiment
from coterie.experiment.toml import to_toml
from coterie.methods.registry import METHODS
from coterie.methods.search_space import (
    SearchRange,
    build_search_space,
    is_range,
    is_used,
    parse_range,
)

# {method: {option: values to try, or a range as "0.01..1"}}
Grids = Mapping[str, Mapping[str, Sequence[Any]]]
FILE = "comparison.toml"
# options that may be "auto"
AUTOMATIC_NAMES = {"lr": "lr", "train.lr": "lr", "model": "model", "model.name": "model"}
MAX_SEEDS = 10_000  # more repetitions than a comparison can have
MAX_VALUES = 10_000  # values of one option to try


class ComparisonPlan(NamedTuple):
    """What is compared: every experiment is run with every seed, after its options were tuned."""

    experiments: dict[str, Experiment]  # by the name of a row of the table
    seeds: list[int]
    grids: Grids  # what is tuned; without a search, every point of a grid is tried
    search: SearchLimits | None = None


def plan_experiments(
    methods: Sequence[str],
    base: Experiment,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    grids: Grids | None = None,
    strict: bool = True,
    searched: bool = False,
) -> dict[str, Experiment]:
    """One experiment per method: the common options, then its own; every option is checked before
    anything runs.

    A method may be there several times with other options: "persfl" and "persfl@last" are two rows
    of the table.
    strict: a method that does not use an option of `[train]` is refused. searched: ranges may be
    tried, not lists of values alone.
    """
    methods, own, grids = list(dict.fromkeys(methods)), own or {}, grids or {}
    for name in (*own, *grids):
        if name not in methods:
            raise BadInput(
                f"options are given for '{name}', which is not among the methods "
                f"{', '.join(methods)}"
            )
    base = anchor_paths(base)
    experiments = {
        name: set_method_options(
            replace(base, method=method_of(name), options={}), own.get(name, {})
        )
        for name in methods
    }
    for name, grid in grids.items():
        for key, choices in grid.items():
            knob = knob_of(choices, f"{name}.{key}")
            if not (knob.choices or searched):
                raise BadInput(
                    f"{name}.{key} = {knob.text} is a range: add --trials or --budget to search "
                    "it, or list the values to try"
                )
            for choice in knob.choices or (knob.low, knob.high):
                _check_train_options(name, set_method_options(experiments[name], {key: choice}))
    for name, experiment in experiments.items() if strict else ():
        _check_train_options(name, experiment)
    return experiments


def knob_of(values: Any, key: str) -> SearchRange:
    """The values to try of an option: a list, or a range alone or as the one item of a list."""
    one = values[0] if isinstance(values, list | tuple) and len(values) == 1 else values
    if is_range(one):
        return parse_range(one, key)
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise BadInput(f"{key} = {format_value(values)} is no list of values to try")
    if len(values) > MAX_VALUES:
        raise BadInput(f"{key} has {len(values):,} values: try at most {MAX_VALUES}")
    return SearchRange(choices=tuple(values))


def is_integer(experiment: Experiment, key: str) -> bool:
    """Whether an option of a method alone takes whole numbers."""
    section, name = find_option(experiment, _full_name_of(experiment, key))
    kind = known_options_of(experiment)[section][name][0]
    return int in (kind, *get_args(kind))


def value_of(experiment: Experiment, key: str) -> Any:
    """The value that an option of a method alone has now."""
    section, name = find_option(experiment, _full_name_of(experiment, key))
    table = getattr(experiment, section)
    found = table if isinstance(table, dict) else table._asdict()
    return found.get(name, known_options_of(experiment)[section][name][1])


def knobs_of(
    experiment: Experiment, fixed: Collection[str], given: Mapping[str, Any]
) -> dict[str, Any]:
    """What a search turns of a method, {option: values}: what was given, and what its declarations
    allow of options that are not fixed for this method.
    """
    name = experiment.method
    usual = build_search_space(name, METHODS[name], experiment.train, experiment.options)
    plain = {rename_former(key.rpartition(".")[2].replace("-", "_")) for key in (*fixed, *given)}
    work = {"local_steps", "local_epochs"}  # two options for the same
    gone = plain | (work if plain & work else set())
    return {key: knob.text for key, knob in usual.items() if key not in gone} | dict(given)


def _check_train_options(name: str, experiment: Experiment) -> None:
    """Refuse an option of `[train]` that a method does not use, and say how to give it to the
    others.
    """
    try:
        check_train(experiment)
    except BadInput as problem:
        raise BadInput(
            f"{problem}; in a comparison each method may have its own, as in [options.{name}] or "
            f"--{name}.OPTION"
        ) from None


def method_of(name: str) -> str:
    """The method that a name of a comparison means: all of it, or what stands before @."""
    method, at, label = str(name).partition("@")
    options_of("method", method)
    if at and not re.fullmatch(r"[A-Za-z0-9._-]{1,60}", label):
        raise BadInput(
            f"{format_value(name)}: write letters, digits, '.', '_' or '-' after @, at most 60, "
            "as in "
            f"{method}@second"
        )
    return method


def set_method_options(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """The experiment with options for its method alone; data and split stay those of all."""
    name = experiment.method
    changed = change_options(
        experiment, {_full_name_of(experiment, w): v for w, v in settings.items()}
    )
    shared = [(e.dataset, e.partition, e.seed, e.method) for e in (experiment, changed)]
    if shared[0] != shared[1]:
        raise BadInput(
            f"{', '.join(settings)} for {name} alone: the methods of a comparison share data, "
            "partition and seeds"
        )
    return changed


def _full_name_of(experiment: Experiment, key: str) -> str:
    """An option for one method as the whole experiment knows it."""
    options = options_of("method", experiment.method)
    return f"{experiment.method}.{key}" if key.replace("-", "_") in options else key


def plan_of(
    settings: Mapping[str, Any],
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    common: Mapping[str, Any] | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    grids: Grids | None = None,
    strict: bool = True,
    search: SearchLimits | None = None,
    choose: bool = False,
) -> ComparisonPlan:
    """The plan that a comparison file's options give, with what was said beside the file.

    A file has methods, seeds, the common tables, `[options.METHOD]`, `[tune.METHOD]` and
    `[search]`; the file of a single run serves too. `[smaller]` of a paper's recipe changes no run.
    choose: rates and networks that nobody gave are chosen step by step where the data are a table
    of one's own; a file leaves nothing to choose but what it calls "auto".
    """
    tables = dict(settings)
    ratios_of(tables.pop("smaller", {}))
    said = limits_of(tables.pop("search", {}))
    search = search or said
    listed, single = tables.pop("methods", None), tables.pop("method", None)
    first = tables.pop("seed", 0)
    numbers = tables.pop("seeds", [first])
    options, tune = tables.pop("options", {}), tables.pop("tune", {})
    if single is not None and not isinstance(single, str):
        raise BadInput(f"method = {format_value(single)}: give the name of one")
    if single is not None and not listed:
        options = {single: options}
    for table, place in ((options, "options"), (tune, "tune")):
        if not isinstance(table, Mapping):
            raise BadInput(
                f"{place} = {format_value(table)}: give a table a method, as [{place}.ditto]"
            )
        for name, inner in table.items():
            if not isinstance(inner, Mapping):
                raise BadInput(
                    f"[{place}] {name} = {format_value(inner)}: a comparison has one table per "
                    "method, "
                    f"as in [{place}.ditto]"
                )
            method_of(name)
    chosen = listed if methods is None else methods
    if not isinstance(chosen, Sequence) or isinstance(chosen, str) or not chosen:
        raise BadInput(
            "name the methods to compare, as in --methods local,fedavg,ditto or methods = [...] "
            "in the file"
        )
    for name in chosen:
        if not isinstance(name, str):
            raise BadInput(f"methods: {format_value(name)} is no name of one")
    # what the file says of methods that are not compared now waits for another time
    options, tune = ({k: v for k, v in table.items() if k in chosen} for table in (options, tune))
    for key in ("seed", "method"):
        if key in (common or {}):
            raise BadInput(f"a comparison has no single {key}: use --{key}s")
    stored, automatic = _take_automatic(flatten_options(tables))
    given, more = _take_automatic(common or {})
    fixed = {AUTOMATIC_NAMES.get(key) for key in given}
    automatic = [*dict.fromkeys(more + [key for key in automatic if key not in fixed])]
    base = with_columns(change_options(change_options(Experiment(method=""), stored), given))
    choose = choose and not (settings or automatic or grids or search)
    if choose and base.dataset["name"] not in DATASETS:
        known = {*fixed, "model" if base.model else None}
        automatic = [key for key in ("lr", "model") if key not in known]
    own = {
        name: {**options.get(name, {}), **(own or {}).get(name, {})}
        for name in {**options, **(own or {})}
    }
    grids = {
        name: {**tune.get(name, {}), **(grids or {}).get(name, {})}
        for name in {**tune, **(grids or {})}
    }
    own, grids = _rename_own(own), _rename_own(grids)
    if automatic and not (search or grids):
        search = USUAL if choose else SearchLimits(MOST_TRIALS, listed=True, steps=True)
    grids = _add_automatic(chosen, automatic, base, own, grids)
    search = search if grids or not (search and search.steps) else None
    experiments = plan_experiments(chosen, base, own, grids, strict, search is not None)
    if search and not search.listed:
        grids = {
            name: knobs_of(experiment, own.get(name, {}), grids.get(name, {}))
            for name, experiment in experiments.items()
        }
    return ComparisonPlan(
        experiments, _check_seeds(numbers if seeds is None else seeds), grids, search
    )


def _take_automatic(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options without those that are "auto", and the names of these."""
    texts = {str(key) for key, v in settings.items() if isinstance(v, str) and v == "auto"}
    taken = {key: AUTOMATIC_NAMES[key] for key in texts & AUTOMATIC_NAMES.keys()}
    return {key: v for key, v in settings.items() if key not in taken}, [*taken.values()]


def _add_automatic(
    methods: Sequence[str],
    automatic: Sequence[str],
    base: Experiment,
    own: Mapping[str, Mapping[str, Any]],
    grids: Grids,
) -> dict[str, dict[str, Any]]:
    """The grids with what validation rows are to choose for every method, unless it says so
    itself.
    """
    found = {name: dict(grid) for name, grid in grids.items()}
    values: dict[str, Sequence[Any]] = {
        "lr": rates_around(base.train.lr),
        "model": [DENSE, LINEAR],
    }
    for name in methods:
        mine, builder = own.get(name, {}), METHODS[method_of(name)]
        fixed = {AUTOMATIC_NAMES.get(key) for key in mine}
        if set_method_options(replace(base, method=method_of(name)), mine).model != base.model:
            fixed.add("model")
        if not is_used(builder, "lr", mine):
            fixed.add("lr")
        for key in automatic:
            if key not in fixed:
                found.setdefault(name, {}).setdefault(key, values[key])
    return found


def _rename_own(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What single methods have of their own, by the names that options have now."""
    return {
        name: rename_options(settings, options_of("method", method_of(name)))
        for name, settings in tables.items()
    }


def _check_seeds(numbers: Any) -> list[int]:
    good = isinstance(numbers, Sequence) and all(
        isinstance(n, int) and not isinstance(n, bool) for n in numbers
    )
    if not good or not numbers or len(set(numbers)) < len(numbers):
        raise BadInput(
            f"seeds = {format_value(numbers)}: give different whole numbers, such as [0, 1, 2]"
        )
    return [coerce(Seed, n, "seeds") for n in numbers]


def list_seeds(count: int) -> range:
    """So many seeds, from 0."""
    return range(coerce(Annotated[int, Range(1, MAX_SEEDS)], count, "seeds", 3))


def write_plan(folder: Path, plan: ComparisonPlan) -> None:
    """Write the plan as a file that plan_of reads: the first method's options are common, the
    others write where they differ.
    """
    experiments, seeds, grids, search = plan
    base = next(iter(experiments.values())).to_dict()
    own: dict[str, Any] = {
        "options": {name: _find_differences(base, e.to_dict()) for name, e in experiments.items()}
    }
    if grids:
        own["tune"] = {
            name: {key: knob_of(v, key).text for key, v in grid.items()}
            for name, grid in grids.items()
        }
    if search:
        own["search"] = search.to_dict()
    common = {k: v for k, v in base.items() if k not in ("method", "seed", "options")}
    write_text(
        folder / FILE,
        to_toml({"methods": list(experiments), "seeds": list(seeds), **common, **own}),
    )


def _find_differences(base: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A method's options, and its options that are not those of `base`."""
    # another network has options of its own
    other = settings["model"].get("name") != base["model"].get("name")
    found = dict(settings["options"])
    for section in ("model", "train", "schedule", "engine", "keep"):
        for key, value in settings[section].items():
            if (section == "model" and other) or base[section].get(key) != value:
                found[f"{section}.{key}"] = value
    return found


def read_plan(path: Path) -> ComparisonPlan:
    """The plan in a comparison file; methods and networks that nothing here knows stay in it as
    they are written.
    """
    settings = read_toml(path)
    try:
        return _restore_plan(settings) if _has_unknown(settings) else plan_of(settings)
    except BadInput as problem:
        raise BadInput(f"{path}: {problem}") from None


def _has_unknown(settings: Mapping[str, Any]) -> bool:
    methods = settings.get("methods")
    unknown = (
        [m for m in methods if isinstance(m, str) and find_unknown({"method": m.partition("@")[0]})]
        if isinstance(methods, list)
        else []
    )
    shared = {k: v for k, v in rename_tables(settings).items() if k in ("dataset", "model")}
    return bool(unknown or find_unknown(shared))


def _restore_plan(settings: Mapping[str, Any]) -> ComparisonPlan:
    """The plan that `write_plan` wrote, without the code that it needs to be run."""
    tables = rename_tables(settings)
    search = limits_of(tables.pop("search", {}))
    methods, seeds = tables.pop("methods"), _check_seeds(tables.pop("seeds", [0]))
    own, grids = (tables.pop(key, {}) for key in ("options", "tune"))
    experiments = {}
    for name in methods:
        mine: dict[str, Any] = {k: dict(v) for k, v in tables.items() if isinstance(v, Mapping)}
        mine["options"] = {}
        for key, value in own.get(name, {}).items():
            section, _, option = key.rpartition(".")
            mine.setdefault(section or "options", {})[option] = value
        experiments[name] = restore_experiment({"method": str(name).partition("@")[0], **mine})
    return ComparisonPlan(experiments, seeds, grids, search)
