"""Runs that were started from a page: processes of their own, stopped by their number, resumed
where they stood.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from coterie.core.errors import BadInput
from coterie.ui import jobs as module
from coterie.ui.jobs import LOGS, Jobs
from helpers.ui import FAST, TOKEN, WORDS, client, writer

LONG = {k: str(v) for k, v in (WORDS | FAST | {"rounds": 100_000, "checkpoint": 5}).items()}
SCRIPT = "import sys, time; print(sys.argv[1:], flush=True); time.sleep(float(sys.argv[1]))"


def wait_for(condition):
    for _ in range(3000):
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError("never")


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """Jobs whose processes are small scripts."""
    monkeypatch.setattr(module, "MAIN", SCRIPT)
    made = Jobs(tmp_path / "runs", most=2)
    yield made
    made.close()
    assert all(state != "running" for state in made.states().values())


def test_words_reach_the_process_as_they_are(jobs):
    hostile = "; touch pwned $(id) `id` \" ' * \n --out=/"
    job = jobs.start("a", jobs.root / "a", ["0", hostile])
    job.process.wait(600)
    assert jobs.describe("a", 0)["text"].strip() == repr(["0", hostile])
    assert jobs.describe("a", 0)["state"] == "finished"
    assert (jobs.root / LOGS / "a.log").exists()
    assert not (jobs.root / "a").exists()


def test_a_log_goes_on_where_it_was_read(jobs):
    jobs.start("a", jobs.root / "a", ["0"]).process.wait(600)
    first = jobs.describe("a", 0)
    assert jobs.describe("a", first["after"])["text"] == ""
    assert jobs.describe("a", 3)["text"] == first["text"][3:]
    assert jobs.describe("unknown", 0)["state"] == ""


def test_as_many_are_at_work_as_there_are_cores_and_no_run_twice(jobs):
    jobs.start("a", jobs.root / "a", ["600"])
    with pytest.raises(BadInput, match="at work already"):
        jobs.start("a", jobs.root / "a", ["600"])
    jobs.start("b", jobs.root / "b", ["600"])
    with pytest.raises(BadInput, match="wait for one, or stop one"):
        jobs.start("c", jobs.root / "c", ["600"])


def test_only_what_was_started_here_is_stopped(jobs):
    with pytest.raises(BadInput, match="not started from the page"):
        jobs.stop("elsewhere")


def test_no_log_is_written_through_a_link(jobs, tmp_path):
    (tmp_path / "away").mkdir()
    jobs.root.mkdir()
    (jobs.root / LOGS).symlink_to(tmp_path / "away")
    with pytest.raises(BadInput, match="is a link"):
        jobs.start("a", jobs.root / "a", ["0"])
    assert list((tmp_path / "away").iterdir()) == []


def test_who_does_not_hear_is_ended(jobs, monkeypatch):
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.2)
    deaf = "import signal, time; signal.signal(2, signal.SIG_IGN); print(1, flush=True); "
    monkeypatch.setattr(module, "MAIN", deaf + "time.sleep(600)")
    job = jobs.start("a", jobs.root / "a", [])
    wait_for(lambda: jobs.describe("a", 0)["text"])
    jobs.stop("a")
    assert job.process.wait(600) == -signal.SIGTERM
    assert job.state == "stopped"


def test_a_run_whose_server_is_killed_stops_too(tmp_path):
    server = f"""
import time
from pathlib import Path
from coterie.ui import jobs
jobs.MAIN = jobs.LEASH + "import time; print(1, flush=True); time.sleep(600)"
made = jobs.Jobs(Path({str(tmp_path)!r}))
made.start("a", made.root / "a", [])
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", server])
    log = tmp_path / LOGS / "a.log"
    wait_for(lambda: log.exists() and log.read_text())
    process.kill()
    process.wait(600)
    wait_for(lambda: "KeyboardInterrupt" in log.read_text())


def test_a_run_is_started_stopped_and_resumed_from_the_page(root):
    asker = writer(root)
    name = asker.post("/api/start", json={"options": {"method": "fedavg"} | LONG}).json()["id"]
    try:
        starting = asker.get("/api/run", params={"id": name}).json()
        assert starting["job"] == "running"
        wait_for(lambda: asker.get("/api/run", params={"id": name}).json()["rows"])
        assert asker.post("/api/resume", json={"id": name}).status_code == 422
        assert asker.post("/api/stop", json={"id": name}).status_code == 200
        wait_for(lambda: asker.get("/api/log", params={"id": name}).json()["state"] == "stopped")
        log = asker.get("/api/log", params={"id": name}).json()
        assert "coterie resume" in log["text"]
        assert "--rounds=100000" in log["command"]
        done = asker.get("/api/run", params={"id": name}).json()["run"]["done"]
        assert asker.post("/api/resume", json={"id": name}).json() == {"id": name}
        further = f"/api/run?id={name}"
        wait_for(lambda: asker.get(further).json()["run"]["done"] > done)
    finally:
        asker.post("/api/stop", json={"id": name})
        wait_for(lambda: asker.get("/api/log", params={"id": name}).json()["state"] != "running")
    assert (root / name / "config.toml").exists()
    assert os.listdir(root / LOGS) == [f"{name}.log"]


def test_a_word_that_only_training_refuses_stands_in_the_log(root):
    asker = writer(root)
    settings = {"method": "ditto", "num_clients": "5000"} | FAST
    sent = {option: str(value) for option, value in settings.items()}
    name = asker.post("/api/start", json={"options": sent}).json()["id"]
    asked = f"/api/log?id={name}"
    wait_for(lambda: asker.get(asked).json()["state"] == "failed")
    said = asker.get(asked).json()
    assert said["code"] == 2
    assert said["text"].startswith("coterie: num_clients = 5,000, but ")


def test_a_finished_run_is_not_resumed_and_a_reader_sees_logs_only(root):
    said = writer(root).post("/api/resume", json={"id": "single"})
    assert said.status_code == 422
    assert "only what was stopped goes on" in said.json()["problem"]
    reader = client(root, token=TOKEN)
    assert reader.get("/api/log", params={"id": "single"}).status_code == 401
