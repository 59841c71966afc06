"""Columns that nobody named: one that is clear is taken and told, all else is one line."""

import pytest

from coterie.core.errors import BadInput
from coterie.data.messages import DataWarning
from coterie.data.read.column_roles import guess_columns, has_columns


def table(folder, *columns, separator=","):
    path = folder / "rows.csv"
    cells = [str(k) for k in range(len(columns))]
    path.write_text("\n".join(separator.join(row) for row in (columns, cells)) + "\n")
    return path


@pytest.mark.parametrize(
    ("columns", "client", "label"),
    [
        (("user", "a", "target"), "user", "target"),
        (("Patient ID", "age", "Diagnosis"), "Patient ID", "Diagnosis"),
        (("site_name", "x", "y"), "site_name", "y"),
        (("DeviceId", "a", "Class"), "DeviceId", "Class"),
        (("a", "persons", "labels"), "persons", "labels"),
    ],
)
def test_clear_names_are_taken_and_told(tmp_path, columns, client, label):
    path = table(tmp_path, *columns, separator=";")
    with pytest.warns(
        DataWarning, match=f"takes column '{client}' as the client and '{label}' as the"
    ):
        assert guess_columns(path, {}) == {"client": client, "label": label}


def test_the_usual_names_and_what_was_said_need_no_guess(tmp_path):
    assert guess_columns(table(tmp_path, "client", "user", "label"), {}) == {}
    path = table(tmp_path, "user", "site", "target", "y")
    assert guess_columns(path, {"client": "site", "label": "y"}) == {}


def test_a_column_that_was_said_is_not_guessed_again(tmp_path):
    path = table(tmp_path, "user", "a", "target", "y")
    with pytest.warns(DataWarning, match="'target' as the label"):
        assert guess_columns(path, {"client": "y"}) == {"label": "target"}


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (("user", "site", "label"), "user, site may each hold the client: name it with --client"),
        (("a", "b", "label"), r"which holds the client \(a, b, label\): name it with --client"),
        (("user", "a", "b"), "which holds the label"),
        (("user", "target", "y"), "target, y may each hold the label: name it with --label"),
    ],
)
def test_what_is_unclear_is_one_line_with_the_columns(tmp_path, columns, says):
    with pytest.raises(BadInput, match=says):
        guess_columns(table(tmp_path, *columns), {})


def test_only_tables_have_columns(tmp_path):
    assert has_columns(table(tmp_path, "a", "b"))
    assert not has_columns(tmp_path)
    assert not has_columns(tmp_path / "none.csv")
