"""Claims of a paper's figure that are no order of methods: each is a question to finished runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coterie.analysis.verdicts import POINT
from coterie.core.errors import BadInput, nearest
from coterie.results.run import Run
from coterie.results.table import curve, values

Runs = Mapping[str, Sequence[Run]]  # finished runs by method
Figure = Callable[[str], list[float]]  # a method's figure of every seed


class Claimed(NamedTuple):
    """What became of a claim."""

    holds: bool | None  # None: its runs are not there
    said: str


def check_claim(words: Sequence[str], runs: Runs, figure: Figure) -> Claimed:
    """Hold a claim, such as ("close", "selffl", "selffl@augmented"), against runs."""
    kind, *rest = words
    if kind not in KINDS:
        raise BadInput(f"unknown claim '{kind}'{nearest(kind, KINDS)}")
    return KINDS[kind](rest, runs, figure)


def _means(methods: Sequence[str], figure: Figure) -> list[float]:
    """The mean over seeds of every method's figure; none where one has not been run."""
    ours = [figure(name) for name in methods]
    return [float(np.mean(some)) for some in ours] if all(ours) else []


def _close(words: Sequence[str], runs: Runs, figure: Figure) -> Claimed:
    """The figures of two methods differ by less than a point."""
    said = f"{' and '.join(words)} are close"
    if not (ours := _means(words, figure)):
        return Claimed(None, said)
    a, b = ours
    return Claimed(abs(a - b) < POINT, f"{said}: {a:.2f} and {b:.2f}")


def _at_most(words: Sequence[str], runs: Runs, figure: Figure) -> Claimed:
    """The figure of a method is at most that of another."""
    said = " has at most as many as ".join(words)
    if not (ours := _means(words, figure)):
        return Claimed(None, said)
    a, b = ours
    return Claimed(a <= b, f"{said}: {a:g} and {b:g}")


def _mixed(words: Sequence[str], runs: Runs, figure: Figure) -> Claimed:
    """The figures of methods, in the order of an option's values, do not rise throughout."""
    said = f"{', '.join(words)} do not rise throughout"
    if not (ours := _means(words, figure)):
        return Claimed(None, said)
    told = ", ".join(f"{mean:.2f}" for mean in ours)
    return Claimed(bool((np.diff(ours) < 0).any()), f"{said}: {told}")


def _falls(words: Sequence[str], runs: Runs, figure: Figure) -> Claimed:
    """The mean over clients of a note falls after a round."""
    method, note, number = words
    said = f"{note} of {method} falls after round {number}"
    curves = [curve(run.table, note, "", "") for run in runs.get(method, ())]
    found = [(rounds, means) for rounds, means in curves if len(rounds)]
    if not found:
        return Claimed(None, said)
    before, after = (
        float(np.mean([_mean_near(*one, at) for one in found]))
        for at in (int(number), int(found[0][0].max()))
    )
    return Claimed(after < before, f"{said}: {before:.1f} there, {after:.1f} in the last ten")


def _mean_near(rounds: np.ndarray, means: np.ndarray, at: int) -> float:
    """Over the ten rounds up to one: who is active differs from round to round."""
    near = (rounds > at - 10) & (rounds <= at)
    return float(np.nanmean(means[near])) if near.any() else float("nan")


def _differ(words: Sequence[str], runs: Runs, figure: Figure) -> Claimed:
    """Clients have different values of a note."""
    method, note = words
    found = _noted(runs, method, note)
    if not len(found):
        return Claimed(None, f"clients of {method} differ in {note}")
    low, middle, high = np.quantile(found, (0, 0.5, 1))
    said = f"clients of {method} differ in {note}: {low:g} to {high:g}, median {middle:g}"
    return Claimed(bool(high > low), said)


def _never(words: Sequence[str], runs: Runs, figure: Figure) -> Claimed:
    """No client chose a certain value."""
    method, note, value = words
    found = _noted(runs, method, note)
    if not len(found):
        return Claimed(None, f"no client of {method} chooses {note} = {value}")
    chose = int((found == float(value)).sum())
    said = f"no client of {method} chooses {note} = {value}: {chose} of {len(found)} do"
    return Claimed(chose == 0, said)


def _noted(runs: Runs, method: str, note: str) -> np.ndarray:
    """A note of all clients, of all seeds."""
    found = [values(run.table, note, "", "")[1] for run in runs.get(method, ())]
    all_of = np.concatenate(found) if found else np.zeros(0)
    return all_of[~np.isnan(all_of)]


KINDS: dict[str, Callable[[Sequence[str], Runs, Figure], Claimed]] = {
    "at_most": _at_most,
    "close": _close,
    "mixed": _mixed,
    "falls": _falls,
    "differ": _differ,
    "never": _never,
}
