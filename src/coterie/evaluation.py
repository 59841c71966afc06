"""What personalization is worth: gain and fairness over clients, and the answer of a comparison.

Gain and fairness are those of Divi, "Unifying Distillation with Personalization in Federated Learning" (Purdue, 2021), chapter
5; shares of clients and relative false accepts those of Self-FL. Accuracies are shares from 0 to 1, gains percentage points; a
client without a number (NaN) does not count. What a run costs is in costs.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import ceil, inf, log, nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from sklearn.metrics import roc_curve

from .errors import BadInput, nearest

LEVEL = 0.05  # of every test and, as 1 - LEVEL, of every interval
FEW = 13  # gaps whose signs are all tried
NAMED = 5  # methods that a sentence lists by name
DIGITS = 9  # differences below are rounding of means, not gains


def there(values: ArrayLike) -> np.ndarray:
    """The numbers among the values, flat."""
    flat = np.asarray(values, dtype=float).ravel()
    return flat[~np.isnan(flat)]


def _mean(values: ArrayLike) -> float:
    found = there(values)
    return float(found.mean()) if len(found) else nan


# Gain


def qoi(personal: ArrayLike, fedavg: ArrayLike, local: ArrayLike) -> np.ndarray:
    """Quantum of improvement P - max(G, L) of every client, in percentage points (5.2)."""
    return qoi_global(personal, np.maximum(fedavg, local))


def qoi_global(personal: ArrayLike, fedavg: ArrayLike) -> np.ndarray:
    """P - G in percentage points: what the thesis tabulates, as it has no local accuracies."""
    for name, value in (("personal", personal), ("fedavg or local", fedavg)):
        found = there(value)
        if len(found) and not (found.min() >= 0 and found.max() <= 1):
            raise BadInput(f"{name} accuracies from {found.min():g} to {found.max():g}: give shares from 0 to 1, not percent")
    return np.round(100 * (np.asarray(personal, dtype=float) - np.asarray(fedavg, dtype=float)), DIGITS)


class Improvement(NamedTuple):
    """Who gains and who loses, and how much; NaN where nobody does."""

    pui: float  # % of clients with a gain; a client with none is in neither
    pud: float  # % with a loss
    mpi: float  # median gain of those that gain
    api: float  # mean of it
    mpd: float  # median of the losses, negative
    apd: float  # mean of it


def improvement(qoi: ArrayLike) -> Improvement:
    """The six figures of (5.3) to (5.6)."""
    q = there(qoi)
    up, down = q[q > 0], q[q < 0]
    pui, pud = (100 * len(part) / len(q) if len(q) else 0.0 for part in (up, down))
    middle = [float(np.median(part)) if len(part) else nan for part in (up, down)]
    return Improvement(pui, pud, middle[0], _mean(up), middle[1], _mean(down))


# Fairness of a vector F of K non-negative values; NaN of nothing and of zeros alone, as nothing was shared out


def _shared(values: ArrayLike) -> np.ndarray | None:
    f = there(values)
    if len(f) and f.min() < 0:
        raise BadInput(f"fairness of {f.min():g}: give values of at least 0, gains and losses apart")
    return f if len(f) and f.max() > 0 else None


def variance_of(values: ArrayLike) -> float:
    """Average variance (5.8), population; lower is fairer."""
    f = _shared(values)
    return nan if f is None else float(f.var())


def cosine(values: ArrayLike) -> float:
    """Cosine of F and the vector of ones (5.10), from 1/sqrt(K) to 1; the square root of Jain's index."""
    return sqrt(jain(values))


def jain(values: ArrayLike) -> float:
    """Jain's index (sum F)^2 / (K sum F^2) (5.13), from 1/K to 1."""
    f = _shared(values)
    if f is None:
        return nan
    f = f / f.max()  # no square under- or overflows
    return min(1.0, float(f.sum() ** 2 / (len(f) * (f**2).sum())))


def entropy(values: ArrayLike) -> float:
    """Entropy of the shares (5.12), from 0 to ln K: compare only sets of one size."""
    f = _shared(values)
    return nan if f is None else float(stats.entropy(f / f.max()))


