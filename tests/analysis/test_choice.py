"""Which method is chosen: one standard error, then the fewest bytes."""

from math import isnan, nan

import numpy as np
import pytest

from coterie.analysis.choice import choose, is_baseline
from coterie.core.errors import BadInput
from helpers.thesis import table51


def test_the_cheapest_within_one_standard_error_is_chosen():
    rng = np.random.default_rng(1)
    top = rng.uniform(0.7, 0.9, 20)
    near, far = top - rng.normal(0.001, 0.02, 20), top - rng.normal(0.1, 0.02, 20)
    near += top.mean() - 0.001 - near.mean()
    cost = {"top": 9.0, "near": 3.0, "far": 1.0}
    found = choose({"top": top, "near": near, "far": far}, cost, True)
    assert (found.name, found.top) == ("near", "top")
    assert found.value == pytest.approx(near.mean())
    assert choose({"top": top, "far": far}, cost, True).name == "top"
    assert choose({"top": top, "near": near}, {"top": 1, "near": 2}, True).name == "top"


def test_at_equal_traffic_the_one_that_helps_more_clients_is_chosen():
    """A mean may rest on a few clients, as that of alg2 in Table 5.1 of the PersFL thesis."""
    few = np.array([0.5] * 8 + [0.9, 0.9])
    many = np.array([0.55] * 8 + [0.5, 0.5]) + 0.018
    base = np.full(10, 0.5)
    found = choose(
        {"few": few, "many": many, "local": base},
        dict.fromkeys(("few", "many", "local"), 1.0),
        True,
    )
    assert few.mean() == pytest.approx(0.58)
    assert found.name == "many"
    assert choose(table51(), dict.fromkeys(table51(), 1.0), True).name is not None


def test_at_equal_traffic_a_baseline_close_to_the_top_is_preferred():
    rng = np.random.default_rng(0)
    base = rng.uniform(0.8, 0.9, 20)
    close, cost = base + rng.normal(0.001, 0.02, 20), {"close": 5.0, "fedavg": 5.0, "local": 5.0}
    found = choose({"close": close, "fedavg": base, "local": base - 0.3}, cost, True)
    assert (found.top, found.name) == ("close", "fedavg")


def test_one_unit_has_no_standard_error_and_the_highest_wins():
    found = choose({"a": [[0.5]], "b": [[0.6]]}, {"a": 1, "b": 9}, True)
    assert found.name == "b"
    assert isnan(found.stability)  # nothing to resample


def test_clients_without_select_rows_do_not_vote():
    a, b = np.array([0.9, 0.2, 0.9, 0.9]), np.array([0.8, 0.99, 0.8, 0.8])
    cost = {"a": 1.0, "b": 1.0}
    assert choose({"a": a, "b": b}, cost, True).name == "b"
    missing = np.array([0.0, nan, 0.0, 0.0])
    assert choose({"a": a + missing, "b": b}, cost, True).name == "a"
    assert choose({}, {}, True).name is None
    assert choose({"a": [nan, nan]}, {"a": 1}, True).name is None


def test_a_choice_that_hangs_on_few_clients_is_called_unstable():
    cost = {"a": 1.0, "b": 1.0}
    sure = choose({"a": np.full(20, 0.9), "b": np.full(20, 0.8)}, cost, True)
    assert sure.stability == 1.0
    swing = np.where(np.arange(20) % 2, 0.9, 0.7)
    unsure = choose({"a": swing, "b": swing[::-1]}, cost, True)
    assert 0.2 < unsure.stability < 0.8


def test_a_baseline_keeps_being_one_under_other_options():
    assert is_baseline("local@long")
    assert is_baseline("fedavg")
    assert not is_baseline("localish")


def test_a_choice_needs_the_bytes_of_every_method():
    with pytest.raises(BadInput, match="'a' has values, but no bytes"):
        choose({"a": [0.5]}, {}, True)
