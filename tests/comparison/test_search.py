"""Searches: the same trials for every method, on validation data alone, going on after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import coterie
from coterie.comparison.limits import SearchLimits, format_time, limits_of, seconds_of
from coterie.comparison.plan import plan_of, read_plan
from coterie.comparison.search import SearchedOption, propose_trial
from coterie.comparison.trials import Trial, read_record, select_best
from coterie.core.errors import BadInput
from coterie.methods.search_space import SearchRange
from coterie.reports.gather import gather_evidence
from coterie.reports.tuning_tables import build_tuning_tables
from helpers.federations import tiny
from helpers.runs import FAST, IMAGES, arrays, write_csv

WORDS = {"rounds": 6, "eval_every": 1, "models": False}
TABLE = FAST | {"hidden": 4, "batch_size": 8, **WORDS}


def record_of(folder: Path, method: str):
    found = read_record(folder / "tuning" / method)
    assert found
    return found


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """Two methods with five trials each, on a table of one's own."""
    folder = tmp_path_factory.mktemp("search")
    data = write_csv(folder / "rows.csv")
    return coterie.compare(
        ["local", "ditto"], dataset=str(data), trials=5, out=folder / "c", **TABLE
    )


def test_every_method_has_the_same_number_of_trials_and_begins_with_its_words(searched):
    records = {name: record_of(searched.folder, name) for name in ("local", "ditto")}
    assert {len(record.tried) for record in records.values()} == {5}
    assert records["ditto"].tried[0].options == {"lr": 0.1, "local_epochs": 1, "lam": 1.0}
    for k in range(5):  # shared seeds: the first words are drawn alike
        rates = {record.tried[k].options["lr"] for record in records.values()}
        assert len(rates) == 1


def test_the_best_finished_trial_is_run_and_no_trial_sees_test_rows(searched):
    record = record_of(searched.folder, "ditto")
    ends = [t for t in record.tried if t.state == "finished"]
    best = max(ends, key=lambda t: t.score)
    assert record.best == best.options
    run = searched.runs["ditto"][0]
    assert run.experiment.options["lam"] == best.options["lam"]
    assert run.experiment.train.lr == best.options["lr"]
    for path in (searched.folder / "tuning" / "ditto").glob("try*"):
        assert 'parts = ["validation"]' in (path / "config.toml").read_text()


def test_trials_that_are_not_among_the_best_are_stopped_early(searched):
    tried = record_of(searched.folder, "local").tried
    early = [t for t in tried if t.state == "stopped"]
    assert early
    assert all(t.rounds < 6 for t in early)
    assert all(t.rounds == 6 for t in tried if t.state == "finished")


def test_garbage_in_the_test_part_changes_no_trial(tmp_path):
    good = tiny(validation=8)
    y = good.y.clone()
    for rows in good.test:
        y[rows] = (y[rows] + 1) % 3
    for name, data in (("good", good), ("bad", good._replace(y=y))):
        coterie.compare(["ditto"], dataset=data, trials=3, out=tmp_path / name, **TABLE)
    assert record_of(tmp_path / "good", "ditto") == record_of(tmp_path / "bad", "ditto")


def test_a_method_s_own_words_are_not_searched_and_ranges_may_be_given(tmp_path):
    plan = plan_of(
        {},
        ["fedavg", "ditto"],
        common={**IMAGES, "lr": 0.2},
        own={"ditto": {"lam": 0.5}},
        grids={"ditto": {"lr": ["0.1..0.3"]}},
        search=SearchLimits(trials=3),
    )
    assert set(plan.grids["ditto"]) == {"lr", "local_epochs"}
    assert plan.grids["ditto"]["lr"] == ["0.1..0.3"]
    assert plan.grids["fedavg"]["lr"] == "0.02..2"


def test_a_plan_with_a_search_is_read_as_it_was_written(searched):
    again = read_plan(searched.folder / "comparison.toml")
    assert again.search == SearchLimits(trials=5, listed=True)
    assert again.grids["ditto"] == {"lr": "0.01..1", "local_epochs": "1..5", "lam": "0.01..10"}


