"""Secure aggregation: the server learns the sum of those who answered, and no summand."""

from itertools import combinations

import numpy as np
import pytest

from coterie.core.errors import BadInput
from coterie.deploy.secure_sum import (
    PRIME,
    join_secret,
    make_keys,
    make_shares,
    mask_vector,
    publish_keys,
    read_shares,
    reveal_shares,
    split_secret,
    threshold_of,
    to_integers,
    to_numbers,
    unmask_sum,
)

ROUND = b"run 7, round 3"


class Town:
    """Sites that have exchanged keys and shares, and their vectors."""

    def __init__(self, sites: int, length: int = 50):
        rng = np.random.default_rng(1)
        self.values = {i: rng.normal(0, 100, length) for i in range(sites)}
        self.keys = {i: make_keys() for i in range(sites)}
        self.public = {i: publish_keys(k) for i, k in self.keys.items()}
        given = {i: make_shares(k, i, self.public, ROUND) for i, k in self.keys.items()}
        self.held = {
            i: read_shares(k, i, self.public, {j: given[j][i] for j in given}, ROUND)
            for i, k in self.keys.items()
        }
        self.masked = {
            i: mask_vector(to_integers(v, sites), self.keys[i], i, self.public, ROUND)
            for i, v in self.values.items()
        }

    def sum(self, answered, revealing) -> np.ndarray:
        reveals = {i: reveal_shares(self.held[i], answered, len(self.public)) for i in revealing}
        masked = {i: self.masked[i] for i in answered}
        return to_numbers(unmask_sum(masked, reveals, self.public, ROUND))


@pytest.mark.parametrize("sites", [1, 2, 3, 7])
def test_masks_cancel_to_the_sum_up_to_the_stated_rounding(sites):
    town = Town(sites)
    found = town.sum(range(sites), range(sites))
    assert np.abs(found - sum(town.values.values())).max() <= sites * 2.0**-25


@pytest.mark.parametrize("gone", [0, 3, 6])
def test_who_drops_out_is_taken_off_by_the_others(gone):
    town = Town(7)
    there = [i for i in range(7) if i != gone]
    for revealing in combinations(there, threshold_of(7)):
        want = sum(town.values[i] for i in there)
        assert np.abs(town.sum(there, revealing) - want).max() <= 7 * 2.0**-25


def test_two_may_drop_out_after_the_masks_were_sent_or_before():
    town = Town(7)
    assert np.allclose(
        town.sum([0, 1, 2, 4, 5], [0, 1, 2, 4, 5]),
        sum(town.values[i] for i in (0, 1, 2, 4, 5)),
        atol=1e-5,
    )


def test_what_a_site_sends_is_noise_to_who_lacks_one_secret():
    town = Town(3, length=20_000)
    plain = to_integers(town.values[0], 3)
    assert not np.isclose(to_numbers(town.masked[0]), town.values[0], atol=1e3).any()
    # without b_0 alone, everything else known, it is still uniform: bytes pass a chi-square test
    from coterie.deploy.secure_sum import _agree, _expand

    left = town.masked[0].copy()
    for peer in (1, 2):
        key = _agree(town.keys[peer].mask, town.public[0].mask, ROUND)
        left -= _expand(key, len(left), ROUND)
    counts = np.bincount((left - plain).view(np.uint8), minlength=256)
    assert np.square(counts - counts.mean()).sum() / counts.mean() < 400  # 255 degrees, p < 1e-7
    assert np.array_equal(left - _expand(town.keys[0].own, len(left), ROUND), plain)


def test_too_few_reveal_nothing():
    town = Town(7)
    with pytest.raises(BadInput, match="4 of 7 sites answered, 5 are needed"):
        reveal_shares(town.held[0], [0, 1, 2, 3], 7)
    with pytest.raises(BadInput, match="4 of 7 sites revealed"):
        town.sum(range(7), [0, 1, 2, 3])


def test_nobody_reveals_both_secrets_of_a_site():
    town = Town(7)
    told = reveal_shares(town.held[2], [0, 1, 2, 3, 4, 5], 7)
    assert not told.own.keys() & told.mask.keys()
    # two answers to two different lists need two thirds each, so some honest site would be in both
    assert 2 * threshold_of(7) - 7 > 7 // 3


def test_shares_below_the_threshold_tell_nothing():
    secret = 12345
    shares = split_secret(secret, range(5), 4)
    assert join_secret({i: shares[i] for i in (0, 2, 3, 4)}) == secret
    few = {i: shares[i] for i in (0, 2, 3)}
    # any other secret fits three shares as well: the fourth can be chosen to make it so
    assert join_secret(few) != secret
    assert 0 <= join_secret(few) < PRIME


def test_shares_of_another_round_are_refused():
    town = Town(3)
    given = make_shares(town.keys[1], 1, town.public, b"run 7, round 2")
    with pytest.raises(BadInput, match="site 1 are not of this round"):
        read_shares(town.keys[0], 0, town.public, {1: given[0]}, ROUND)


@pytest.mark.parametrize("value", [np.inf, np.nan, 2.0**40])
def test_what_does_not_fit_is_refused(value):
    with pytest.raises(BadInput, match="does not fit") as refused:
        to_integers(np.array([1.0, value]), 3)
    assert f"{value:g}" not in str(refused.value)  # the server hears of it
