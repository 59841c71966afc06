"""The guide that comes with coterie: what the arena found, and what it suggests for other data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.analysis.guide import Advice, Judged, Known, Properties, advise, best_rule, judge
from coterie.comparison.arena import ARENA
from coterie.comparison.arena_results import Results, known_of
from coterie.comparison.properties import properties
from coterie.core.errors import BadInput
from coterie.core.files import read_text, write
from coterie.data.federation import Federation
from coterie.experiment.build import Given
from coterie.experiment.config import Experiment
from coterie.running.assemble import assemble, gather

GUIDE = ARENA.parent / "guide.json"
SUGGESTED = 3  # methods that are named


class Guide(NamedTuple):
    """What the arena found, as far as advice needs it."""

    known: Known
    says: dict[str, str]  # what each federation is
    nearest: int  # federations that advice goes by; 0: all of them
    judged: dict[str, float]  # mean regret of every rule, each federation left out once
    about: dict[str, Any]  # version, date, seeds


class Near(NamedTuple):
    """A federation of the arena that resembles the data."""

    name: str
    says: str
    distance: float
    best: str
    over: dict[str, float]  # points of the best over each of Local and FedAvg


class Suggestion(NamedTuple):
    """What to try first on some data, and why."""

    properties: Properties
    methods: tuple[str, ...]  # that can run here, the first to be tried first
    refused: dict[str, str]  # better ones that cannot, and why
    near: tuple[Near, ...]
    guide: Guide


def guide_of(results: Results) -> Guide:
    """The guide that an arena's results give."""
    known = known_of(results)
    judged: Sequence[Judged] = judge(known)
    told = results.about
    seeds = sorted(set(results.runs["seed"].to_pylist()))
    return Guide(
        known=known,
        says={name: told["federations"][name]["says"] for name in known.federations},
        nearest=best_rule(judged),
        judged={j.rule: round(j.mean, 3) for j in judged},
        about={"coterie": told["coterie"], "date": told["date"], "seeds": seeds},
    )


def write_guide(guide: Guide, path: Path = GUIDE) -> None:
    """The guide as a small file."""
    known = guide.known
    words = {
        "about": guide.about,
        "nearest": guide.nearest,
        "judged": guide.judged,
        "methods": list(known.methods),
        "federations": {
            name: {
                "says": guide.says[name],
                "properties": [round(float(v), 5) for v in known.properties[f]],
                "points": [None if np.isnan(v) else round(float(v), 3) for v in known.points[f]],
            }
            for f, name in enumerate(known.federations)
        },
    }
    write(path, json.dumps(words, indent=1) + "\n")


def read_guide(path: Path = GUIDE) -> Guide:
    """The guide in a file."""
    try:
        words = json.loads(read_text(path))
        places = words["federations"]
        points = [[np.nan if v is None else v for v in p["points"]] for p in places.values()]
        known = Known(
            federations=tuple(places),
            properties=np.array([p["properties"] for p in places.values()], dtype=float),
            methods=tuple(words["methods"]),
            points=np.array(points, dtype=float),
        )
        says = {name: p["says"] for name, p in places.items()}
        return Guide(known, says, words["nearest"], words["judged"], words["about"])
    except FileNotFoundError:
        raise BadInput(f"there is no {path}: `coterie arena --write docs` makes it") from None
    except (ValueError, LookupError, TypeError):
        raise BadInput(f"{path} is no guide: `coterie arena --write docs` makes it anew") from None


def suggest(experiment: Experiment, guide: Guide, data: Given = None) -> Suggestion:
    """What to try first on the data of an experiment."""
    experiment = replace(experiment, method="fedavg", options={})
    federation = gather(experiment, data)
    found = properties(experiment, federation)
    advice = advise(guide.known, found, guide.nearest)
    possible, refused = _possible(experiment, federation, order(guide, advice))
    everywhere = advise(guide.known, found, 0)
    shown = everywhere.near[: max(SUGGESTED, guide.nearest)]
    near = zip(shown, everywhere.distances, strict=False)
    return Suggestion(
        properties=found,
        methods=tuple(possible),
        refused=refused,
        near=tuple(_near(guide, name, distance) for name, distance in near),
        guide=guide,
    )


def order(guide: Guide, advice: Advice) -> list[str]:
    """All methods, from the least mean regret on the federations that the advice goes by."""
    known = guide.known
    chosen = [known.federations.index(name) for name in advice.near]
    here, everywhere = known.regret[chosen].mean(axis=0), known.regret.mean(axis=0)
    return [known.methods[i] for i in np.lexsort((everywhere, np.round(here, 9)))]


def _possible(
    experiment: Experiment, federation: Federation, methods: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """The first methods that these data and this network allow, and why better ones do not run."""
    found: list[str] = []
    refused: dict[str, str] = {}
    for name in methods:
        try:
            assemble(replace(experiment, method=name), federation)
            found.append(name)
        except BadInput as problem:
            refused[name] = str(problem)
        if len(found) == SUGGESTED:
            break
    return found, refused


def _near(guide: Guide, name: str, distance: float) -> Near:
    known = guide.known
    points = known.points[known.federations.index(name)]
    best = int(np.nanargmax(points))
    bars: list[str] = [bar for bar in ("local", "fedavg") if bar in known.methods]
    over = {bar: float(points[best] - points[known.methods.index(bar)]) for bar in bars}
    return Near(name, guide.says[name], distance, known.methods[best], over)
