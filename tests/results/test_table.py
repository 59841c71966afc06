"""The table of metrics: hand-worked values, NaN parts, and the file that others read."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.analysis.numbers import mean_of
from coterie.core.errors import BadInput
from coterie.results.table import (
    COLUMNS,
    EVERYONE,
    Table,
    best_round,
    curve,
    summarize,
    total,
    values,
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
            "train", round, np.arange(3), "personal", "validation", "accuracy", np.array(validation)
        )
        table.add(
            "train", round, np.array([EVERYONE]), "", "", "bytes_up", np.array([100.0 * round])
        )
    table.add("train", 1, np.array([2, 0]), "global", "test", "accuracy", np.array([0.6, 0.1]))
    return table


def test_values_are_those_of_the_last_round_unless_one_is_named():
    table = example().whole()
    clients, last = values(table, "accuracy")
    assert clients.tolist() == [0, 1, 2]
    assert last.tolist() == [0.3, 0.5, 0.7]
    assert values(table, "accuracy", round=1)[1].tolist() == [0.2, 0.4, 0.9]


def test_values_come_in_the_order_of_clients_and_only_for_the_view_asked():
    clients, found = values(example().whole(), "accuracy", view="global")
    assert clients.tolist() == [0, 2]
    assert found.tolist() == [0.1, 0.6]


def test_values_of_what_was_never_measured_are_empty():
    assert [len(column) for column in values(example().whole(), "f1")] == [0, 0]
    assert [len(column) for column in values(Table().whole(), "accuracy")] == [0, 0]


def test_curve_is_the_mean_over_clients_that_have_the_part():
    rounds, means = curve(example().whole(), "accuracy")
    assert rounds.tolist() == [1, 2]
    assert means == pytest.approx([0.5, 0.5])
    rounds, means = curve(example().whole(), "accuracy", "validation")
    assert means[0] == pytest.approx(0.6)
    assert np.isnan(means[1])


def learned(metric: str, validation: list[list[float]], test: list[list[float]]) -> pa.Table:
    """A row of clients for each round, on both parts."""
    table = Table()
    for part, rounds in (("validation", validation), ("test", test)):
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
    assert total(example().whole(), "bytes_up") == 300
    assert total(example().whole(), "bytes_down") == 0


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
