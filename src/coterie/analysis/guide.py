"""What to try first on a federation: what did best on the most similar federations of the arena.

Regret is how many points the chosen method lies behind the best one. Every rule is judged on
federations that it has not seen: one is left out, the rule is made of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import nan
from typing import NamedTuple

import numpy as np

NEAREST = (1, 3)  # federations that a rule asks
BARS = ("local", "fedavg")


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


MEANING = {
    "rows": "training rows per client (log10 of the median)",
    "divergence": "distance of a client's labels from everybody's, 0 to 1",
    "gain": "points of Local over FedAvg in a short probe",
    "similarity": "cosine between the gradients of two clients, mean",
    "groups": "deviation of these cosines",
}


class Known(NamedTuple):
    """The federations of the arena: their properties, and the points of every method on them."""

    federations: tuple[str, ...]
    properties: np.ndarray  # [f, p]
    methods: tuple[str, ...]
    points: np.ndarray  # [f, m]; NaN where a method could not run or diverged

    def without(self, f: int) -> Known:
        """All federations but one."""
        kept = [k for k in range(len(self.federations)) if k != f]
        names = tuple(self.federations[k] for k in kept)
        return Known(names, self.properties[kept], self.methods, self.points[kept])

    @property
    def regret(self) -> np.ndarray:
        """[f, m] points behind the best method; a method that did not run is as bad as the
        worst.
        """
        behind = np.nanmax(self.points, axis=1, keepdims=True) - self.points
        most = np.nanmax(behind, axis=1, keepdims=True)
        found: np.ndarray = np.where(np.isnan(behind), most, behind)
        return found


Rule = Callable[[Known, Properties], str]


class Advice(NamedTuple):
    """What a rule says of a federation, and the federations that it goes by."""

    method: str
    near: tuple[str, ...]
    distances: tuple[float, ...]


def distances(known: Known, wanted: Properties) -> np.ndarray:
    """[f] how far the federations lie, in deviations of each property over the arena."""
    spread = known.properties.std(axis=0)
    gaps = (known.properties - wanted.array) / np.where(spread > 0, spread, 1.0)
    found: np.ndarray = np.sqrt(np.square(gaps).mean(axis=1))
    return found


def advise(known: Known, wanted: Properties, nearest: int) -> Advice:
    """The method of least mean regret on so many nearest federations; 0 asks all of them."""
    far = distances(known, wanted)
    order = np.argsort(far, kind="stable")[: nearest or len(far)]
    regret = known.regret[order].mean(axis=0)
    # of equals, the one that does better everywhere
    best = int(np.lexsort((known.regret.mean(axis=0), np.round(regret, 9)))[0])
    near = tuple(known.federations[i] for i in order)
    return Advice(known.methods[best], near, tuple(float(far[i]) for i in order))


class Judged(NamedTuple):
    """A rule, and its regret on each federation when that was left out."""

    rule: str
    chosen: tuple[str, ...]  # [f]
    regret: np.ndarray  # [f] points

    @property
    def mean(self) -> float:
        return float(self.regret.mean())


def rules() -> dict[str, Rule]:
    """Every rule that is judged, by what it is called."""
    return {
        **{f"nearest {k}": partial(_nearest, k) for k in NEAREST},
        "sign of the gain": by_gain,
        "best single method": partial(_nearest, 0),
        **{f"always {bar}": partial(_always, bar) for bar in BARS},
    }


def _nearest(nearest: int, known: Known, wanted: Properties) -> str:
    return advise(known, wanted, nearest).method


def _always(method: str, known: Known, wanted: Properties) -> str:
    return method


def by_gain(known: Known, wanted: Properties) -> str:
    """The method of least regret on federations where Local wins the probe, or where FedAvg does,
    as it is here; all of them where there is none.
    """
    gain = Properties._fields.index("gain")
    same = (known.properties[:, gain] > 0) == (wanted.gain > 0)
    regret = known.regret[same if same.any() else slice(None)].mean(axis=0)
    return known.methods[int(regret.argmin())]


def judge(known: Known) -> list[Judged]:
    """Every rule with each federation left out, the rule of least mean regret first."""
    found = []
    for name, rule in rules().items():
        if name.startswith("always") and name.removeprefix("always ") not in known.methods:
            continue
        chosen = [
            rule(known.without(f), Properties(*known.properties[f]))
            for f in range(len(known.federations))
        ]
        regret = np.array([known.regret[f, known.methods.index(m)] for f, m in enumerate(chosen)])
        found.append(Judged(name, tuple(chosen), regret))
    return sorted(found, key=lambda j: j.mean)


def best_rule(judged: Sequence[Judged]) -> int:
    """How many nearest federations to ask: of the rules that ask some, and of the best single
    method, the one of least regret; 0 is the single method.
    """
    means_of: Mapping[str, float] = {j.rule: j.mean for j in judged}
    single = means_of.get("best single method", nan)
    near = {k: means_of[f"nearest {k}"] for k in NEAREST}
    best = min(near, key=lambda k: near[k])
    return best if near[best] < single else 0
