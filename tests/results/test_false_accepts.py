"""False accepts of a run, from the scores that it kept."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_breast_cancer
from torch import nn

import coterie
from coterie.analysis.detection import false_accepts
from coterie.analysis.scores import score_classes
from coterie.core.errors import BadInput
from coterie.data.pipeline import build_federation
from coterie.data.read.user_data import from_arrays
from coterie.results.false_accepts import (
    SCORES,
    false_accepts_by_group,
    read_scores,
    relative_false_accepts,
)


def net() -> nn.Module:
    return nn.Linear(8, 2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods on tumours: four clients of two device types, the second of which measures
    everything the other way round.
    """
    folder = tmp_path_factory.mktemp("scores")
    x, y = load_breast_cancer(return_X_y=True)
    x, y, owner = (
        ((x - x.mean(0)) / x.std(0)).astype(np.float32)[:320, 2:10],
        y[:320],
        np.arange(320) % 4,
    )
    x[owner > 1] *= -1
    devices = build_federation(from_arrays(x, y, owner, name="tumours"))._replace(
        groups=np.array([0, 0, 1, 1])
    )
    settings = {
        "rounds": 4,
        "lr": 0.5,
        "path": "vectorized",
        "width": 4,
        "compile": "no",
        "threads": 1,
    }
    return {
        name: coterie.run(name, dataset=devices, model=net, out=folder / name, **settings)
        for name in ("fedavg", "local")
    }


def test_models_of_their_own_accept_fewer_false_tumours_than_one_for_both_devices(runs):
    mine, base = (read_scores(runs[name].folder) for name in ("local", "fedavg"))
    found = relative_false_accepts(runs["local"], runs["fedavg"])
    assert found == false_accepts(mine["label"], mine["score"], base["score"])
    assert found.relative_fa < 0.7
    assert relative_false_accepts(runs["fedavg"], runs["fedavg"]).relative_fa <= 1
    assert relative_false_accepts(runs["local"], runs["fedavg"], threshold=0.9) != found


def test_false_accepts_of_a_group_are_those_of_its_clients_rows(runs):
    mine, base = (read_scores(runs[name].folder) for name in ("local", "fedavg"))
    found = false_accepts_by_group(runs["local"], runs["fedavg"])
    assert list(found) == [0, 1]
    for group, clients in ((0, (0, 1)), (1, (2, 3))):
        rows = np.isin(mine["client"], clients)
        assert found[group] == false_accepts(
            mine["label"][rows], mine["score"][rows], base["score"][rows]
        )


def test_the_scores_of_a_run_give_the_accuracy_of_its_table(runs):
    for run in runs.values():
        rows = read_scores(run.folder)
        for client, accuracy in enumerate(run.accuracy()):
            mine = rows["client"] == client
            assert mine.sum() == run.rows[client]
            assert score_classes(rows["label"][mine], rows["score"][mine])[
                "accuracy"
            ] == pytest.approx(accuracy)


def copied(run, folder, **columns):
    """The run with other scores."""
    folder.mkdir()
    pq.write_table(pa.table(read_scores(run.folder) | columns), folder / SCORES)
    return replace(run, folder=folder)


def test_a_group_of_one_class_has_no_false_accepts(runs, tmp_path):
    label = np.where(
        read_scores(runs["local"].folder)["client"] < 2,
        1,
        read_scores(runs["local"].folder)["label"],
    )
    one, two = (copied(runs[name], tmp_path / name, label=label) for name in ("local", "fedavg"))
    found = false_accepts_by_group(one, two)
    assert np.isnan(found[0]).all()
    assert not np.isnan(found[1]).any()


def test_the_order_in_which_clients_were_scored_does_not_matter(runs, tmp_path):
    rows = read_scores(runs["local"].folder)
    order = np.argsort(-rows["client"], kind="stable")
    turned = copied(
        runs["local"], tmp_path / "turned", **{name: column[order] for name, column in rows.items()}
    )
    assert relative_false_accepts(turned, runs["fedavg"]) == relative_false_accepts(
        runs["local"], runs["fedavg"]
    )


def test_runs_on_other_rows_are_refused(runs, tmp_path):
    label = 1 - read_scores(runs["local"].folder)["label"]
    with pytest.raises(
        BadInput, match="scored different test rows: compare runs on the same data, split and seed"
    ):
        relative_false_accepts(
            copied(runs["local"], tmp_path / "other", label=label), runs["fedavg"]
        )


def test_a_folder_without_scores_or_with_damaged_ones_is_refused(tmp_path):
    with pytest.raises(
        BadInput,
        match=r"has no scores\.parquet: scores are written at the end of a run on data of two "
        r"classes",
    ):
        read_scores(tmp_path)
    (tmp_path / SCORES).write_bytes(b"PAR1 none")
    with pytest.raises(BadInput, match=r"scores\.parquet cannot be read"):
        read_scores(tmp_path)
