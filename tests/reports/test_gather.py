"""What is damaged is said and left out; the rest is shown."""

import shutil

import pytest

from coterie.core.errors import BadInput
from coterie.reports.evidence import Evidence
from coterie.reports.gather import gather_evidence
from coterie.reports.report import report_data
from coterie.running.execute import execute
from helpers.reports import METHODS, base, change_about, figure


def test_what_is_damaged_is_said_and_the_rest_is_shown(copy):
    (copy / "ucfl-seed0" / "metrics.parquet").write_bytes(b"PAR1 torn")
    (copy / "cfl-seed0" / "run.json").write_text("{")
    shutil.rmtree(copy / "apfl-seed0")
    change_about(copy / "ktpfl-seed0", data="other")
    change_about(
        copy / "selffl-seed0",
        clients=["a"],
        rows={"train": [1], "validation": [1], "test": [1]},
        groups=[0],
    )
    change_about(copy / "persfl-seed1", coterie="0.0.1")
    data = report_data([copy])
    assert sorted(data["methods"]) == sorted(METHODS)
    assert {run["seed"] for run in data["runs"]} == {1}  # of which every method has a run
    said = "\n".join(data["warnings"])
    for settings in (
        "copy: 1 of 16 runs have not begun: apfl-seed0",
        "ucfl-seed0 is left out: ucfl-seed0/metrics.parquet cannot be read",
        "cfl-seed0 is left out: cfl-seed0/run.json is damaged",
        "ktpfl-seed0 is left out: its data or split are not those",
        "selffl-seed0 is left out",
        "persfl, persfl-seed1, was made by coterie 0.0.1",
        "seed 0 is left out: ktpfl, ucfl, selffl and 2 more have no run with it",
    ):
        assert settings in said
    assert str(copy) not in said


def test_a_method_without_the_usual_seed_is_left_out(folder):
    paths = [folder / name for name in ("local-seed0", "fedavg-seed0", "apfl-seed1")]
    data = report_data(paths)
    assert data["methods"] == ["local", "fedavg"]
    assert data["warnings"] == [
        "apfl is left out: it has seed 1, the others seed 0; run it with that seed too"
    ]


def test_a_seed_that_a_method_lacks_counts_for_none(copy):
    shutil.rmtree(copy / "ucfl-seed1")
    data = report_data([copy])
    assert {run["seed"] for run in data["runs"]} == {0}
    assert "seed 1 is left out: ucfl has no run with it" in data["warnings"]


def test_a_damaged_plan_leaves_the_runs(copy):
    (copy / "comparison.toml").write_text("methods = 3")
    data = report_data([copy])
    assert sorted(data["methods"]) == sorted(METHODS)
    assert "comparison.toml" in data["warnings"][0]


def test_nothing_readable_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no run can be read: there is no folder"):
        report_data([tmp_path / "none"])
    with pytest.raises(BadInput, match=r"neither run\.json nor"):
        report_data([tmp_path])
    with pytest.raises(BadInput, match="name at least one folder"):
        report_data([])


def test_a_folder_of_runs_names_one_of_them(folder):
    with pytest.raises(BadInput, match=f"such as {folder.parent}/all"):
        report_data([folder.parent])


def test_a_stopped_run_is_shown_as_it_stood(tmp_path):
    class Stop(Exception):
        pass

    def watch(report):
        if report.round == 2:
            raise Stop

    with pytest.raises(Stop):
        execute(base(method="fedavg", checkpoint=1), tmp_path / "run", watch)
    data = report_data([tmp_path / "run"])
    assert data["warnings"] == ["fedavg, run, is not finished: shown as it stood at round 2 of 3"]
    assert figure(data, "curves")["series"][0]["x"] == [1, 2]
    assert "round 2" in data["runs"][0]["status"]


def test_runs_that_differ_in_more_than_the_seed_are_told_apart(tmp_path):
    for name, settings in {
        "a": {},
        "b": {"seed": 1},
        "c": {"lr": 0.01},
        "d": {"lr": 0.01, "seed": 1},
    }.items():
        execute(base(method="local", **settings), tmp_path / name)
    assert set(gather_evidence([tmp_path / n for n in "abcd"]).records) == {"local", "local (c)"}
    evidence = gather_evidence([tmp_path / n for n in "aabb"])
    assert evidence.seeds == [0, 1]
    data = report_data([tmp_path / "a"])
    assert "gains and how fairly they are shared are left out" in data["answer"][0]
    assert "one method" in data["answer"][1]


def test_evidence_is_aligned_by_seed(folder):
    evidence = gather_evidence([folder])
    assert isinstance(evidence, Evidence)
    assert all(
        [r.run.experiment.seed for r in runs] == evidence.seeds
        for runs in evidence.records.values()
    )
