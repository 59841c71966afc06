"""The answer of a comparison: one name to use, how sure that is, and what it costs.

The name is chosen on select rows (choice.py). What is claimed of it is measured on test rows, which
choose nothing: a paired difference to the better of FedAvg and Local. Values are [seeds, clients];
a client without a number (NaN) does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan, nan
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coterie.analysis.choice import Choice, choose, is_baseline
from coterie.analysis.nan_math import DIGITS, LEVEL, drop_nan, mean_of
from coterie.analysis.scores import Score
from coterie.analysis.significance import (
    Difference,
    average_units,
    holm,
    paired_difference,
    signed_ranks,
    wilcoxon,
)
from coterie.core.errors import BadInput
from coterie.core.html import format_paragraph

GUESSER = "always guessing a client's most frequent class"
MORE_WORK = 1.1  # times a baseline's gradients from which a budget is another one

# better: significantly better than the baselines; bet: chosen, but not so; withdrawn: chosen, but
# shown to be worse; baseline: FedAvg or Local chosen; guessing: nothing has learned; open: nobody
# votes
Kind = Literal["better", "bet", "withdrawn", "baseline", "guessing", "open"]


class Measure(NamedTuple):
    """What clients are judged by, and how it is written."""

    label: str = "accuracy"
    higher: bool = True  # whether more is better
    scale: float = 100.0  # a value times it is what is written
    unit: str = " %"
    points: str = " points"  # of a difference
    digits: str = ".1f"

    @property
    def sign(self) -> int:
        """What makes more of it better."""
        return 1 if self.higher else -1

    def write(self, value: float) -> str:
        """A value, as in 97.2 %."""
        return f"{self.scale * value:{self.digits}}{self.unit}"

    def gap(self, difference: Difference) -> str:
        """A difference and its interval, as in +0.7 points [-0.1, +1.7]."""
        mean, low, high = (f"{self.scale * v:+{self.digits}}" for v in difference[:3])
        return f"{mean}{self.points}" + ("" if isnan(difference.low) else f" [{low}, {high}]")


ACCURACY = Measure()


def measure_of(score: Score) -> Measure:
    """How a score is written in sentences."""
    if score.share:
        return Measure(score.label, score.higher)
    return Measure(score.label, score.higher, 1.0, "", "", ".3g")


class Claim(NamedTuple):
    """A method beside another on test rows; differences above 0 are better."""

    method: str
    other: str
    difference: Difference
    p: float  # Wilcoxon signed-rank, two-sided
    better: int  # clients served better
    worse: int
    of: int  # clients that both serve; those of all partitions where each seed has its own
    partitions: int = 1

    @property
    def shown(self) -> bool:
        """Whether the method is significantly better, by the test and by the interval."""
        return self.p < LEVEL and self.difference.low > 0

    @property
    def refuted(self) -> bool:
        """Whether it is significantly worse."""
        return self.p < LEVEL and self.difference.high < 0

    @property
    def undecidable(self) -> bool:
        """Whether so few were compared that the test finds nothing, were all of them better."""
        return 2 * 0.5**self.difference.n >= LEVEL


class Answer(NamedTuple):
    """What a comparison says; `use` is None where no method deserves it. As text: its sentences."""

    use: str | None
    kind: Kind
    measure: Measure
    choice: Choice  # on select rows
    value: float  # the mean of `use` on test rows
    claim: Claim | None  # of `use`, over the better of the baselines
    closest: Claim | None  # where a baseline is used: the best other method against it
    worst: tuple[float, float]  # served worst: by `use` (or `closest`), and by what it is against
    traffic: float  # bytes, of `use` (or `closest`)
    work: float  # times the gradients of what it is against
    regret: float  # how much higher the highest test mean is, known only afterwards
    best: str | None  # whose that is
    guess: float = nan  # the value of whoever knows nothing
    guesser: str = GUESSER  # who that is
    remarks: tuple[str, ...] = ()  # sentences on what went wrong, as who diverged
    error: float = nan  # standard error of `value` over what the claim's interval is over
    lesser: Claim | None = None  # of `use`, over the other baseline: what one model for all costs

    def __str__(self) -> str:
        return format_answer(self)

    def _repr_html_(self) -> str:
        """The paragraph, for notebooks."""
        return format_paragraph(format_answer(self))


class MethodCost(NamedTuple):
    """What a method cost, a run."""

    bytes: float
    gradients: float = nan


def find_answer(
    test: Mapping[str, ArrayLike],
    select: Mapping[str, ArrayLike],
    spent: Mapping[str, MethodCost],
    fixed_partition: bool,
    measure: Measure = ACCURACY,
    guess: float = nan,
    guesser: str = GUESSER,
) -> Answer:
    """The answer from [seeds, clients] values of every method on test and on select rows.

    A method that is no better than guessing is not chosen.
    """
    lacking = [name for name in test if name not in spent]
    if lacking:
        raise BadInput(f"'{lacking[0]}' has values, but nothing says what it cost")
    found = {n: measure.sign * np.atleast_2d(np.asarray(a, dtype=float)) for n, a in test.items()}
    means = {name: mean_of([mean_of(seed) for seed in block]) for name, block in found.items()}
    floor = measure.sign * guess + 10.0**-DIGITS
    learned = [n for n in test if isnan(guess) or means[n] > floor]
    votes = {n: measure.sign * np.asarray(select[n], dtype=float) for n in learned if n in select}
    traffic = {name: spent[name].bytes for name in test}
    choice = choose(votes, traffic, fixed_partition)
    best = max(means, key=lambda name: means[name]) if means else None
    blank = Answer(
        use=None,
        kind="open" if learned else "guessing",
        measure=measure,
        choice=choice,
        value=nan,
        claim=None,
        closest=None,
        worst=(nan, nan),
        traffic=nan,
        work=nan,
        regret=nan,
        best=best,
        guess=guess,
        guesser=guesser,
    )
    if choice.name is None:
        return blank
    return _judge_choice(blank, found, means, spent, fixed_partition)


def _judge_choice(
    blank: Answer,
    found: Mapping[str, np.ndarray],
    means: Mapping[str, float],
    spent: Mapping[str, MethodCost],
    fixed_partition: bool,
) -> Answer:
    """The answer once a name is chosen: what test rows say of it."""
    use, sign = str(blank.choice.name), blank.measure.sign
    floor = [name for name in found if is_baseline(name) and name != use]
    ranked = sorted(floor, key=lambda name: -means[name])
    against = ranked[0] if ranked else None
    claim = claim_of(use, against, found, fixed_partition) if against else None
    plain = next((name for name in ranked[1:] if name in ("fedavg", "local")), None)
    closest = None
    if is_baseline(use):
        closest = _find_closest(use, found, means, fixed_partition)
        kind: Kind = "baseline"
    else:
        kind = "better" if claim and claim.shown else "bet"
        kind = "withdrawn" if claim and claim.refuted else kind
    subject, other = (closest.method, use) if closest else (use, against)
    return blank._replace(
        use=None if kind == "withdrawn" else use,
        kind=kind,
        value=sign * means[use],
        error=_error_of(average_units(found[use], fixed_partition)),
        claim=claim,
        lesser=claim_of(use, plain, found, fixed_partition) if plain else None,
        closest=closest,
        worst=(sign * _worst_of(found[subject]), sign * _worst_of(found[other]) if other else nan),
        traffic=spent[subject].bytes,
        work=_ratio(spent[subject], spent[other]) if other else nan,
        regret=max(means.values()) - means[use],
    )


def claim_of(
    method: str, other: str, found: Mapping[str, np.ndarray], fixed_partition: bool
) -> Claim:
    """One method beside another, client by client; higher values are better."""
    gaps = np.round(found[method] - found[other], DIGITS)
    values = average_units(gaps, fixed_partition)
    each = values if fixed_partition else drop_nan(gaps)
    return Claim(
        method=method,
        other=other,
        difference=paired_difference(found[method], found[other], fixed_partition),
        p=wilcoxon(signed_ranks(values)),
        better=int((np.round(each, DIGITS) > 0).sum()),
        worse=int((np.round(each, DIGITS) < 0).sum()),
        of=len(each),
        partitions=1 if fixed_partition else len(values),
    )


def _find_closest(
    use: str, found: Mapping[str, np.ndarray], means: Mapping[str, float], fixed_partition: bool
) -> Claim | None:
    """The best other method against the baseline in use; its p is corrected, as test rows pick it
    out of all of them.
    """
    rivals = [name for name in found if not is_baseline(name)]
    if not rivals:
        return None
    claims = {name: claim_of(name, use, found, fixed_partition) for name in rivals}
    corrected = dict(zip(rivals, holm([c.p for c in claims.values()]), strict=True))
    best = max(rivals, key=lambda name: means[name])
    return claims[best]._replace(p=float(corrected[best]))


def _worst_of(block: np.ndarray) -> float:
    """The lowest client, a mean over seeds of each seed's."""
    return mean_of([float(np.nanmin(s)) if not np.isnan(s).all() else nan for s in block])


