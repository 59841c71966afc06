"""The table of metrics: hand-worked values, NaN parts, and the file that others read."""

import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.analysis.nan_math import mean_of
from coterie.core.errors import BadInput
from coterie.results.metric_table import (
    COLUMNS,
    EVERYONE,
    MARK,
    ROWS,
    Table,
    best_round,
    curve_of,
    summarize,
    total_of,
    values_of,
)

calm = settings(deadline=None)  # no test may fail because the machine is busy
NAN = float("nan")


def example() -> Table:
    """Two rounds of three clients; client 1 has no validation rows, nobody has any in round 2."""
    table = Table()
    for round, accuracy, validation in (
        (1, [0.2, 0.4, 0.9], [0.5, NAN, 0.7]),
        (2, [0.3, 0.5, 0.7], [NAN, NAN, NAN]),
    ):
        table.add("train", round, np.arange(3), "personal", "test", "accuracy", np.array(accuracy))
        table.add(
            "train", round, np.arange(3), "personal", "select", "accuracy", np.array(validation)
        )
        table.add(
            "train", round, np.array([EVERYONE]), "", "", "bytes_up", np.array([100.0 * round])
        )
    table.add("train", 1, np.array([2, 0]), "global", "test", "accuracy", np.array([0.6, 0.1]))
    return table


def test_values_are_those_of_the_last_round_unless_one_is_named():
    table = example().whole()
    clients, last = values_of(table, "accuracy")
    assert clients.tolist() == [0, 1, 2]
    assert last.tolist() == [0.3, 0.5, 0.7]
    assert values_of(table, "accuracy", round=1)[1].tolist() == [0.2, 0.4, 0.9]


def test_values_come_in_the_order_of_clients_and_only_for_the_view_asked():
    clients, found = values_of(example().whole(), "accuracy", view="global")
    assert clients.tolist() == [0, 2]
    assert found.tolist() == [0.1, 0.6]


def test_values_of_what_was_never_measured_are_empty():
    assert [len(column) for column in values_of(example().whole(), "f1")] == [0, 0]
    assert [len(column) for column in values_of(Table().whole(), "accuracy")] == [0, 0]


def test_curve_is_the_mean_over_clients_that_have_the_part():
    rounds, means = curve_of(example().whole(), "accuracy")
    assert rounds.tolist() == [1, 2]
    assert means == pytest.approx([0.5, 0.5])
    rounds, means = curve_of(example().whole(), "accuracy", "select")
    assert means[0] == pytest.approx(0.6)
    assert np.isnan(means[1])


def learned(metric: str, validation: list[list[float]], test: list[list[float]]) -> pa.Table:
    """A row of clients for each round, on both parts."""
    table = Table()
    for part, rounds in (("select", validation), ("test", test)):
        for k, row in enumerate(rounds, 1):
            table.add("train", k, np.arange(len(row)), "personal", part, metric, np.array(row))
    return table.whole()


def test_best_round_has_the_highest_mean_validation_accuracy_and_the_earliest_of_equals():
    validation = [[0.1, 0.9], [0.6, 0.8], [0.8, 0.6], [NAN, 0.2], [NAN, NAN]]
    assert best_round(learned("accuracy", validation, validation)) == 2
    losses = [[3.0, NAN], [0.4, 0.6], [0.5, 0.5], [0.5, 0.6]]
    assert best_round(learned("loss", losses, losses), "loss") == 2


def test_best_round_never_looks_at_test_data():
    validation = [[0.5, 0.5], [0.9, 0.7], [0.6, 0.6]]
    for test in ([[0.1, 0.1], [0.2, 0.2], [0.9, 0.9]], [[0.9, 0.9], [0.1, 0.1], [NAN, NAN]]):
        assert best_round(learned("accuracy", validation, test)) == 2


def test_there_is_no_best_round_without_validation_data():
    assert best_round(learned("accuracy", [], [[0.5], [0.6]])) is None
    assert best_round(learned("accuracy", [[NAN], [NAN]], [[0.5], [0.6]])) is None
    assert best_round(Table().whole()) is None


@calm
@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=8))
def test_no_round_is_better_than_the_best(rounds):
    best = best_round(learned("accuracy", rounds, rounds))
    assert np.mean(rounds[best - 1]) >= max(np.mean(row) for row in rounds) - 1e-8


def test_total_adds_the_rounds_of_a_cost():
    assert total_of(example().whole(), "bytes_up") == 300
    assert total_of(example().whole(), "bytes_down") == 0


