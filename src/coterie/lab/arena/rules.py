"""What to try first on a federation: what did best on federations of the arena.

Regret is how many points the chosen method lies behind the best one. A rule says which federations
are asked: all of them, or those that resemble the data. Every rule is judged on federations that it
has not seen: one is left out, the rule is made of the others. A rule that looks at the data is
taken only where it beats the one that asks all by more than chance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from math import sqrt
from typing import NamedTuple

import numpy as np

from coterie.analysis.nan_math import nan_max, nan_mean

NEIGHBOURS = (1, 3)  # federations that a rule asks
SINGLE = "best single method"  # the rule that asks all federations
BASELINES = ("local", "fedavg")
CHANCE = 2  # standard errors that a gain must exceed


class Properties(NamedTuple):
    """What can be measured of a federation before anything is chosen, on training rows alone."""

    rows: float  # training rows per client, the median, as log10
    divergence: float  # of labels: how far a client's lie from all clients', 0 to 1
    gain: float  # points of Local over FedAvg in a short probe
    similarity: float  # cosine between two clients' gradients at a common start, the mean
    groups: float  # deviation of these cosines: high where clients form groups

    @property
    def array(self) -> np.ndarray:
        return np.array(self, dtype=float)


MEANINGS = {
    "rows": "training rows per client (log10 of the median)",
    "divergence": "distance of a client's labels from everybody's, 0 to 1",
    "gain": "points of Local over FedAvg in a short probe",
    "similarity": "cosine between the gradients of two clients, mean",
    "groups": "deviation of these cosines",
}


class ArenaScores(NamedTuple):
    """The federations of the arena: their properties, and the points of every method on them."""

    federations: tuple[str, ...]
    properties: np.ndarray  # [f, p]
    methods: tuple[str, ...]
    points: np.ndarray  # [f, m]; NaN where a method could not run or diverged

    def without(self, f: int) -> ArenaScores:
        """All federations but one."""
        return self._at([k for k in range(len(self.federations)) if k != f])

    def only(self, methods: Collection[str]) -> ArenaScores:
        """Some methods alone, on the federations where any of them ran."""
        kept = [k for k, name in enumerate(self.methods) if name in methods]
        names, points = tuple(self.methods[k] for k in kept), self.points[:, kept]
        some = self._replace(methods=names, points=points)
        return some._at(np.flatnonzero(~np.isnan(points).all(axis=1)).tolist())

    def _at(self, places: Sequence[int]) -> ArenaScores:
        names = tuple(self.federations[k] for k in places)
        return ArenaScores(names, self.properties[places], self.methods, self.points[places])

    @property
    def behind(self) -> np.ndarray:
        """[f, m] points behind the best method; NaN where a method did not run."""
        found: np.ndarray = nan_max(self.points, 1) - self.points
        return found

    @property
    def regret(self) -> np.ndarray:
        """[f, m] points behind the best method; a method that did not run is as bad as the
        worst.
        """
        return np.where(np.isnan(self.behind), nan_max(self.behind, 1), self.behind)

    def mean_behind(self, method: str) -> float:
        """Points behind the best method, mean over the federations where it ran."""
        return float(nan_mean(self.behind[:, self.methods.index(method)], 0))


FederationRule = Callable[
    [ArenaScores, Properties], np.ndarray
]  # the numbers of the federations that are asked


def distances(known: ArenaScores, wanted: Properties) -> np.ndarray:
    """[f] how far the federations lie, in deviations of each property over the arena."""
    spread = known.properties.std(axis=0)
    gaps = (known.properties - wanted.array) / np.where(spread > 0, spread, 1.0)
    found: np.ndarray = np.sqrt(np.square(gaps).mean(axis=1))
    return found


def nearest_federations(count: int, known: ArenaScores, wanted: Properties) -> np.ndarray:
    """The federations that lie nearest, the nearest first."""
    return np.argsort(distances(known, wanted), kind="stable")[:count]


def same_winner(known: ArenaScores, wanted: Properties) -> np.ndarray:
    """The federations where Local wins the probe, or where FedAvg does, as it is here; all of them
    where there is none.
    """
    gain = Properties._fields.index("gain")
    same = (known.properties[:, gain] > 0) == (wanted.gain > 0)
    return np.flatnonzero(same) if same.any() else all_federations(known, wanted)


def all_federations(known: ArenaScores, wanted: Properties) -> np.ndarray:
    """All federations, whatever the data."""
    return np.arange(len(known.federations))


# the rules that look at the data, by what they are called
DATA_RULES: dict[str, FederationRule] = {
    **{f"nearest {k}": partial(nearest_federations, k) for k in NEIGHBOURS},
    "sign of the gain": same_winner,
}


def rank_methods(rule: str, known: ArenaScores, wanted: Properties | None = None) -> list[str]:
    """All methods, from the least mean regret on the federations that a rule asks; of equals, the
    one that does better everywhere is the first.

    wanted: the properties of the data, which the best single method does without.
    """
    asked = np.arange(len(known.federations))
    if wanted is not None and rule in DATA_RULES:
        asked = DATA_RULES[rule](known, wanted)
    here, everywhere = known.regret[asked].mean(axis=0), known.regret.mean(axis=0)
    return [known.methods[k] for k in np.lexsort((everywhere, np.round(here, 9)))]


class JudgedRule(NamedTuple):
    """A rule, and its regret on each federation when that was left out."""

    rule: str
    chosen: tuple[str, ...]  # [f]
    regret: np.ndarray  # [f] points

    @property
    def mean(self) -> float:
        return float(self.regret.mean())


def judge_rules(known: ArenaScores) -> list[JudgedRule]:
    """Every rule with each federation left out, the rule of least mean regret first; none where
    nothing is left once one is left out.
    """
    places = range(len(known.federations))
    if len(places) < 2:
        return []
    chosen = {
        rule: [
            rank_methods(rule, known.without(f), Properties(*known.properties[f]))[0]
            for f in places
        ]
        for rule in (*DATA_RULES, SINGLE)
    }
    chosen |= {f"always {bar}": [bar for _ in places] for bar in BASELINES if bar in known.methods}
    found = []
    for rule, names in chosen.items():
        regret = [known.regret[f, known.methods.index(name)] for f, name in enumerate(names)]
        found.append(JudgedRule(rule, tuple(names), np.array(regret)))
    return sorted(found, key=lambda j: j.mean)


class RuleLead(NamedTuple):
    """How far the best rule that looks at the data is ahead of the best single method."""

    rule: str
    mean: float  # its regret
    single: float  # the regret of the best single method
    error: float  # the standard error of the difference over federations

    @property
    def gain(self) -> float:
        """Points that it is ahead; below 0: behind."""
        return self.single - self.mean

    @property
    def counts(self) -> bool:
        """Whether that is more than chance."""
        return self.gain > CHANCE * self.error

    @property
    def taken(self) -> str:
        """The rule that advice goes by."""
        return self.rule if self.counts else SINGLE


def find_lead(judged: Sequence[JudgedRule]) -> RuleLead:
    """The best rule that looks at the data against the best single method."""
    single = next(j for j in judged if j.rule == SINGLE)
    best = next(j for j in judged if j.rule in DATA_RULES)
    gaps = single.regret - best.regret
    error = float(gaps.std(ddof=1)) / sqrt(len(gaps))
    return RuleLead(best.rule, best.mean, single.mean, error)
