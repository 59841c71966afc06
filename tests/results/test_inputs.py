"""A run keeps which rows it used for what, and how cells became inputs."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression

from coterie.api import run
from coterie.core.errors import BadInput
from coterie.data.pipeline import build_federation
from coterie.results.data_files import PREPARATION, ROWS, read_preparation
from helpers.runs import FAST, arrays, write_csv

WORDS = FAST | {"rounds": 1, "hidden": 4}


def test_rows_of_every_part_are_those_of_the_users_file(tmp_path):
    path = write_csv(tmp_path / "own.csv", rows=90)
    run("local", dataset=str(path), out=tmp_path / "run", **WORDS)
    rows = pq.read_table(tmp_path / "run" / ROWS).to_pandas()
    assert sorted(rows["row"]) == list(range(90))
    assert set(rows["file"]) == {str(path)}
    lines = path.read_text().splitlines()[1:]
    owner = [lines[row].split(",")[0] for row in rows["row"]]
    assert owner == [f"site{client}" for client in rows["client"]]
    federation = build_federation(path)
    for (client, part), found in rows.groupby(["client", "part"]):
        at = getattr(federation, part)[client]
        assert np.array_equal(federation.rows[at], found["row"])
    cells = np.array([[float(c) for c in line.split(",")[1:3]] for line in lines])
    labels = np.array([line.split(",")[3] for line in lines])
    train = rows[rows["part"] == "train"]["row"].to_numpy()
    assert LogisticRegression().fit(cells[train], labels[train]).score(cells, labels) > 0.8


def test_rows_of_a_folder_are_counted_in_each_file(tmp_path):
    (tmp_path / "data").mkdir()
    for k, name in enumerate(("a", "b")):
        body = "".join(f"{i + 100 * k},{i % 2}\n" for i in range(20))
        (tmp_path / "data" / f"{name}.csv").write_text("v,label\n" + body)
    run("local", dataset=str(tmp_path / "data"), out=tmp_path / "run", **WORDS)
    rows = pq.read_table(tmp_path / "run" / ROWS).to_pandas()
    for client, name in enumerate(("a", "b")):
        mine = rows[rows["client"] == client]
        assert set(mine["file"]) == {str(tmp_path / "data" / f"{name}.csv")}
        assert sorted(mine["row"]) == list(range(20))


def test_a_preparation_is_read_back_as_it_was(tmp_path):
    path = write_csv(tmp_path / "own.csv")
    run("local", dataset=str(path), out=tmp_path / "run", **WORDS)
    assert read_preparation(tmp_path / "run") == build_federation(path).preparation
    (tmp_path / "run" / PREPARATION).write_text("{")
    with pytest.raises(BadInput, match="damaged"):
        read_preparation(tmp_path / "run")
    (tmp_path / "run" / PREPARATION).unlink()
    with pytest.raises(BadInput, match=r"has no preparation\.json"):
        read_preparation(tmp_path / "run")


def test_a_federation_made_by_hand_has_no_rows_of_a_file(tmp_path):
    federation = build_federation(arrays())._replace(rows=None, place=None, preparation=None)
    run("local", dataset=federation, out=tmp_path / "run", **WORDS)
    assert not (tmp_path / "run" / ROWS).exists()
    assert not (tmp_path / "run" / PREPARATION).exists()