def _error_of(units: np.ndarray) -> float:
    """Standard error of their mean; NaN of a single one."""
    return float(units.std(ddof=1) / np.sqrt(len(units))) if len(units) > 1 else nan


def _ratio(mine: MethodCost, base: MethodCost) -> float:
    return mine.gradients / base.gradients if base.gradients > 0 else nan


def format_answer(answer: Answer) -> str:
    """The answer as one short paragraph: what to use first."""
    said = [*_FORMATS[answer.kind](answer), *_format_lesser(answer), *_format_stability(answer)]
    return " ".join([*said, *_format_trivial(answer), *answer.remarks])


def _format_trivial(answer: Answer) -> list[str]:
    """What whoever knows nothing reaches, and whether the choice is any further."""
    m, guess = answer.measure, answer.guess
    if isnan(guess) or isnan(answer.value) or not answer.guesser:
        return []
    said = f"{answer.guesser[0].upper()}{answer.guesser[1:]} gives {m.write(guess)}"
    if isnan(answer.error) or m.sign * (answer.value - guess) > answer.error:
        return [f"{said}."]
    other = ": judge by --metric auc" if m.label == "accuracy" else ""
    return [f"{said}, which is within one standard error{other}."]


def _format_better(answer: Answer) -> list[str]:
    claim, m = answer.claim, answer.measure
    assert claim is not None
    return [
        f"Use {answer.use}: it is significantly better than {_name_baseline(claim.other)}. On test "
        "rows it has "
        f"{m.label} {m.write(answer.value)}, {m.gap(claim.difference)} (p = {_format_p(claim.p)}, "
        f"{_format_population(claim)}); {_format_clients(claim)}.",
        _format_cost(answer, claim.other),
    ]


