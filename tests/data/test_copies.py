"""Copies of a row stay in one part of a client; columns that number the rows are no inputs."""

import numpy as np
import polars as pl
import pytest

from coterie.data.client_rows import ClientRows
from coterie.data.federation import PARTS, list_rows, part_of
from coterie.data.partition.copies import find_copies
from coterie.data.partition.cuts import Shares, cut_at_points, halve_held
from coterie.data.pipeline import build_federation
from coterie.data.read.user_data import from_frame
from coterie.deploy.config_files import DataShape
from coterie.deploy.site_rows import count_parts, read_rows, site_federation

SHARES = Shares(0.2, 0.2)


def draw_copies(seed):
    rng = np.random.default_rng(seed)
    row = rng.integers(0, rng.integers(1, 40), rng.integers(1, 40))
    if seed % 2:  # mostly single rows
        row = np.arange(len(row))
        row[: len(row) // 4] = 0
    return row


@pytest.mark.parametrize("seed", range(60))
def test_copies_are_in_one_part_and_sizes_do_not_depend_on_the_order(seed):
    row = draw_copies(seed)
    parts = ClientRows.of([np.arange(len(row))])
    cut = [p[0] for p in cut_at_points(parts, SHARES, [np.random.default_rng(seed)], row)]
    draft = [p[0] for p in cut_at_points(parts, SHARES, None, row)]
    plain = [p[0] for p in cut_at_points(parts, SHARES, None)]
    assert sorted(np.concatenate(cut)) == list(range(len(row)))
    assert list(map(len, cut)) == list(map(len, draft))
    if seed % 2:
        assert list(map(len, cut)) == list(map(len, plain))
    pieces = [*cut[:1], *halve_held(cut[1], row[cut[1]]), cut[2]]
    held = [set(row[piece].tolist()) for piece in pieces]
    assert sum(map(len, held)) == len(set(row.tolist()))
    filled = sum(len(p) > 0 for p in plain)
    assert sum(len(p) > 0 for p in cut) >= min(len(set(row.tolist())), filled)


def test_a_client_without_copies_is_cut_as_ever():
    row = np.r_[np.arange(20), np.zeros(10, int) + 50]
    parts = ClientRows.of([np.arange(20), np.arange(20, 30)])
    rngs = [[np.random.default_rng(k) for k in range(2)] for _ in range(2)]
    for with_copies, without in zip(
        cut_at_points(parts, SHARES, rngs[0], row),
        cut_at_points(parts, SHARES, rngs[1]),
        strict=True,
    ):
        assert with_copies[0].tolist() == without[0].tolist()


def test_copies_have_the_same_inputs_label_and_client():
    x = np.array(
        [[1, np.nan], [1, np.nan], [1, 2], [0.0, 2], [-0.0, 2], [1, 2]] + [[k, 9] for k in range(9)]
    )
    y = np.array([0, 0, 0, 1, 1, 1] + [0] * 9)
    row = find_copies(x, y).row
    assert row[0] == row[1] != row[2]
    assert row[3] == row[4]
    assert row[2] != row[5]
    apart = find_copies(x, y, np.array([0, 1] + [0] * 13)).row
    assert apart[0] != apart[1]


def test_rows_that_are_mostly_equal_are_no_copies():
    found = find_copies(np.zeros((30, 2)), np.zeros(30), np.repeat([0, 1], 15))
    assert len(np.unique(found.row)) == 30
    assert found.apart == 2


def make_frame(copies=5):
    rng = np.random.default_rng(0)
    n = 60
    frame = pl.DataFrame(
        {
            "client": ["u", "v"] * (n // 2),
            "code": [f"R{k:03d}" for k in rng.permutation(n)],
            "row_id": rng.permutation(n) + 100,
            "income": rng.permutation(10_000)[:n],
            "a": rng.normal(size=n).round(3),
            "label": rng.permutation(["x", "y"] * (n // 2)),
        }
    )
    return pl.concat([frame, frame[:copies], frame[:2]])


def test_ids_are_left_out_though_rows_are_copied():
    whole = from_frame(make_frame())
    assert [c.name for c in whole.columns] == ["income", "a"]
    assert any(
        "code, row_id left out: another value in every row" in line for line in whole.remarks
    )
    kept = from_frame(make_frame(), keep_ids=True)
    assert [c.name for c in kept.columns] == ["code", "row_id", "income", "a"]
    named = from_frame(make_frame(), features="code,a")
    assert [c.name for c in named.columns] == ["code", "a"]


def test_no_copy_of_a_training_row_is_tested_on(caplog):
    caplog.set_level("INFO", "coterie.data")
    federation = build_federation(from_frame(make_frame()))
    assert "7 rows are copies of a row of the same client" in caplog.text
    cells = make_frame().select("income", "a").rows()
    for i in range(2):
        held = [
            {cells[r] for r in federation.rows[np.asarray(part_of(federation, part)[i])].tolist()}
            for part in PARTS
        ]
        assert sum(map(len, held)) == 30
    table = list_rows(federation)
    assert set(zip(*(table[c].to_pylist() for c in ("client", "name")), strict=True)) == {
        (0, "u"),
        (1, "v"),
    }


def test_a_site_cuts_copies_as_a_simulation_does(tmp_path):
    frame = make_frame(20).drop("code", "row_id").sort("client", maintain_order=True)
    for (name,), rows in frame.group_by("client", maintain_order=True):
        rows.drop("client").write_csv(tmp_path / f"{name}.csv")
    whole = build_federation(str(tmp_path))
    shape = DataShape(classes=2, features=2, labels=("x", "y"))
    for i, name in enumerate("uv"):
        rows = read_rows(tmp_path / f"{name}.csv", "label", shape=shape)
        site = site_federation(rows, shape, name, i, 2, None)
        before = 0 if i == 0 else int((frame["client"] == "u").sum())
        for part, count in count_parts(rows, shape).items():
            mine = np.asarray(part_of(site, part)[i])
            assert len(mine) == count
            theirs = whole.rows[np.asarray(part_of(whole, part)[i])]
            assert mine.tolist() == (theirs - before).tolist()
