"""The answer of a comparison: which method is best, fairest, cheapest and recommended, in words.

Gain and fairness are those of gains.py and fairness.py. Accuracies are shares from 0 to 1, gains
percentage points; a client without a number (NaN) does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coterie.analysis.gains import Improvement, improvement, qoi
from coterie.analysis.numbers import DIGITS, mean_of, there
from coterie.analysis.scores import SCORES, Score
from coterie.analysis.significance import rank_table, units
from coterie.core.errors import BadInput, nearest

ACCURACY = SCORES[0]
NAMED = 5  # methods that a sentence lists by name


class Answer(NamedTuple):
    """What a comparison says; None where no method deserves the name."""

    best: str | None  # improves most clients over FedAvg and Local, then by most
    fairest: (
        str | None
    )  # smallest deviation over clients of those whose mean beats FedAvg's and Local's
    cheapest: str | None  # fewest bytes of the same
    recommended: str | None  # chosen on validation data alone
    reason: str  # of the recommendation
    significant: bool  # whether `best` is significantly better than every other method
    unbeaten: tuple[str, ...]  # the methods it is not significantly better than
    gain: Improvement  # of `best`
    population: str  # what the significance speaks of: "10 clients"
    note: str  # said where that is too few
    beaten: tuple[str, ...]  # the methods that `best` is significantly better than
    worthy: tuple[str, ...]  # the methods whose mean accuracy beats FedAvg's and Local's
    remarks: tuple[str, ...] = ()  # sentences on what went wrong, as who diverged
    judged: Score = ACCURACY  # what clients are judged by


def answer(
    test: Mapping[str, ArrayLike],
    validation: Mapping[str, ArrayLike],
    traffic: Mapping[str, float],
    fixed_split: bool,
    fedavg: str = "fedavg",
    local: str = "local",
    judged: Score = ACCURACY,
) -> Answer:
    """The answer from [seeds, clients] accuracies and bytes of every method; figures are means over
    seeds of each seed's.

    judged: another measure; what is given of one where low is good is minus its values.
    """
    for name in (fedavg, local):
        if name not in test:
            raise BadInput(
                f"'{name}' is not among the methods {', '.join(test)}: a gain is measured over "
                "FedAvg and Local"
            )
    for name in {**test, **validation}:
        if name not in traffic:
            raise BadInput(f"'{name}' has accuracies, but no bytes{nearest(name, traffic)}")
    table = rank_table(test, fixed_split)
    runs = {name: np.atleast_2d(np.asarray(a, dtype=float)) for name, a in test.items()}
    gains = _gains(test, fedavg, local, judged.share)
    better = [name for name in test if gains[name].pui > 0]
    best = max(
        better, key=lambda name: (round(gains[name].pui, DIGITS), gains[name].api), default=None
    )
    means = {name: mean_of([mean_of(seed) for seed in a]) for name, a in runs.items()}
    worthy = [
        name for name in test if round(means[name] - max(means[fedavg], means[local]), DIGITS) > 0
    ]
    others = [name for name in table.methods if best and name != best]
    beaten = tuple(name for name in others if best and table.beats(best, name))
    unbeaten = tuple(name for name in others if name not in beaten)
    recommended, reason = recommend(validation, traffic, fixed_split, fedavg, local, judged)
    return Answer(
        best,
        min(
            worthy,
            key=lambda name: mean_of([_deviation(seed) for seed in runs[name]]),
            default=None,
        ),
        min(worthy, key=lambda name: (traffic[name], -means[name]), default=None),
        recommended,
        reason,
        best is not None and not unbeaten,
        unbeaten,
        gains[best] if best else improvement([]),
        f"{table.n} {table.population}",
        table.note,
        beaten,
        tuple(worthy),
        judged=judged,
    )


def _gains(
    accuracies: Mapping[str, ArrayLike], fedavg: str, local: str, share: bool
) -> dict[str, Improvement]:
    """Every method's figures of each seed, averaged over seeds."""
    base, alone = (
        np.atleast_2d(np.asarray(accuracies[name], dtype=float)) for name in (fedavg, local)
    )
    return {
        name: Improvement(
            *map(
                mean_of,
                zip(*map(improvement, qoi(np.atleast_2d(a), base, alone, share)), strict=True),
            )
        )
        for name, a in accuracies.items()
    }


def _deviation(accuracy: np.ndarray) -> float:
    found = there(accuracy)
    return float(found.std(ddof=1)) if len(found) > 1 else 0.0