def test_a_search_over_few_values_repeats_no_run(tmp_path):
    settings = FAST | IMAGES | WORDS
    coterie.compare(
        ["ditto"],
        options={"ditto": {"lr": 0.1, "local_epochs": 1}},
        tune={"ditto": {"lam": [0.1, 1.0]}},
        trials=4,
        out=tmp_path / "c",
        **settings,
    )
    tried = record_of(tmp_path / "c", "ditto").tried
    assert len(tried) == 4
    assert len({t.options["lam"] for t in tried if t.rounds}) == len([t for t in tried if t.rounds])
    assert all(t.state in ("repeated", "stopped") for t in tried if not t.rounds)


def test_choices_that_the_network_refuses_are_left_out_and_said(tmp_path):
    said = []
    coterie.compare(
        ["fedper"],
        trials=1,
        watch=lambda method, seed, report: said.extend(report.said),
        out=tmp_path / "c",
        **FAST | IMAGES | WORDS | {"rounds": 1},
    )
    assert read_plan(tmp_path / "c" / "comparison.toml").grids["fedper"]["head"] == [1]
    assert any("head = 2 is not tried" in line for line in said)


def test_a_range_with_an_end_that_is_refused_is_searched_all_the_same(tmp_path):
    said = []
    found = coterie.compare(
        ["pfml"],
        trials=2,
        watch=lambda method, seed, report: said.extend(report.said),
        out=tmp_path / "c",
        **FAST | IMAGES | WORDS | {"rounds": 1},
    )
    assert any("lr = 1.0 is not tried" in line for line in said)
    assert list(found.runs) == ["pfml"]


def test_words_that_do_not_go_together_are_a_trial_that_is_refused(tmp_path):
    class Net(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))

    coterie.compare(
        ["fedper"],
        dataset=arrays(),
        model=Net,
        options={"fedper": {"lr": 0.1, "local_epochs": 1}},
        tune={"fedper": {"own": ["", "0"], "head": [1, 2]}},
        trials=8,
        out=tmp_path / "c",
        **FAST | WORDS | {"rounds": 1},
    )
    tried = record_of(tmp_path / "c", "fedper").tried
    bad = [t for t in tried if t.options == {"own": "0", "head": 2}]
    assert bad
    assert all(t.state == "refused" and t.score is None for t in bad)
    assert tried[0].state == "finished"


def test_time_ends_a_search_and_every_method_has_a_trial(tmp_path):
    settings = FAST | IMAGES | WORDS | {"rounds": 2}
    coterie.compare(["local", "fedavg"], budget="1s", trials=500, out=tmp_path / "c", **settings)
    for name in ("local", "fedavg"):
        tried = record_of(tmp_path / "c", name).tried
        assert 1 <= len(tried) < 500
        assert tried[0].state == "finished"
        assert all(t.seconds is not None for t in tried)


def test_the_report_shows_every_trial(searched):
    tables = {t.key: t for t in build_tuning_tables(gather_evidence([searched.folder]))}
    assert list(tables) == ["tuning-local", "tuning-ditto"]
    rows = tables["tuning-ditto"].rows
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[0][1] == "lr 0.1, local_epochs 1, lam 1.0"
    assert [row[-1] for row in rows].count("chosen") == 1
    assert "Every tuned method had 5 trials" in tables["tuning-ditto"].note
    scores = [100 * t.score for t in record_of(searched.folder, "ditto").tried]
    assert [row[2] for row in rows] == pytest.approx(scores)


# Going on


def command(*settings: object) -> list[str]:
    main = "from coterie.cli.main import main; main()"
    return [sys.executable, "-c", main, *map(str, settings)]


