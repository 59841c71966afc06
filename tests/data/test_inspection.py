"""Laws of what looks wrong: it is found where it is, and nowhere else."""

import warnings

import numpy as np
import polars as pl
import pytest

from coterie.data.inspection import find_problems, summarize_columns
from coterie.data.pipeline import build_federation
from coterie.data.read.user_data import from_frame

ROWS = 400


def fine(**more):
    rng = np.random.default_rng(0)
    columns = {
        "client": [f"c{i % 5}" for i in range(ROWS)],
        "a": rng.normal(size=ROWS),
        "b": rng.integers(0, 9, ROWS),
        "label": rng.choice(["x", "y", "z"], ROWS),
    }
    return pl.DataFrame(columns | more)


def test_a_table_without_problems_has_none():
    assert find_problems(from_frame(fine())) == []


LABELS = fine()["label"].to_list()
CODES = np.array([ord(label) for label in LABELS])


@pytest.mark.parametrize(
    ("more", "settings"),
    [
        ({"label": ["X" if i == 3 else v for i, v in enumerate(LABELS)]}, "'X' and 'x'"),
        ({"label": ["x " if i % 9 else v for i, v in enumerate(LABELS)]}, "'x' and 'x '"),
        ({"client": [" c1" if i % 50 == 0 else f"c{i % 5}" for i in range(ROWS)]}, "clients that"),
        ({"label": ["rare", *LABELS[1:]]}, "labels of a single row: 'rare'"),
        ({"label": ["x"] * ROWS}, "there is one label only"),
        ({"label": ["y"] * 20 + ["x"] * (ROWS - 20)}, "95% of the rows are 'x', so accuracy says"),
        ({"label": np.arange(ROWS)}, "400 labels: is the label column a quantity"),
        ({"same": [1] * ROWS}, "constant columns, without use: 'same'"),
        ({"gone": [None] * ROWS}, "columns without any cell: 'gone'"),
        ({"key": np.arange(ROWS)}, "look like an id (leave them out with --drop): 'key'"),
        ({"key": [f"k{i}" for i in range(ROWS)]}, "look like an id"),
        (
            {"far": np.exp(6 * np.random.default_rng(2).normal(size=ROWS))},
            "interquartile ranges from the median, which move every model (take logarithms?): '",
        ),
        ({"big": 2**60 + np.arange(ROWS) // 2}, "beyond 2^53"),
        ({"leak": [f"code {v}" for v in LABELS]}, "give the label away (known before it?): 'leak'"),
        ({"leak": CODES + np.random.default_rng(1).normal(0, 0.01, ROWS)}, "label away"),
    ],
)
def test_what_looks_wrong_is_said(more, settings):
    found = find_problems(from_frame(fine(**more), keep_ids=True))
    assert any(settings in line for line in found), found


def test_what_makes_figures_mean_something_else_is_said_before_training_too(tmp_path):
    frame = fine(
        label=["X" if i == 3 else v for i, v in enumerate(LABELS)], leak=[f"k {v}" for v in LABELS]
    )
    frame.write_csv(tmp_path / "t.csv")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build_federation(tmp_path / "t.csv")
    said = "\n".join(str(one.message) for one in caught)
    assert "labels that differ only by case or blanks: 'X' and 'x'" in said
    assert "give the label away (known before it?): 'leak'" in said


def test_copies_of_rows_are_counted_within_and_across_clients():
    frame = fine()
    copied = pl.concat([frame, frame[:10], frame[:4].with_columns(client=pl.lit("other"))])
    found = find_problems(from_frame(copied))
    assert any("14 rows are copies of another (3.4%)" in line for line in found)
    assert any("4 rows are held by several clients" in line for line in found)


def test_columns_say_what_they_become():
    frame = fine(
        town=[f"t{i % 50}" for i in range(ROWS)],
        gaps=pl.Series([None if i % 4 == 0 else i / 7 for i in range(ROWS)]),
        same=[2] * ROWS,
    )
    own = from_frame(frame)
    found = {c.name: c for c in summarize_columns(own, build_federation(own).preparation)}
    assert found["a"].becomes == "standardised"
    assert found["town"].becomes == "hashed to 32"
    assert found["gaps"].becomes == "standardised, gaps"
    assert found["gaps"].missing == 0.25
    assert found["same"].becomes == "constant: 0"
    assert found["b"].holds == "0 to 8"
