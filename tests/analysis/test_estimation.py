"""Errors of estimates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.analysis import estimation

calm = settings(deadline=None)  # no test may fail because the machine is busy


def test_estimation_errors_worked_by_hand():
    assert estimation.estimation_errors(1.5, 1.6, [1.0, 2.0], [1.5, 1.0]) == pytest.approx(
        (0.1, 0.75)
    )
    found = estimation.estimation_errors(
        [1.5, 1.9], 1.6, [[1.0, 2.0], [3.0, 3.0]], [[1.5, 1.0], [3.0, 2.5]]
    )
    assert found == pytest.approx((0.2, 0.5))


@calm
@given(st.lists(st.floats(-9, 9), min_size=1, max_size=20), st.floats(-5, 5), st.floats(-5, 5))
def test_estimation_errors_do_not_depend_on_the_origin(personal, theta, shift):
    truth = np.linspace(-1, 1, len(personal))
    found = estimation.estimation_errors(theta, 1.6, personal, truth)
    moved = estimation.estimation_errors(
        theta + shift, 1.6 + shift, np.array(personal) + shift, truth + shift
    )
    assert found == pytest.approx(moved)
    assert min(found) >= 0
