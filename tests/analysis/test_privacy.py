"""Epsilon and delta of Gaussian mechanisms, one after another."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from coterie.analysis.privacy_accounting import delta_of, epsilon_of, find_noise
from coterie.core.errors import BadInput


@pytest.mark.parametrize(("epsilon", "mu"), [(0.0, 1.0), (1.0, 0.7), (3.0, 2.0)])
def test_delta_is_the_integral_of_what_exceeds_e_to_epsilon(epsilon, mu):
    """delta = integral of (p - e^epsilon q)^+ for p = N(mu, 1), q = N(0, 1)."""
    cut = epsilon / mu + mu / 2  # where p = e^epsilon q
    whole, _ = quad(lambda x: norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x), cut, 40)
    assert delta_of(epsilon, mu) == pytest.approx(whole, rel=1e-6)


def test_many_releases_count_as_one_with_less_noise():
    assert epsilon_of(4.0, 16, 1e-5) == pytest.approx(epsilon_of(1.0, 1, 1e-5), rel=1e-9)
    assert delta_of(epsilon_of(2.0, 20, 1e-5), math.sqrt(20) / 2) == pytest.approx(1e-5, rel=1e-4)


def test_epsilon_falls_with_noise_and_grows_with_releases():
    by_noise = [epsilon_of(noise, 10, 1e-5) for noise in (0.5, 1, 2, 4)]
    by_times = [epsilon_of(2.0, times, 1e-5) for times in (1, 10, 100)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert by_times == sorted(by_times)
    assert epsilon_of(0.0, 1, 1e-5) == math.inf
    assert epsilon_of(1.0, 0, 1e-5) == 0.0


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_the_noise_for_an_epsilon_keeps_to_it_and_is_the_least(share):
    noise = find_noise(4.0, 25, 1e-4, share)
    assert epsilon_of(noise, 25, 1e-4, share) <= 4.0
    assert epsilon_of(noise / 1.01, 25, 1e-4, share) > 4.0


def test_sampling_tells_less_than_asking_everyone():
    """The sampled Gaussian against Opacus' published bound, and below the exact whole one."""
    assert epsilon_of(1.0, 50, 1e-5, 0.1) == pytest.approx(5.88098, rel=1e-5)
    assert epsilon_of(1.0, 50, 1e-5, 0.1) < epsilon_of(1.0, 50, 1e-5)


def test_an_epsilon_that_no_noise_keeps_is_refused():
    with pytest.raises(BadInput, match="cannot be kept"):
        find_noise(1e-9, 1000, 1e-300)


def test_delta_is_a_probability_at_every_epsilon():
    found = [delta_of(e, mu) for e in np.linspace(0, 50, 11) for mu in (0.01, 1.0, 9.0)]
    assert all(-1e-12 <= d <= 1 for d in found)
