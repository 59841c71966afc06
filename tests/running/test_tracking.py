"""Trackers of a run that goes on: they have its rounds while it goes, each once, also after a
resume, and never stop it.
"""

import pytest

from coterie.core.errors import BadInput
from coterie.experiment.config import Experiment, change_options
from coterie.results.scalars import iter_scalars
from coterie.running import tracking
from coterie.running.execute import execute, resume

MEAN = "accuracy/test/personal/mean"
SETTINGS = {
    "method": "fedavg",
    "num_clients": 4,
    "rows": 160,
    "hidden": 6,
    "rounds": 4,
    "eval_every": 1,
    "checkpoint": 2,
    "path": "vectorized",
    "width": 4,
    "compile": "no",
    "threads": 1,
}


class Stop(Exception):
    pass


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(tracking, "PAUSE", 1e-9)


def start(folder, tracker, watch=lambda report: None):
    return execute(change_options(Experiment(), SETTINGS | {"track": tracker}), folder, watch)


def stop_and_resume(folder, tracker, look):
    """A run that is stopped in round 3, when `look` says which rounds the tracker has, and goes on
    from its checkpoint after round 2.
    """
    seen = []

    def stop(report):
        seen.append(look())
        if report.round == 3:
            raise Stop

    with pytest.raises(Stop):
        start(folder, tracker, stop)
    return seen, resume(folder)


def expect(run):
    return {s.round: pytest.approx(s.value) for s in iter_scalars(run) if s.name == MEAN}


def read_events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder)).Reload()
    return read.Scalars(MEAN) if MEAN in read.Tags()["scalars"] else []


def test_tensorboard_has_every_round_while_the_run_goes_on_and_once_after_a_resume(tmp_path):
    place = tmp_path / "run" / "tensorboard"
    seen, run = stop_and_resume(tmp_path / "run", "tensorboard", lambda: len(read_events(place)))
    assert seen[-1] >= 2  # while round 3 is told
    found = read_events(place)
    assert len(found) == len({event.step for event in found}) == 4
    assert {event.step: event.value for event in found} == expect(run)


# MLflow's own use of SQLAlchemy warns of its deprecations
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_one_run_that_goes_on_after_a_resume(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    client = MlflowClient()

    def find():
        home = client.get_experiment_by_name("coterie").experiment_id
        (one,) = client.search_runs([home])
        return one.info.status, client.get_metric_history(one.info.run_id, MEAN)

    seen, run = stop_and_resume(tmp_path / "run", "mlflow", find)
    status, history = seen[-1]
    assert status == "RUNNING"
    assert len(history) >= 2
    status, history = find()
    assert status == "FINISHED"
    assert sorted(m.step for m in history) == [1, 2, 3, 4]
    assert {m.step: m.value for m in history} == expect(run)


def test_wandb_keeps_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    start(tmp_path / "run", "wandb")
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    (kept,) = folder.glob("*.wandb")
    assert MEAN.encode() in kept.read_bytes()


class Flaky:
    """A tracker that is away for a while."""

    key = "k"

    def __init__(self):
        self.rounds, self.calls, self.closed = [], 0, False

    def log(self, scalars):
        self.calls += 1
        if self.calls in (2, 3):
            raise ConnectionError("nobody there\nand a long story")
        self.rounds += [s.round for s in scalars if s.name == MEAN]

    def finish(self, run):
        self.closed = True


def test_a_tracker_that_is_away_is_named_once_and_gets_what_it_missed(tmp_path, monkeypatch):
    flaky, said = Flaky(), []
    monkeypatch.setattr(tracking, "open_tracker", lambda *given: flaky)
    run = start(tmp_path / "run", "tensorboard", lambda report: said.extend(report.said))
    assert run.about["status"] == "finished"
    assert flaky.rounds == [1, 2, 3, 4]
    assert flaky.closed
    away = "nobody there; the run goes on, and tensorboard is tried again"
    assert [line for line in said if "nobody" in line] == [away]


def test_a_tracker_that_is_not_known_is_refused():
    with pytest.raises(BadInput, match="comet"):
        change_options(Experiment(), {"track": "comet"})
