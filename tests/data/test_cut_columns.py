"""Laws of cuts: what a cut keeps apart is never on both of its sides."""

import numpy as np
import polars as pl
import pytest

from coterie.core.errors import BadInput
from coterie.data.partition.cuts import Shares, cut_by_time, cut_groups
from coterie.data.pipeline import build_federation
from coterie.data.read.user_data import from_arrays, from_frame

PARTS = ("train", "validation", "select", "test")


def visits(n=400, patients=60, clients=5, seed=0):
    rng = np.random.default_rng(seed)
    patient = rng.integers(0, patients, n)
    return pl.DataFrame(
        {
            "client": [f"h{k}" for k in rng.integers(0, clients, n)],  # patients change hospital
            "patient": [f"p{k}" for k in patient],
            "day": np.datetime64("2024-01-01") + rng.integers(0, 90, n).astype("m8[D]"),
            "a": rng.normal(size=n),
            "label": patient % 2,
        }
    )


def held(federation, column):
    """[client][part] the values of a column."""
    return [
        [set(column[federation.rows[getattr(federation, part)[i]]]) for part in PARTS]
        for i in range(federation.clients)
    ]


def test_time_trains_before_it_validates_and_tests_and_never_cuts_a_moment():
    frame = visits()
    got = build_federation(from_frame(frame, cut_column="day"), cut="time")
    for train, validation, select, test in held(got, frame["day"].to_numpy()):
        assert max(train) < min(validation)
        assert max(validation) < min(select)
        assert max(select) < min(test)
    assert got.preparation.outputs == ["patient #" + str(k) for k in range(32)] + ["a"]
    shares = [sum(map(len, getattr(got, part))) / 400 for part in PARTS]
    assert np.allclose(shares, [0.6, 0.1, 0.1, 0.2], atol=0.05)


def test_a_group_is_in_one_part_only_over_all_clients():
    frame = visits()
    got = build_federation(from_frame(frame, cut_column="patient"), cut="groups")
    found = [
        set.union(*(client[k] for client in held(got, frame["patient"].to_numpy())))
        for k in range(len(PARTS))
    ]
    assert all(found)
    assert sum(map(len, found)) == len(set.union(*found)) == frame["patient"].n_unique()
    assert (
        build_federation(from_frame(frame, cut_column="patient"), cut="groups", seed=1).names
        == got.names
    )


def test_few_groups_still_fill_every_part():
    groups = np.repeat([0.0, 1.0, 2.0], [90, 5, 5])
    cut = cut_groups([np.arange(100)], groups, Shares(0.2, 0.2), [np.random.default_rng(0)])
    assert sorted(len(part) for part in cut[0]) == [5, 5, 90]
    assert len(cut[0][0]) == 90
    two = cut_groups([np.arange(100)], groups, Shares(0.0, 0.2), [np.random.default_rng(0)])
    assert len(two[0][1]) == 0
    assert len(two[0][2]) in (5, 10)


def test_one_moment_alone_leaves_no_row_to_test():
    train, _, test = cut_by_time(np.arange(10), np.zeros(10), Shares(0.2, 0.2))
    assert len(train) == 10
    assert len(test) == 0


def test_arrays_are_cut_by_values_of_their_own():
    times = np.random.default_rng(0).permutation(100)
    own = from_arrays(np.zeros((100, 2)), times % 2, np.arange(100) % 2, cut_by=times)
    for train, validation, select, test in held(build_federation(own, cut="time"), times):
        assert max(train) < min(validation) <= max(validation) < min(select)
        assert max(select) < min(test)


@pytest.mark.parametrize(
    ("frame", "column", "cut", "settings"),
    [
        (visits(), "", "time", "name it with --cut-column"),
        (visits(), "day", "shuffle", "no effect without cut = time"),
        (visits(), "day", None, "no effect without cut = time"),
        (visits(), "patient", "time", "neither dates nor numbers"),
        (visits(), "dya", "time", "did you mean 'day'"),
        (
            visits().with_columns(pl.when(pl.col("a") < 2).then("day").alias("day")),
            "day",
            "time",
            "column 'day' is empty in row",
        ),
    ],
)
def test_a_cut_that_cannot_be_made_is_refused(frame, column, cut, settings):
    with pytest.raises(BadInput, match=settings):
        build_federation(from_frame(frame, cut_column=column), cut=cut)
