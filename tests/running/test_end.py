"""What follows the last round is there once, and is restored where it was lost."""

import json
import os
from unittest import mock

import numpy as np
import pytest

from coterie.core.errors import BadInput
from coterie.experiment.config import Experiment, change_options
from coterie.results.personal_models import Models
from coterie.results.run import load_run
from coterie.running import execute as running
from coterie.running.execute import execute, resume
from helpers.runs import FAST, Stopped, experiment, results, write_csv

NEWCOMERS = {"num_clients": 6, "newcomers": 0.4, "few-shot": (4,), "method": "ditto", "rounds": 2}


def stopped_before(name):
    """Runs that are stopped at the end, as they write down some part of it."""
    return mock.patch.object(running, name, side_effect=Stopped)


def finish_about(*given):
    if given[2] == "finished":
        raise Stopped
    return write_about(*given)


write_about = running._write_about


def test_a_run_that_was_stopped_at_its_end_counts_newcomers_once(tmp_path):
    asked = experiment(**NEWCOMERS)
    whole = execute(asked, tmp_path / "whole")
    place = tmp_path / "run"
    with mock.patch.object(running, "_write_about", finish_about), pytest.raises(Stopped):
        execute(asked, place)
    for name in ("write_config", "measure_newcomers", "save_models"):
        with stopped_before(name), pytest.raises(Stopped):
            resume(place)
    with mock.patch.object(running, "_write_about", finish_about), pytest.raises(Stopped):
        resume(place)
    assert len(resume(place).table) == len(whole.table)
    assert results(place) == results(tmp_path / "whole")


@pytest.fixture
def finished(tmp_path):
    """A finished run of a table, with a preparation."""
    settings = {"rounds": 2, "eval_every": 2, "checkpoint": 1, "batch_size": 8, "hidden": 6}
    data = {"dataset": str(write_csv(tmp_path / "t.csv")), "label": "label", "client": "client"}
    return execute(
        change_options(Experiment(), FAST | settings | data | {"method": "ditto"}), tmp_path / "run"
    ).folder


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGES = {"removed": lambda p: p.unlink(), "changed": flip, "a pipe": replace_by_pipe}
FILES = ("models/client-00001.safetensors", "models/models.json", "metrics.parquet")
TABLES = ("rows.parquet", "split.parquet", "scores.parquet")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", [*FILES, *TABLES, "preparation.json"])
def test_resume_of_a_finished_run_restores_what_was_lost(file, damage, finished):
    before, kept = results(finished), (finished / file).read_bytes()
    DAMAGES[damage](finished / file)
    said = []
    resume(finished, lambda report: said.extend(report.said))
    assert str((finished / file).parent) in said[0]
    assert "restored from a checkpoint" in said[0]
    assert results(finished) == before
    if file != "metrics.parquet":  # which has the seconds
        assert (finished / file).read_bytes() == kept
    said.clear()
    resume(finished, lambda report: said.extend(report.said))
    assert not said


def test_what_cannot_be_restored_is_said(tmp_path):
    run = execute(experiment(checkpoint=0, rounds=1), tmp_path / "run")
    next((run.folder / "models").glob("*.safetensors")).unlink()
    with pytest.raises(BadInput, match="no checkpoint to restore it from: run again"):
        resume(run.folder)


def test_models_are_on_the_disk_before_a_run_says_that_it_is_finished(tmp_path):
    synced, fsync = set(), os.fsync

    def note(number):
        synced.add(os.fstat(number).st_ino)
        fsync(number)

    def finish(*given):
        if given[2] == "finished":
            files = [*(tmp_path / "run" / "models").iterdir(), tmp_path / "run" / "models"]
            assert {p.stat().st_ino for p in files} <= synced
        return write_about(*given)

    with mock.patch("os.fsync", note), mock.patch.object(running, "_write_about", finish):
        execute(experiment(rounds=1, method="local"), tmp_path / "run")


def change_spread(folder):
    path = folder / "preparation.json"
    settings = json.loads(path.read_text())
    text = json.dumps(settings, indent=1)
    digits = [k for k, c in enumerate(text) if c in "12345678" and text[k - 1] == "."]
    path.write_text(text[: digits[-1]] + "9" + text[digits[-1] + 1 :])


def change_about(**settings):
    def change(folder):
        path = folder / "run.json"
        known = json.loads(path.read_text())
        path.write_text(json.dumps(known | {k: f(known[k]) for k, f in settings.items()}, indent=1))

    return change


@pytest.mark.parametrize(
    "change",
    [
        change_spread,
        change_about(labels=lambda v: v[::-1]),
        change_about(clients=lambda v: v[::-1]),
        change_about(models=lambda v: [v[0] | {"name": "mlr"}]),
        change_about(files=lambda v: {}),
    ],
    ids=["a digit of a spread", "labels", "clients", "models", "checksums"],
)
def test_what_decides_a_prediction_is_refused_where_it_was_changed(change, finished):
    rows = {"a": np.array([0.5]), "b": np.array([-0.5])}
    assert len(Models(finished).model(0).predict(rows)) == 1
    change(finished)
    with pytest.raises(BadInput, match="is damaged"):
        Models(finished).model(0).predict(rows)


def test_a_run_of_before_without_checksums_still_answers(finished):
    path = finished / "run.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in known.items() if k not in ("files", "checksum")}))
    assert len(load_run(finished).model(0).predict({"a": [0.5], "b": [0.1]})) == 1
