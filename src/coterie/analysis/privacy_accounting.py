"""How much a run of Gaussian mechanisms tells: epsilon for delta, and the noise that keeps to one.

One mechanism adds N(0, noise^2) to a sum that one member changes by at most 1. Where every member
takes part each time, T of them are one mechanism of length mu = sqrt(T) / noise, whose privacy is
known exactly (Balle, Wang: Improving the Gaussian Mechanism for Differential Privacy. ICML 2018,
Theorem 8):

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu).

Where each member takes part with a chance of its own (Poisson), Opacus' Renyi accountant bounds it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

from coterie.core.errors import BadInput

MAX_EPSILON = 1e6  # an epsilon beyond which nothing is promised
NOISES = (1e-3, 1e6)  # between which noise is looked for
CLOSE = 1.005  # how near to the least noise is near enough


def delta_of(epsilon: float, mu: float) -> float:
    """The delta of a Gaussian mechanism whose sensitivity is mu times its deviation."""
    from scipy.stats import norm

    first = norm.cdf(mu / 2 - epsilon / mu)
    return float(first - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)))


def epsilon_of(noise: float, times: int, delta: float, share: float = 1.0) -> float:
    """What `times` mechanisms spend together; `share`: the chance that a member takes part."""
    if times == 0:
        return 0.0
    if noise <= 0:
        return math.inf
    if share < 1:
        return _sampled_epsilon(noise, times, delta, share)
    mu = math.sqrt(times) / noise
    if delta_of(0.0, mu) <= delta:
        return 0.0
    top = 1.0
    while delta_of(top, mu) > delta:
        top *= 2
        if top > MAX_EPSILON:
            return math.inf
    from scipy.optimize import brentq

    return float(brentq(lambda e: delta_of(e, mu) - delta, 0.0, top, xtol=1e-9))


def _sampled_epsilon(noise: float, times: int, delta: float, share: float) -> float:
    try:
        from opacus.accountants import RDPAccountant
    except ImportError:
        raise BadInput(
            "privacy by sampling is counted by Opacus, which is not installed: run `pip install "
            "'coterie[privacy]'`, or ask all clients with --participation 1"
        ) from None
    accountant = RDPAccountant()
    accountant.history = [(noise, share, times)]
    with warnings.catch_warnings():  # that a bound could be tighter; it is one
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta))


def find_noise(epsilon: float, times: int, delta: float, share: float = 1.0) -> float:
    """The least noise, to half a percent, whose mechanisms spend no more than epsilon."""

    def spent(noise: float) -> float:
        return epsilon_of(noise, times, delta, share)

    low, high = NOISES
    if share < 1:  # the accountant is slow: begin near what is needed without sampling
        whole = find_noise(epsilon, times, delta)
        low, high = whole / 30, min(NOISES[1], 4 * whole)
    if spent(high) > epsilon:
        raise BadInput(
            f"dp_epsilon = {epsilon:g} cannot be kept over {times:,} releases, whatever the noise: "
            "give more, or fewer rounds"
        )
    return _bisect(spent, epsilon, low, high)


def _bisect(spent: Callable[[float], float], epsilon: float, low: float, high: float) -> float:
    """Bisection on a logarithmic scale."""
    while high / low > CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high