def recommend(
    validation: Mapping[str, ArrayLike],
    traffic: Mapping[str, float],
    fixed_split: bool,
    fedavg: str = "fedavg",
    local: str = "local",
    judged: Score = ACCURACY,
) -> tuple[str | None, str]:
    """(method, reason): of those within one standard error of the best mean validation accuracy,
    the one of least traffic.

    At equal traffic the one that improves more clients, then the higher mean: a mean alone may rest
    on a few clients.
    """
    values = units(validation, fixed_split) if validation else np.empty((0, 0))
    if not values.size:
        return None, "there are no validation data to choose on"
    names, means, n = list(validation), values.mean(axis=1), values.shape[1]
    gains = (
        _gains(validation, fedavg, local, judged.share)
        if fedavg in validation and local in validation
        else {}
    )
    pui = [round(gains[name].pui, DIGITS) if gains else 0.0 for name in names]
    cost = [traffic[name] for name in names]
    top = int(means.argmax())
    gaps = np.round(values[top] - values, DIGITS)
    error = gaps.std(axis=1, ddof=1) / sqrt(n) if n > 1 else np.zeros(len(names))
    close = [i for i in range(len(names)) if gaps[i].mean() <= error[i]]
    chosen = min(close, key=lambda i: (cost[i], -pui[i], -means[i]))
    if chosen == top:
        why = (
            f"it has the {_top(judged)} mean {judged.label} on validation data, "
            f"{_value(means[top], judged)}, and "
            "no cheaper method is close"
        )
        return names[top], why
    ground = (
        f"for {cost[chosen] / 1e6:,.1f} MB instead of {cost[top] / 1e6:,.1f}"
        if cost[chosen] < cost[top]
        else f"and it improves {pui[chosen]:.0f} % of the clients there instead of {pui[top]:.0f} %"
    )
    return names[chosen], (
        f"its mean {judged.label} on validation data, {_value(means[chosen], judged)}, is within "
        f"one standard error of the {_top(judged)} "
        f"({names[top]}, {_value(means[top], judged)}), {ground}"
    )


def _top(judged: Score) -> str:
    return "highest" if judged.higher else "lowest"


def _value(value: float, judged: Score) -> str:
    """A mean as people read it; of a measure where low is good, `value` is minus it."""
    return (
        f"{100 * value:.1f} %"
        if judged.share and judged.higher
        else (f"{100 * -value:.1f} %" if judged.share else f"{judged.sign * value:.4g}")
    )


def sentences(answer: Answer) -> str:
    """The answer as one short paragraph."""
    said = [*_best(answer), _fairest_and_cheapest(answer)]
    said.append(f"Recommended: {answer.recommended or 'none'}, as {answer.reason}.")
    return " ".join([*said, *answer.remarks])


def _best(answer: Answer) -> list[str]:
    if answer.best is None:
        return ["No method improves any client over both FedAvg and Local."]
    gain = answer.gain
    form = ".1f" if answer.judged.share else ".3g"
    loss = f", and worsens {gain.pud:.0f} % by {-gain.apd:{form}}" if gain.pud else ""
    unit = "points" if answer.judged.share else f"in {answer.judged.label}"
    figures = (
        f"{gain.pui:.0f} % of the clients over the better of FedAvg and Local, by "
        f"{gain.api:{form}} {unit} on average{loss}"
    )
    if answer.best in answer.worthy:
        said = [f"{answer.best} performs best: it improves {figures}."]
    else:  # many small gains and a few large losses are no performance
        but = f"; but its mean {answer.judged.label} does not beat both" if answer.worthy else ""
        said = [f"{answer.best} improves more clients than any other method: {figures}{but}."]
    test = f"(Wilcoxon signed-rank over {answer.population}, Holm-corrected, 5 %)"
    if answer.significant:
        return [*said, f"It is significantly better than every other method {test}."]
    note = [answer.note[:1].upper() + answer.note[1:] + "."] if answer.note else []
    if not answer.beaten:
        return [*said, f"It is not significantly better than any other method {test}.", *note]
    some = (
        _list(answer.beaten, "and")
        if len(answer.beaten) <= NAMED
        else f"{len(answer.beaten)} other methods"
    )
    return [
        *said,
        f"It is significantly better than {some}, but not than {_list(answer.unbeaten, 'or')} "
        f"{test}.",
        *note,
    ]


def _fairest_and_cheapest(answer: Answer) -> str:
    if not answer.worthy:
        return f"No method's mean {answer.judged.label} beats both FedAvg's and Local's."
    if len(answer.worthy) == 1:
        return (
            f"{answer.worthy[0]} is the only method whose mean {answer.judged.label} beats both "
            "FedAvg's and Local's."
        )
    other = "" if answer.cheapest == answer.fairest else f"{answer.cheapest} "
    return (
        f"Of the {len(answer.worthy)} methods whose mean {answer.judged.label} beats both "
        f"FedAvg's and Local's, {answer.fairest} is the "
        f"fairest (smallest deviation over clients) and {other}the cheapest (fewest bytes)."
    )


def _list(names: Sequence[str], word: str) -> str:
    """Names in a sentence, the first few of many."""
    shown = [*names[:NAMED], *([f"{len(names) - NAMED} more"] if len(names) > NAMED else [])]
    return f" {word} ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
