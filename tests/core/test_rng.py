import numpy as np
import pytest

from coterie.core import rng


def draws(one):
    return (
        int(one.integers(2**40)),
        one.normal(),
        one.permutation(9).tolist(),
        int(one.integers(100, dtype=np.int32)),
        float(one.standard_normal(dtype=np.float32)),
    )


@pytest.mark.parametrize("seed", [0, 7, 2**40])
def test_many_streams_are_the_streams_one_by_one(seed, monkeypatch):
    monkeypatch.setattr(rng, "STREAMS_AT_ONCE", 100)  # several blocks
    found = [draws(one) for one in rng.streams(seed, "parts", range(250))]
    assert found == [draws(rng.stream(seed, "parts", k)) for k in range(250)]


def test_a_stream_begins_anew_whatever_was_drawn_before_it():
    few = [one.normal() for one in rng.streams(1, "parts", range(20))]
    # an odd number of 32-bit draws leaves half a word behind
    many = [
        (one.normal(), one.integers(9, dtype=np.int32))[0]
        for one in rng.streams(1, "parts", range(20))
    ]
    assert few == many


def test_seeds_of_small_numbers_are_those_of_numpy():
    numbers = [0, 1, 2**32 - 1, 2**32, 2**62 + 5]
    for number, mine in zip(numbers, rng._expand_seeds(np.array(numbers, np.uint64)), strict=True):
        assert (np.random.SeedSequence(number).generate_state(4, np.uint64) == mine).all()


def test_a_later_stream_is_the_stream_and_knows_whether_it_was_used():
    later = rng.LazyStream(3, "send", "train", 5)
    assert not later.drawn
    assert draws(later) == draws(rng.stream(3, "send", "train", 5))
    assert later.drawn