def evenness(values: ArrayLike) -> float:
    """Entropy divided by ln K, from 0 to 1, for sets of any size; 1 for a single value."""
    found, k = entropy(values), len(there(values))
    return min(found / log(k), 1.0) if k > 1 and found >= 0 else found + 1


class Fairness(NamedTuple):
    """How evenly something is shared by `n` clients."""

    variance: float
    cosine: float
    jain: float
    entropy: float
    evenness: float
    n: int


def fairness(values: ArrayLike) -> Fairness:
    """All measures of one vector."""
    return Fairness(variance_of(values), cosine(values), jain(values), entropy(values), evenness(values), len(there(values)))


def gain_fairness(qoi: ArrayLike) -> tuple[Fairness, Fairness]:
    """How evenly the gains are shared by those that gain (U+), and the losses by those that lose (U-)."""
    q = there(qoi)
    return fairness(q[q > 0]), fairness(-q[q < 0])


# Clients at the ends


def worst(accuracy: ArrayLike) -> float:
    """Accuracy of the worst client."""
    found = there(accuracy)
    return float(found.min()) if len(found) else nan


def _count(share: float, clients: int) -> int:
    if not 0 < share <= 1:
        raise BadInput(f"share = {share:g} of the clients: give more than 0 and at most 1")
    return ceil(round(share * clients, DIGITS))  # 0.07 * 100 is a little more than 7


def worst_share(accuracy: ArrayLike, share: float = 0.1) -> float:
    """Mean accuracy of the ceil(share * M) clients with the lowest one."""
    found = np.sort(there(accuracy))
    return _mean(found[: _count(share, len(found))])


def top_share_by_size(accuracy: ArrayLike, sizes: ArrayLike, share: float = 0.1) -> float:
    """Accuracy of the ceil(share * M) clients with the most samples, weighted by samples."""
    a, n = np.asarray(accuracy, dtype=float), np.asarray(sizes, dtype=float)
    a, n = a[~np.isnan(a)], n[~np.isnan(a)]
    top = np.argsort(-n, kind="stable")[: _count(share, len(a))]
    return float(np.average(a[top], weights=n[top])) if n[top].sum() > 0 else nan


def deciles(accuracy: ArrayLike) -> np.ndarray:
    """[11] accuracies: the lowest, nine deciles, the highest."""
    found = there(accuracy)
    return np.percentile(found, np.arange(0, 101, 10)) if len(found) else np.full(11, nan)


# Measures of particular tasks


class FalseAccepts(NamedTuple):
    """A detector beside its baseline; a ratio of two zeros is 1."""

    relative_fa: float  # below 1 is better
    relative_fr: float  # about 1 by choice of the threshold
    threshold: float  # accept from here on


def false_accepts(labels: ArrayLike, scores: ArrayLike, baseline: ArrayLike, threshold: float = 0.5) -> FalseAccepts:
    """False accepts over those of a baseline, at the threshold whose false rejects are closest to the baseline's.

    The baseline accepts scores of at least `threshold`. Of equally close thresholds the one with fewer false rejects counts,
    then with fewer false accepts: a model beside itself has at most 1, and just below it where positives are many.
    """
    truth = np.asarray(labels).astype(bool)
    if truth.all() or not truth.any():
        raise BadInput(f"labels of {len(truth)} rows are all alike: false accepts and rejects need rows of both classes")
    base, own = np.asarray(baseline, dtype=float), np.asarray(scores, dtype=float)
    if np.isnan(base).any() or np.isnan(own).any():
        raise BadInput("some scores are no numbers, as of a model that diverged: lower its rate and run it again")
    fa0, fr0 = float((base[~truth] >= threshold).mean()), float((base[truth] < threshold).mean())
    fa, accepted, thresholds = roc_curve(truth, own, drop_intermediate=False)
    fr = np.round(1 - accepted, DIGITS)
    best = np.lexsort((fa, fr, np.round(np.abs(fr - fr0), DIGITS)))[0]  # the last key is the first to count
    return FalseAccepts(_ratio(float(fa[best]), fa0), _ratio(float(1 - accepted[best]), fr0), float(thresholds[best]))