def test_mean_leaves_nan_out_and_is_nan_of_nothing():
    assert mean_of(np.array([1.0, NAN, 3.0])) == 2
    assert np.isnan(mean_of(np.array([NAN])))
    assert np.isnan(mean_of(np.array([])))


def test_summary_worked_by_hand():
    found = summarize(np.array([0.5, 0.7, 0.9]), np.array([10, 20, 70]))
    assert found.mean == pytest.approx(0.7)
    assert found.weighted == pytest.approx(0.05 + 0.14 + 0.63)
    assert found.deviation == pytest.approx(0.2)  # sqrt((0.04 + 0 + 0.04) / 2)
    assert found.worst == 0.5


def test_summary_counts_only_clients_that_have_the_part():
    found = summarize(np.array([0.5, NAN, 0.9]), np.array([10, 0, 30]))
    assert found == pytest.approx((0.7, 0.8, 0.2 * 2**0.5, 0.5))


def test_summary_of_one_client_has_no_deviation_and_of_none_is_nan():
    assert summarize(np.array([0.4]), np.array([5])) == (0.4, 0.4, 0.0, 0.4)
    assert all(np.isnan(v) for v in summarize(np.array([NAN, NAN]), np.array([0, 0])))
    assert all(np.isnan(v) for v in summarize(np.array([]), np.array([])))


def test_worst_is_the_largest_of_a_loss():
    assert summarize(np.array([0.5, 0.9]), np.array([1, 1]), least_is_worst=False).worst == 0.9


def test_file_reads_with_pyarrow_and_has_the_documented_columns(tmp_path):
    example().write(tmp_path / "metrics.parquet")
    read = pq.read_table(tmp_path / "metrics.parquet")
    assert read.column_names == ["stage", "round", "client", "view", "part", "metric", "value"]
    assert read.schema.field("value").type == pa.float64()
    assert read.schema.field("round").type == pa.int32()
    assert read.num_rows == example().whole().num_rows
    assert set(read["metric"].to_pylist()) == {"accuracy", "bytes_up"}
    assert [p.name for p in tmp_path.iterdir()] == [
        "metrics.parquet"
    ]  # nothing half-written beside it


def test_table_read_again_goes_on_where_it_stood(tmp_path):
    table = example()
    table.write(tmp_path / "metrics.parquet")
    again = Table.read(tmp_path / "metrics.parquet")
    for t in (table, again):
        t.add("more", 3, np.arange(3), "personal", "test", "accuracy", np.array([0.1, 0.2, 0.3]))
    assert again.whole().to_pylist()[-3:] == table.whole().to_pylist()[-3:]
    assert again.whole().num_rows == table.whole().num_rows
    assert again.whole().schema == COLUMNS


def test_damaged_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "metrics.parquet").write_bytes(b"PAR1 this is none")
    with pytest.raises(BadInput, match=r"metrics\.parquet cannot be read"):
        Table.read(tmp_path / "metrics.parquet")
    with pytest.raises(BadInput, match="cannot be read"):
        Table.read(tmp_path / "absent.parquet")


def note_rounds(table: Table, rounds: range) -> None:
    """Rows that can be told apart, with a word that is new at each hundredth round."""
    for r in rounds:
        table.add("train", r, np.array([EVERYONE]), "", "", "seconds", np.array([r / 7]))
        table.add(
            f"stage {r // 100}", r, np.arange(3), "personal", "test", "loss", np.arange(3) * r
        )


def mark(table: Table, run: Path, number: int) -> Path:
    """The mark of a checkpoint of the table, where a run has it."""
    folder = run / f"checkpoint-{number:07d}"
    folder.mkdir(parents=True)
    table.write_mark(folder / MARK)
    return folder / MARK


def test_a_checkpoint_writes_the_new_rows_only(tmp_path):
    table, sizes = Table(), []
    for k in range(1, 60):
        note_rounds(table, range(10 * k, 10 * k + 10))
        pointer = mark(table, tmp_path, k)
        sizes.append((tmp_path / ROWS).stat().st_size)
    grown = np.diff(sizes)
    assert grown.max() < 1.5 * grown.min()
    assert pointer.stat().st_size < 200
    whole = Table()
    note_rounds(whole, range(10, 600))
    assert Table.read(pointer).whole().to_pylist() == whole.whole().to_pylist()


def test_memory_is_that_of_the_rows_since_the_last_checkpoint(tmp_path):
    table, held = Table(), []
    tracemalloc.start()
    try:
        for k in range(1, 41):
            note_rounds(table, range(100 * k, 100 * k + 100))
            mark(table, tmp_path, k)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[-1] < held[4] + 50_000  # 15,000 rows came in between


