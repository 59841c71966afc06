"""Laws of clients with too few rows: what they need is said, and every way out works."""

import re

import numpy as np
import pytest

from coterie.core.errors import BadInput
from coterie.data.partition.cuts import Shares
from coterie.data.partition.minimum_rows import TooFewRows, has_enough_rows, minimum_rows_of
from coterie.data.pipeline import build_federation
from helpers.datasets import features


@pytest.mark.parametrize("shares", [(0.2, 0.2), (0.0, 0.2), (0.1, 0.2), (0.4, 0.3), (0.01, 0.5)])
def test_the_least_number_of_rows_is_enough_and_so_is_every_larger_one(shares):
    least = minimum_rows_of(Shares(*shares))
    assert has_enough_rows(np.arange(least, least + 500), Shares(*shares)).all()
    assert not has_enough_rows(np.array([least - 1]), Shares(*shares)).any()


def _table(rows, **choices):
    """Ten natural clients of so many rows each."""
    data = features(10 * rows)._replace(users=np.repeat(np.arange(10), rows))
    return build_federation(data, **choices)


def test_what_a_client_needs_is_said():
    with pytest.raises(TooFewRows) as caught:
        _table(2)
    assert str(caught.value).startswith(
        "client 0 ('0') has 2 rows, none of them in its validation part: with validation = 0.2 "
        "and test = 0.2 a client needs at least 3 rows; use validation = 0"
    )
    assert caught.value.rows == 2
    _table(3)


@pytest.mark.parametrize("settings", [{}, {"validation": 0.4, "test": 0.3}, {"test": 0.7}])
def test_the_shares_that_are_offered_work(settings):
    with pytest.raises(BadInput) as caught:
        _table(2, **settings)
    way = str(caught.value).rpartition("use ")[2]
    said = {option: float(value) for option, value in re.findall(r"(\w+) = ([\d.]*\d)", way)}
    assert said
    assert _table(2, **(settings | said)).clients == 10


def test_what_does_not_help_natural_clients_is_not_offered():
    with pytest.raises(BadInput) as caught:
        _table(1)
    assert str(caught.value).endswith("; give each client more rows")
    with pytest.raises(BadInput) as caught:
        _table(2)
    assert "fewer clients" not in str(caught.value)


def test_dealt_clients_may_be_fewer():
    data = features(120)
    with pytest.raises(BadInput, match="with which 2 are enough or use fewer clients"):
        build_federation(data, "iid", 60)
    with pytest.raises(BadInput, match="at least 3 rows; use fewer clients"):
        build_federation(data, "iid", 120)
    assert build_federation(data, "iid", 40).clients == 40
