"""Claims of a paper that are no order of two methods: each is a question to our figures, or to
finished runs.

Questions to figures can be asked again of results files; what only a run can answer, such as a
course or what clients chose, is answered once and stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import NamedTuple

import numpy as np

from coterie.analysis.nan_math import mean_of
from coterie.core.errors import BadInput, suggest_name
from coterie.lab.papers.verdicts import (
    AGAINST,
    DECIMALS,
    FOR,
    POINT,
    Answer,
    Difference,
    Sample,
    Samples,
    difference,
)
from coterie.results.costs import rounds_to_reach
from coterie.results.metric_table import curve_of, values_of
from coterie.results.run import Run

Runs = Mapping[str, Sequence[Run]]  # finished runs by method
Figures = Callable[[str], Samples]  # our figures of a method
FAR = 0.1  # what is far less is less than this share
REACH = 0.9  # of the lower of two final accuracies: the level that a slower method reaches later


class CheckedClaim(NamedTuple):
    """What became of a claim."""

    answer: Answer
    said: str


def check_claim(terms: Sequence[str], runs: Runs, figures: Figures) -> CheckedClaim:
    """Hold a claim, such as ("close", "selffl", "selffl@augmented"), against figures or runs."""
    kind, *rest = terms
    if kind in OF_RUNS:
        return OF_RUNS[kind](rest, runs)
    if kind not in OF_FIGURES:
        raise BadInput(f"unknown claim '{kind}'{suggest_name(kind, [*OF_FIGURES, *OF_RUNS])}")
    return OF_FIGURES[kind](rest, figures)


def format_difference(found: Difference, form: str = ".2f") -> str:
    """A difference with its standard error."""
    if isnan(found.error) or not found.over[:1].isdecimal():
        return f"difference {found.value:{form}}, {found.over}"
    return f"difference {found.value:{form}} ± {found.error:{form}} over {found.over}"


def _yes(holds: bool) -> Answer:
    return "yes" if holds else "no"


# Questions to figures


def _within(found: Difference, point: float) -> Answer:
    """Whether a difference is none: within a point, or within its standard error."""
    gap = abs(round(found.value, DECIMALS))
    if isnan(gap):
        return "not run"
    if isnan(found.error):
        return "in order" if gap <= point else "out of order"
    return _yes(gap <= max(point, found.error))


def _check_close(terms: Sequence[str], figures: Figures) -> CheckedClaim:
    """The figures of two methods differ by less than a point."""
    found = difference(*map(figures, terms))
    said = f"{' and '.join(terms)} are close"
    answer = _within(found._replace(error=min(found.error, 0.0)), POINT)
    return CheckedClaim(
        answer, said if answer == "not run" else f"{said}: {format_difference(found)}"
    )


def _matches(terms: Sequence[str], figures: Figures) -> CheckedClaim:
    """The figures of two methods differ by at most a point, or by at most a standard error."""
    found = difference(*map(figures, terms))
    said = " matches ".join(terms)
    answer = _within(found, POINT)
    return CheckedClaim(
        answer, said if answer == "not run" else f"{said}: {format_difference(found)}"
    )


def _flat(terms: Sequence[str], figures: Figures) -> CheckedClaim:
    """No two of the methods, the values of an option, differ by more than a point."""
    said = f"{', '.join(terms)} hardly differ"
    known = {name: samples for name in terms if (samples := figures(name))}
    if len(known) < 2:
        return CheckedClaim("not run", said)
    means = [mean_of([s.figure for s in samples.values()]) for samples in known.values()]
    low, high = (list(known)[int(pick(means))] for pick in (np.argmin, np.argmax))
    found = difference(known[high], known[low])
    some = "" if len(known) == len(terms) else f" ({len(known)} of {len(terms)} run)"
    return CheckedClaim(_within(found, POINT), f"{said}{some}: at most {format_difference(found)}")


def _check_at_most(terms: Sequence[str], figures: Figures) -> CheckedClaim:
    """The figure of a method is at most that of another."""
    found = difference(*map(figures, terms))
    said = " has at most as much as ".join(terms)
    if isnan(found.value):
        return CheckedClaim("not run", said)
    plain: Answer = "out of order" if found.value > 0 else "in order"
    answer = plain if isnan(found.error) else _yes(found.value <= found.error)
    return CheckedClaim(answer, f"{said}: {format_difference(found, '.4g')}")


def _far_less(terms: Sequence[str], figures: Figures) -> CheckedClaim:
    """The figure of a method is less than a tenth of another's."""
    said = " has less than a tenth of ".join(terms)
    a, b = (mean_of([s.figure for s in figures(name).values()]) for name in terms)
    if isnan(a) or isnan(b):
        return CheckedClaim("not run", said)
    return CheckedClaim(_yes(a < FAR * b), f"{said}: {a:,.0f} and {b:,.0f}")


