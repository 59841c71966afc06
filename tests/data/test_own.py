"""Data of one's own: tables, folders, arrays."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import csv, ipc, parquet

from coterie.core.errors import BadInput
from coterie.data.pipeline import build_federation
from coterie.data.read import user_data

COLUMNS = {
    "client": ["b", "a", "b", "a10", "a", "a10", "a2", "a2"],
    "age": [31, 42, 53, 64, 25, 36, 47, 58],
    "dose": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5],
    "label": ["sick", "well", "well", "sick", "sick", "well", "sick", "well"],
}


def check_own(got):
    assert got.clients == ["a", "a2", "a10", "b"]
    assert got.labels == ["sick", "well"]
    at = {(c, a): (d, y) for c, a, d, y in zip(*COLUMNS.values(), strict=True)}
    assert len(got.data.y) == 8
    for x, y, user in zip(got.data.x, got.data.y, got.data.users, strict=True):
        assert at[got.clients[user], x[0]] == (x[1], got.labels[y])


def write(columns, path):
    if path.suffix == ".csv":
        csv.write_csv(pa.table(columns), path)
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path)
    else:
        keys = {"clients": columns["client"]} if "client" in columns else {}
        np.savez(path, x=np.stack([columns["age"], columns["dose"]], 1), y=columns["label"], **keys)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_own_table_with_a_client_column(tmp_path, suffix):
    write(COLUMNS, tmp_path / f"sites{suffix}")
    check_own(user_data.read_user_data(tmp_path / f"sites{suffix}"))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_own_folder_with_one_file_a_client(tmp_path, suffix):
    for name in sorted(set(COLUMNS["client"])):
        rows = [i for i, c in enumerate(COLUMNS["client"]) if c == name]
        columns = {k: [v[i] for i in rows] for k, v in COLUMNS.items() if k != "client"}
        if name == "b" and suffix != ".npz":  # the order of columns may differ from file to file
            columns = dict(reversed(columns.items()))
        write(columns, tmp_path / f"{name}{suffix}")
    check_own(user_data.read_user_data(tmp_path))


def test_own_arrays():
    check_own(
        user_data.from_arrays(
            np.stack([COLUMNS["age"], COLUMNS["dose"]], 1), COLUMNS["label"], COLUMNS["client"]
        )
    )


def test_own_hugging_face_folder_saved_to_disk(tmp_path):
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    for part, rows in (("train", slice(0, 5)), ("test", slice(5, 8))):
        (tmp_path / part).mkdir()
        piece = pa.table({k: v[rows] for k, v in COLUMNS.items()})
        with (
            pa.OSFile(str(tmp_path / part / "data-00000-of-00001.arrow"), "wb") as sink,
            ipc.new_stream(sink, piece.schema) as out,
        ):
            out.write_table(piece)
    got = user_data.read_user_data(tmp_path)
    check_own(got)
    assert got.data.train.tolist() == [True] * 5 + [False] * 3


def test_own_hugging_face_images_with_named_classes(tmp_path):
    def encoded(pixels):
        with io.BytesIO() as file:
            Image.fromarray(pixels).save(file, "PNG")
            return {"bytes": file.getvalue(), "path": None}

    pixels = np.random.default_rng(0).integers(0, 256, (12, 5, 6, 3)).astype(np.uint8)
    info = {
        "info": {"features": {"label": {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}}}
    }
    data = pa.table(
        {
            "image": [encoded(p) for p in pixels],
            "label": [1, 2] * 6,
            "hospital": ["x", "y", "z"] * 4,
        }
    )
    (tmp_path / "data").mkdir()
    parquet.write_table(
        data.replace_schema_metadata({"huggingface": json.dumps(info)}),
        tmp_path / "data" / "train-0.parquet",
    )
    got = user_data.read_user_data(tmp_path, client="hospital")
    assert np.array_equal(got.data.x, pixels.transpose(0, 3, 1, 2))
    assert got.data.y.tolist() == [1, 2] * 6
    assert (got.data.classes, got.labels, got.clients) == (
        3,
        ["cat", "dog", "emu"],
        ["x", "y", "z"],
    )


def test_own_lists_of_numbers_are_features(tmp_path):
    lists = pa.table(
        {"pixels": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]], "extra": [9.5, 0.5], "label": [3, 8]}
    )
    parquet.write_table(lists, tmp_path / "one.parquet")
    got = user_data.read_user_data(tmp_path / "one.parquet", client="")
    assert got.data.x.tolist() == [[1, 2, 3, 4, 9.5], [5, 6, 7, 8, 0.5]]
    assert (got.data.y.tolist(), got.labels, got.data.users) == ([0, 1], ["3", "8"], None)


def test_own_images_as_arrays_put_their_channels_first():
    pixels = np.zeros((6, 9, 8, 3), np.uint8)
    assert user_data.from_arrays(pixels, np.zeros(6, int)).data.x.shape == (6, 3, 9, 8)
    assert user_data.from_arrays(pixels[..., 0], np.zeros(6, int)).data.x.shape == (6, 1, 9, 8)


def test_ids_keep_their_zeros_and_chosen_columns_are_enough(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("site;note;a;b;y\n007;x;1;2;0\n7;y;3;4;1\n")
    got = user_data.read_user_data(path, client="site", label="y", features="b", separator=";")
    assert got.clients == ["007", "7"]
    assert got.data.x.tolist() == [[2], [4]]


def test_a_column_that_turns_fractional_late_is_still_read(tmp_path):
    path = tmp_path / "t.csv"
    rows = ["c,1,0"] * 300_000
    path.write_text("client,a,label\n" + "\n".join([*rows, "d,2.5,1"]) + "\n")
    got = user_data.read_user_data(path)
    assert got.data.x[-1] == 2.5
    assert got.clients == ["c", "d"]
    path.write_text("client,a,label\n" + "\n".join([*rows, "d,two,1"]) + "\n")
    with pytest.raises(BadInput, match="column 'a' is 'two' in row 300,001"):
        user_data.read_user_data(path)


def test_build_uses_own_data_with_all_its_clients(tmp_path):
    write({k: v * 5 for k, v in COLUMNS.items()}, tmp_path / "sites.csv")
    with pytest.warns(UserWarning, match="all but give the label away .*: 'dose'"):
        got = build_federation(str(tmp_path / "sites.csv"))
    assert (got.name, got.names, got.labels) == (
        "sites.csv",
        ["a", "a2", "a10", "b"],
        ["sick", "well"],
    )
    assert got.sizes.tolist() == [6, 6, 6, 6]
    with pytest.warns(UserWarning, match="all but give the label away .*: 'dose'"):
        pooled = build_federation(
            tmp_path / "sites.csv", "iid", 3, data_options={"client": "", "features": "dose,age"}
        )
    assert (pooled.clients, pooled.input_shape) == (3, (2,))


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", "the file is empty"),
        ("client,a,label\n", "the file has no rows"),
        ("a,label\n1,2\n", "no column 'client'"),
        (
            "client,a,lable\nx,1,2\n",
            "no column 'label'; did you mean 'lable'? (name it with --label COLUMN or label=)",
        ),
        ("client,label\nx,1\n", "no feature column"),
        (
            "client,a,label\nx,1,0\ny,inf,1\n",
            "column 'a' is inf in row 2, which is no finite number",
        ),
        ("client,a,label\nx,1,0\ny,two,1\n", "column 'a' is 'two' in row 2, not a number"),
        ("client,a,label\nx,1,0\n,2,1\n", "column 'client' is empty in row 2"),
        ("client,a,label\nx,1,cat\ny,2,\n", "column 'label' is empty in row 2"),
        ("client,a,label\nx,1,inf\n", "column 'label' is inf in row 1"),
        ("client,a,a,label\nx,1,1,0\n", "two columns are called 'a'"),
        (",client,a,label\n0,x,1,0\n", "a column has no name"),
        ("client,a,label\nx,1\n", "column 'label' is empty in row 1"),
        ("client,a,label\nx,1,0,7\n", "no readable .csv file"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path, text, settings):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        build_federation(path)
    assert settings in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_blank_lines_are_no_rows_and_are_reported(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("client,a,label\nx,1,no\n\ny,2,yes\nx,3,no\n,,\n")
    got = user_data.read_user_data(path)
    assert got.data.x[:, 0].tolist() == [1, 2, 3]
    assert got.remarks == ("2 blank lines: no rows, and not counted as such",)


@pytest.mark.parametrize("names", ["3.0,4.0", "3,4"])
def test_clients_that_gaps_made_fractional_are_whole_numbers(tmp_path, names):
    one, two = names.split(",")
    path = tmp_path / "t.csv"
    path.write_text(f"client,a,label\n{one},1,no\n{two},2,yes\n")
    assert user_data.read_user_data(path).clients == ["3", "4"]


def test_versions_such_as_1_0_beside_other_names_stay_as_they_are(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("client,a,label\n1.0,1,no\n1.1,2,yes\n")
    assert user_data.read_user_data(path).clients == ["1.0", "1.1"]


def test_infinite_cells_may_count_as_blank(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("client,a,label\nx,1,no\ny,inf,yes\nx,3,no\n")
    got = user_data.read_user_data(path, missing_values="inf")
    assert np.isnan(got.data.x[:, 0]).tolist() == [False, True, False]


def test_bad_folders_are_refused_with_their_place(tmp_path):
    with pytest.raises(BadInput, match=r"no \.csv, \.parquet"):
        user_data.read_user_data(tmp_path)
    (tmp_path / "a.csv").write_text("u,label\n1,0\n")
    (tmp_path / "b.csv").write_text("v,label\n1,0\n")
    with pytest.raises(BadInput, match=r"b\.csv: column 'u' is not in both this file and .*a\.csv"):
        user_data.read_user_data(tmp_path)
    (tmp_path / "b.csv").unlink()
    np.savez(tmp_path / "c.npz", x=np.zeros((2, 3)), y=[0, 1])
    with pytest.raises(BadInput, match=r"c\.npz: a row has shape \[3\]"):
        user_data.read_user_data(tmp_path)
    (tmp_path / "c.npz").write_bytes(b"no zip at all")
    with pytest.raises(BadInput, match=r"c\.npz: this is no readable \.npz file"):
        user_data.read_user_data(tmp_path)
    (tmp_path / "c.npz").unlink()
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInput, match="two files are called 'a'"):
        user_data.read_user_data(tmp_path)
    with pytest.raises(BadInput, match=r"a\.parquet: this is no readable"):
        user_data.read_user_data(tmp_path / "a.parquet")
    (tmp_path / "t.txt").write_text("hello")
    with pytest.raises(BadInput, match=r"files of kind '\.txt'"):
        user_data.read_user_data(tmp_path / "t.txt")
    with pytest.raises(BadInput, match="did you mean 'label'"):
        build_federation(tmp_path / "a.csv", data_options={"lable": "y"})


@pytest.mark.parametrize(
    ("x", "y", "clients", "settings"),
    [
        (np.zeros(3), [0, 1, 2], None, "x has shape"),
        (np.zeros((3, 2)), [0, 1], None, "y has shape"),
        (np.zeros((3, 2)), [0, 1, 2], ["a"], "clients has shape"),
        (np.array([["a"], ["b"]]), [0, 1], None, "not numbers"),
        (np.array([[1.0], [np.nan]]), [0, 1], None, "x is nan in row 2, column 0"),
        (np.zeros((2, 1)), [0.0, np.nan], None, "y is nan in row 2"),
        (np.zeros((2, 1)), np.array(["a", None]), None, "y is None in row 2"),
    ],
)
def test_bad_arrays_are_refused(x, y, clients, settings):
    with pytest.raises(BadInput, match=settings):
        user_data.from_arrays(x, y, clients)
