"""Cross-site evaluation: when a run is over, every site's own model is measured on the test rows of
all sites.

A site's own model leaves it for this, which it does in no other case, so it is done only where
`[privacy] cross_site` of server.toml says so and every site has agreed to an experiment that says
so and names the sites. A site sends one model in a run, and measures one of each of the named
sites: a score of a model is a question about rows.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import BadInput
from coterie.core.method import Stage
from coterie.core.point import Point, pick, stack
from coterie.deploy.config_files import Limits, Privacy
from coterie.deploy.disclosure import Refusal, list_scores
from coterie.engines.base import Moment, Send
from coterie.engines.local.engine import LocalEngine

MODEL, JUDGE = "model", "judge"  # the two kinds of messages
SITES = "cross_site"  # of an experiment's settings: the names of the sites, by number
FILE = "cross_site.csv"  # in the folder of the run
TEST = "test"
Config = Mapping[str, Any]
Score = tuple[str, str, str, float]  # whose model, at which site, metric, value


def check_network(method: str, program: Sequence[Stage]) -> None:
    """Refuse a method whose own model is not the network itself, as one that remembers rows."""
    if "personal" in program[-1].method.model_of:
        raise BadInput(
            f"privacy.cross_site: the own model of {method} is not the experiment's plain network "
            "(it may hold rows): choose another method"
        )


# At a site


def check_agreed(settings: Config, guard: Privacy, limits: Limits, owner: int) -> None:
    """Refuse what the experiment does not say, and what a site's own rules do not let out."""
    names = settings.get(SITES)
    if not guard.cross_site or not isinstance(names, list) or not owner < len(names):
        raise Refusal("models do not leave their sites in the experiment that was agreed to")
    if guard.noise or guard.secure_sum or limits.epsilon or not guard.sends_measures:
        raise Refusal("the privacy of this site lets no model and no score of one out")


def check_end(rounds: Sequence[int], stage: int, when: Moment) -> None:
    """Refuse before the run is over."""
    if (stage, when.round) != (len(rounds) - 1, rounds[-1]):
        raise Refusal("models leave their sites when the run is over, and not before")


def own_model(engine: LocalEngine, number: int, send: Send, when: Moment) -> Point:
    """The model that a site would predict with."""
    ((_, _, views),) = engine.points([number], send, when)
    point: Point = pick(views["personal"], 0)
    return point


def judge_model(
    engine: LocalEngine, a: int, point: Point, number: int, rows: Mapping[str, int], limits: Limits
) -> list[tuple[str, str, str, float]]:
    """What a model of this architecture is worth on the site's test rows, as may be told."""
    views = iter([(a, [number], {"personal": stack([point])})])
    found = engine.measure_views(views, [number], [TEST], final=True)
    return list_scores(found, rows, limits)


# At the server


def write_scores(path: Path, scores: Sequence[Score]) -> None:
    """A line for each model, site and metric."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("model", "site", "metric", "value"))
        writer.writerows(scores)


def describe_scores(scores: Sequence[Score], metric: str) -> str:
    """What they say, in a line."""
    mine = [value for owner, site, name, value in scores if name == metric and owner == site]
    others = [value for owner, site, name, value in scores if name == metric and owner != site]
    if not mine or not others:
        return f"too few sites told scores of each other's models ({FILE})"
    return (
        f"own models have {metric} {np.nanmean(mine):.3f} at home and {np.nanmean(others):.3f} at "
        f"other sites, on average ({FILE})"
    )
