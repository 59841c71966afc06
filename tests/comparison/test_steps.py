"""Rates and networks that nobody gave: chosen step by step on validation rows, alike for every
method, and kept as given unless something is better beyond chance.
"""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import coterie
from coterie.analysis.scores import find_score
from coterie.cli import show_tuning
from coterie.comparison import automatic
from coterie.comparison.automatic import decide_trials, settle_steps
from coterie.comparison.cache import AssemblyCache
from coterie.comparison.limits import SearchLimits, read_limits
from coterie.comparison.plan import ComparisonPlan, plan_of, read_plan
from coterie.comparison.steps import (
    MOST_TRIALS,
    USUAL,
    dense_for,
    is_clearly_better,
    propose_step,
    rates_around,
)
from coterie.comparison.trials import Record, Trial, read_record
from helpers.federations import tiny
from helpers.serving import write_numbers

FAST = {"rounds": 3, "compile": "no", "report": False, "references": False, "threads": 1}
NUMBERS = {"client": "site", "label": "verdict"}
GRID = {"lr": rates_around(0.1), "model": ["dnn", "mlr"]}


def test_the_terminal_shows_what_was_chosen_not_what_scored_highest():
    tried = [Trial({"lr": 0.1}, [0.5]), Trial({"lr": 0.3}, [0.4])]
    cells = show_tuning._format_row(Record({}, tried, best={"lr": 0.1}), find_score("mae"))
    assert cells == ["lr 0.1", "2", "0", "0.5"]


def walk(score, grid=GRID, better=1):
    """Every trial that is proposed where a point has this score."""
    tried = []
    while (point := propose_step(grid, 0.1, tried, better)) is not None:
        assert point not in [t.options for t in tried]
        tried.append(Trial(point, [score(point)]))
    return tried


def record_of(folder, method):
    found = read_record(folder / "tuning" / method)
    assert found
    return found


