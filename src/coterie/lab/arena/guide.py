"""The guide that comes with coterie: what the arena found, and what it suggests for other data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.comparison.plan import set_method_options
from coterie.core.errors import BadInput
from coterie.core.files import read_text, write_text
from coterie.data.federation import Federation
from coterie.experiment.build import Given
from coterie.experiment.config import Experiment
from coterie.lab.arena.cells import ARENA_FILE
from coterie.lab.arena.results import (
    ArenaResults,
    arena_scores_of,
    build_block,
    divide_by_fedavg,
    gradients_of,
    select_runs,
)
from coterie.lab.arena.rules import (
    BASELINES,
    SINGLE,
    ArenaScores,
    RuleLead,
    find_lead,
    judge_rules,
    rank_methods,
)
from coterie.methods.registry import METHODS
from coterie.running.assembly import assemble, load_federation

GUIDE_FILE = ARENA_FILE.parent / "guide.json"
SUGGESTED = 3  # methods that are named

MethodOptions = Mapping[str, Mapping[str, Any]]  # {method: its own options}


class Guide(NamedTuple):
    """What the arena found, as far as advice needs it."""

    known: ArenaScores
    gradients: dict[str, float]  # of every method, times FedAvg's; NaN: not known
    about: dict[str, Any]  # version, date, seeds


class MethodRecord(NamedTuple):
    """How a method did in the arena."""

    method: str
    behind: float  # points behind the best method, mean over the federations where it ran
    federations: int  # where it ran
    gradients: float  # times FedAvg's


class Suggestion(NamedTuple):
    """What to try first on some data, and why."""

    methods: tuple[MethodRecord, ...]  # that can run here, the first to be tried first
    bars: tuple[MethodRecord, ...]  # Local and FedAvg, which belong beside them
    refused: dict[str, str]  # better ones that cannot run here, and why
    lead: RuleLead  # of the rules, judged with the methods that can run here
    guide: Guide


def guide_of(results: ArenaResults) -> Guide:
    """The guide that an arena's results give."""
    known, about = arena_scores_of(results), results.about
    work = build_block(select_runs(results), gradients_of)
    times = dict(zip(work.methods, divide_by_fedavg(work).tolist(), strict=True))
    seeds = sorted(set(results.runs["seed"].to_pylist()))
    return Guide(
        known=known,
        gradients={name: times[name] for name in known.methods},
        about={"coterie": about["coterie"], "date": about["date"], "seeds": seeds},
    )


def check_guide(guide: Guide) -> None:
    """Refuse a guide that nothing can be judged by."""
    count = len(guide.known.federations)
    if count < 2:
        raise BadInput(
            "a guide is judged on a federation that it has not seen, so it needs two with finished "
            f"runs, and there {'is' if count == 1 else 'are'} {count}: `coterie arena --run`"
        )


def write_guide(guide: Guide, path: Path = GUIDE_FILE) -> None:
    """The guide as a small file."""
    write_text(path, format_guide(guide))


def format_guide(guide: Guide) -> str:
    """What the file holds."""
    known = guide.known
    content = {
        "about": guide.about,
        "methods": list(known.methods),
        "gradients": [_round_value(guide.gradients[name], 2) for name in known.methods],
        "federations": {
            name: {
                "properties": [round(float(v), 5) for v in known.properties[f]],
                "points": [_round_value(v, 3) for v in known.points[f]],
            }
            for f, name in enumerate(known.federations)
        },
    }
    return json.dumps(content, indent=1) + "\n"


def _round_value(value: float, digits: int) -> float | None:
    return None if isnan(value) else round(float(value), digits)


def read_guide(path: Path = GUIDE_FILE) -> Guide:
    """The guide in a file."""
    try:
        content = json.loads(read_text(path))
        places, names = content["federations"], tuple(content["methods"])
        known = ArenaScores(
            federations=tuple(places),
            properties=np.array([p["properties"] for p in places.values()], dtype=float),
            methods=names,
            points=np.array([_parse_numbers(p["points"]) for p in places.values()], dtype=float),
        )
        gradients = dict(zip(names, _parse_numbers(content["gradients"]), strict=True))
        return Guide(known, gradients, content["about"])
    except FileNotFoundError:
        raise BadInput(
            f"there is no {path}: `coterie arena --write docs --store` makes it"
        ) from None
    except (ValueError, LookupError, TypeError):
        raise BadInput(
            f"{path} is no guide: `coterie arena --write docs --store` makes it anew"
        ) from None


def _parse_numbers(values: Sequence[float | None]) -> list[float]:
    return [nan if v is None else v for v in values]


def suggest_methods(
    experiment: Experiment, guide: Guide, data: Given = None, own: MethodOptions | None = None
) -> Suggestion:
    """What to try first on the data of an experiment, from the methods that can run on them.

    own: options for single methods, as of how many public rows one draws.
    """
    for name in own or {}:
        if name not in guide.known.methods:
            raise BadInput(f"options for '{name}', which the arena did not compare: leave them out")
    federation = load_federation(replace(experiment, method="fedavg", options={}), data)
    refused = _find_refused(experiment, federation, guide.known.methods, own or {})
    able = [name for name in guide.known.methods if name not in refused]
    if not able:
        raise BadInput(next(iter(refused.values())))
    first = rank_methods(SINGLE, known := guide.known.only(able))[:SUGGESTED]
    better = rank_methods(SINGLE, guide.known)
    return Suggestion(
        methods=tuple(_record_of(guide, name) for name in first),
        bars=tuple(
            _record_of(guide, name) for name in BASELINES if name in able and name not in first
        ),
        refused={m: refused[m] for m in better[: better.index(first[-1])] if m in refused},
        lead=find_lead(judge_rules(known)),
        guide=guide,
    )


def _find_refused(
    experiment: Experiment, federation: Federation, methods: Sequence[str], own: MethodOptions
) -> dict[str, str]:
    """The methods that these data and this network do not allow, and why."""
    found: dict[str, str] = {}
    for name in methods:
        if name not in METHODS:
            found[name] = f"there is no method '{name}' any more"
            continue
        mine = set_method_options(replace(experiment, method=name), own.get(name, {}))
        try:
            assemble(mine, federation)
        except BadInput as problem:
            found[name] = str(problem)
    return found


def _record_of(guide: Guide, method: str) -> MethodRecord:
    known = guide.known
    ran = ~np.isnan(known.points[:, known.methods.index(method)])
    return MethodRecord(method, known.mean_behind(method), int(ran.sum()), guide.gradients[method])
