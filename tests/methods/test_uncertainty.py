"""Laws of the two-level Gaussian model's closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.core.point import Vector
from coterie.methods import uncertainty as law

RNG = np.random.default_rng(0)
M, ETA = 7, 1e-3
S0SQ, S2, Z = 0.3, RNG.uniform(0.05, 0.5, M), RNG.normal(1.6, 1, M)
both = pytest.mark.parametrize("fl_weight", law.FL_WEIGHTS)


def far_clients(m=20, seed=0):
    """z and s^2 of the paper's case 2, s0^2 = 1."""
    rng = np.random.default_rng(seed)
    s2 = 0.1 / rng.integers(10, 200, m, endpoint=True)
    return rng.normal(rng.normal(1.6, 1, m), np.sqrt(s2)), s2


def test_sums_over_others_do_not_cancel():
    w = np.array([1e-9, 1e12, 3e-9])
    np.testing.assert_allclose(law.sum_of_others(w), [1e12 + 3e-9, 4e-9, 1e12 + 1e-9], rtol=1e-15)
    stacked = RNG.random((4, M))
    np.testing.assert_allclose(law.sum_of_others(stacked), stacked.sum(-1, keepdims=True) - stacked)


def test_global_optimum_solves_the_normal_equations():
    design, precision = np.ones((M, 1)), np.diag(1 / (S0SQ + S2))
    wanted = np.linalg.solve(design.T @ precision @ design, design.T @ precision @ Z)
    np.testing.assert_allclose(law.global_optimum(Z, S0SQ, S2), wanted[0], rtol=1e-13)


def test_paper_optimum_is_the_posterior_of_a_client_that_takes_itself_for_the_parent():
    for m in range(M):
        v = np.where(np.arange(M) == m, S2, S0SQ + S2)
        np.testing.assert_allclose(
            law.fl_optimum(Z, S0SQ, S2)[m], (Z / v).sum() / (1 / v).sum(), rtol=1e-13
        )


def test_exact_optimum_is_the_posterior_mean_of_the_whole_hierarchy():
    """Unknowns theta_0, theta_1..M with their joint precision matrix, solved as one linear
    system.
    """
    matrix = np.zeros((M + 1, M + 1))
    matrix[0, 0] = M / S0SQ
    matrix[0, 1:] = matrix[1:, 0] = -1 / S0SQ
    matrix[1:, 1:] = np.diag(1 / S0SQ + 1 / S2)
    posterior = np.linalg.solve(matrix, np.concatenate([[0], Z / S2]))
    np.testing.assert_allclose(law.fl_optimum(Z, S0SQ, S2, "exact"), posterior[1:], rtol=1e-12)
    np.testing.assert_allclose(law.global_optimum(Z, S0SQ, S2), posterior[0], rtol=1e-12)


@both
def test_descent_from_the_start_value_reaches_the_optimum(fl_weight):
    r = law.share(S2, law.trust(S0SQ, law.sum_of_others(law.weights(S0SQ, S2)), fl_weight))
    count = law.steps(r, ETA / S2)
    reached = law.descend(law.start(Z, S0SQ, S2), Z, ETA / S2, count)
    np.testing.assert_allclose(reached, law.fl_optimum(Z, S0SQ, S2, fl_weight), rtol=0, atol=1e-12)


def test_rounding_the_steps_costs_what_the_formula_says():
    rest = law.sum_of_others(law.weights(S0SQ, S2))
    r, h = law.share(S2, rest), ETA / S2
    count, begin = np.rint(law.steps(r, h)), law.start(Z, S0SQ, S2)
    theta = begin.copy()
    for m in range(M):
        for _ in range(int(count[m])):
            theta[m] -= ETA * (theta[m] - Z[m]) / S2[m]
    off = np.abs(theta - law.fl_optimum(Z, S0SQ, S2))
    np.testing.assert_allclose(off, np.abs((1 - h) ** count - r) * np.abs(begin - Z), atol=1e-12)
    assert 0 < off.max() < 0.01


def test_start_value_seen_from_the_global_optimum():
    w, g = law.weights(S0SQ, S2), law.global_optimum(Z, S0SQ, S2)
    np.testing.assert_allclose(
        law.start(Z, S0SQ, S2), g - w / law.sum_of_others(w) * (Z - g), rtol=1e-12
    )  # (9)


def test_gain_is_the_ratio_of_the_variances():
    rest = law.sum_of_others(law.weights(S0SQ, S2))
    np.testing.assert_allclose(law.gain(S2, rest), S2 / (1 / (1 / S2 + rest)))  # (4)
    np.testing.assert_allclose(law.share(S2, rest), 1 - 1 / law.gain(S2, rest))  # (8)