def _format_bet(answer: Answer) -> list[str]:
    claim, m = answer.claim, answer.measure
    if claim is None:
        return [
            f"Use {answer.use}: {m.label} {m.write(answer.value)} on test rows. Neither FedAvg nor "
            "local training was compared, so what it gains over them is not known."
        ]
    other = _name_baseline(claim.other)
    doubt = (
        f"{_format_population(claim)} {'is' if claim.difference.n == 1 else 'are'} too few for a "
        f"difference from {other} to be significant."
        if claim.undecidable
        else f"it is not significantly better than {other} here."
    )
    return [
        f"Use {answer.use} as the best bet: {doubt} On test rows it has {m.label} "
        f"{m.write(answer.value)}, {m.gap(claim.difference)}, not significant over "
        f"{_format_population(claim)}{_format_doubt(claim)}; {_format_clients(claim)}.",
        _format_cost(answer, claim.other),
    ]


def _format_doubt(claim: Claim) -> str:
    """Why a difference is not shown although its interval lies above 0."""
    return f" (p = {claim.p:.2g} by the signed-rank test)" if claim.difference.low > 0 else ""


def _format_lesser(answer: Answer) -> list[str]:
    """What is gained over the other baseline."""
    claim = answer.lesser
    if claim is None or answer.kind not in ("better", "bet"):
        return []
    gap = answer.measure.gap(claim.difference)
    return [f"Over {_name_baseline(claim.other)}: {gap}, {_format_clients(claim)}."]


def _format_withdrawn(answer: Answer) -> list[str]:
    claim, m = answer.claim, answer.measure
    assert claim is not None
    return [
        f"No method can be named: select rows choose {claim.method}, and test rows show it worse "
        f"than {_name_baseline(claim.other)}, by {m.gap(claim.difference)} over "
        f"{_format_population(claim)}. Give "
        "more rows (--validation), clients or seeds to choose on."
    ]


