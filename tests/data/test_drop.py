"""Columns that are left out by name."""

import polars as pl
import pytest

from coterie.core.errors import BadInput
from coterie.data.read.user_data import from_frame

FRAME = pl.DataFrame(
    {
        "client": ["a", "b"] * 4,
        "id": range(8),
        "part": ["train", "test"] * 4,
        "x": [0.5 * k for k in range(8)],
        "label": [0, 1] * 4,
    }
)


def columns_of(data):
    return [column.name for column in data.columns]


def test_dropped_columns_are_no_features():
    assert columns_of(from_frame(FRAME)) == ["id", "part", "x"]
    assert columns_of(from_frame(FRAME, drop="id,part")) == ["x"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"drop": "age"}, "there is no column 'age'"),
        ({"drop": "client"}, "has no effect, as 'client' is the client, no input anyway"),
        ({"drop": "label"}, "'label' is the label, no input anyway: leave it out of --drop"),
        ({"drop": "id", "cut_column": "id"}, "as 'id' is the cut_column, no input"),
        ({"drop": "part", "part_column": "part"}, "has no effect, as 'part' is the part_column"),
        ({"drop": "id", "categories": "id"}, "column 'id' is in drop and in categories"),
        ({"drop": "id", "features": "x"}, "has no effect beside features"),
    ],
)
def test_what_cannot_be_dropped_is_refused(settings, said):
    with pytest.raises(BadInput, match=said):
        from_frame(FRAME, **settings)