def test_no_spread_weighs_by_precision_and_endless_spread_weighs_all_alike():
    np.testing.assert_allclose(law.weights(0.0, S2) * S2, 1)
    w = law.weights(1e12, S2)
    np.testing.assert_allclose(w / w.sum(), 1 / M, rtol=1e-9)


@both
def test_limits_of_the_optima(fl_weight):
    rest = law.sum_of_others(law.weights(1e9, S2))
    np.testing.assert_allclose(
        law.fl_optimum(Z, 1e9, S2, fl_weight), Z, atol=1e-7
    )  # s0 -> inf: alone
    np.testing.assert_allclose(law.gain(S2, law.trust(1e9, rest, fl_weight)), 1, atol=1e-7)
    np.testing.assert_allclose(law.global_optimum(Z, 1e9, S2), Z.mean(), atol=1e-7)
    together = (Z / S2).sum() / (1 / S2).sum()  # s0 = 0: one model, weighed by precision
    np.testing.assert_allclose(law.fl_optimum(Z, 0.0, S2, fl_weight), together)
    np.testing.assert_allclose(law.global_optimum(Z, 0.0, S2), together)
    sharp = np.where(np.arange(M) == 0, 1e-9, S2)  # one client with much better data learns alone
    np.testing.assert_allclose(law.fl_optimum(Z, S0SQ, sharp, fl_weight)[0], Z[0], atol=1e-6)


def test_steps_grow_with_the_variance_towards_their_limit():
    s2 = np.array([2e-4, 1e-3, 1e-2, 0.1, 1.0])
    count = law.steps(law.share(s2, 19.0), 1e-4 / s2)
    np.testing.assert_array_equal(np.rint(count), [8, 38, 183, 423, 513])
    assert (count < 1 / (1e-4 * 19)).all()


@pytest.mark.parametrize(
    ("s0sq", "largest", "wanted"),
    [
        (0.001, 20, (0.0664, 0.0284, 0.0272)),
        (1.0, 200, (0.0293, 0.0375, 0.0293)),
        (0.01, 20, (0.0664, 0.0738, 0.0517)),
    ],
)
def test_errors_of_local_paper_and_exact_estimates(s0sq, largest, wanted):
    """The paper's estimate is worse than local training when clients differ; the Bayes estimate
    never is.
    """
    rng = np.random.default_rng(1)
    s2 = 0.1 / rng.integers(10, largest, (4000, 20), endpoint=True)
    truth = rng.normal(1.6, np.sqrt(s0sq), s2.shape)
    z = rng.normal(truth, np.sqrt(s2))
    estimates = (z, law.fl_optimum(z, s0sq, s2), law.fl_optimum(z, s0sq, s2, "exact"))
    np.testing.assert_allclose(
        [np.abs(e - truth).mean() for e in estimates], wanted, rtol=0, atol=7e-4
    )


def test_iterated_rule_settles_near_the_optimum():
    z, s2 = far_clients()
    w = law.weights(1.0, s2)
    rest = law.sum_of_others(w)
    r = law.share(s2, rest)
    g, theta = 0.0, np.zeros_like(z)
    for _ in range(60):
        theta = (1 - r) * z + r * (g - w / rest * (theta - g))  # (10), then (8)
        g = (w * theta).sum() / w.sum()  # (11)
    assert np.abs(theta - law.fl_optimum(z, 1.0, s2)).max() < 5e-3
    assert abs(g - law.global_optimum(z, 1.0, s2)) < 1e-2


def test_spread_is_the_variance_summed_over_coordinates():
    rows = RNG.normal(size=(6, 4))
    np.testing.assert_allclose(law.spread(rows), rows.var(0).sum())
    np.testing.assert_allclose(float(law.spread(torch.tensor(rows))), rows.var(0).sum())


@settings(max_examples=60, deadline=None)
@given(
    arrays(
        np.float64, st.tuples(st.integers(1, 12), st.integers(1, 4)), elements=st.floats(-100, 100)
    )
)
def test_online_variance_is_the_population_variance(x):
    mean, var = (
        Vector({"x": torch.zeros(x.shape[1], dtype=torch.float64)}),
        torch.tensor(0.0, dtype=torch.float64),
    )
    for t, row in enumerate(x, 1):
        mean, var = law.update_moments(
            torch.tensor(float(t), dtype=torch.float64), mean, var, Vector({"x": torch.tensor(row)})
        )
    np.testing.assert_allclose(mean.params["x"].numpy(), x.mean(0), atol=1e-10)
    np.testing.assert_allclose(float(var), x.var(0).sum(), rtol=1e-9, atol=1e-8)