def _format_baseline(answer: Answer) -> list[str]:
    near, m, claim = answer.closest, answer.measure, answer.claim
    over = f", {m.gap(claim.difference)} against {claim.other}" if claim else ""
    value = f"On test rows {answer.use} has {m.label} {m.write(answer.value)}{over}."
    what = "local training" if str(answer.use).startswith("local") else f"{answer.use}"
    if near is None:
        return [f"Use {answer.use}. {value}"]
    if near.shown:
        return [
            f"Use {answer.use}: on select rows nothing is clearly better. {value} On test rows, "
            f"which choose nothing, {near.method} is higher: {m.gap(near.difference)} "
            f"({_format_population(near)}); with more validation rows it may be chosen.",
            *_format_worst_client(answer),
        ]
    if near.difference.mean <= 0:
        return [
            f"Use {answer.use}: no method is better here. {value}",
            *_format_worst_client(answer),
        ]
    return [
        f"Use {answer.use}: no method is significantly better than {what} here. {value} Closest "
        "above: "
        f"{near.method}, {m.gap(near.difference)}, not significant over "
        f"{_format_population(near)}{_format_doubt(near)}.",
        *_format_worst_client(answer),
    ]


def _format_worst_client(answer: Answer) -> list[str]:
    """Where another method serves the worst client better, and what that costs."""
    near, m = answer.closest, answer.measure
    mine, base = answer.worst
    if near is None or not m.sign * (mine - base) > 10.0**-DIGITS:
        return []
    return [
        f"If the worst client matters most: {near.method} gives it {m.write(mine)} instead of "
        f"{m.write(base)}, for {_format_megabytes(answer.traffic)}."
    ]


def _format_guessing(answer: Answer) -> list[str]:
    return [
        f"Use none of them: nothing has learned more than {answer.guesser} "
        f"({answer.measure.write(answer.guess)}); train longer, or with another rate."
    ]


def _format_open(answer: Answer) -> list[str]:
    return [
        "No method is chosen, as no client has select rows: raise --validation (half of it "
        "chooses)."
    ]


_FORMATS = {
    "better": _format_better,
    "bet": _format_bet,
    "withdrawn": _format_withdrawn,
    "baseline": _format_baseline,
    "guessing": _format_guessing,
    "open": _format_open,
}


def _name_baseline(name: str) -> str:
    """What was beaten, in words."""
    base = name.partition("@")[0]
    words = {"local": "local training", "fedavg": "FedAvg"}[base]
    return words if name == base else f"{words} ({name})"


def _format_clients(claim: Claim) -> str:
    return f"better for {claim.better} of {count_clients(claim)}, worse for {claim.worse}"


def count_clients(claim: Claim) -> str:
    """How many clients were compared, and in how many partitions where these differ by seed."""
    apart = f" of {claim.partitions} partitions" if claim.partitions > 1 else ""
    return f"{claim.of:,} client{'s' * (claim.of != 1)}{apart}"


def _format_population(claim: Claim) -> str:
    n, word = claim.difference.n, claim.difference.population
    return f"{n:,} {word if n != 1 else word[:-1]}"


def _format_cost(answer: Answer, base: str) -> str:
    work = answer.work
    more = ""
    if not isnan(work) and work > MORE_WORK:
        more = f" and {work:.1f} times the gradient steps of {base}, not an equal budget"
    return f"It costs {_format_megabytes(answer.traffic)}{more}."


def _format_megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB of traffic" if count else "no traffic"


def _format_stability(answer: Answer) -> list[str]:
    """How the choice was made, and how often resampled clients make the same."""
    choice, m = answer.choice, answer.measure
    if answer.use is None:
        return []
    value, highest = (m.write(m.sign * v) for v in (choice.value, choice.highest))
    how = f"Chosen on select rows ({value}"
    if choice.top != choice.name:
        how += f", within one standard error of {choice.top}'s {highest}; none so close is cheaper"
    same = (
        ""
        if isnan(choice.stability)
        else f"; {100 * choice.stability:.0f} % of resamples of the {choice.population} choose it"
    )
    return [f"{how}){same}."]


def _format_p(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-4 else "below 0.0001"


def format_details(answer: Answer) -> list[str]:
    """The sentences that figures beside a headline do not hold."""
    return [
        *_format_worst_client(answer),
        *_format_lesser(answer),
        *_format_stability(answer),
        *_format_trivial(answer),
        *answer.remarks,
    ]
