"""How a Self-FL client works in one round: where it starts and how many steps it takes.

With s_m^2 the client's own variance, s0^2 that between clients, w_m = 1 / (s0^2 + s_m^2) and
S_-m the sum of the others' w_k, the client starts w_m / S_-m of the way beyond the global model,
and takes the l steps that lead to theta_m^FL: (1 - h)^l = r_m (8).
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Train
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.methods import uncertainty as law

EPS = 1e-12  # a variance is never smaller
NONE, HISTORY, CURVED, SETTLED, FLOOR, CAP = range(6)  # the guard that chose l

QUANTITIES = {
    "sigma2": LoggedQuantity(
        "uncertainty of a client, sigma_m^2",
        QuantityKind.COURSE,
        meaning="The variance of a client's own models over its rounds, summed over parameters.",
        log=True,
    ),
    "steps_taken": LoggedQuantity(
        "local steps", QuantityKind.COURSE, meaning="l, rounded and within its limits."
    ),
    "raw_steps": LoggedQuantity(
        "local steps before limits",
        QuantityKind.COURSE,
        meaning="The l that solves equation (8), before it is rounded and cut.",
        log=True,
        histogram=True,
    ),
    "r": LoggedQuantity(
        "share of the way left, r", QuantityKind.COURSE, meaning="1 - 1 / GAIN of equation (8)."
    ),
    "h": LoggedQuantity("share covered by one step, h", QuantityKind.COURSE, log=True),
    "capped": LoggedQuantity("clients at the largest number of steps", QuantityKind.SHARE),
    "guard": LoggedQuantity(
        "rule that chose the steps",
        QuantityKind.FINAL,
        meaning="0 equation (8), 1 no history, 2 one step overshoots, 3 nothing to personalize, "
        "4 at least one step, 5 at most l_max.",
    ),
}

Units = Literal["per_sample", "plain", "per_batch"]
StepsRule = Literal["formula", "fraction"]


class StepChoice(NamedTuple):
    """How a client works in one round."""

    s2: Tensor  # the s_m^2 it was made with
    pull: Tensor  # w_m / S_-m
    r: Tensor
    h: Tensor
    raw: Tensor  # l before rounding and guards
    steps: Tensor  # l
    guard: Tensor
    boost: Tensor  # factor of the mean-loss gradient


class StepRule(NamedTuple):
    """What decides a choice; see the options of `selffl`."""

    train: Train
    l_max: int
    l_base: int
    units: Units
    steps_rule: StepsRule
    fl_weight: law.FlWeight
    start_rule: bool
    adapt_steps: bool
    known_variance: float

    def plain_steps(self, rows: int) -> int:
        """Steps of a client without history."""
        train = self.train
        return (
            self.l_base
            or train.local_steps
            or train.local_epochs * -(-rows // (train.batch_size or 1024))
        )

    def curvature(self, s2: float, rows: int) -> float:
        """h: how much of the distance to the local optimum one step covers."""
        batch = min(self.train.batch_size or rows, rows)
        per_row = {"plain": rows, "per_sample": 1, "per_batch": batch}[self.units] / rows
        return max((1.0 if self.known_variance else per_row) * self.train.lr / s2, EPS)


def empty_choice() -> StepChoice:
    """Of a client that has not been active yet."""
    none = torch.tensor(0.0)
    return StepChoice(*(none,) * 5, steps=torch.tensor(0), guard=torch.tensor(HISTORY), boost=none)


def choose_steps(
    rule: StepRule, var: float, t: float, s0sq: float, others: float, rows: int
) -> StepChoice:
    """The choice of a client of variance `var` that was active `t` times, given s0^2 and S_-m."""
    s2 = max(rule.known_variance / rows if rule.known_variance else var, EPS)
    base = rule.plain_steps(rows)
    boost = rows / rule.known_variance if rule.known_variance else 1.0
    unknown = (t < 2 and not rule.known_variance) or s0sq < 0 or others <= 0
    if unknown or not math.isfinite(s2 + s0sq + others):  # a plain step of FedAvg
        return _build_choice(s2=s2, steps=base, guard=HISTORY, boost=boost)
    pull = min(law.weights(s0sq, s2) / others, 1.0) if rule.start_rule else 0.0
    r = law.share(s2, law.trust(s0sq, others, rule.fl_weight))
    h = rule.curvature(s2, rows)
    raw, steps, guard = count_steps(rule, r, h, base)
    if not rule.adapt_steps:
        steps, guard = base, NONE
    return _build_choice(s2=s2, pull=pull, r=r, h=h, raw=raw, steps=steps, guard=guard, boost=boost)


def _build_choice(
    s2: float,
    steps: int,
    guard: int,
    boost: float,
    pull: float = 0.0,
    r: float = 0.0,
    h: float = 0.0,
    raw: float = 0.0,
) -> StepChoice:
    return StepChoice(*map(torch.tensor, (s2, pull, r, h, raw, steps, guard, boost)))


def count_steps(rule: StepRule, r: float, h: float, base: int) -> tuple[float, int, int]:
    """l before and after rounding and guards, and the guard that fired."""
    formula = rule.steps_rule == "formula"
    if formula and h >= 1 - 1e-6:  # one step would overshoot: (8) has no solution
        return 0.0, min(base, rule.l_max), CURVED
    if formula and r >= 1 - 1e-12:  # nothing to personalize
        return 0.0, 1, SETTLED
    raw = float(law.steps(r, h)) if formula else rule.l_max * (1 - r)
    steps = min(max(round(raw), 1), rule.l_max)
    return raw, steps, CAP if steps < round(raw) else FLOOR if steps > round(raw) else NONE


def logged_choice(choice: StepChoice, var: Tensor, t: Tensor, rule: StepRule) -> dict[str, Tensor]:
    """What a client writes down of its last round; NaN where the rule had no say."""
    missing = torch.tensor(math.nan)
    ruled = choice.guard != HISTORY
    counted = ruled & (choice.guard != CURVED) & (choice.guard != SETTLED)
    return {
        "sigma2": choice.s2 if rule.known_variance else torch.where(t < 2, missing, var),
        "steps_taken": choice.steps,
        "raw_steps": torch.where(counted, choice.raw, missing),
        "r": torch.where(ruled, choice.r, missing),
        "h": torch.where(ruled, choice.h, missing),
        "capped": ruled & (choice.steps >= rule.l_max) & rule.adapt_steps,
        "guard": choice.guard,
    }