def test_a_search_that_was_killed_ends_with_the_same_result(tmp_path, searched):
    settings = [w for k, v in TABLE.items() for w in (f"--{k}", "no" if v is False else v)]
    data = searched.folder.parent / "rows.csv"
    folder = tmp_path / "c"
    begin = ["compare", data, "--methods", "local,ditto", "--trials", 5, "--out", folder, *settings]
    process = subprocess.Popen(
        command(*begin), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    second = folder / "tuning" / "ditto" / "try2-seed0"
    for _ in range(2400):  # it takes as long as the machine needs
        if second.exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    assert process.poll() is None, process.communicate()[1]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    record = record_of(folder, "ditto")
    assert record.best is None
    again = coterie.resume(folder)
    for name in ("local", "ditto"):
        assert record_of(folder, name) == record_of(searched.folder, name)
        assert np.array_equal(again.accuracy(name), searched.accuracy(name))


def test_going_on_with_another_space_is_refused(tmp_path, searched):
    path = searched.folder / "comparison.toml"
    before = path.read_text()
    path.write_text(before.replace('lam = "0.01..10"', 'lam = "0.01..20"'))
    try:
        with pytest.raises(BadInput, match=r"lam of ditto was tuned over 0.01..10, .* says"):
            coterie.resume(searched.folder)
    finally:
        path.write_text(before)


def test_a_damaged_record_is_one_line(tmp_path):
    (tmp_path / "tuning.json").write_text('{"tried": [{"what": 1}]}')
    with pytest.raises(BadInput, match="is damaged or of another version"):
        read_record(tmp_path)


def test_the_next_words_follow_from_the_record_alone():
    turns = {
        "lam": SearchedOption(SearchRange(0.01, 10), False, 1.0),
        "head": SearchedOption(SearchRange(choices=(1, 2)), True, 1),
    }
    tried: list[Trial] = []
    for k in range(10):
        found = propose_trial(turns, tried, 1, 6)
        read = [Trial(**json.loads(json.dumps(t._asdict()))) for t in tried]
        assert found.options == propose_trial(turns, read, 1, 6).options
        tried.append(Trial(found.options, [float(k % 3)], 1, point=found.point, curve={}, rungs={}))
    assert len({t.options["lam"] for t in tried}) == 10


def test_a_loss_is_better_when_smaller():
    tried = [Trial({"a": k}, [score]) for k, score in enumerate((3.0, 1.0, 2.0))]
    assert select_best(tried, -1).options == {"a": 1}
    assert select_best(tried, 1).options == {"a": 0}
    assert select_best([Trial({"a": 5}, [None], state="diverged")], 1).options == {"a": 5}


# Words


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1h30m", 5400), (" 2H ", 7200)]
)
def test_times(text, seconds):
    assert seconds_of(text) == seconds
    assert seconds_of(format_time(seconds)) == seconds


@pytest.mark.parametrize(
    "bad", ["", "0", "0m", "-5m", "15", "soon", "1.5h", "5m1h", 60, True, None]
)
def test_times_that_are_none_are_one_line(bad):
    with pytest.raises(BadInput, match="give a time such as 90s, 15m or 1h30m"):
        seconds_of(bad)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"trials": 0}, "trials = 0: give a whole number from 1 to 10,000"),
        ({"trials": -3}, "trials = -3"),
        ({"trials": "many"}, "trials = 'many'"),
        ({"tries": 3}, "unknown option 'tries' in"),
        ({"listed": True}, "has no end"),
        (5, "search = 5: give a table"),
    ],
)
def test_limits_that_mean_nothing_are_one_line(settings, says):
    with pytest.raises(BadInput, match=says):
        limits_of(settings)


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({"lam": "0.01..1"}, "is a range: add --trials or --budget"),
        ({"lam": ["1..0.1"]}, "write a range as LOW..HIGH"),
        ({"lam": ["a..b"]}, "write a range as LOW..HIGH"),
        ({"lam": ["-1..5"]}, "lam"),
    ],
)
def test_ranges_that_mean_nothing_are_one_line(grid, says):
    with pytest.raises(BadInput, match=says):
        plan_of({}, ["ditto"], common=IMAGES, grids={"ditto": grid})