def _by(terms: Sequence[str], figures: Figures) -> CheckedClaim:
    """A method is above another by so many points, within one point or a standard error."""
    first, second, points = terms
    found = difference(figures(first), figures(second))
    said = f"{first} is about {points} points above {second}"
    off = found._replace(value=found.value - float(points))
    answer = _within(off, POINT)
    return CheckedClaim(
        answer, said if answer == "not run" else f"{said}: {format_difference(found)}"
    )


def _check_mixed(terms: Sequence[str], figures: Figures) -> CheckedClaim:
    """The figures of methods, in the order of an option's values, do not rise throughout."""
    said = f"{', '.join(terms)} do not rise throughout"
    ours = [figures(name) for name in terms]
    if not all(ours):
        return CheckedClaim("not run", said)
    falls = [difference(a, b).answer for a, b in itertools.pairwise(ours)]
    answer: Answer = "level"
    if any(fall in FOR for fall in falls):
        answer = "yes" if "yes" in falls else "in order"
    elif all(fall in AGAINST for fall in falls):
        answer = "no" if "no" in falls else "out of order"
    means = ", ".join(f"{mean_of([s.figure for s in some.values()]):.2f}" for some in ours)
    return CheckedClaim(answer, f"{said}: {means}")


def _useful(terms: Sequence[str], figures: Figures) -> CheckedClaim:
    """Students that hear a teacher, 0 < lambda < 1, are in the mean above those that do not."""
    found = _of_teachers(terms[0], figures)
    said = f"a teacher is of use to clients of {terms[0]} (0 < lambda < 1 against lambda 0)"
    if isnan(found.value):
        return CheckedClaim("not run", said)
    return CheckedClaim(found.answer, f"{said}: {format_difference(found, '.4f')}")


def _useless(terms: Sequence[str], figures: Figures) -> CheckedClaim:
    """Students that hear a teacher are in the mean not above those that do not."""
    found = _of_teachers(terms[0], figures)
    said = f"a teacher is of no use to clients of {terms[0]} (0 < lambda < 1 against lambda 0)"
    if isnan(found.value):
        return CheckedClaim("not run", said)
    if isnan(found.error):
        plain: Answer = "in order" if found.value <= 0 else "out of order"
        return CheckedClaim(plain, f"{said}: {format_difference(found, '.4f')}")
    return CheckedClaim(
        _yes(found.value <= found.error), f"{said}: {format_difference(found, '.4f')}"
    )


GRID = [f"lambda={lam:g},T={T:g}" for lam in (0.25, 0.5, 0.75) for T in (1, 5, 25)]


def _of_teachers(method: str, figures: Figures) -> Difference:
    """The mean of a grid's students with a teacher, minus the one without."""
    some = [figures(f"{method}:[{point}]") for point in GRID]
    return difference(_mean_samples(some), figures(f"{method}:[lambda=0,T=1]"))


def _mean_samples(some: Sequence[Samples]) -> Samples:
    """Samples of the mean of several figures, of the seeds that have them all."""
    seeds = set.intersection(*(set(samples) for samples in some))

    def mean(seed: int) -> Sample:
        mine = [samples[seed] for samples in some]
        known = [s.clients for s in mine if s.clients is not None]
        clients = np.mean(known, axis=0) if len(known) == len(mine) else None
        return Sample(mean_of([s.figure for s in mine]), clients, mine[0].rows)

    return {seed: mean(seed) for seed in sorted(seeds)}


# Questions to runs


def _check_falls(terms: Sequence[str], runs: Runs) -> CheckedClaim:
    """The mean over clients of a logged quantity falls after a round."""
    method, note, number = terms
    said = f"{note} of {method} falls after round {number}"
    curves = {r.experiment.seed: curve_of(r.table, note, "", "") for r in runs.get(method, ())}
    found = {seed: one for seed, one in curves.items() if len(one[0])}
    if not found:
        return CheckedClaim("not run", said)
    before, after = (
        {seed: Sample(_mean_before(*one, at or int(one[0].max()))) for seed, one in found.items()}
        for at in (int(number), 0)
    )
    there, last = (mean_of([s.figure for s in some.values()]) for some in (before, after))
    said = f"{said}: {there:.1f} there, {last:.1f} in the last ten"
    return CheckedClaim(difference(before, after).answer, said)


def _mean_before(rounds: np.ndarray, means: np.ndarray, at: int) -> float:
    """Over the ten rounds up to one: who is active differs from round to round."""
    near = (rounds > at - 10) & (rounds <= at)
    return float(np.nanmean(means[near])) if near.any() else float("nan")


