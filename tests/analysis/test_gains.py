"""Gain: the thesis' tables, hand-worked values and bounds."""

from math import nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.analysis import gains
from coterie.core.errors import BadInput
from helpers.thesis import ALGORITHMS, FEDAVG, LOCAL, METHODS, TABLE62, percent, table51

calm = settings(deadline=None)  # no test may fail because the machine is busy

TABLE68 = {  # MPI, API and AA on DS-1, DS-2, DS-3
    "persfl": ((38.74, 11.23, 33.29), (36.87, 10.83, 35.67), (81.85, 59.56, 82.29)),
    "fedper": ((34.53, 6.59, 30.43), (33.18, 6.41, 32.59), (78.16, 55.13, 79.21)),
    "pfedme": ((24.58, 10.81, 31.06), (23.98, 10.47, 31.44), (68.95, 59.19, 78.07)),
    "perfedavg": ((22.9, 8.55, 32.65), (21.95, 8.85, 31.17), (66.93, 57.57, 77.79)),
}


@pytest.mark.parametrize(
    ("name", "improved", "decreased"),
    [("alg1", 4, 4), ("alg2", 5, 4), ("alg3", 3, 6), ("alg4", 2, 7)],
)
def test_table_5_1_counts_of_users_who_gain_and_lose(name, improved, decreased):
    found = gains.improvement(gains.qoi(percent(ALGORITHMS[name]), percent(FEDAVG), percent(LOCAL)))
    assert (found.pui, found.pud) == pytest.approx((100 * improved / 9, 100 * decreased / 9))


def test_table_5_1_averages():
    found = [
        100 * table51()[name].mean() for name in ("local", "fedavg", "alg1", "alg2", "alg3", "alg4")
    ]
    assert found == pytest.approx([67.89, 76.78, 78, 78.11, 78.44, 79.33], abs=0.006)


def test_table_5_1_gains_worked_by_hand():
    q = gains.qoi(percent(ALGORITHMS["alg1"]), percent(FEDAVG), percent(LOCAL))
    assert q == pytest.approx([4, 7, 13, 4, 0, -2, -3, -5, -7])
    assert gains.improvement(q)[2:] == pytest.approx((5.5, 7, -4, -4.25))


def test_local_counts_where_it_is_better_than_fedavg():
    assert gains.qoi([0.8, 0.8], [0.5, 0.9], [0.7, 0.1]) == pytest.approx([10, -10])


@pytest.mark.parametrize("split", [0, 1, 2])
@pytest.mark.parametrize("method", METHODS[1:])
def test_table_6_8_is_the_gain_over_fedavg_of_table_6_2(method, split):
    found = gains.improvement(gains.qoi_global(TABLE62[method, split], TABLE62["fedavg", split]))
    mpi, api, mean = (row[split] for row in TABLE68[method])
    assert (found.pui, found.pud) == (100, 0)
    assert (found.mpi, found.api) == pytest.approx((mpi, api), abs=0.06)
    assert np.isnan(found.mpd)
    assert np.isnan(found.apd)
    assert 100 * TABLE62[method, split].mean() == pytest.approx(mean, abs=0.06)


def test_gain_of_nobody_is_nan_and_counts_zero():
    found = gains.improvement([0.0, 0.0])
    assert (found.pui, found.pud) == (0, 0)
    assert np.isnan(found[2:]).all()
    assert gains.improvement([])[:2] == (0, 0)


def test_rounding_of_a_mean_is_no_gain():
    a, b = np.mean([0.1, 0.2, 0.3]), np.mean([0.3, 0.2, 0.1]) + 1e-16
    assert gains.improvement(gains.qoi([b], [a], [a])).pui == 0


def test_a_client_without_a_number_does_not_count():
    assert gains.improvement(gains.qoi([0.9, nan, 0.4], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]))[:2] == (
        50,
        50,
    )


def test_percent_instead_of_shares_are_refused():
    with pytest.raises(BadInput, match="not percent"):
        gains.qoi_global([85.5], [0.4])
    with pytest.raises(BadInput, match="not percent"):
        gains.qoi([0.5], [43.6], [0.4])


@calm
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=40))
def test_gains_and_losses_split_the_clients(q):
    found, mirrored = gains.improvement(q), gains.improvement([-x for x in q])
    assert 0 <= found.pui + found.pud <= 100 + 1e-9
    assert found.pui == mirrored.pud
    assert np.isnan(found.api) == (found.pui == 0)
    if found.pui:
        assert min(x for x in q if x > 0) <= found.mpi <= max(q)
        assert (found.mpi, found.api) == pytest.approx((-mirrored.mpd, -mirrored.apd))
