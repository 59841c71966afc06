"""A method that diverges is marked, never wins, and does not stop the others."""

import csv
import json

import pytest

import coterie
from coterie.cli.show import show_comparison, show_run
from coterie.core.errors import BadInput, Diverged
from coterie.reports.content import build_page
from coterie.reports.gather import gather_evidence
from helpers.runs import IMAGES, wild

WILD = {"train.lr": 1e20}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diverged") / "all"
    said = []
    found = coterie.compare(
        ["local", "fedavg", "ditto", "pfedme"],
        seeds=2,
        out=folder,
        options={"ditto": WILD},
        watch=lambda method, seed, report: said.extend((method, seed, x) for x in report.said),
        **IMAGES,
    )
    return found, said


def test_the_others_go_on_and_who_diverged_is_said_when_it_happens(compared):
    found, said = compared
    assert list(found.runs) == ["local", "fedavg", "pfedme"]
    assert [(method, seed) for method, seed, _ in said] == [("ditto", 0), ("ditto", 1)]
    assert all(line.startswith("stopped: in round 1 the updates of 4 of 4") for _, _, line in said)
    assert all("; lower --ditto.lr; " in line for _, _, line in said)
    assert found.diverged["ditto"].startswith("seed 0: in round 1 the updates of 4 of 4 clients")


def test_a_diverged_method_is_in_no_ranking_and_named_in_the_answer(compared):
    found, _ = compared
    answer = found.answer
    assert "ditto" not in (answer.best, answer.use)
    assert "ditto" not in found.ranks().methods
    assert "ditto diverged and is not compared (seed 0: in round 1" in str(answer)


def test_the_table_on_disk_and_on_the_terminal_marks_it(compared, capsys):
    found, _ = compared
    with (found.folder / "table.csv").open(newline="") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert rows["ditto"]["diverged"].startswith("seed 0: in round 1")
    assert rows["ditto"]["mean"] == ""
    assert rows["fedavg"]["diverged"] == ""
    assert rows["fedavg"]["left_out"] == "0.0"
    show_comparison(found)
    out = capsys.readouterr().out
    assert "ditto diverged and is not compared" in " ".join(out.split())
    assert any(line.split() == ["ditto", "diverged"] for line in out.splitlines())


def test_loading_and_resuming_say_the_same(compared):
    found, _ = compared
    for again in (coterie.load(found.folder), coterie.resume(found.folder)):
        assert again.diverged == found.diverged
        assert list(again.runs) == list(found.runs)


def test_the_report_leaves_it_out_and_says_so(compared):
    found, _ = compared
    page = build_page(gather_evidence([found.folder]), [found.folder])
    assert list(page["diverged"]) == ["ditto"]
    assert page["methods"] == ["local", "fedavg", "pfedme"]
    assert len({run["seed"] for run in page["runs"]}) == 2  # no seed is lost with it
    assert "ditto diverged" in " ".join(page["answer"])
    assert page["left_out"] == {"local": 0, "fedavg": 0, "pfedme": 0}


def test_when_every_method_diverges_the_comparison_has_no_result(tmp_path):
    with pytest.raises(Diverged, match=r"every method of .* diverged; local: seed 0: in round 1"):
        coterie.compare(["local", "fedavg"], out=tmp_path / "all", **IMAGES | {"lr": 1e20})


def test_tuning_never_chooses_a_value_that_diverges(tmp_path):
    found = coterie.compare(
        ["local", "fedavg", "ditto"],
        out=tmp_path / "tuned",
        tune={"ditto": {"train.lr": [1e20, 0.1]}},
        **IMAGES,
    )
    assert found.runs["ditto"][0].experiment.train.lr == 0.1
    report = json.loads((tmp_path / "tuned" / "tuning" / "ditto" / "tuning.json").read_text())
    assert report["tried"][0]["validation"] == [None]


def test_a_plan_that_was_changed_on_the_way_is_refused_by_name(tmp_path):
    coterie.compare(["local", "fedavg"], out=tmp_path / "plan", **IMAGES)
    plan = tmp_path / "plan" / "comparison.toml"
    text = plan.read_text()
    plan.write_text(text.replace("lr = 0.1\n", "lr = 0.2\n"))
    with pytest.raises(BadInput, match=r"train\.lr was 0\.1 when local-seed0 began, .* says 0\.2"):
        coterie.resume(tmp_path / "plan")
    with pytest.raises(BadInput, match="is a comparison, which cannot change on the way"):
        coterie.resume(tmp_path / "plan", allow_change=True)
    plan.write_text(text)
    assert list(coterie.resume(tmp_path / "plan").runs) == ["local", "fedavg"]


def test_left_out_updates_are_counted_in_answer_and_table(tmp_path, capsys):
    settings = {k: v for k, v in IMAGES.items() if k not in ("num_clients", "rows", "classes-each")}
    settings |= {"model": "dnn", "scale": "none", "out": tmp_path / "wild", "dataset": wild()}
    settings["bound_steps"] = "no"
    found = coterie.compare(["local", "fedavg"], **settings)
    assert {row.method: row.left_out for row in found.rows()} == {"local": 4, "fedavg": 4}
    show_comparison(found)
    shown = " ".join(capsys.readouterr().out.split())
    assert "fedavg diverged for 1 of 4 clients (3)" in shown
    assert "lower --fedavg.lr, or mend rows that lie far out." in shown
    assert found.answer is None  # nothing is left to choose from
    show_run(found.runs["local"][0])
    assert "Diverged for 1 of 4 clients" in capsys.readouterr().out


def test_training_no_better_than_guessing_is_said(tmp_path, capsys):
    settings = IMAGES | {"lr": 1e-9, "classes-each": 2}
    found = coterie.compare(["local", "fedavg"], out=tmp_path / "guess", **settings)
    assert "local, fedavg are no better than always guessing" in " ".join(found.remarks())
    assert "nothing has learned more than always guessing" in str(found.answer)
    show_run(found.runs["fedavg"][0])
    assert (
        "No better than always guessing a client's most frequent class" in capsys.readouterr().out
    )
    good = coterie.run("local", out=tmp_path / "good", **IMAGES | {"rounds": 30, "rows": 600})
    show_run(good)
    assert "guessing" not in capsys.readouterr().out
