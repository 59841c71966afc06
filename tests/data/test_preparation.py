"""Laws of what cells become: fitted on training rows, and on nothing else."""

import json
from datetime import datetime

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.preprocessing import RobustScaler, StandardScaler

from coterie.core.errors import BadInput, CannotWrite
from coterie.core.memory_map import map_tensor
from coterie.data.pipeline import build_federation
from coterie.data.prepare import transforms
from coterie.data.prepare.preparation import preparation_from_dict, prepare_frame
from coterie.data.read.user_data import from_arrays, from_frame

ROWS = 240


def people(seed=0):
    """A table with a column of every kind, of eight clients."""
    rng = np.random.default_rng(seed)
    income = np.exp(rng.normal(12, 1, ROWS))
    income[rng.random(ROWS) < 0.2] = np.nan
    job = rng.choice(["cook", "nurse", "clerk"], ROWS).astype(object)
    job[rng.random(ROWS) < 0.1] = None
    when = np.datetime64("2024-01-01", "ms") + rng.integers(0, 500_000, ROWS).astype("m8[m]")
    return pl.DataFrame(
        {
            "client": [f"c{i % 8}" for i in range(ROWS)],
            "age": rng.normal(40, 9, ROWS),
            "income": pl.Series(income, nan_to_null=True),
            "job": pl.Series(job.tolist()),
            "city": [f"town {k}" for k in rng.integers(0, 60, ROWS)],
            "when": when,
            "smokes": rng.random(ROWS) < 0.3,
            "same": [3.5] * ROWS,
            "label": rng.choice(["sick", "well"], ROWS),
        }
    )


def rows_in(federation, *parts):
    """The numbers of the rows that are in some parts, in the user's table."""
    lists = [rows for part in parts for rows in getattr(federation, part)]
    return federation.rows[np.concatenate(lists)]


def garbage(frame, rows):
    """The same table with nonsense in the features of some rows, no two of them alike: copies of a
    row would be kept in one part.
    """
    hit = pl.Series(np.isin(np.arange(frame.height), rows))
    nonsense = {
        "age": pl.int_range(frame.height) + 1e12,
        "income": -1e12,
        "job": "astronaut",
        "city": "nowhere",
        "when": datetime(1800, 1, 1, 12, 34),
        "smokes": True,
        "same": 99.0,
    }
    return frame.with_columns(
        pl.when(hit)
        .then(value if isinstance(value, pl.Expr) else pl.lit(value))
        .otherwise(pl.col(name))
        .cast(frame[name].dtype)
        .alias(name)
        for name, value in nonsense.items()
    )


@pytest.mark.parametrize("scale", ["standard", "robust", "client", "none"])
def test_nothing_that_is_fitted_depends_on_validation_or_test_rows(scale):
    frame = people()
    clean = build_federation(from_frame(frame), scale=scale)
    other = garbage(frame, rows_in(clean, "validation", "test"))
    spoilt = build_federation(from_frame(other), scale=scale)
    assert json.dumps(spoilt.preparation.to_dict()) == json.dumps(clean.preparation.to_dict())
    assert spoilt.names == clean.names
    for one, two in zip(clean.train, spoilt.train, strict=True):
        assert np.array_equal(clean.x[one], spoilt.x[two])
    assert not np.array_equal(clean.x[clean.test[0]], spoilt.x[spoilt.test[0]])
    seen = garbage(frame, rows_in(clean, "train")[:20])
    assert build_federation(from_frame(seen), scale=scale).preparation != clean.preparation


@pytest.mark.parametrize("scale", ["pixel", "channel"])
def test_the_scale_of_images_does_not_depend_on_validation_or_test_rows(scale):
    images = np.random.default_rng(0).integers(0, 256, (120, 6, 6, 3)).astype(np.uint8)
    y, clients = np.arange(120) % 2, np.arange(120) % 4
    clean = build_federation(from_arrays(images, y, clients), scale=scale)
    spoilt = images.copy()
    spoilt[rows_in(clean, "validation", "test")] = 255
    got = build_federation(from_arrays(spoilt, y, clients), scale=scale)
    assert got.preparation == clean.preparation
    train = np.concatenate(clean.train)
    assert np.array_equal(got.x[train], clean.x[train])


def test_who_is_left_out_does_not_depend_on_what_rows_hold():
    frame = people().with_columns(
        client=pl.Series(["tiny", "tiny", *(f"c{i % 8}" for i in range(ROWS - 2))])
    )
    with pytest.warns(UserWarning, match="1 of 9 clients are left out.*: tiny"):
        clean = build_federation(from_frame(frame))
    other = garbage(frame, rows_in(clean, "validation", "test"))
    with pytest.warns(UserWarning, match="tiny"):
        spoilt = build_federation(from_frame(other))
    assert spoilt.names == clean.names == [f"c{i}" for i in range(8)]
    assert spoilt.preparation.left_out == clean.preparation.left_out == ("tiny",)


@pytest.mark.parametrize(
    ("scale", "scaler"), [("standard", StandardScaler()), ("robust", RobustScaler())]
)
def test_numbers_are_scaled_as_scikit_learn_scales_the_training_rows(scale, scaler):
    frame = people()
    got = build_federation(from_frame(frame, features="age"), scale=scale)
    cells = frame["age"].to_numpy()[:, None]
    scaler.fit(cells[rows_in(got, "train")])
    assert np.allclose(got.x.numpy(), scaler.transform(cells[got.rows]), atol=1e-5)


