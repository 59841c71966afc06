"""Laws of ranks over data sets: the published example, ties, and what is not told apart."""

import numpy as np
import pytest

from coterie.analysis.ranks import build_ranking, nemenyi, rank_rows


def test_the_critical_distance_is_that_of_demsars_example():
    assert nemenyi(4, 14) == pytest.approx(1.25, abs=0.005)


def test_equal_numbers_share_a_rank_and_a_method_without_a_number_is_last():
    assert rank_rows(np.array([[0.9, 0.5, 0.9, np.nan]])).tolist() == [[1.5, 3.0, 1.5, 4.0]]


def test_a_method_that_always_wins_is_told_apart_from_one_that_always_loses():
    values = np.array([[3.0, 2.0, 1.0]] * 20)
    found = build_ranking(values + np.arange(20)[:, None], ["a", "b", "c"])
    assert found.methods == ("a", "b", "c")
    assert found.rank.tolist() == [1.0, 2.0, 3.0]
    assert found.p < 1e-4
    assert (0, 2) not in found.cliques


def test_methods_that_win_in_turn_are_not_told_apart():
    values = np.array([[3.0, 2.0, 1.0], [1.0, 3.0, 2.0], [2.0, 1.0, 3.0]] * 4)
    found = build_ranking(values, ["a", "b", "c"])
    assert found.p == pytest.approx(1)
    assert found.cliques == [(0, 2)]
