"""Densities of gains."""

import numpy as np
import pytest

from coterie.analysis.density import density


@pytest.mark.parametrize(
    "values", [[3.0], [2.0, 2.0, 2.0], [1.0, 4.0], list(range(20)), [5.0, np.nan, 5.0]]
)
def test_a_density_is_one_in_all(values):
    grid = np.linspace(-100, 100, 20_001)
    assert np.trapezoid(density(np.array(values, dtype=float), grid), grid) == pytest.approx(
        1, abs=1e-6
    )