def test_small_spreads_on_large_numbers_are_kept():
    rng = np.random.default_rng(0)
    x = np.stack([1.7e9 + rng.normal(size=200), 1e-6 * rng.normal(size=200)], 1)
    frame = pl.DataFrame(x, schema=["clock", "tiny"]).with_columns(
        client=pl.Series(np.arange(200) % 4), label=pl.Series(np.arange(200) % 2)
    )
    got = build_federation(from_frame(frame))
    seen = got.x[np.concatenate(got.train)]
    assert np.allclose(seen.std(0, correction=0), 1, atol=1e-4)


def test_every_client_may_be_scaled_by_its_own_rows():
    frame = people().with_columns(age=pl.col("age") + 100 * (pl.col("client") == "c3"))
    got = build_federation(from_frame(frame, features="age"), scale="client")
    for rows in got.train:
        assert abs(float(got.x[rows].mean())) < 1e-5
    pooled = build_federation(from_frame(frame, features="age"))
    assert float(pooled.x[pooled.train[3]].mean()) > 1


def test_gaps_take_the_training_median_and_are_marked():
    frame = people()
    got = build_federation(from_frame(frame, features="income"), scale="none")
    income = frame["income"].to_numpy()
    median = np.nanmedian(income[rows_in(got, "train")])
    gone = np.isnan(income[got.rows])
    assert got.preparation.outputs == ["income", "income (missing)"]
    assert np.array_equal(got.x[:, 1].numpy(), gone)
    assert np.allclose(got.x[:, 0].numpy(), np.where(gone, median, income[got.rows]), rtol=1e-6)


def test_texts_have_a_column_each_and_one_for_those_never_seen_in_training():
    frame = people()
    first = build_federation(from_frame(frame, features="job"))
    odd = first.rows[first.test[0][0]]
    names = ["job = clerk", "job = cook", "job = nurse", "job = (other)", "job (missing)"]
    assert first.preparation.outputs == names
    changed = garbage(frame, [odd])
    got = build_federation(from_frame(changed, features="job"))
    assert got.preparation.outputs == names
    assert got.x[got.test[0][0]].tolist() == [0, 0, 0, 1, 0]
    assert (got.x.sum(1) == 1).all()


def test_many_texts_are_hashed_and_one_hot_is_a_choice():
    frame = people()
    got = build_federation(from_frame(frame, features="city"))
    assert got.input_shape == (32,)
    assert (got.x.sum(1) == 1).all()
    towns = frame["city"].to_numpy()[got.rows]
    where = got.x.argmax(1).numpy()
    assert all(len(set(where[towns == town])) == 1 for town in set(towns))
    assert build_federation(from_frame(frame, features="city", one_hot=60)).input_shape[0] > 50


def test_dates_are_days_weekdays_and_hours():
    frame = people()
    got = build_federation(from_frame(frame, features="when"), scale="none")
    when = frame["when"][got.rows.tolist()]
    x = got.x.numpy()
    assert np.allclose(x[:, 0], when.cast(pl.Datetime("us")).cast(pl.Int64) / 86.4e9, atol=0.01)
    weekday = 2 * np.pi * (when.dt.weekday().to_numpy() - 1) / 7
    assert np.allclose(x[:, 1:3], np.stack([np.sin(weekday), np.cos(weekday)], 1), atol=1e-5)
    hour = 2 * np.pi * (when.dt.hour() + when.dt.minute() / 60).to_numpy() / 24
    assert np.allclose(x[:, 3:5], np.stack([np.sin(hour), np.cos(hour)], 1), atol=1e-5)


@pytest.mark.parametrize("full", [False, True])
def test_inputs_of_a_large_table_lie_in_a_file_if_the_disk_has_room(full, monkeypatch):
    whole = build_federation(from_frame(people())).x
    mapped = []

    def mapping(file, like, rows):
        if full:
            raise CannotWrite("no room")
        mapped.append(map_tensor(file, like, rows))
        return mapped[-1]

    monkeypatch.setattr(transforms, "IN_MEMORY", 1)
    monkeypatch.setattr(transforms, "map_tensor", mapping)
    found = build_federation(from_frame(people())).x
    assert torch.equal(found, whole)
    assert [found.data_ptr()] == [m.data_ptr() for m in mapped] or full


def test_a_constant_column_is_0_even_where_a_test_row_differs():
    frame = people()
    clean = build_federation(from_frame(frame, features="same,age"))
    got = build_federation(from_frame(garbage(frame, rows_in(clean, "test")), features="same,age"))
    assert (got.x[:, 0] == 0).all()


@pytest.mark.parametrize("scale", ["standard", "client"])
def test_a_preparation_read_from_json_prepares_later_rows_alike(scale):
    frame = people()
    got = build_federation(from_frame(frame), scale=scale)
    kept = preparation_from_dict(json.loads(json.dumps(got.preparation.to_dict())))
    assert kept == got.preparation
    rows = [5, 17, 3]  # few rows, in which a column may look like another kind
    owners = frame["client"][rows].to_list()
    again = prepare_frame(kept, frame[rows], "later", owners)
    at = [int(np.flatnonzero(got.rows == row)[0]) for row in rows]
    assert np.array_equal(again, got.x[at].numpy())
    with pytest.raises(BadInput, match="no column 'age' as in training"):
        prepare_frame(kept, frame.drop("age"), "later")
    with pytest.raises(BadInput, match="'age' holds a date, but was a number"):
        prepare_frame(kept, frame.with_columns(age=pl.col("when")), "later")
