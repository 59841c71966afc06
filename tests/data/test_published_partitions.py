"""Partitions that somebody has published: a part column, or an index file."""

import json

import numpy as np
import polars as pl
import pytest

import coterie
from coterie.core.errors import BadInput
from coterie.data.pipeline import build_federation
from coterie.data.read.user_data import from_arrays, from_frame, read_user_data

PARTS = ("train", "validation", "test")


def table(n=60, clients=3, parts=("train", "train", "test")):
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "client": [f"c{i % clients}" for i in range(n)],
            "a": rng.normal(size=n),
            "label": rng.integers(0, 2, n),
            "fold": [parts[(i // clients) % len(parts)] for i in range(n)],
        }
    )


def rows_of(federation, part):
    return [set(federation.rows[rows].tolist()) for rows in getattr(federation, part)]


def write_index(folder, kind, listed):
    """An index file of {client: {part: rows}}."""
    path = folder / f"index.{kind}"
    if kind == "npz":
        np.savez(
            path, **{f"{part}{c}": rows for c, h in listed.items() for part, rows in h.items()}
        )
    elif kind == "json":
        path.write_text(json.dumps(listed))
    else:
        lines = [f"{c},{p},{r}" for c, h in listed.items() for p, rows in h.items() for r in rows]
        path.write_text("\n".join(["client,part,row", *lines]))
    return path


LISTED = {
    "0": {"train": [*range(40)], "test": [*range(40, 50)]},
    "1": {"train": [*range(60, 90)], "test": [50, 59, 1796]},
}


def test_a_part_column_decides_on_test_rows_and_is_no_feature():
    frame = table()
    got = build_federation(from_frame(frame, part_column="fold"))
    said = frame["fold"].to_numpy()
    assert got.preparation.outputs == ["a"]
    assert all(set(said[[*rows]]) == {"test"} for rows in rows_of(got, "test"))
    for part in ("train", "validation", "select"):
        assert all(set(said[[*rows]]) == {"train"} for rows in rows_of(got, part))
    assert sum(map(len, rows_of(got, "test"))) == (said == "test").sum()


def test_all_published_training_rows_train_without_a_validation_share():
    frame = table()
    got = build_federation(from_frame(frame, part_column="fold"), validation=0)
    assert got.sizes.sum() == (frame["fold"] == "train").sum()


def test_published_validation_rows_are_those_that_methods_and_choices_get():
    frame = table(parts=PARTS)
    got = build_federation(from_frame(frame, part_column="fold"))
    said = frame["fold"].to_numpy()
    held = [a | b for a, b in zip(rows_of(got, "validation"), rows_of(got, "select"), strict=True)]
    assert set.union(*held) == set(np.flatnonzero(said == "validation").tolist())
    assert set.union(*rows_of(got, "train")) == set(np.flatnonzero(said == "train").tolist())


def test_files_frames_and_arrays_take_the_same_parts(tmp_path):
    frame = table()
    frame.write_csv(tmp_path / "t.csv")
    np.savez(
        tmp_path / "t.npz",
        x=frame.select("a").to_numpy(),
        y=frame["label"].to_numpy(),
        clients=frame["client"].to_numpy().astype(str),
        fold=frame["fold"].to_numpy().astype(str),
    )
    arrays = from_arrays(
        frame.select("a").to_numpy(), frame["label"], frame["client"], parts=frame["fold"]
    )
    ways = [
        from_frame(frame, part_column="fold"),
        read_user_data(tmp_path / "t.csv", part_column="fold"),
        read_user_data(tmp_path / "t.npz", part_column="fold"),
        arrays,
    ]
    made = [rows_of(build_federation(way), "test") for way in ways]
    assert all(one == made[0] for one in made)


@pytest.mark.parametrize("kind", ["npz", "json", "csv"])
def test_an_index_file_is_the_partition(tmp_path, kind):
    path = write_index(tmp_path, kind, LISTED)
    got = build_federation("digits", partition=str(path), validation=0)
    assert got.names == ["0", "1"]
    for part in ("train", "test"):
        assert rows_of(got, part) == [set(held[part]) for held in LISTED.values()]


@pytest.mark.parametrize(
    "text",
    [
        {"train": {c: h["train"] for c, h in LISTED.items()}, "test": {"0": [41], "1": [50]}},
        [h["train"] for h in LISTED.values()],
        {c: h["train"] for c, h in LISTED.items()},
        [LISTED["0"], LISTED["1"]],
    ],
)
def test_json_may_be_by_part_and_in_lists_and_without_parts(tmp_path, text):
    path = tmp_path / "index.json"
    path.write_text(json.dumps(text))
    got = build_federation("digits", partition=str(path), validation=0)
    owned = [a | b for a, b in zip(rows_of(got, "train"), rows_of(got, "test"), strict=True)]
    for mine, held in zip(owned, LISTED.values(), strict=True):
        assert set(held["train"]) <= mine


def test_an_index_file_replaces_the_client_column_of_an_own_table(tmp_path):
    frame = table()
    listed = {"x": {"train": [*range(20)], "test": [*range(20, 30)]}}
    listed["y"] = {"train": [*range(30, 45)], "test": [*range(45, 60)]}
    path = write_index(tmp_path, "json", listed)
    got = build_federation(
        from_frame(frame.drop("client", "fold"), client=""), partition=str(path), validation=0
    )
    assert got.names == ["x", "y"]
    assert rows_of(got, "test") == [set(held["test"]) for held in listed.values()]


def test_a_run_keeps_the_index_file_as_a_whole_path(tmp_path, monkeypatch):
    write_index(tmp_path, "json", LISTED)
    monkeypatch.chdir(tmp_path)
    run = coterie.run(
        "fedavg", dataset="digits", partition="index.json", model="mlr", rounds=1, out="run"
    )
    assert run.experiment.partition == {"name": str(tmp_path / "index.json")}
    assert len(run.accuracy()) == 2


def change(**parts):
    return {**LISTED, "1": {**LISTED["1"], **parts}}


@pytest.mark.parametrize("kind", ["npz", "json", "csv"])
@pytest.mark.parametrize(
    ("listed", "settings"),
    [
        (change(train=[3, 60]), "row 3 is listed twice, as train of client '0' and as train of"),
        (change(test=[60]), "row 60 is listed twice, as train of client '1' and as test of"),
        (change(test=[1797]), "client '1' lists row 1,797, but 'digits' has 1,797 rows"),
        (change(test=[-1]), "client '1' lists row -1"),
        ({**LISTED, "2": {"train": [100]}}, "client '2' has no test rows"),
        ({**LISTED, "2": {"test": [100]}}, "client '2' has no train rows"),
    ],
)
def test_a_bad_index_file_is_refused_with_the_row_and_the_client(tmp_path, kind, listed, settings):
    path = write_index(tmp_path, kind, listed)
    with pytest.raises(BadInput) as refusal:
        build_federation("digits", partition=str(path))
    assert settings in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "text", "settings"),
    [
        ("a.json", '{"0": {"trian": [1]}}', "in part 'trian'; a part is train, validation, test"),
        ("a.csv", "client,part,row\n0,exam,1", "in part 'exam'"),
        ("a.json", "[", "this is no JSON"),
        ("a.json", '{"0": "1"}', "no list of whole row numbers"),
        ("a.json", '{"0": [1.5]}', "no list of whole row numbers"),
        ("a.json", "{}", "lists no rows"),
        ("a.csv", "client,rows\n0,1", "no column 'row'"),
        ("a.csv", "client,row\n0,x", "holds no whole numbers"),
        ("a.npz", "nothing", "no readable .npz file"),
    ],
)
def test_a_file_that_is_no_index_file_is_refused_in_one_line(tmp_path, name, text, settings):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BadInput) as refusal:
        build_federation("digits", partition=str(path))
    assert settings in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("frame", "choices", "settings"),
    [
        (table(parts=("train", "exam")), {}, "column 'fold' is 'exam' in row 4; a part is"),
        (table(), {"cut": "shuffle"}, "cut = 'shuffle' has no effect"),
        (table(), {"test": 0.3}, "test = 0.3 has no effect"),
        (table(parts=PARTS), {"validation": 0.0}, "validation = 0 has no effect"),
        (table(parts=("train",)), {}, "no published test rows"),
    ],
)
def test_parts_that_cannot_be_and_options_without_effect_are_refused(frame, choices, settings):
    with pytest.raises(BadInput, match=settings):
        build_federation(from_frame(frame, part_column="fold"), **choices)


def test_official_test_rows_may_be_the_test_rows_of_any_split():
    arrays = from_arrays(np.zeros((40, 2)), np.arange(40) % 2)
    data = arrays._replace(data=arrays.data._replace(train=np.arange(40) % 4 > 0))
    got = build_federation(data, partition="iid", num_clients=2, cut="published")
    official = set(range(0, 40, 4))
    assert set.union(*rows_of(got, "test")) == official
    assert not set.union(*rows_of(got, "train")) & official


def test_an_index_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadInput, match="no index file"):
        build_federation("digits", partition=str(tmp_path / "a.npz"))


def test_an_index_file_is_found_in_the_folder_of_data_sets(tmp_path, monkeypatch):
    (tmp_path / "deals").mkdir()
    np.savez(tmp_path / "deals" / "a.npz", train0=[0, 1, 2, 3], test0=[4, 5])
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    got = build_federation("digits", partition="deals/a.npz", validation=0)
    assert [len(got.train[0]), len(got.test[0])] == [4, 2]
