"""Columns that are left out by name."""

import polars as pl
import pytest

from coterie.core.errors import BadInput
from coterie.data.read.user_data import from_frame

FRAME = pl.DataFrame(
    {
        "client": ["a", "b"] * 4,
        "id": range(8),
        "x": [0.5 * k for k in range(8)],
        "label": [0, 1] * 4,
    }
)


def columns_of(data):
    return [column.name for column in data.columns]


def test_dropped_columns_are_no_features():
    assert columns_of(from_frame(FRAME)) == ["id", "x"]
    assert columns_of(from_frame(FRAME, drop="id")) == ["x"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"drop": "age"}, "there is no column 'age'"),
        ({"drop": "client"}, "is client or label"),
        ({"drop": "id", "features": "x"}, "has no effect beside features"),
    ],
)
def test_what_cannot_be_dropped_is_refused(settings, said):
    with pytest.raises(BadInput, match=said):
        from_frame(FRAME, **settings)
