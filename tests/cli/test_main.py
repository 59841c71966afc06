"""Exit codes: 2 for what a user can mend, 3 for training that diverged; each with one line."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.runs import IMAGES

WORDS = [f"--{k}={v}" for k, v in IMAGES.items()]


def test_what_a_command_loads_is_never_searched_for_garbage(coterie):
    before = gc.get_freeze_count()
    assert coterie("run", "--help")[0] == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    gc.unfreeze()


def test_a_run_that_diverges_is_one_line_and_exit_code_3(coterie):
    code, out, errors = coterie("run", "ditto", *WORDS, "--lr", "1e20", "--out", "run")
    assert (code, out) == (3, "")
    assert errors.count("\n") == 1
    assert errors.startswith("coterie: stopped: in round 1 the updates of 4 of 4 clients are not")
    assert "train.lr = 1e+20 is likely too high; lower --lr; `coterie resume run" in errors


def test_a_comparison_exits_with_3_when_a_method_diverges(coterie):
    settings = [*WORDS, "--no-report", "--methods", "local,fedavg,ditto"]
    code, out, errors = coterie("compare", *settings, "--ditto.train.lr", "1e20", "--out", "some")
    assert code == 3
    assert "ditto diverged and is not compared" in " ".join(out.split())
    assert "\ncoterie: ditto seed 0: stopped: in round 1" in errors
    code, out, errors = coterie("compare", *settings, "--lr", "1e20", "--out", "all")
    assert (code, out) == (3, "")
    assert "coterie: stopped: every method of all diverged" in errors


def test_resume_refuses_a_changed_word_and_branches_where_it_is_allowed(coterie, tmp_path):
    assert coterie("run", "ditto", *WORDS, "--out", "run")[0] == 0
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 4\n", "rounds = 5\n"))
    code, _, errors = coterie("resume", "run")
    assert code == 2
    assert "schedule.rounds was 4 when this run began, config.toml says 5: write it back" in errors
    assert "`coterie resume run --allow-change` branches off into a new folder" in errors
    code, out, errors = coterie("resume", "run", "--allow-change")
    assert code == 0
    assert "run-branch branches off run after round 4" in errors
    assert "run: run-branch" in out


@pytest.mark.parametrize(
    "place", ["core.tree.save_file", "core.files.open", "results.folder.pq.write_table"]
)
def test_a_write_that_fails_anywhere_is_one_line_and_exit_code_2(place, coterie, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"coterie.{place}", full, raising=False)  # open is of no module
    code, out, errors = coterie("run", "ditto", *WORDS, "--out", "run")
    assert (code, out) == (2, "")
    assert errors.count("\n") == 1
    assert "run" in errors
    assert "cannot be written (No space left on device): make room on its disk, then" in errors
    assert "`coterie resume run` goes on" in errors


def test_a_full_disk_stops_a_real_run_in_one_line_and_it_goes_on_with_more_room(coterie, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    if (
        sys.platform != "linux"
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting is not allowed here")
    try:
        settings = [*WORDS, "--rounds", "8", "--hidden", "100"]
        code, out, errors = coterie("run", "ditto", *settings, "--out", str(disk / "run"))
        assert (code, out) == (2, "")
        assert errors.count("\n") == 1
        assert "cannot be written (No space left on device)" in errors
        remount = ["mount", "-o", "remount,size=20m", str(disk)]
        subprocess.run(remount, check=True, capture_output=True)
        assert coterie("resume", str(disk / "run"))[0] == 0
        assert not list(Path(disk / "run").glob("*.part"))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
