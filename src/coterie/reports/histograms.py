"""Histograms over clients: how many reach how much, or logged which number in one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from coterie.analysis.nan_math import drop_nan
from coterie.core.quantities import LoggedQuantity
from coterie.reports.evidence import Evidence
from coterie.reports.figures import (
    Figure,
    Series,
    axis_title,
    describe_shown_clients,
    measure_title,
    slugify,
)
from coterie.reports.logged_labels import Runs, caption_of, scale_of, title_of
from coterie.reports.logged_values import values_by_round

BINS = 10
LEAST = 10  # clients of which a histogram tells more than their dots
MOST = 6  # methods whose bars stand side by side


def accuracy_histogram(evidence: Evidence) -> Figure | None:
    """Clients by what their own models reach; None where clients are few or methods many."""
    if len(evidence.names) < LEAST or len(evidence.methods) > MOST:
        return None
    values = {name: evidence.scale * evidence.clientwise(name) for name in evidence.methods}
    series = bars(values, top=100.0 if evidence.judged.share else None)
    if not series:
        return None
    return Figure(
        key="histogram",
        title=f"Clients by {measure_title(evidence)[:1].lower()}{measure_title(evidence)[1:]}",
        note=f"How many clients' own models end in which range. {describe_shown_clients(evidence)}",
        kind="bars",
        x=axis_title(evidence),
        y="clients",
        series=series,
        section="accuracy",
    )


def note_histogram(
    evidence: Evidence, name: str, note: LoggedQuantity, runs: Runs, round: int | None = None
) -> Figure | None:
    """The clients that wrote a logged quantity in a round, by its value; in the middle one, if none
    is named."""
    blocks = {method: values_by_round(records[0], name) for method, records in runs.items()}
    shown = round or _middle(*next(iter(blocks.values())))
    values = {
        method: scale_of(note) * block[int(np.searchsorted(rounds, shown))]
        for method, (rounds, block) in blocks.items()
        if shown in rounds
    }
    series = bars(values, logs=note.log)
    if not series:
        return None
    unit = f" ({note.unit})" if note.unit else ""
    who = f"Clients that logged it in round {shown}; seed {evidence.seeds[0]}."
    return Figure(
        key=f"histogram-{slugify(name)}-{slugify(next(iter(runs)))}",
        title=f"{title_of(note)} of the clients of one round",
        note=caption_of(note.meaning, who),
        kind="bars",
        x=f"{note.label}{unit}",
        y="clients",
        series=series,
        section="inside",
    )


def _middle(rounds: np.ndarray, block: np.ndarray) -> int:
    """The round nearest to half the run in which a client had something to log; 0: there is
    none."""
    known = rounds[~np.isnan(block).all(axis=1)]
    return int(known[np.abs(known - rounds[-1] / 2).argmin()]) if len(known) else 0


def bars(
    values: Mapping[str, np.ndarray], top: float | None = None, logs: bool = False
) -> tuple[Series, ...]:
    """How many of each method's values lie in ranges that all methods share; () without values.

    top: the end of the last range, the largest value if none is given. logs: the ranges grow by a
    factor, and what is not positive is left out.
    """
    known = {name: drop_nan(found) for name, found in values.items()}
    known = {name: found[found > 0] if logs else found for name, found in known.items()}
    together = np.concatenate([*known.values(), np.zeros(0)])
    if not len(together):
        return ()
    edges = _edges(together, top, logs)
    names = [f"{_short(a)} to {_short(b)}" for a, b in pairwise(edges)]
    return tuple(
        Series(name, list(names), np.histogram(found, edges)[0].tolist())
        for name, found in known.items()
        if len(found)
    )


def _short(number: float) -> str:
    """Three digits that count, without an exponent: 1,130."""
    return f"{float(f'{number:.3g}'):,.12g}"


def _edges(values: np.ndarray, top: float | None, logs: bool) -> Sequence[float]:
    """Ends of the ranges, from the smallest value to the largest or to the top; where these are
    percents, from a multiple of ten."""
    low, high = float(values.min()), float(values.max())
    if logs:
        return np.geomspace(low, max(high, 1.01 * low), BINS + 1).tolist()
    if top is not None:
        low, high = min(10 * np.floor(low / 10), top - 10), top
    return np.linspace(low, high if high > low else low + 1, BINS + 1).tolist()
