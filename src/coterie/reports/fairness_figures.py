"""Figures on how evenly clients are served: gains and losses, worst clients, deviation, deciles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from coterie.analysis.fairness import deciles, gain_fairness, worst, worst_share
from coterie.analysis.nan_math import deviation_of, nan_mean
from coterie.analysis.significance import seed_interval
from coterie.reports.evidence import Evidence
from coterie.reports.figures import Figure, Series, axis_title, describe_spread, measure_title
from coterie.reports.gain_figures import compute_gains

SHARE = 0.1  # of the clients that are "the worst"
Measure = Callable[[np.ndarray], float]
INDICES = {"Jain": "jain", "cosine": "cosine", "evenness": "evenness"}
SIDES = ("gains", "losses")


def build_fairness_figures(evidence: Evidence) -> list[Figure]:
    """All of them."""
    found = [
        *build_gain_evenness(evidence),
        build_worst_served(evidence),
        build_deviation(evidence),
        build_deciles(evidence),
    ]
    return [figure._replace(section="fairness") for figure in found]


def _bar_series(
    evidence: Evidence, measures: Mapping[str, Measure], of: Mapping[str, np.ndarray]
) -> tuple[Series, ...]:
    """A series per method: each measure of every seed's clients, with what `spread` says."""
    series = []
    for name, block in of.items():
        middle, low, high = zip(
            *(seed_interval([measure(seed) for seed in block]) for measure in measures.values()),
            strict=True,
        )
        several = len(evidence.seeds) > 1
        series.append(
            Series(
                name, list(measures), list(middle), low if several else (), high if several else ()
            )
        )
    return tuple(series)


def _describe_mark(evidence: Evidence) -> str:
    return (
        f" The mark on a bar {describe_spread(len(evidence.seeds))}."
        if len(evidence.seeds) > 1
        else ""
    )


def build_gain_evenness(evidence: Evidence) -> list[Figure]:
    """How evenly gains are shared by those that gain (U+), and losses by those that lose (U-)."""
    found, over = compute_gains(evidence)
    if not found:
        return []

    def measure(k: int, field: str) -> Measure:
        return lambda q: float(getattr(gain_fairness(q)[k], field))

    even = {
        f"{what} of {side}": measure(k, field)
        for k, side in enumerate(SIDES)
        for what, field in INDICES.items()
    }
    apart = {f"variance of {side}": measure(k, "variance") for k, side in enumerate(SIDES)}
    of = (
        f"Gains are those over {over}, of the clients that gain; losses those of the clients "
        f"that lose.{_describe_mark(evidence)}"
    )
    note = (
        f"1: all clients of the group gain (or lose) the same; lower: a few have most of it. {of}"
    )
    wide = (
        "Population variance; lower is fairer, but a method that gives nobody anything has "
        f"none either. {of}"
    )
    title, unit = "How evenly gains and losses are shared", "variance (points²)"
    return [
        Figure(
            "evenness",
            title,
            note,
            "bars",
            "",
            "index (0 to 1)",
            _bar_series(evidence, even, found),
        ),
        Figure(
            "variance",
            "Variance of gains and losses",
            wide,
            "bars",
            "",
            unit,
            _bar_series(evidence, apart, found),
        ),
    ]


def _values_by_method(evidence: Evidence) -> dict[str, np.ndarray]:
    return {name: evidence.scale * evidence.client_values(name) for name in evidence.methods}


def build_worst_served(evidence: Evidence) -> Figure:
    """The worst client, the worst tenth and the mean."""
    sign = evidence.judged.sign
    measures: dict[str, Measure] = {
        "worst client": lambda a: sign * worst(sign * a),
        "worst 10 % of clients": lambda a: sign * worst_share(sign * a, SHARE),
        "mean": lambda a: float(nan_mean(a, 0)),
    }
    note = (
        "Own models at the last round; a fair method serves its worst clients well "
        f"too.{_describe_mark(evidence)}"
    )
    series = _bar_series(evidence, measures, _values_by_method(evidence))
    return Figure(
        "ends", "The worst-served clients", note, "bars", "", axis_title(evidence), series
    )


def build_deviation(evidence: Evidence) -> Figure:
    """One bar per method."""
    bars = _bar_series(evidence, {"": deviation_of}, _values_by_method(evidence))
    columns: list[Sequence[float]] = [
        [v for s in bars for v in getattr(s, field)] for field in ("y", "low", "high")
    ]
    series = Series(
        "deviation over clients", [s.name for s in bars], list(columns[0]), columns[1], columns[2]
    )
    note = (
        "Sample standard deviation; lower: clients are served more "
        f"alike.{_describe_mark(evidence)}"
    )
    unit = "points" if evidence.judged.share else evidence.judged.label
    return Figure(
        "deviation", "Deviation over clients", note, "bars", "", f"deviation ({unit})", (series,)
    )


def build_deciles(evidence: Evidence) -> Figure:
    """From the lowest client to the highest, a line per method."""
    series = tuple(
        Series(
            name,
            list(range(0, 101, 10)),
            nan_mean(np.stack([deciles(seed) for seed in block]), 0).tolist(),
        )
        for name, block in _values_by_method(evidence).items()
    )
    seeds = "" if len(evidence.seeds) == 1 else f" Means over {len(evidence.seeds)} seeds."
    note = (
        f"At 10: a tenth of the clients have less than this. A flat line treats all alike.{seeds}"
    )
    title = f"{measure_title(evidence)} from the lowest client to the highest"
    return Figure(
        "deciles", title, note, "lines", "clients below (%)", axis_title(evidence), series
    )
