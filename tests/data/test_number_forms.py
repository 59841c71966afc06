"""Numbers with units, percents, currencies and thousands are read as such, or named and left."""

import polars as pl
import pytest

from coterie.core.errors import BadInput
from coterie.data.read.columns import CATEGORY, NUMBER, RowSource, read_columns, read_known_columns
from coterie.data.read.number_forms import describe_forms, parse_form
from coterie.data.read.user_data import from_frame, read_user_data

PLACE = RowSource(("t",), (9,))
READ = [
    (["72 kg", "80kg", "75 KG"], "1234.5 kg", [72, 80, 75]),
    (["12 %", "-3%", "4.5 %"], "1234.5 %", [12, -3, 4.5]),
    (["€ 1,200.50", "€3"], "€ 1,234.5", [1200.5, 3]),
    (["1.200,50 €", "3,5 €"], "1.234,5 €", [1200.5, 3.5]),
    (["-$3", "$-1,000.5"], "$ 1,234.5", [-3, -1000.5]),
    (["USD 3", "4.5 USD"], "USD 1234.5", [3, 4.5]),
    (["1 day", "3 days"], "1234.5 day", [1, 3]),
    (["1\u00a0200,5", "3,4"], "1 234,5", [1200.5, 3.4]),
    (["1'200.5", "3"], "1'234.5", [1200.5, 3]),
    (["0,123", "0,456"], "1234,5", [0.123, 0.456]),
    (["1,200,300", "5"], "1,234.5", [1200300, 5]),
]
LEFT = [
    (["72 kg", "150 lb", "3 kg"], "mixed units: kg, lb"),
    (["72 kg", "71", "3 kg"], "mixed units: kg, none"),
    (["5 mW", "2 MW"], "mixed units: mW, MW"),
    (["12A", "14C", "11B", "12E"], ""),
    (["192.168.1.1", "10.0.0.1"], ""),
]


def read(cells, **more):
    found = read_columns(pl.DataFrame({"a": cells}), (), PLACE, **more)
    return found.x[:, 0].tolist(), found.columns[0]


@pytest.mark.parametrize(("cells", "form", "numbers"), READ)
def test_a_column_of_one_form_is_numbers_now_and_later(cells, form, numbers):
    values, column = read(cells)
    assert (column.kind, column.form, values) == (NUMBER, form, numbers)
    assert str(parse_form(form)) == form
    later = read_known_columns(pl.DataFrame({"a": cells}), [column], PLACE)
    assert later.x[:, 0].tolist() == numbers
    assert read_known_columns(pl.DataFrame({"a": [1.5]}), [column], PLACE).x.item() == 1.5


@pytest.mark.parametrize(("cells", "note"), LEFT)
def test_units_are_never_merged(cells, note):
    _, column = read(cells)
    assert (column.kind, column.note) == (CATEGORY, note)
    lines = describe_forms([column])
    assert len(lines) == bool(note)
    assert not note or ("--drop a" in lines[0] and note in lines[0])


@pytest.mark.parametrize("cell", ["72", "72 lb", "7,5 kg", "1,000 kg", "heavy"])
def test_later_rows_of_another_form_are_refused(cell):
    _, column = read(["72 kg", "80.5 kg"])
    with pytest.raises(BadInput, match=r"in row 1, not a number as 1234\.5 kg as in training"):
        read_known_columns(pl.DataFrame({"a": [cell]}), [column], PLACE)


def test_one_cell_that_is_no_number_is_named_with_the_way_out():
    with pytest.raises(BadInput, match=r"'heavy' in row 2, not a number as 1234\.5 kg; .*missing"):
        read(["72 kg", "heavy", "80 kg"])


def test_three_digits_after_every_comma_are_thousands_unless_told_otherwise():
    values, column = read(["1,200", "3,400"])
    assert values == [1200, 3400]
    assert describe_forms([column]) == ["1,200 in a is read as 1200; --decimal , makes it 1.2"]
    values, column = read(["1,200", "3,400"], decimal=",")
    assert values == [1.2, 3.4]
    assert describe_forms([column]) == ["decimal commas in a"]


def test_other_columns_of_the_table_settle_what_a_comma_is():
    frame = pl.DataFrame({"a": ["1,200", "3,400"], "b": ["0,5", "2,5"], "c": ["1.200", "2.300"]})
    found = read_columns(frame, (), PLACE)
    assert found.x.tolist() == [[1.2, 0.5, 1200], [3.4, 2.5, 2300]]
    points = read_columns(frame.select("a", b=pl.Series([0.5, 2.5])), (), PLACE)
    assert points.x.tolist() == [[1200, 0.5], [3400, 2.5]]
    assert describe_forms(points.columns) == ["thousands are in groups in a"]


def test_a_file_with_decimal_commas_has_thousands_with_points(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("client;a;b;label\n" + "u;1.200;0,5;1.234,5\nv;2.300;1,5;2,5\n" * 3)
    whole = read_user_data(path)
    assert whole.data.x[:2].tolist() == [[1200, 0.5], [2300, 1.5]]
    assert whole.data.y[:2].tolist() == [1234.5, 2.5]
    assert whole.label.forms == ("1.234,5",)
    assert any("thousands are in groups in a" in line for line in whole.remarks)


def test_labels_of_two_files_have_one_unit(tmp_path):
    for name, unit in (("u", "kg"), ("v", "lb")):
        rows = "".join(f"{k},{k}.5 {unit}\n" for k in range(30))
        (tmp_path / f"{name}.csv").write_text("a,label\n" + rows)
    with pytest.raises(BadInput, match=r"'label' is in 'lb', but in .* in 'kg'"):
        read_user_data(tmp_path)


def test_a_mark_that_is_none_is_refused():
    frame = pl.DataFrame({"client": ["u"], "a": [1.0], "label": [1]})
    with pytest.raises(BadInput, match=r"decimal = ';': give \. or ,"):
        from_frame(frame, decimal=";")
