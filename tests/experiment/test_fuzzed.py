"""Input that a fuzz run found to end in a traceback or a hang: one line each."""

import json
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import coterie
from coterie.comparison.execute import resume_comparison
from coterie.comparison.plan import plan_of
from coterie.core.errors import BadInput
from coterie.data.read.table_files import open_table
from coterie.results.row_log import LENGTH, Mark, append_rows, check_rows, read_mark

FAST = {"num_clients": 3, "rows": 60, "rounds": 1, "threads": 1, "path": "sequential"}


@pytest.mark.parametrize("separator", ["\t1", "\U001076b7d", "é", "\n", '"'])
def test_a_separator_is_one_plain_character(tmp_path, separator):
    file = tmp_path / "my.csv"
    file.write_text("a;b\n1;2\n")
    with pytest.raises(BadInput, match=r"separator = .*: give one character"):
        open_table(file, [], separator)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"method": ["ditto"]}, "method = .*give the name of one"), ({"methods": [["a"]]}, "no name")],
)
def test_a_method_is_named_by_a_text(settings, said):
    with pytest.raises(BadInput, match=said):
        plan_of(settings)


@pytest.mark.parametrize("option", ["data", "lr", "loss", "metric"])
def test_an_array_in_place_of_a_word_is_told_in_a_comparison(option):
    with pytest.raises(BadInput, match=r"ndarray|array\("):
        coterie.compare(["ditto"], seeds=1, **FAST | {option: np.zeros(3)})


@pytest.mark.parametrize("option", ["client", "label", "features", "drop", "part_column", "text"])
@pytest.mark.parametrize("value", [None, {"a": 1}, 3, np.zeros(3), pd.Series([1, 2]), object()])
def test_columns_of_a_frame_are_named_by_texts(option, value):
    frame = pd.DataFrame({"a": [1.0, 2.0], "label": [0, 1], "client": ["x", "y"]})
    with pytest.raises(BadInput) as refusal:
        coterie.run("local", dataset=frame, **{option: value})
    assert "\n" not in str(refusal.value)
    assert option in str(refusal.value)


@pytest.mark.parametrize("made", [None, {}, "net"])
def test_a_function_that_makes_no_network_is_refused(made):
    with pytest.raises(BadInput, match=r"give a function that makes a torch\.nn\.Module"):
        coterie.run("local", model=lambda: made, **FAST)


@pytest.mark.parametrize(
    "text",
    ["[" * 10**5, *(json.dumps({"rows": 1, "bytes": n, "chain": ""}) for n in ("x", -1, 10**300))],
)
def test_a_damaged_mark_is_told(tmp_path, text):
    path = tmp_path / "metrics.json"
    path.write_text(text)
    with pytest.raises(BadInput, match="it is damaged"):
        read_mark(path)


def test_rows_that_are_no_rows_are_told(tmp_path):
    path = tmp_path / "metrics.rows"
    first = append_rows(path, pa.table({"a": [1]}), Mark())
    mark = append_rows(path, pa.table({"a": [2]}), first)
    whole = path.read_bytes()
    garbage = b"\xff" * (first.bytes - LENGTH.size)
    path.write_bytes(whole[: LENGTH.size] + garbage + whole[first.bytes :])
    with pytest.raises(BadInput, match="is damaged"):
        check_rows(path, mark)


def test_a_pipe_in_the_place_of_a_table_is_refused(tmp_path):
    folder = tmp_path / "c"
    coterie.compare(["local", "fedavg"], out=folder, **FAST)
    (folder / "table.csv").unlink()
    os.mkfifo(folder / "table.csv")
    with pytest.raises(BadInput, match="is a pipe"):
        resume_comparison(folder)
