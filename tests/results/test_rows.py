"""The file of rows: only plain files are read."""

import os

import pyarrow as pa
import pytest

from coterie.core.errors import BadInput
from coterie.results.row_log import Mark, append_rows, check_rows


def test_a_pipe_in_the_place_of_the_rows_is_refused_and_not_waited_for(tmp_path):
    rows = pa.table({"value": [1.0, 2.0]})
    mark = append_rows(tmp_path / "metrics.rows", rows, Mark())
    check_rows(tmp_path / "metrics.rows", mark)
    (tmp_path / "metrics.rows").unlink()
    os.mkfifo(tmp_path / "metrics.rows")
    for read in (
        lambda: check_rows(tmp_path / "metrics.rows", mark),
        lambda: append_rows(tmp_path / "metrics.rows", rows, mark),
    ):
        with pytest.raises(BadInput, match="is a pipe, and a file is expected there"):
            read()
