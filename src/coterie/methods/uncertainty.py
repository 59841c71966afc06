"""Uncertainty in the two-level Gaussian model, in closed form: what Self-FL is built on.

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang: Self-Aware Personalized Federated Learning. NeurIPS
    2022, Sections 2 and 3.

    theta_0 flat,  theta_m | theta_0 ~ N(theta_0, s0^2),  z_m | theta_m ~ N(theta_m, s_m^2)      (1)
    w_m = 1 / (s0^2 + s_m^2),  S_-m = sum_{k != m} w_k

Arrays hold one client per entry of the last axis; leading axes (repeats) are free. Numbers in
brackets are the paper's equations.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from torch import Tensor

from coterie.core.point import Vector

Array = Any  # a numpy array or a number

FlWeight = Literal["paper", "exact"]
Spread = Literal["sum", "mean"]
FL_WEIGHTS: tuple[FlWeight, ...] = ("paper", "exact")


def weights(s0sq: Array, s2: Array) -> Array:
    """w_m, the precision with which z_m speaks of theta_0 (2); s0 = 0 weighs by precision, s0 ->
    inf all alike.
    """
    return 1 / (s0sq + s2)


def sum_of_others(values: np.ndarray) -> np.ndarray:
    """For each client the sum over all others; by sums from both ends, as total minus own would
    cancel.
    """
    zero = np.zeros_like(values[..., :1])
    before = np.concatenate([zero, np.cumsum(values, -1)[..., :-1]], -1)
    after = np.concatenate([zero, np.cumsum(values[..., ::-1], -1)[..., :-1]], -1)[..., ::-1]
    rest: np.ndarray = before + after
    return rest


def global_optimum(z: np.ndarray, s0sq: Array, s2: np.ndarray) -> np.ndarray:
    """theta^G, the posterior mean of theta_0 (2)."""
    w = weights(s0sq, s2)
    theta: np.ndarray = (w * z).sum(-1) / w.sum(-1)
    return theta


def start(z: np.ndarray, s0sq: Array, s2: np.ndarray) -> np.ndarray:
    """theta_m^INIT (7): what all the others say of theta_0."""
    w = weights(s0sq, s2)
    theta: np.ndarray = sum_of_others(w * z) / sum_of_others(w)
    return theta


def trust(s0sq: Array, rest: Array, fl_weight: FlWeight = "paper") -> Array:
    """The precision with which the others' mean, of weight S_-m, speaks of theta_m.

    "paper": S_-m, as if theta_m were theta_0 (3). "exact": 1 / (s0^2 + 1 / S_-m), the Bayes
    estimate under (1), for theta_m scatters around theta_0 too.
    """
    return rest if fl_weight == "paper" else rest / (1 + s0sq * rest)


def share(s2: Array, trusted: Array) -> Array:
    """r_m (8): the share of the way from z_m to the others' mean that is left after l_m steps, 1 -
    1 / GAIN_m.
    """
    return trusted / (1 / s2 + trusted)


def gain(s2: Array, trusted: Array) -> Array:
    """GAIN_m (4): how many times smaller the variance of theta_m is with the others than alone."""
    return 1 + s2 * trusted


def steps(r: Array, h: Array) -> Array:
    """l_m with (1 - h)^l = r (8), not rounded; h is the step size times the curvature, eta /
    s_m^2.
    """
    return np.log(r) / np.log1p(-h)


def descend(theta: Array, z: Array, h: Array, count: Array) -> Array:
    """Where `count` gradient steps on (theta - z)^2 / (2 s^2) lead (6)."""
    return z + (1 - h) ** count * (theta - z)


def fl_optimum(
    z: np.ndarray, s0sq: Array, s2: np.ndarray, fl_weight: FlWeight = "paper"
) -> np.ndarray:
    """theta_m^FL (3), the posterior mean of theta_m given everybody's data."""
    rest = sum_of_others(weights(s0sq, s2))
    r = share(s2, trust(s0sq, rest, fl_weight))
    theta: np.ndarray = (1 - r) * z + r * start(z, s0sq, s2)
    return theta


def spread(rows: Array, kind: Spread = "mean") -> Array:
    """s0^2 (14): squared distances of models [m, d] from their mean, summed over coordinates.

    "mean": the empirical variance, their mean over the models. "sum": the trace of the sum of outer
    products, as Section 3.2 of the paper defines "empirical variance" for vectors.
    """
    distances = ((rows - rows.mean(0)) ** 2).sum(1)
    return distances.sum() if kind == "sum" else distances.mean()


def update_moments(t: Tensor, mean: Vector, var: Tensor, x: Vector) -> tuple[Vector, Tensor]:
    """Mean and variance of t vectors from those of the first t - 1 and the t-th (19); the variance
    is summed over coordinates.
    """
    apart, kept = x - mean, (t - 1) / t
    return mean + apart * (1 / t), kept * (var + apart.squared() / t)
