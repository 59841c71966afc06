"""What a run says of its newcomers: clients that came after training, and how well each way of
getting a model served them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from coterie.analysis.scores import Score
from coterie.analysis.significance import mean_interval
from coterie.results.about import partition_of
from coterie.results.metric_table import values_of

PART = "newcomers"  # of the table; "newcomers:5" with five training rows each
RULE, FINE_TUNED, ALONE = "rule", "finetune", "local"  # ways of getting a model
# what each way is called where people read
WAYS = {RULE: "own rule", FINE_TUNED: "global, fine-tuned", ALONE: "trained alone"}


class NewcomerRow(NamedTuple):
    """Newcomers that got their models in one way."""

    way: str  # a key of WAYS
    mean: float  # over the newcomers, of what the run is judged by on test rows
    low: float  # 95 % interval over the newcomers
    high: float
    n: int  # newcomers
    gain: float  # of the method's rule over this way, newcomer by newcomer; above 0 is better
    gain_low: float
    gain_high: float


def part_name_of(size: int | None) -> str:
    """The part of the table that holds newcomers of so many training rows; None: all they have."""
    return PART if size is None else f"{PART}:{size}"


class NewcomerResults(NamedTuple):
    """What a run knows of its newcomers."""

    table: pa.Table
    about: dict[str, Any]  # run.json
    judged: Score  # what clients are judged by

    @property
    def names(self) -> list[str]:
        """The newcomers; [] where there were none."""
        return list(self.about.get("newcomers", {}).get("clients", []))

    @property
    def rule(self) -> str:
        """What a newcomer of this method does, as the predicate of a sentence."""
        return str(self.about.get("newcomers", {}).get("rule", ""))

    @property
    def sizes(self) -> list[int]:
        """The numbers of training rows with which newcomers were measured too."""
        return [int(size) for size in self.about.get("newcomers", {}).get("few_shot", [])]

    @property
    def rows(self) -> list[int]:
        """[newcomers] the training rows that each has."""
        return [int(n) for n in self.about["newcomers"]["rows"]["train"]]

    def values(self, way: str, size: int | None = None) -> np.ndarray:
        """[newcomers] what clients are judged by on test rows, of models got in one way."""
        return values_of(self.table, self.judged.name, part_name_of(size), way)[1]


def pool_seeds(runs: Sequence[NewcomerResults], way: str, size: int | None = None) -> np.ndarray:
    """[newcomers] the same over seeds: a newcomer that several seeds have counts once, with its
    mean, where all of them have the same partition.
    """
    found = [(run, run.values(way, size)) for run in runs]
    if len({partition_of(run.about) for run in runs}) > 1 or len(runs) == 1:
        return np.concatenate([mine for _, mine in found])
    by_name: dict[str, list[float]] = {}
    for run, mine in found:
        for name, value in zip(run.names, mine.tolist(), strict=True):
            by_name.setdefault(name, []).append(value)
    return np.array([float(np.mean(numbers)) for numbers in by_name.values()])


def newcomer_rows(runs: Sequence[NewcomerResults], size: int | None = None) -> list[NewcomerRow]:
    """One row per way, of all seeds of a method; [] where there were no newcomers."""
    if not all(run.names for run in runs):
        return []
    own, sign = pool_seeds(runs, "rule", size), runs[0].judged.sign
    rows = []
    for way in WAYS:
        mine = pool_seeds(runs, way, size)
        found, gain = mean_interval(mine), mean_interval(sign * (own - mine))
        rows.append(
            NewcomerRow(
                way=way,
                mean=found.mean,
                low=_clip_to_bounds(found.low, runs[0].judged),
                high=_clip_to_bounds(found.high, runs[0].judged),
                n=found.n,
                gain=gain.mean,
                gain_low=gain.low,
                gain_high=gain.high,
            )
        )
    return rows


def _clip_to_bounds(end: float, judged: Score) -> float:
    """An accuracy has no interval beyond 0 and 100 %."""
    least, most = judged.bounds
    return float(np.clip(end, least, most))