def _ratio(a: float, b: float) -> float:
    return a / b if b else (inf if a else 1.0)


class EstimationErrors(NamedTuple):
    """Mean distances to the truth over repeats."""

    common: float  # |theta - theta_0|
    personal: float  # mean over clients of |theta_m - its truth|


def estimation_errors(theta: ArrayLike, theta_0: float, personal: ArrayLike, truth: ArrayLike) -> EstimationErrors:
    """Errors of the two-level Gaussian: theta [repeats], personal and truth [repeats, clients], or without repeats."""
    return EstimationErrors(
        float(np.abs(np.asarray(theta) - theta_0).mean()), float(np.abs(np.asarray(personal) - np.asarray(truth)).mean())
    )


# Several seeds


class Interval(NamedTuple):
    """A mean and its 95 % interval by Student's t; NaN bounds for a single value."""

    mean: float
    low: float
    high: float
    n: int


def mean_interval(values: ArrayLike) -> Interval:
    """The interval of a mean of independent values: one a seed."""
    found = there(values)
    n, mean = len(found), _mean(found)
    half = float(stats.t.ppf(1 - LEVEL / 2, n - 1) * found.std(ddof=1) / sqrt(n)) if n > 1 else nan
    return Interval(mean, mean - half, mean + half, n)


def units(accuracies: Mapping[str, ArrayLike], fixed_split: bool) -> np.ndarray:
    """[methods, units] independent numbers from [seeds, clients] of each method.

    Clients, averaged over seeds, where every seed deals the same split; else seeds, averaged over clients.
    """
    shapes = {name: np.atleast_2d(np.asarray(a)).shape for name, a in accuracies.items()}
    if len(set(shapes.values())) != 1:
        raise BadInput(f"accuracies of shapes {shapes}: give [seeds, clients] alike for all methods, at least one")
    block = np.stack([np.atleast_2d(np.asarray(a, dtype=float)) for a in accuracies.values()])
    known = ~np.isnan(block).any(axis=0)
    axis = 0 if fixed_split else 1
    counts = known.sum(axis)
    return np.where(known, block, 0.0).sum(axis + 1)[:, counts > 0] / counts[counts > 0]


class RankTable(NamedTuple):
    """Methods from the best mean rank to the worst, and which differences are real."""

    methods: tuple[str, ...]
    mean: np.ndarray  # [m] accuracy
    rank: np.ndarray  # [m] mean over the units, 1 is best
    p: np.ndarray  # [m, m] Wilcoxon signed-rank, two-sided, Holm-corrected over all pairs
    population: str  # "clients" or "seeds": what the p-values speak of
    n: int  # of them
    note: str  # said where they are too few for any difference to show

    def beats(self, a: str, b: str) -> bool:
        """Whether `a` is significantly better than `b`."""
        i, j = self.methods.index(a), self.methods.index(b)
        return bool(self.p[i, j] < LEVEL and self.mean[i] > self.mean[j])


def rank_table(accuracies: Mapping[str, ArrayLike], fixed_split: bool) -> RankTable:
    """Rank methods by [seeds, clients] accuracies and test all pairs."""
    values = units(accuracies, fixed_split)
    m, n = values.shape
    population = "clients" if fixed_split else "seeds"
    if not n:
        raise BadInput("no client has an accuracy under every method: nothing can be ranked")
    rank = stats.rankdata(np.round(-values, DIGITS), axis=0).mean(axis=1)
    order = np.lexsort((-values.mean(axis=1), rank))
    values = values[order]
    pairs = list(itertools.combinations(range(m), 2))
    p = np.ones((m, m))
    for (i, j), corrected in zip(pairs, holm([_wilcoxon(values[i] - values[j]) for i, j in pairs]), strict=True):
        p[i, j] = p[j, i] = corrected
    names = tuple(np.array(list(accuracies))[order].tolist())
    return RankTable(names, values.mean(axis=1), rank[order], p, population, n, _too_few(m, n, population))