def _check_differ(terms: Sequence[str], runs: Runs) -> CheckedClaim:
    """Clients have different values of a logged quantity."""
    method, note = terms
    found = _logged_values_of(runs, method, note)
    if not len(found):
        return CheckedClaim("not run", f"clients of {method} differ in {note}")
    low, middle, high = np.quantile(found, (0, 0.5, 1))
    said = f"clients of {method} differ in {note}: {low:g} to {high:g}, median {middle:g}"
    return CheckedClaim(_yes(bool(high > low)), said)


def _check_never(terms: Sequence[str], runs: Runs) -> CheckedClaim:
    """No client chose a certain value."""
    method, note, value = terms
    found = _logged_values_of(runs, method, note)
    if not len(found):
        return CheckedClaim("not run", f"no client of {method} chooses {note} = {value}")
    chose = int((found == float(value)).sum())
    said = f"no client of {method} chooses {note} = {value}: {chose} of {len(found)} do"
    return CheckedClaim(_yes(chose == 0), said)


def _positive(terms: Sequence[str], runs: Runs) -> CheckedClaim:
    """Every client's quantity, mean over seeds, is above 0."""
    method, note = terms
    said = f"{note} of every client of {method} is above 0"
    found = [values_of(run.table, note, "", "")[1] for run in runs.get(method, ())]
    found = [noted for noted in found if len(noted)]
    if not found:
        return CheckedClaim("not run", said)
    means = np.nanmean(found, axis=0)
    return CheckedClaim(
        _yes(bool((means > 0).all())), f"{said}: {(means > 0).sum()} of {len(means)}"
    )


def _logged_values_of(runs: Runs, method: str, note: str) -> np.ndarray:
    """A logged quantity of all clients, of all seeds."""
    found = [values_of(run.table, note, "", "")[1] for run in runs.get(method, ())]
    all_of = np.concatenate(found) if found else np.zeros(0)
    return all_of[~np.isnan(all_of)]


def _slower(terms: Sequence[str], runs: Runs) -> CheckedClaim:
    """A method reaches 90 % of the lower of two final accuracies in a later round."""
    said = " is slower than ".join(terms)
    curves = [_curves(runs, name) for name in terms]
    seeds = sorted(set.intersection(*(set(some) for some in curves)))
    if not seeds:
        return CheckedClaim("not run", said)
    levels = {seed: REACH * min(some[seed][1][-1] for some in curves) for seed in seeds}
    reached = [
        {seed: Sample(float(rounds_to_reach(*some[seed], levels[seed]) or 0)) for seed in seeds}
        for some in curves
    ]
    found = difference(*reached)
    told_rounds = " and ".join(
        f"{mean_of([s.figure for s in some.values()]):g}" for some in reached
    )
    return CheckedClaim(found.answer, f"{said}: rounds {told_rounds} to 90 %, {found.over}")


def _steadier(terms: Sequence[str], runs: Runs) -> CheckedClaim:
    """In the second half of the rounds a method's accuracy changes less from one evaluation to the
    next.
    """
    said = " is steadier than ".join(terms)
    curves = [_curves(runs, name) for name in terms]
    if not all(curves):
        return CheckedClaim("not run", said)
    changes = [
        {seed: Sample(_change(means)) for seed, (_, means) in some.items()} for some in curves
    ]
    found = difference(changes[1], changes[0])
    means = " and ".join(f"{mean_of([s.figure for s in some.values()]):.2f}" for some in changes)
    return CheckedClaim(found.answer, f"{said}: mean changes of {means} points, {found.over}")


def _change(means: np.ndarray) -> float:
    late = means[len(means) // 2 :]
    return 100 * float(np.abs(np.diff(late)).mean()) if len(late) > 1 else float("nan")


def _curves(runs: Runs, name: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Rounds and mean accuracies of a method by seed."""
    method, _, view = name.partition(":")
    return {
        run.experiment.seed: curve_of(run.table, "accuracy", run.part, view or "personal")
        for run in runs.get(method, ())
    }


OF_FIGURES: dict[str, Callable[[Sequence[str], Figures], CheckedClaim]] = {
    "at_most": _check_at_most,
    "by": _by,
    "close": _check_close,
    "far_less": _far_less,
    "flat": _flat,
    "matches": _matches,
    "mixed": _check_mixed,
    "useful": _useful,
    "useless": _useless,
}
OF_RUNS: dict[str, Callable[[Sequence[str], Runs], CheckedClaim]] = {
    "falls": _check_falls,
    "differ": _check_differ,
    "never": _check_never,
    "positive": _positive,
    "slower": _slower,
    "steadier": _steadier,
}
