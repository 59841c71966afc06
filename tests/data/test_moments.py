"""Laws of summaries that clients give away instead of their rows."""

import numpy as np
import pytest

from coterie.data.prepare.moments import Moments


def added(parts):
    total = Moments.none(parts[0].shape[1])
    for part in parts:
        total = total.plus(Moments.of(part))
    return total


@pytest.mark.parametrize("centre", [0.0, 1e9])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e4])
def test_summaries_of_clients_add_up_to_that_of_all_rows(centre, spread):
    rows = centre + spread * np.random.default_rng(0).normal(size=(500, 3))
    rows[::7, 1] = np.nan
    mean, deviation = added(np.split(rows, [3, 50, 51, 400])).standard()
    assert np.allclose(mean, np.nanmean(rows, 0), rtol=1e-12)
    assert np.allclose(deviation, np.nanstd(rows, 0), rtol=1e-4)


def test_a_constant_column_has_no_deviation_and_an_empty_one_no_mean():
    rows = np.full((30, 3), 0.1)
    rows[:, 1] = np.nan
    rows[:, 2] = 1e17 / 3
    mean, deviation = added(np.array_split(rows, 7)).standard()
    assert deviation.tolist() == [0, 0, 0]
    assert mean[1] == 0
