"""Texts that count as blank cells, and rows without a label."""

import json

import numpy as np
import polars as pl
import pytest

from coterie.core.errors import BadInput
from coterie.core.option_names import find_synonym
from coterie.data.federation import list_rows
from coterie.data.messages import DataWarning
from coterie.data.pipeline import build_federation
from coterie.data.prepare.inputs import InputBuilder
from coterie.data.prepare.preparation import preparation_from_dict
from coterie.data.read import user_data
from coterie.data.read.user_data import from_frame, read_user_data
from coterie.serving.openapi import _rows_schema
from coterie.serving.request_rows import CSV, JSON, RowReader

ROWS = 40
BLANKS = "-,none,-999"


def write_table(path, blanks=("-", " none ", "-999", "-999.0"), unlabelled=()):
    """A table of two clients whose gaps are written as texts; its numbers say their row."""
    lines = ["client,a,kind,label"]
    for k in range(ROWS):
        gap = blanks[k // 4 % len(blanks)] if k % 4 == 0 else None
        label = unlabelled[k // 8 % len(unlabelled)] if unlabelled and k % 8 == 3 else f"{k % 3}.5"
        a, kind = (gap, gap) if gap is not None else (f"{k}.25", "xy"[k % 2])
        lines.append(f"{'uv'[k >= ROWS / 2]},{a},{kind},{label}")
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path, **settings):
    with pytest.warns(DataWarning) as said:
        made = build_federation(str(path), data_options=settings)
    return made, [str(line.message) for line in said]


def test_missing_values_are_read_as_blank_cells_in_training(tmp_path):
    named, _ = read(write_table(tmp_path / "t.csv"), missing_values=BLANKS)
    (tmp_path / "blank").mkdir()
    blank, _ = read(write_table(tmp_path / "blank" / "t.csv", blanks=("",)))
    assert named.preparation.missing_values == ("-", "none", "-999")
    assert named.preparation._replace(missing_values=()) == blank.preparation
    assert (named.x == blank.x).all()
    plain, _ = read(write_table(tmp_path / "t.csv"), missing_values=BLANKS, categories="a")
    assert "-" not in plain.preparation.columns[0].categories


def test_missing_values_are_read_as_blank_cells_by_every_later_door(tmp_path):
    made, _ = read(write_table(tmp_path / "t.csv"), missing_values=BLANKS)
    kept = preparation_from_dict(json.loads(json.dumps(made.preparation.to_dict())))
    intake = InputBuilder(kept, (len(kept.outputs),))
    reader = RowReader(intake)

    def from_json(*cells):
        body = json.dumps({"rows": [{"a": a, "kind": kind} for a, kind in cells]}).encode()
        found = reader.read(JSON, body, "u", 10)
        return reader.prepare(found.cells, ["u"] * found.height)

    def from_csv(*cells):
        body = "\n".join(["a,kind", *(f'"{a}","{kind}"' for a, kind in cells)]).encode()
        return reader.read(CSV, body, "u", 10).x

    blank = from_json((None, None), (1.5, "x"))
    for gap in ("-", " none", "-999", "-999.0"):
        for found in (
            from_csv((gap, gap), (1.5, "x")),
            from_json((gap, gap), (1.5, "x")),
            intake.inputs({"a": [gap, "1.5"], "kind": [gap, "x"]}),
        ):
            assert (found == blank).all()
    assert (from_json((-999, -999), (1.5, "x")) == blank).all()
    assert (intake.inputs({"a": [-999.0, 1.5], "kind": ["-", "x"]}) == blank).all()
    cell = _rows_schema(intake, 10)["properties"]["rows"]["items"]["properties"]["a"]
    assert cell["anyOf"][1] == {"enum": ["-", "none", "-999"]}
    for door in (from_csv, from_json):
        with pytest.raises(BadInput, match="'a' is 'n/k'"):
            door(("n/k", "x"))


def test_a_missing_label_names_the_way_out_and_the_way_works(tmp_path):
    path = write_table(tmp_path / "t.csv", blanks=("",), unlabelled=("", "-"))
    with pytest.raises(BadInput, match=r"'label' is empty in row 4; .* --drop-missing-labels"):
        read_user_data(path, missing_values="-")
    whole, said = read(path, missing_values="-", drop_missing_labels=True)
    assert f"t.csv: {ROWS // 8} of {ROWS} rows have no label: left out" in said
    assert whole.preparation.target.task == "regression"  # what is left are numbers
    assert whole.preparation.target.columns == ("label",)


def test_rows_that_are_left_out_shift_no_row_number(tmp_path):
    path = write_table(tmp_path / "t.csv", blanks=("7.25",), unlabelled=("", "NA"))
    made, _ = read(path, drop_missing_labels=True, categories="kind")
    rows = list_rows(made)["row"].to_numpy()
    assert sorted(rows) == [k for k in range(ROWS) if k % 8 != 3]
    fitted = made.preparation.columns[0]
    places = np.concatenate([np.concatenate(part) for part in (made.train, made.test)])
    cells = made.x[places, 0].numpy() * fitted.spread + fitted.centre
    wanted = [7.25 if k % 4 == 0 else k + 0.25 for k in made.place.kept[made.rows[places]]]
    assert np.allclose(cells, wanted, atol=1e-4)


def test_rows_that_are_left_out_shift_no_row_number_in_messages(tmp_path):
    path = write_table(tmp_path / "t.csv", unlabelled=("",))
    text = path.read_text().splitlines()
    text[30] = ",1.0,x,1"
    path.write_text("\n".join(text))
    with pytest.raises(BadInput, match="'client' is empty in row 30"):
        read_user_data(path, drop_missing_labels=True)
    text[30] = "v,oops,x,1.5"
    path.write_text("\n".join(text))
    with pytest.raises(BadInput, match="'a' is 'oops' in row 30"):
        read_user_data(path, drop_missing_labels=True, missing_values="-,none")


def test_an_unlabelled_row_may_be_wrong_elsewhere(tmp_path):
    path = write_table(tmp_path / "t.csv", blanks=("",), unlabelled=("",))
    text = path.read_text().splitlines()
    text[4] = ",1.0,x,"
    path.write_text("\n".join(text))
    with pytest.warns(DataWarning, match="left out"):
        assert len(read_user_data(path, drop_missing_labels=True).data.y) == ROWS - ROWS // 8


def test_an_index_file_counts_the_rows_of_the_file(tmp_path):
    path = write_table(tmp_path / "t.csv", blanks=("",), unlabelled=("",))
    index = tmp_path / "who.csv"
    lines = [f"{'pq'[k % 2]},{k}" for k in range(ROWS)]
    index.write_text("\n".join(["client,row", *lines]) + "\n")
    with pytest.warns(DataWarning):
        made = build_federation(
            str(path),
            str(index),
            data_options={"client": "", "drop": "client", "drop_missing_labels": True},
        )
    found = list_rows(made)
    owner = found["client"].to_numpy()
    assert (owner == found["row"].to_numpy() % 2).all()
    assert len(owner) == ROWS - ROWS // 8


def test_a_frame_says_what_is_left_out():
    frame = pl.DataFrame(
        {"client": ["u", "v"] * 6, "a": range(12), "label": [0.5, None, float("nan")] * 4}
    )
    with pytest.warns(DataWarning, match="8 of 12 rows have no label: left out"):
        data = from_frame(frame, drop_missing_labels=True)
    assert data.data.y.tolist() == [0.5] * 4
    with pytest.raises(BadInput, match="no row has a label in column 'label'"):
        from_frame(frame[1:2], drop_missing_labels=True)


def test_arrays_have_no_cells_that_are_texts(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.arange(4), clients=np.arange(4))
    for option in ({"missing_values": "-"}, {"drop_missing_labels": True}):
        with pytest.raises(BadInput, match=f"{next(iter(option))} is for tables"):
            read_user_data(tmp_path / "a.npz", **option)


def test_names_of_other_libraries_are_known():
    assert find_synonym("na_values") == "missing_values"


def test_a_large_file_is_announced_before_it_is_read(tmp_path, monkeypatch, caplog):
    (tmp_path / "a.csv").write_text("client,a,label\nu,1,0.5\nv,2,1.5\n")
    caplog.set_level("INFO", "coterie.data")
    read_user_data(tmp_path / "a.csv")
    assert "are read" not in caplog.text
    monkeypatch.setattr(user_data, "LARGE", 1)
    read_user_data(tmp_path / "a.csv")
    assert "a.csv: 0 MB are read" in caplog.text
