"""What a run leaves while it goes and when it ends: progress, the lock, the split, the scores, and
a run played again.
"""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import f1_score

import coterie
from coterie.core.errors import BadInput
from coterie.data.read.user_data import from_arrays
from coterie.experiment.config import Experiment, change_options
from coterie.results.metric_table import values_of
from coterie.running.execute import execute, resume
from coterie.running.progress import is_busy, lock_folder, read_lines
from helpers.federations import assert_same, float64, personal, play

FAST = {
    "num_clients": 4,
    "rounds": 4,
    "path": "vectorized",
    "width": 4,
    "compile": "no",
    "threads": 1,
}


def experiment(**settings):
    return change_options(Experiment(), {"method": "fedavg"} | FAST | settings)


def test_every_round_is_told_once_also_after_a_resume(tmp_path):
    class Stop(Exception):
        pass

    def stop(report):
        if report.round == 3:
            raise Stop

    with pytest.raises(Stop):
        execute(experiment(checkpoint=2), tmp_path / "run", stop)
    assert [line["round"] for line in read_lines(tmp_path / "run")] == [1, 2, 3]
    resume(tmp_path / "run")
    told = read_lines(tmp_path / "run")
    assert [line["round"] for line in told] == [1, 2, 3, 4]
    assert all(
        line["rounds"] == 4 and 0 <= line["accuracy"] <= 1 and line["time"] > 0 for line in told
    )


def test_a_line_cut_off_is_left_out(tmp_path):
    (tmp_path / "progress.jsonl").write_text('{"round": 1}\n{"round": 2', encoding="utf-8")
    assert read_lines(tmp_path) == [{"round": 1}]


def test_a_folder_in_use_is_refused_and_free_when_its_process_is_killed(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from coterie.running.progress import lock_folder\n"
        "with lock_folder(Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        assert is_busy(tmp_path)
        with pytest.raises(BadInput, match="another process"), lock_folder(tmp_path):
            pass
        other.kill()
    assert not is_busy(tmp_path)
    with lock_folder(tmp_path):
        pass


def test_the_split_is_written_as_it_was_dealt(tmp_path):
    run = execute(experiment(), tmp_path / "run")
    counts = pd.read_parquet(run.folder / "split.parquet")
    by_client = counts[counts.part == "train"].groupby("client").rows.sum()
    assert by_client.tolist() == run.about["rows"]["train"]
    assert (counts.groupby("client").label.nunique() == 3).all()  # three classes a client


def test_scores_of_the_last_round_are_those_of_the_models_on_disk(tmp_path):
    cancer = load_breast_cancer()
    x = (cancer.data - cancer.data.mean(0)) / cancer.data.std(0)
    data = from_arrays(x, cancer.target, np.arange(len(x)) % 4)
    settings = {k: v for k, v in FAST.items() if k != "clients"} | {"rounds": 2}
    run = coterie.run("fedavg", dataset=data, out=tmp_path / "run", **settings)
    kept = pd.read_parquet(run.folder / "scores.parquet")
    assert kept.groupby("client").size().tolist() == run.about["rows"]["test"]
    for client, rows in kept.groupby("client"):
        expected = f1_score(rows.label, rows.score > 0.5, average="macro")
        assert values_of(run.table, "f1")[1][client] == pytest.approx(expected)
        assert run.accuracy()[client] == pytest.approx(((rows.score > 0.5) == rows.label).mean())
    assert set(values_of(run.table, "calibration_error")[0]) == {0, 1, 2, 3}
    assert not len(values_of(run.table, "f1", round=1)[1])


@pytest.mark.parametrize("name", ["ditto", "ktpfl", "persfl"])
def test_a_run_whose_clients_dropped_out_is_played_again_from_who_answered(name):
    with float64():
        first = play(name, rounds=3, dropout_clients=0.4, until=0)
        answers, original = {}, first.engine.exchange

        def exchange(trip):
            outcome = original(trip)
            answers[trip.when.stage, trip.when.round, trip.number] = outcome.answered
            return outcome

        first.engine.exchange = exchange
        first.go()
        assert any(len(who) < 5 for who in answers.values())
        again = play(name, rounds=3, until=0)
        again.answers = answers
        again.go()
        assert_same(personal(again), personal(first))


def test_the_table_counts_the_clients_of_every_round(tmp_path):
    run = execute(experiment(participation=2), tmp_path / "run")
    found = pd.read_parquet(run.folder / "metrics.parquet")
    assert found[found.metric == "clients"]["value"].tolist() == [2] * 4
