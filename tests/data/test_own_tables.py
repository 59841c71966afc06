"""Laws of tables as people have them: what is read, what is found out, and what is refused."""

import gzip

import numpy as np
import pandas as pd
import polars as pl
import pytest
from PIL import Image

import coterie
from coterie.core.errors import BadInput
from coterie.data.pipeline import build_federation
from coterie.data.read import user_data
from coterie.data.read.columns import BOOLEAN, CATEGORY, DATE, NUMBER
from coterie.data.read.table_files import encoding_of, separator_of

CELLS = {
    "site": ["north", "south", "north", "south"],
    "dose": [1.5, 2.25, 3.0, 4.75],
    "town": ["Köln", "Ulm", "Köln", "Bonn"],
    "y": ["a", "b", "b", "a"],
}
FRAME = pl.DataFrame(CELLS)
WORDS = {"client": "site", "label": "y"}


def check(got):
    assert got.clients == ["north", "south"]
    assert got.labels == ["a", "b"]
    assert got.data.y.tolist() == [0, 1, 1, 0]
    assert got.data.x[:, 0].tolist() == CELLS["dose"]
    assert [got.columns[1].values[int(code)] for code in got.data.x[:, 1]] == CELLS["town"]


def text(separator=",", comma="."):
    rows = [
        separator.join(str(cell).replace(".", comma) for cell in row) for row in FRAME.iter_rows()
    ]
    return "\n".join([separator.join(FRAME.columns), *rows]) + "\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", text().encode()),
        ("t.CSV", text().encode("utf-8-sig")),
        ("t.csv", text(";", ",").encode("cp1252")),
        ("t.csv", text("\t").encode("utf-16")),
        ("t.csv", text("|").encode()),
        ("t.tsv", text("\t").encode()),
        ("t.csv.gz", gzip.compress(text(";").encode(), mtime=0)),
        ("t.tsv.gz", gzip.compress(text("\t", ",").encode(), mtime=0)),
    ],
)
def test_separator_encoding_and_decimal_commas_are_found_out(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    check(user_data.read_user_data(tmp_path / name, **WORDS))


def test_what_was_found_out_is_told(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(text(";", ",").encode("cp1252") * 1)
    got = user_data.read_user_data(path, **WORDS)
    told = (
        "columns are separated by ';'",
        "text is cp1252",
        f"decimal commas in {got.columns[0].name}",
    )
    assert got.remarks == told
    assert got.columns[0].form == "1234,5"
    path.write_text(text() + text().split("\n", 1)[1] * 9)
    with (
        pytest.warns(UserWarning, match="of 2 columns, 1 with texts"),
        pytest.warns(UserWarning, match="all but give the label away .*: 'dose'"),
    ):
        build_federation(path, data_options=WORDS)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".xlsx"])
def test_other_kinds_of_tables(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    if suffix == ".xlsx":
        FRAME.to_pandas().to_excel(path, index=False, engine="openpyxl")
    else:
        (FRAME.write_parquet if suffix == ".parquet" else FRAME.write_ipc)(path)
    check(user_data.read_user_data(path, **WORDS))


@pytest.mark.parametrize("frame", [FRAME, FRAME.lazy(), pd.DataFrame(CELLS)])
def test_frames_of_polars_and_pandas(frame):
    check(user_data.from_frame(frame, **WORDS))


def test_a_frame_runs_through_python(tmp_path):
    frame = pl.concat([FRAME] * 10)
    run = coterie.run(
        "local", dataset=frame, client="site", label="y", rounds=1, out=tmp_path / "run", hidden=4
    )
    assert run.about["clients"] == ["north", "south"]


def test_a_separator_is_that_of_all_lines_not_of_a_cell():
    assert separator_of(["a;b\n", "1,5;2,5\n", "3,5;4,5\n"], ".csv") == ";"
    assert separator_of(["a,b\n", '"x;y;z",2\n'], ".csv") == ","
    assert separator_of(["alone\n", "1\n"], ".csv") == ","


def test_an_encoding_is_that_of_all_bytes(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n" * 600_000 + "é".encode("cp1252"))
    assert encoding_of(path) == "cp1252"
    path.write_bytes(b"a,b\n" * 262_143 + b"abc" + "é".encode())  # cut in two by the reading
    assert encoding_of(path) == "utf-8"


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1", " 2 ", "NA", ""], NUMBER, [1, 2, None, None]),
        (["1,5", "2", "-3,25"], NUMBER, [1.5, 2, -3.25]),
        (["1.234,5", "7,0"], NUMBER, [1234.5, 7]),
        (["true", "False", "TRUE", "?"], BOOLEAN, [1, 0, 1, None]),
        (["2024-02-29", "1970-01-02"], DATE, [19782 * 86400, 86400]),
        (["31.12.1970", "01.01.1970"], DATE, [364 * 86400, 0]),
        (["02/01/1970 06:00", "13/01/1970 00:00"], DATE, [108_000, 12 * 86400]),
        (["01/13/1970", "01/02/1970"], DATE, [12 * 86400, 86400]),
        (["none", "-", "some"], CATEGORY, [1, 0, 2]),
        ([None, None], NUMBER, [None, None]),
    ],
)
def test_texts_are_read_as_what_they_spell(cells, kind, values):
    frame = pl.DataFrame({"v": pl.Series(cells, dtype=pl.String), "label": [0] * len(cells)})
    got = user_data.from_frame(frame, client="")
    assert got.columns[0].kind == kind
    want = [np.nan if value is None else value for value in values]
    assert np.array_equal(got.data.x[:, 0], want, equal_nan=True)


