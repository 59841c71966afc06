"""Training that goes out of bounds is told at once, counted, and stopped before it counts."""

import json

import numpy as np
import pyarrow.compute as pc
import pytest
import torch

import coterie
from coterie.core.checkpoint import list_checkpoints
from coterie.core.errors import Diverged
from coterie.core.method import Train
from coterie.core.point import Point
from coterie.engines.finite import find_non_finite
from coterie.results.folder import read_status
from coterie.results.run import load_run
from coterie.running.assembly import assemble, load_federation, open_loop
from coterie.running.divergence import failure_of, measure_majority, report_unmeasurable
from coterie.running.execute import execute, resume
from helpers.federations import tiny
from helpers.runs import FAST, Stopped, experiment, results, stop_at, wild

WORDS = (
    FAST | {"rounds": 4, "eval_every": 2, "checkpoint": 1, "scale": "none"} | {"bound_steps": "no"}
)


def test_only_a_model_or_an_upload_that_is_not_finite_is_broken():
    w = Point({"w": torch.zeros(3, 2)})
    bad = Point({"w": torch.tensor([[0.0, 1.0], [0.0, torch.nan], [torch.inf, 0.0]])})
    never = torch.full((3,), torch.inf)  # "nothing yet", beside a model
    large = Point({"w": torch.full((3, 2), 3e38)})  # its sum overflows, it does not
    assert find_non_finite((w, never), (), 3) == []
    assert find_non_finite((bad, never), (), 3) == [1, 2]
    assert find_non_finite((), {"u": bad, "n": torch.tensor([1, 2, 3])}, 3) == [1, 2]
    assert find_non_finite(large, large, 3) == []


@pytest.mark.parametrize("path", ["vectorized", "sequential"])
@pytest.mark.parametrize("method", ["fedavg", "ditto", "local"])
def test_a_client_that_diverges_is_left_out_told_and_counted(method, path, tmp_path):
    said = []
    run = coterie.run(
        method,
        dataset=wild(),
        out=tmp_path / "run",
        watch=lambda r: said.extend(r.said),
        **WORDS | {"path": path},
    )
    assert run.left_out == 4  # one client, four rounds
    assert run.left_out_clients == [3]
    rows = run.table.filter((pc.field("metric") == "left_out") & (pc.field("client") == -1))
    assert rows["value"].to_pylist() == [1, 1, 1, 1]
    assert said[0].startswith("round 1: the update of client 3 is not finite and is left out: ")
    assert "the data of 3 reach" in said[0]
    assert np.isfinite(run.table.filter(pc.field("metric") == "bytes_up")["value"]).all()
    for client in range(3):  # the others never meet it
        state = run.model(client).state_dict()
        assert all(torch.isfinite(t).all() for t in state.values())


def test_who_diverges_keeps_its_old_state_while_the_others_go_on(monkeypatch):
    settings = experiment(method="ditto")
    loop = open_loop(assemble(settings, load_federation(settings)))
    loop.go(until=1)
    store = loop.engine.states[0]
    before = [store.gather([i]) for i in range(4)]
    monkeypatch.setattr(
        "coterie.engines.local.engine.find_non_finite", lambda state, upload, n: [n - 1]
    )
    said = []
    loop.go(lambda loop, report: said.extend(report.said), until=2)
    after = [store.gather([i]) for i in range(4)]
    kept = [
        torch.equal(*(next(iter(p.params.values())) for p in pair))
        for pair in zip(before, after, strict=True)
    ]
    assert sum(kept) == 1
    assert f"client {kept.index(True)} is not finite" in said[0]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_run_with_left_out_clients_resumes_bit_exactly(stop, tmp_path):
    data = wild()
    coterie.run("ditto", dataset=data, out=tmp_path / "whole", **WORDS)
    with pytest.raises(Stopped):
        coterie.run("ditto", dataset=data, out=tmp_path / "cut", watch=stop_at(stop), **WORDS)
    coterie.resume(tmp_path / "cut", data=data)
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_more_than_half_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    def loud(report):
        if report.round == 2:
            raise Stopped

    settings = experiment(method="fedavg", rounds=6)
    with pytest.raises(Stopped):
        execute(settings, tmp_path / "run", loud)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.1\n", "lr = 1e+20\n"))
    with pytest.raises(Diverged, match=r"in round 3 the updates of 4 of 4 clients") as stop:
        resume(tmp_path / "run", allow_change=True)
    branch = tmp_path / "run-branch"
    assert "train.lr = 1e+20 is likely too high; lower --lr; `coterie resume" in str(stop.value)
    assert "goes on after round 2" in str(stop.value)
    assert read_status(branch) == "diverged"
    assert [p.name for p in list_checkpoints(branch)] == ["checkpoint-0000002"]
    facts = json.loads((branch / "run.json").read_text())["diverged"]
    assert facts["round"] == 3
    assert facts["clients"] == [0, 1, 2, 3]
    assert load_run(branch).table["round"].to_numpy().max() == 2
    with pytest.raises(Diverged, match="in round 3"):  # the same again, not another story
        resume(branch)


def test_half_of_a_round_goes_on_and_more_than_half_stops(tmp_path):
    run = coterie.run("fedavg", dataset=wild(bad=(2, 3)), out=tmp_path / "half", **WORDS)
    assert run.left_out == 8
    with pytest.raises(Diverged, match=r"3 of 4 clients are not finite \(clients 1, 2, 3\)"):
        coterie.run("fedavg", dataset=wild(bad=(1, 2, 3)), out=tmp_path / "most", **WORDS)


def test_a_personal_model_that_cannot_be_measured_is_told(tmp_path):
    """FedAvg fine-tuned at evaluation: its updates are fine, the own model is not."""
    said = []
    run = coterie.run(
        "finetune",
        dataset=wild(),
        out=tmp_path / "run",
        watch=lambda r: said.extend(r.said),
        **WORDS,
    )
    assert len(said) == 1  # four rounds, one line
    assert "client 3 is not finite" in said[0]
    assert run.diverged_clients == [3]


def test_a_row_far_out_that_training_never_saw_is_told_and_not_the_rate():
    federation = tiny()
    train = Train(lr=0.1)
    line = report_unmeasurable(3, [1], federation, train)
    assert "train.lr = 0.1 is likely too high; lower --lr" in line
    x = federation.x.clone()
    x[int(federation.test[1][0])] = 5000.0
    line = report_unmeasurable(3, [1], federation._replace(x=x), train)
    assert "the data of 1 reach 5e+03; scale the data, or mend what lies far out" in line
    assert "lower --lr" in failure_of(3, [1], 4, federation._replace(x=x), train).line()


def test_guessing_is_the_share_of_each_clients_most_frequent_training_class():
    federation = tiny()
    y = federation.y.numpy()
    expected = []
    for train, test in zip(federation.train, federation.test, strict=True):
        usual = np.bincount(y[train]).argmax()
        expected.append((y[test] == usual).mean())
    assert measure_majority(federation)["test"] == pytest.approx(np.mean(expected))
    assert measure_majority(federation._replace(y=federation.y[:0])) == {}  # a server of real sites