def test_rates_go_up_or_down_as_long_as_that_is_better():
    assert rates_around(0.1) == [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
    assert 0.12345 in rates_around(0.12345)
    for top in GRID["lr"]:
        tried = walk(lambda p, top=top: -abs(np.log(p["lr"] / top)) - (p["model"] == "mlr"))
        assert max(tried, key=lambda t: t.score).options == {"lr": top, "model": "dnn"}
        assert len(tried) <= MOST_TRIALS
    up = [t.options["lr"] for t in walk(lambda p: p["lr"], {"lr": GRID["lr"]})]
    assert up == [0.1, 0.3, 1.0, 3.0]


def test_the_other_network_is_tried_at_the_best_rate_and_taken_on_if_it_is_better():
    def score(point):
        best = {"dnn": 0.3, "mlr": 1.0}[point["model"]]
        at = abs(np.log(point["lr"] / best))
        return 3.2 - 0.55 * at if point["model"] == "mlr" else 2.5 - at / 2

    tried = [(t.options["model"], t.options["lr"]) for t in walk(score)]
    assert tried[:3] == [("dnn", 0.1), ("mlr", 0.1), ("dnn", 0.3)]
    assert tried[-1] == ("mlr", 3.0)  # the step that was one too many
    assert ("mlr", 1.0) in tried


def test_a_trial_without_a_score_is_the_worst_and_a_loss_goes_down():
    def error(point):
        return None if point["lr"] > 0.1 else point["lr"]

    tried = walk(error, {"lr": GRID["lr"]}, better=-1)
    assert [t.options["lr"] for t in tried] == [0.1, 0.3, 0.03, 0.01, 0.003]


def test_chance_does_not_change_what_is_given():
    rng = np.random.default_rng(0)
    given = rng.normal(size=(1, 50))
    noise = [is_clearly_better(rng.normal(size=(1, 50)), given, 1) for _ in range(200)]
    assert np.mean(noise) < 0.2
    assert is_clearly_better(given + 0.1, given, 1)
    assert not is_clearly_better(given + 0.1, given, -1)
    there = np.where(np.arange(50) < 3, np.nan, given + 0.1)  # clients without validation rows
    assert is_clearly_better(there, given, 1)


def test_a_table_of_many_rows_has_a_wider_network():
    assert [dense_for(n) for n in (0, 500, 10_000)] == ["dnn"] * 3
    assert dense_for(60_000) == "dnn:hidden=256"
    assert dense_for(10**7) == "dnn:hidden=512"


def test_the_network_that_is_tried_is_none_that_many_clients_have_no_room_for():
    assert dense_for(10**6, 50 * 73) == "dnn:hidden=512"
    assert dense_for(10**6, 3000 * 73) == "dnn:hidden=256"
    assert dense_for(10**6, 5000 * 73) == "dnn"


# What is searched


def test_only_what_nobody_gave_is_searched_and_only_on_tables():
    def searched(settings, own=None, file=None, methods=("local", "ditto"), **more):
        plan = plan_of(file or {}, methods, common=settings, own=own, choose=True, **more)
        return {name: list(grid) for name, grid in plan.grids.items()}, plan.search

    table = {"dataset": "some.csv"}
    assert searched(table) == ({"local": ["lr", "model"], "ditto": ["lr", "model"]}, USUAL)
    assert searched(table | {"lr": 0.1})[0] == {"local": ["model"], "ditto": ["model"]}
    assert searched(table | {"hidden": 8})[0] == {"local": ["lr"], "ditto": ["lr"]}
    own = {"ditto": {"lr": 0.3, "model": "mlr"}}
    assert searched(table, own)[0] == {"local": ["lr", "model"]}
    assert searched(table | {"lr": 0.1, "model": "dnn"}) == ({}, None)
    assert searched({"dataset": "digits"}) == ({}, None)
    assert searched({}, file={"dataset": {"name": "some.csv"}}) == ({}, None)
    assert searched(table, grids={"ditto": {"lam": [1, 2]}}) == ({"ditto": ["lam"]}, None)
    assert read_limits(None, "0") == (None, False)
    assert read_limits(None, None) == (None, True)
    assert read_limits(5, None) == (SearchLimits(5), False)


def test_what_is_automatic_by_name_is_searched_on_any_data():
    plan = plan_of({}, ["local"], common={"dataset": "digits", "lr": "auto"})
    assert plan.grids == {"local": {"lr": rates_around(0.1)}}
    assert plan.search == SearchLimits(MOST_TRIALS, listed=True, steps=True)


# How many trials


def plan_for(methods):
    return ComparisonPlan({}, [0], dict.fromkeys(methods, GRID), USUAL)


def test_the_number_of_trials_follows_once_from_the_first_ones(caplog):
    caplog.set_level("INFO")
    seconds = {"local": 1.0, "ditto": 2.0}
    found = decide_trials(plan_for(seconds), USUAL, lambda name, limit: seconds[name])
    assert found.search == USUAL._replace(trials=10)  # 30 s / 3 s
    quick = decide_trials(plan_for(seconds), USUAL, lambda name, limit: 0.01)
    assert quick.search == USUAL._replace(trials=MOST_TRIALS)
    assert "at most 10 trials of each method, at most 30s; --budget 0" in caplog.text


def test_nothing_is_searched_where_a_run_takes_too_long(caplog):
    caplog.set_level("INFO")
    asked = []

    def play(name, limit):
        asked.append(limit)
        return 5.0 if name == "local" else None

    found = decide_trials(plan_for(["local", "ditto"]), USUAL, play)
    assert (found.grids, found.search) == ({}, None)
    assert asked == [30 / 4, 30 / 4 - 5.0]  # what the first leaves, of four trials of both
    assert "stay as given: one run of each method takes more than 8s of the 30s" in caplog.text
    assert "(ditto was cut off)" in caplog.text


# Played


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    path = str(write_numbers(folder / "numbers.csv"))
    return coterie.compare(["local", "fedper"], dataset=path, out=folder / "c", **NUMBERS, **FAST)


def test_a_table_of_one_s_own_is_searched_by_default(chosen):
    for name, networks in (("local", ["dnn", "mlr"]), ("fedper", ["dnn"])):
        record = record_of(chosen.folder, name)
        assert record.space == {"lr": rates_around(0.1), "model": networks}
        assert record.tried[0].options == {"lr": 0.1, "model": "dnn"}
        assert len(record.tried) > 2
        run = chosen.runs[name][0].experiment
        assert (run.train.lr, run.model["name"]) == (record.best["lr"], record.best["model"])
        for path in (chosen.folder / "tuning" / name).glob("try*"):
            assert 'parts = ["validation"]' in (path / "config.toml").read_text()


def test_the_plan_of_a_search_repeats_it_whatever_the_clock(chosen, tmp_path):
    plan = read_plan(chosen.folder / "comparison.toml")
    assert plan.search == USUAL._replace(trials=MOST_TRIALS)
    file = chosen.folder / "comparison.toml"
    again = coterie.compare(config=file, out=tmp_path / "c", report=False, references=False)
    for name in ("local", "fedper"):
        one, two = (record_of(folder, name) for folder in (chosen.folder, again.folder))
        assert [t.validation for t in one.tried] == [t.validation for t in two.tried]
        assert one.best == two.best
        assert np.array_equal(chosen.client_values(name), again.client_values(name))


def test_a_search_that_was_killed_goes_on_with_the_same_trials(chosen, tmp_path):
    settings = NUMBERS | {k: v for k, v in FAST.items() if k not in ("report", "references")}
    words = [w for k, v in settings.items() for w in (f"--{k}", str(v))]
    main = [sys.executable, "-c", "from coterie.cli.main import main; main()", "compare"]
    data, folder = chosen.folder.parent / "numbers.csv", tmp_path / "c"
    more = ["--methods", "local,fedper", "--no-report", "--no-references", "--out", str(folder)]
    process = subprocess.Popen([*main, str(data), *more, *words], stderr=subprocess.PIPE)
    while process.poll() is None and not (folder / "tuning" / "local" / "try3-seed0").exists():
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert record_of(folder, "local").best is None
    again = coterie.resume(folder)
    for name in ("local", "fedper"):
        assert record_of(folder, name).best == record_of(chosen.folder, name).best
        assert np.array_equal(chosen.client_values(name), again.client_values(name))


def test_a_budget_of_nothing_leaves_rate_and_network_as_they_are(tmp_path):
    path = str(write_numbers(tmp_path / "numbers.csv"))
    made = coterie.compare(["local"], dataset=path, out=tmp_path / "c", budget=0, **NUMBERS, **FAST)
    assert not (made.folder / "tuning").exists()
    assert made.first.experiment.train.lr == 0.1
    assert made.first.experiment.model["name"] == "dnn"


def test_nothing_is_chosen_without_validation_rows_or_with_privacy(tmp_path, caplog):
    caplog.set_level("INFO")
    table = NUMBERS | {"dataset": str(write_numbers(tmp_path / "numbers.csv"))}

    def searched(more):
        plan = plan_of({}, ["fedavg"], common=table | more, choose=True)
        return settle_steps(plan, AssemblyCache(None, None)).search

    assert searched({}) == USUAL
    assert searched({"dp": "client", "dp_clip": 1.0, "dp_noise": 1.0}) is None
    assert automatic.AS_GIVEN not in caplog.text
    assert searched({"validation": 0.0}) is None
    assert f"{automatic.AS_GIVEN}: there are no validation rows" in caplog.text


def test_garbage_in_the_test_part_changes_no_choice(tmp_path):
    good = tiny(validation=8)
    y = good.y.clone()
    for rows in good.test:
        y[rows] = (y[rows] + 1) % 3
    found = []
    for name, data in (("good", good), ("bad", good._replace(y=y))):
        made = coterie.compare(["ditto"], dataset=data, lr="auto", out=tmp_path / name, **FAST)
        tried = json.loads((made.folder / "tuning" / "ditto" / "tuning.json").read_text())
        found.append((tried["tried"], tried["best"]))
    assert found[0] == found[1]