def test_numbers_may_be_names():
    frame = pl.DataFrame({"code": [7, 8, 7], "label": [0, 1, 0]})
    got = user_data.from_frame(frame, client="", categories="code")
    assert got.columns[0].kind == CATEGORY
    assert got.columns[0].values == ("7", "8")


def test_files_of_clients_share_their_texts_and_kinds(tmp_path):
    (tmp_path / "a.csv").write_text("v,w,label\n1,x,0\n,y,1\n")
    (tmp_path / "b.csv").write_text("v,w,label\n,z,0\n,x,1\n")
    (tmp_path / "c.tsv").write_text("w\tv\tlabel\nx\t2.5\t0\n")
    got = user_data.read_user_data(tmp_path)
    assert got.clients == ["a", "b", "c"]
    assert np.array_equal(got.data.x[:, 0], [1, np.nan, np.nan, np.nan, 2.5], equal_nan=True)
    assert [got.columns[1].values[int(c)] for c in got.data.x[:, 1]] == ["x", "y", "z", "x", "x"]
    (tmp_path / "b.csv").write_text("v,w,label\nthree,z,0\n4,x,1\n")
    with pytest.raises(BadInput, match=r"b\.csv: column 'v' is 'three' in row 1, not a number"):
        user_data.read_user_data(tmp_path)


def test_missing_cells_are_refused_where_asked(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("client,a,label\nx,1,0\ny,,1\n")
    with pytest.raises(BadInput, match=r"t\.csv: column 'a' is empty in row 2"):
        user_data.read_user_data(path, missing="refuse")
    with pytest.raises(BadInput, match="did you mean 'refuse'"):
        user_data.read_user_data(path, missing="refus")


def test_folders_of_images_by_client_and_class(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 5, 3)).astype(np.uint8)
    for c, client in enumerate(("site2", "site10")):
        for k, kind in enumerate(("cat", "dog", "emu")):
            (tmp_path / client / kind).mkdir(parents=True)
            Image.fromarray(pixels[c, k]).save(tmp_path / client / kind / "1.png")
    got = user_data.read_user_data(tmp_path)
    assert got.clients == ["site2", "site10"]
    assert got.labels == ["cat", "dog", "emu"]
    assert np.array_equal(got.data.x, pixels.reshape(6, 4, 5, 3).transpose(0, 3, 1, 2))
    Image.fromarray(pixels[0, 0, :2]).save(tmp_path / "site10" / "dog" / "2.png")
    with pytest.raises(BadInput, match=r"2\.png is an image of shape \[3, 2, 5\]"):
        user_data.read_user_data(tmp_path)
    (tmp_path / "site10" / "dog" / "2.png").write_text("no image")
    with pytest.raises(BadInput, match=r"2\.png holds no readable image"):
        user_data.read_user_data(tmp_path)


def test_a_tiny_client_stops_nobody_and_all_tiny_ones_are_refused():
    y = np.arange(42) % 2
    clients = ["big"] * 20 + ["huge"] * 20 + ["one", "two"]
    with pytest.warns(UserWarning, match="2 of 4 clients are left out.*: one, two"):
        got = build_federation(user_data.from_arrays(np.zeros((42, 2)), y, clients))
    assert got.names == ["big", "huge"]
    with pytest.raises(BadInput, match="has 1 row, none of them in its train part"):
        build_federation(user_data.from_arrays(np.zeros((42, 2)), y, np.arange(42)))
