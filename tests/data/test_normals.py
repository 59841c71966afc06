"""Blocks of normal numbers are those that numpy draws one by one."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from coterie.data.read.sources import normals


@pytest.mark.parametrize("before", [0, 1, 2, 7])  # after odd counts one of a pair is left
def test_they_are_those_of_numpy(monkeypatch, before):
    monkeypatch.setattr(normals, "FEW", 0)
    monkeypatch.setattr(normals, "PAIRS", 64)  # a block ends within what is taken
    one, other = np.random.RandomState(3), np.random.RandomState(3)
    assert np.array_equal(one.lognormal(4, 2, before), other.lognormal(4, 2, before))
    with ThreadPoolExecutor(2) as pool:
        stream = normals.NormalStream(one, pool, 10_000)
        assert stream._next is not None
        for n in (1, 0, 2, 500, 3, 41, 1000):
            assert np.array_equal(stream.take(n), other.normal(size=n))


def test_numpy_draws_itself_where_the_other_way_rounds_otherwise(monkeypatch):
    monkeypatch.setattr(normals, "FEW", 0)
    usual = normals._make_normal
    monkeypatch.setattr(normals, "_make_normal", lambda points: np.nextafter(usual(points), 9))
    one, other = np.random.RandomState(3), np.random.RandomState(3)
    with ThreadPoolExecutor(2) as pool:
        stream = normals.NormalStream(one, pool, 10_000)
        assert stream._next is None
        assert np.array_equal(stream.take(500), other.normal(size=500))