def test_a_thousand_rows_take_no_more_than_their_numbers():
    table = Table()
    note_rounds(table, range(10))  # the words
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        note_rounds(table, range(10, 260))
        assert tracemalloc.get_traced_memory()[0] - before < 64 * 1000
    finally:
        tracemalloc.stop()


def test_rows_leave_memory_without_a_checkpoint_too(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.results.metric_table.SPILL", 100)
    table, whole = Table(), Table()
    table.keep(tmp_path / ROWS)
    note_rounds(table, range(1, 60))
    note_rounds(whole, range(1, 60))
    assert (tmp_path / ROWS).exists()
    assert table.whole().to_pylist() == whole.whole().to_pylist()


def test_a_table_goes_on_from_its_mark_over_what_came_later(tmp_path):
    """Killed after a checkpoint: later rows, and one torn off, are in the file but do not count."""
    straight = Table()
    note_rounds(straight, range(1, 301))
    first = Table()
    note_rounds(first, range(1, 101))
    pointer = mark(first, tmp_path, 1)
    note_rounds(first, range(101, 201))
    first.keep(tmp_path / ROWS)
    with (tmp_path / ROWS).open("ab") as file:
        file.write(b"\xff" * 20)
    again = Table.read(pointer)
    assert len(again.whole()) == 400
    note_rounds(again, range(101, 301))
    later = mark(again, tmp_path, 2)
    for table in (again, Table.read(later)):
        assert table.whole().equals(straight.whole())
        table.write(tmp_path / "metrics.parquet")
        straight.write(tmp_path / "straight.parquet")
        same = (tmp_path / "metrics.parquet").read_bytes()
        assert same == (tmp_path / "straight.parquet").read_bytes()


def test_the_finished_file_does_not_depend_on_when_rows_were_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.results.metric_table.GROUP", 64)
    files = []
    for every in (7, 20, 1000):
        table = Table()
        (tmp_path / str(every)).mkdir()
        for r in range(1, 101):
            note_rounds(table, range(r, r + 1))
            if r % every == 0:
                table.keep(tmp_path / str(every) / ROWS)
        table.write(tmp_path / str(every) / "metrics.parquet")
        files.append((tmp_path / str(every) / "metrics.parquet").read_bytes())
    assert files[0] == files[1] == files[2]
    read = pq.ParquetFile(tmp_path / "7" / "metrics.parquet")
    assert [read.metadata.row_group(k).num_rows for k in range(read.num_row_groups)][:2] == [64, 64]


@pytest.mark.parametrize("place", [0.3, 0.9])
def test_a_byte_of_the_rows_that_has_changed_is_refused(place, tmp_path):
    table = Table()
    for k in (1, 2, 3):
        note_rounds(table, range(k * 10, k * 10 + 10))
        pointer = mark(table, tmp_path, k)
    data = bytearray((tmp_path / ROWS).read_bytes())
    data[int(place * len(data))] ^= 1
    (tmp_path / ROWS).write_bytes(bytes(data))
    with pytest.raises(BadInput, match=r"metrics\.rows is damaged .*: restore it from a copy"):
        Table.read(pointer)


def test_rows_that_are_missing_or_cut_off_are_refused(tmp_path):
    table = Table()
    note_rounds(table, range(1, 50))
    pointer = mark(table, tmp_path, 1)
    data = (tmp_path / ROWS).read_bytes()
    (tmp_path / ROWS).write_bytes(data[:-1])
    with pytest.raises(BadInput, match=r"metrics\.rows is damaged"):
        Table.read(pointer)
    (tmp_path / ROWS).unlink()
    with pytest.raises(BadInput, match=r"metrics\.rows cannot be read"):
        Table.read(pointer)
    pointer.write_text("{}x")
    with pytest.raises(BadInput, match=r"metrics\.json cannot be read"):
        Table.read(pointer)


def test_rows_behind_a_link_are_refused(tmp_path):
    table = Table()
    note_rounds(table, range(1, 5))
    pointer = mark(table, tmp_path / "run", 1)
    (tmp_path / "run" / ROWS).rename(tmp_path / "elsewhere")
    (tmp_path / "run" / ROWS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="is a link"):
        Table.read(pointer)


def test_a_checkpoint_that_made_room_for_the_next_is_read_as_that(tmp_path):
    table = Table()
    note_rounds(table, range(1, 5))
    old = mark(table, tmp_path, 1)
    note_rounds(table, range(5, 9))
    mark(table, tmp_path, 2)
    shutil.rmtree(old.parent)
    assert len(Table.read(old).whole()) == 4 * 8
