"""Later rows spell numbers and dates as training did, or are refused with their row."""

import json

import polars as pl
import pytest

from coterie.core.errors import BadInput
from coterie.data.prepare.inputs import InputBuilder
from coterie.data.prepare.preparation import fit_preparation
from coterie.data.read import table_files
from coterie.data.read.columns import (
    DATE,
    NUMBER,
    Column,
    RowSource,
    read_columns,
    read_known_columns,
)
from coterie.data.read.table_files import open_table
from coterie.serving.request_rows import CSV, JSON, RowReader

FORMS = {
    "plain": ("0.3", "2024-01-10"),
    "commas": ("0,3", "31.12.2024"),
    "slashes": ("0.3", "31/12/2024"),
    "american": ("0.3", "12/31/2024"),
    "times": ("0.3", "2024-01-10 10:30"),
    "zones": ("0.3", "2024-01-10T10:30:00Z"),
    "year first": ("0.3", "2024/12/31"),
}
OTHER_NUMBERS = ["1,000", "1.000,5", "0,5", "0.5.1", "true", "five"]
OTHER_DATES = ["31.12.2024", "01/02/2024", "03/04/05", "20240110", "2024-13-40", "Jan 1 2024"]


def builder(tmp_path, number="0.3", date="2024-01-10"):
    """What reads later rows of a table that was written in some form."""
    path = tmp_path / "table.csv"
    path.write_text("a;day\n" + f"{number};{date}\n" * 60)
    frame = open_table(path, [], "").frame
    read = read_columns(frame, (), RowSource((str(path),), (frame.height,)))
    rows = [pl.arange(0, 60, eager=True).to_numpy()]
    kept = fit_preparation(read.x, read.columns, rows, "standard", ["site"], 20)
    return InputBuilder(kept, (len(kept.outputs),), "site")


def doors(intake, number, date):
    """The same row through every door that takes texts."""
    frame = {"a": ["", number], "day": ["", date]}
    yield lambda: intake.inputs(frame)
    yield lambda: intake.inputs(pl.DataFrame(frame))
    body = f'a,day\n"",""\n"{number}","{date}"\n'.encode()
    yield lambda: RowReader(intake).read(CSV, body, "site", 10)


@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_training_is_taken_by_every_door(form, tmp_path):
    number, date = FORMS[form]
    intake = builder(tmp_path, number, date)
    for door in doors(intake, number, date):
        assert door() is not None
    rows = json.dumps({"rows": [{"a": 0.3, "day": date}]}).encode()
    assert RowReader(intake).read(JSON, rows, "site", 10).height == 1


@pytest.mark.parametrize("number", OTHER_NUMBERS)
def test_another_form_of_numbers_is_refused_with_its_row(number, tmp_path):
    for door in doors(builder(tmp_path), number, "2024-01-10"):
        with pytest.raises(BadInput, match=r"column 'a' is .* in row 2, not a number as in"):
            door()


@pytest.mark.parametrize("date", OTHER_DATES)
def test_another_form_of_dates_is_refused_with_its_row(date, tmp_path):
    intake = builder(tmp_path)
    for door in doors(intake, "0.3", date):
        with pytest.raises(BadInput, match=r"column 'day' is .* in row 2, not a date %Y-%m-%d as"):
            door()
    rows = json.dumps({"rows": [{"a": 0.3, "day": date}]}).encode()
    with pytest.raises(BadInput, match=r"in row 1, not a date %Y-%m-%d as"):
        RowReader(intake).read(JSON, rows, "site", 10)


def test_a_point_is_not_read_over_where_training_had_decimal_commas(tmp_path):
    intake = builder(tmp_path, "0,3", "31.12.2024")
    for number, date in (("0.5", "31.12.2024"), ("0,5", "2024-12-31"), ("0,5", "31.12.24")):
        for door in doors(intake, number, date):
            with pytest.raises(BadInput, match="in row 2, not a "):
                door()


def test_the_same_moment_has_the_same_value_in_training_and_later(tmp_path):
    for number, date in FORMS.values():
        path = tmp_path / "table.csv"
        path.write_text(f"a;day\n{number};{date}\n")
        frame = open_table(path, [], "").frame
        place = RowSource(("t",), (1,))
        trained = read_columns(frame, (), place)
        texts = pl.DataFrame({"a": [number], "day": [date]})
        kinds = [c.kind for c in trained.columns]
        assert kinds == [NUMBER, DATE]
        known = [Column(c.name, c.kind, form=c.form) for c in trained.columns]
        assert read_known_columns(texts, known, place).x.tolist() == trained.x.tolist()


LATE = {  # {what every row has: what the last one has}
    "7": "1.5",
    "8": "eight",
    "": "3",
    "2024-01-02": "soon",
    "2024-01-03": "2024-01-04 10:30",
    "true": "perhaps",
    "0.5": "",
    "red": "4",
}


@pytest.mark.parametrize("late", [None, *LATE])
def test_types_are_those_of_all_rows_though_the_first_ones_are_asked(late, tmp_path, monkeypatch):
    rows = 40
    monkeypatch.setattr(table_files, "FIRST_ROWS", 10)
    cells = [[usual] * (rows - 1) + [LATE[usual] if usual == late else usual] for usual in LATE]
    lines = [",".join(f"c{k}" for k in range(len(LATE))), *map(",".join, zip(*cells, strict=True))]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    asked = []

    def read(source, infer_schema_length, **more):
        asked.append(infer_schema_length)
        return read_csv(source, infer_schema_length=infer_schema_length, **more)

    read_csv = pl.read_csv
    whole = read_csv(path, infer_schema_length=None, try_parse_dates=True)
    monkeypatch.setattr(pl, "read_csv", read)
    frame = open_table(path, [], "").frame
    assert asked[0] == 10
    assert frame.schema == whole.schema
    assert frame.equals(whole)


def test_a_table_whose_types_the_first_rows_tell_is_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "FIRST_ROWS", 10)
    path = tmp_path / "t.csv"
    path.write_text("a,b,day\n" + "1,x,2024-01-02\n" * 40)
    asked, read_csv = [], pl.read_csv

    def read(source, **more):
        asked.append(more["infer_schema_length"])
        return read_csv(source, **more)

    monkeypatch.setattr(pl, "read_csv", read)
    open_table(path, [], "")
    assert asked == [10]