def _wilcoxon(gaps: np.ndarray) -> float:
    """Two-sided p; few gaps by all their signs, as scipy's exact way with ties takes seconds and others than exact mislead."""
    gaps = np.round(gaps, DIGITS)
    gaps = gaps[gaps != 0]
    n = len(gaps)
    if n > FEW:
        return float(stats.wilcoxon(gaps).pvalue)
    ranks = stats.rankdata(np.abs(gaps))
    signs = 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1) - 1
    return float((np.abs(signs @ ranks) >= abs(np.sign(gaps) @ ranks)).mean())


def holm(p: Sequence[float]) -> np.ndarray:
    """Holm's step-down correction: the i-th smallest of k times k + 1 - i, never falling, at most 1."""
    given = np.asarray(p, dtype=float)
    order = np.argsort(given, kind="stable")
    out = np.empty_like(given)
    out[order] = np.minimum(1, np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1)))
    return out


def _too_few(methods: int, n: int, population: str) -> str:
    """The smallest p of n signs is 2 / 2^n: three seeds cannot go below .25."""
    pairs = methods * (methods - 1) // 2
    floor = pairs * 2 / 2**n
    if floor < LEVEL or not pairs:
        return ""
    need = next(k for k in itertools.count(n) if pairs * 2 / 2**k < LEVEL)
    smallest = f" (a corrected p of {floor:.2g} at best)" if floor < 1 else ""
    few = f"{n} {population if n > 1 else population[:-1]}"
    return f"{few} cannot show a difference between {methods} methods{smallest}: it takes {need} {population}"


# The answer of a comparison


class Answer(NamedTuple):
    """What a comparison says; None where no method deserves the name."""

    best: str | None  # improves most clients over FedAvg and Local, then by most
    fairest: str | None  # smallest deviation over clients of those whose mean beats FedAvg's and Local's
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


def answer(
    test: Mapping[str, ArrayLike],
    validation: Mapping[str, ArrayLike],
    traffic: Mapping[str, float],
    fixed_split: bool,
    fedavg: str = "fedavg",
    local: str = "local",
) -> Answer:
    """The answer from [seeds, clients] accuracies and bytes of every method; figures are means over seeds of each seed's."""
    for name in (fedavg, local):
        if name not in test:
            raise BadInput(f"'{name}' is not among the methods {', '.join(test)}: a gain is measured over FedAvg and Local")
    for name in {**test, **validation}:
        if name not in traffic:
            raise BadInput(f"'{name}' has accuracies, but no bytes{nearest(name, traffic)}")
    table = rank_table(test, fixed_split)
    runs = {name: np.atleast_2d(np.asarray(a, dtype=float)) for name, a in test.items()}
    gains = _gains(test, fedavg, local)
    better = [name for name in test if gains[name].pui > 0]
    best = max(better, key=lambda name: (round(gains[name].pui, DIGITS), gains[name].api), default=None)
    means = {name: _mean([_mean(seed) for seed in a]) for name, a in runs.items()}
    worthy = [name for name in test if round(means[name] - max(means[fedavg], means[local]), DIGITS) > 0]
    others = [name for name in table.methods if best and name != best]
    beaten = tuple(name for name in others if best and table.beats(best, name))
    unbeaten = tuple(name for name in others if name not in beaten)
    recommended, reason = recommend(validation, traffic, fixed_split, fedavg, local)
    return Answer(
        best,
        min(worthy, key=lambda name: _mean([_deviation(seed) for seed in runs[name]]), default=None),
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
    )


def _gains(accuracies: Mapping[str, ArrayLike], fedavg: str, local: str) -> dict[str, Improvement]:
    """Every method's figures of each seed, averaged over seeds."""
    floor = [np.atleast_2d(np.asarray(accuracies[name], dtype=float)) for name in (fedavg, local)]
    return {
        name: Improvement(*map(_mean, zip(*map(improvement, qoi(np.atleast_2d(a), *floor)), strict=True)))
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
) -> tuple[str | None, str]:
    """(method, reason): of those within one standard error of the best mean validation accuracy, the one of least traffic.

    At equal traffic the one that improves more clients, then the higher mean: a mean alone may rest on a few clients.
    """
    values = units(validation, fixed_split) if validation else np.empty((0, 0))
    if not values.size:
        return None, "there are no validation data to choose on"
    names, means, n = list(validation), values.mean(axis=1), values.shape[1]
    gains = _gains(validation, fedavg, local) if fedavg in validation and local in validation else {}
    pui = [round(gains[name].pui, DIGITS) if gains else 0.0 for name in names]
    cost = [traffic[name] for name in names]
    top = int(means.argmax())
    gaps = np.round(values[top] - values, DIGITS)
    error = gaps.std(axis=1, ddof=1) / sqrt(n) if n > 1 else np.zeros(len(names))
    close = [i for i in range(len(names)) if gaps[i].mean() <= error[i]]
    chosen = min(close, key=lambda i: (cost[i], -pui[i], -means[i]))
    if chosen == top:
        why = f"it has the highest mean accuracy on validation data, {100 * means[top]:.1f} %, and no cheaper method is close"
        return names[top], why
    ground = (
        f"for {cost[chosen] / 1e6:,.1f} MB instead of {cost[top] / 1e6:,.1f}"
        if cost[chosen] < cost[top]
        else f"and it improves {pui[chosen]:.0f} % of the clients there instead of {pui[top]:.0f} %"
    )
    return names[chosen], (
        f"its mean accuracy on validation data, {100 * means[chosen]:.1f} %, is within one standard error of the highest "
        f"({names[top]}, {100 * means[top]:.1f} %), {ground}"
    )


def sentences(answer: Answer) -> str:
    """The answer as one short paragraph."""
    said = [*_best(answer), _fairest_and_cheapest(answer)]
    said.append(f"Recommended: {answer.recommended or 'none'}, as {answer.reason}.")
    return " ".join(said)


def _best(answer: Answer) -> list[str]:
    if answer.best is None:
        return ["No method improves any client over both FedAvg and Local."]
    gain = answer.gain
    loss = f", and worsens {gain.pud:.0f} % by {-gain.apd:.1f}" if gain.pud else ""
    figures = f"{gain.pui:.0f} % of the clients over the better of FedAvg and Local, by {gain.api:.1f} points on average{loss}"
    if answer.best in answer.worthy:
        said = [f"{answer.best} performs best: it improves {figures}."]
    else:  # many small gains and a few large losses are no performance
        but = "; but its mean accuracy does not beat both" if answer.worthy else ""
        said = [f"{answer.best} improves more clients than any other method: {figures}{but}."]
    test = f"(Wilcoxon signed-rank over {answer.population}, Holm-corrected, 5 %)"
    if answer.significant:
        return [*said, f"It is significantly better than every other method {test}."]
    note = [answer.note[:1].upper() + answer.note[1:] + "."] if answer.note else []
    if not answer.beaten:
        return [*said, f"It is not significantly better than any other method {test}.", *note]
    some = _list(answer.beaten, "and") if len(answer.beaten) <= NAMED else f"{len(answer.beaten)} other methods"
    return [*said, f"It is significantly better than {some}, but not than {_list(answer.unbeaten, 'or')} {test}.", *note]


def _fairest_and_cheapest(answer: Answer) -> str:
    if not answer.worthy:
        return "No method's mean accuracy beats both FedAvg's and Local's."
    if len(answer.worthy) == 1:
        return f"{answer.worthy[0]} is the only method whose mean accuracy beats both FedAvg's and Local's."
    other = "" if answer.cheapest == answer.fairest else f"{answer.cheapest} "
    return (
        f"Of the {len(answer.worthy)} methods whose mean accuracy beats both FedAvg's and Local's, {answer.fairest} is the "
        f"fairest (smallest deviation over clients) and {other}the cheapest (fewest bytes)."
    )


def _list(names: Sequence[str], word: str) -> str:
    """Names in a sentence, the first few of many."""
    shown = [*names[:NAMED], *([f"{len(names) - NAMED} more"] if len(names) > NAMED else [])]
    return f" {word} ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
