"""A run on disk: complete words, exact repeats, exact resume, models that are what the table
says.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import coterie
from coterie.cli import main as cli
from coterie.core.checkpoint import list_checkpoints
from coterie.core.errors import BadInput
from coterie.data.dataset import Dataset
from coterie.experiment.build import federation_of
from coterie.experiment.config import (
    Experiment,
    change_options,
    known_options_of,
    read_experiment_file,
)
from coterie.methods.registry import METHODS
from coterie.results.folder import read_status
from coterie.results.run import load_run
from coterie.running.assembly import assemble, load_federation, open_loop
from coterie.running.execute import CheckpointWriter, execute, restore_checkpoint, resume
from helpers.federations import tiny
from helpers.runs import FAST, IMAGES, Stopped, arrays, experiment, results, stop_at, write_csv


def opened(experiment):
    """A run at its beginning, put together from its words."""
    return open_loop(assemble(experiment, load_federation(experiment)))


# Words on disk


@pytest.mark.parametrize("settings", [{"method": "ditto"}, {"dataset": "gaussian", "rows": None}])
def test_written_words_name_every_field(settings, tmp_path):
    settings = {
        k: v
        for k, v in (IMAGES | settings).items()
        if k not in (("classes-each", "hidden") if "dataset" in settings else ())
    }
    run = execute(change_options(Experiment(), settings | {"rounds": 1}), tmp_path / "run")
    written = read_experiment_file(run.folder / "config.toml")
    for section, known in known_options_of(written).items():
        there = written.to_dict()[section]
        for option, (_, default) in known.items():
            if (section, option) == ("model", "freeze"):
                continue  # written only where something is frozen
            assert option in there or default is None, f"{section}.{option}"
    assert (
        written == run.experiment
        or {k: v for k, v in run.experiment.dataset.items() if v is not None} == written.dataset
    )


def test_defaults_written_are_those_that_ran(tmp_path):
    run = execute(
        change_options(Experiment(), FAST | {"rounds": 1, "models": "no"}), tmp_path / "run"
    )
    written = read_experiment_file(run.folder / "config.toml")
    assert written.partition == {"name": "classes", "classes_each": 3, "jitter": 0.0}
    assert written.model == {"name": "dnn", "hidden": 32, "norm": False}
    assert written.dataset["num_clients"] == len(run.rows) == 20
    assert written.engine["chosen"] == "vectorized:20:no"
    assert run.about["models"] == [{"name": "dnn", "parameters": 64 * 32 + 32 + 320 + 10}]


@pytest.mark.parametrize("method", ["pfedme", "persfl"])
def test_running_the_written_words_again_is_bit_identical(method, tmp_path):
    options = {"distil_epochs": 1} if method == "persfl" else {}
    execute(experiment(method=method, **options), tmp_path / "one")
    execute(read_experiment_file(tmp_path / "one" / "config.toml"), tmp_path / "two")
    assert results(tmp_path / "one") == results(tmp_path / "two")
    assert (tmp_path / "one" / "config.toml").read_text() == (
        tmp_path / "two" / "config.toml"
    ).read_text()


def test_what_was_chosen_by_timing_is_reused(tmp_path):
    settings = {k: v for k, v in IMAGES.items() if k not in FAST}
    execute(change_options(Experiment(), settings | {"rounds": 2}), tmp_path / "one")
    written = read_experiment_file(tmp_path / "one" / "config.toml")
    path, width, compiled = written.engine["chosen"].split(":")
    assert path in ("vectorized", "sequential")
    assert int(width) > 0
    assert compiled in ("yes", "no")
    assert written.engine["threads"] >= 1
    loop = opened(written)
    assert not any(s.open for s in loop.engine.settings)
    execute(written, tmp_path / "two")
    assert results(tmp_path / "one") == results(tmp_path / "two")


def test_other_words_give_other_results(tmp_path):
    """So that the laws above can fail."""
    execute(experiment(), tmp_path / "one")
    execute(experiment(seed=1), tmp_path / "two")
    assert results(tmp_path / "one")[0] != results(tmp_path / "two")[0]


def test_words_of_another_number_of_networks_do_not_inherit_the_choice():
    chosen = change_options(
        Experiment(method="fedmd"),
        IMAGES | {"engine.chosen": "sequential:1:no", "public": "held-out", "public_rows": 40},
    )
    loop = opened(change_options(chosen, {"draw": 20, "public_batch_size": 8}))
    assert loop.engine.settings[0].path == "sequential"
    two = replace(
        chosen, model={"name": "mlr,dnn", "hidden": 6}, options={"draw": 20, "public_batch_size": 8}
    )
    loop = opened(two)
    assert [s.path for s in loop.engine.settings] == ["vectorized", "vectorized"]
    with pytest.raises(BadInput, match="chosen = 'x:y:z': leave it out"):
        opened(
            change_options(chosen, {"engine.chosen": "x:y:z", "draw": 20, "public_batch_size": 8})
        )


def test_own_data_are_found_again_from_another_folder(tmp_path, monkeypatch):
    write_csv(tmp_path / "own.csv")
    monkeypatch.chdir(tmp_path)
    settings = FAST | {"dataset": "own.csv", "rounds": 2, "checkpoint": 1}
    with pytest.raises(Stopped):
        execute(change_options(Experiment(), settings), tmp_path / "run", stop_at(1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = resume(tmp_path / "run")
    assert run.about["clients"] == ["site0", "site1", "site2"]
    assert run.experiment.partition["name"] == "user"


def test_drawn_data_follow_the_seed_unless_they_have_their_own():
    settings = {"dataset": "gaussian", "num_clients": 3}
    made = [
        federation_of(change_options(Experiment(), settings | more)).x
        for more in ({}, {"seed": 1}, {"seed": 1, "dataset.seed": 0})
    ]
    assert not torch.equal(made[0][:5], made[1][:5])
    assert torch.equal(made[0], made[2])


# Resume

CASES = {
    "ditto": {"participation": 0.5, "dropout_clients": 0.3},
    "persfl": {"distil_epochs": 1},
    "selffl": {"l_max": 3, "warm": 1},
    "fedavg": {"momentum": 0.5, "validation": 0},
    "pfedme": {"model": "smallcnn", "path": "sequential", "inner": 1},
    "fedmd": {
        "model": "mlr,dnn",
        "public": "held-out",
        "public_rows": 30,
        "draw": 20,
        "public_batch_size": 8,
    },
}


@pytest.mark.parametrize("method", CASES)
def test_a_run_stopped_after_any_round_and_resumed_is_bit_identical(method, tmp_path):
    settings = IMAGES | CASES[method] | {"method": method}
    if settings.get("model") == "smallcnn":
        del settings["hidden"]
    whole = execute(change_options(Experiment(), settings), tmp_path / "whole")
    rounds = int(whole.table["round"].to_numpy().max())
    for stop in range(1, rounds + 1):
        folder = tmp_path / f"stopped{stop}"
        with pytest.raises(Stopped):
            execute(change_options(Experiment(), settings), folder, stop_at(stop))
        assert read_status(folder) == "running"
        seen = []
        resume(folder, lambda report: seen.append(report.round))
        assert results(folder) == results(tmp_path / "whole")
        assert seen == list(
            range(min(stop + 1, rounds), rounds + 1)
        )  # it went on, not again from the start
        assert len(list_checkpoints(folder)) == 2


def test_rounds_after_the_last_checkpoint_are_done_again_exactly(tmp_path):
    settings = experiment(method="ditto", checkpoint=2, rounds=5)
    execute(settings, tmp_path / "whole")
    with pytest.raises(Stopped):
        execute(settings, tmp_path / "stopped", stop_at(3))
    seen = []
    resume(tmp_path / "stopped", lambda report: seen.append(report.round))
    assert seen == [3, 4, 5]
    assert results(tmp_path / "stopped") == results(tmp_path / "whole")


@pytest.mark.parametrize("stop", [1, 3])
def test_without_a_checkpoint_resume_starts_anew(stop, tmp_path):
    settings = experiment(method="ditto", checkpoint=0)
    execute(settings, tmp_path / "whole")
    with pytest.raises(Stopped):
        execute(settings, tmp_path / "stopped", stop_at(stop))
    seen = []
    resume(tmp_path / "stopped", lambda report: seen.append(report.round))
    assert seen == [1, 2, 3, 4]
    assert results(tmp_path / "stopped") == results(tmp_path / "whole")
    assert not list_checkpoints(tmp_path / "stopped")


def test_a_run_stopped_before_its_facts_were_written_starts_anew(tmp_path):
    execute(experiment(), tmp_path / "whole")
    (tmp_path / "stopped").mkdir()
    (tmp_path / "stopped" / "config.toml").write_bytes(
        (tmp_path / "whole" / "config.toml").read_bytes()
    )
    (tmp_path / "stopped" / "run.json.part").write_text("{")
    resume(tmp_path / "stopped")
    assert results(tmp_path / "stopped") == results(tmp_path / "whole")


def test_an_interrupted_save_is_ignored(tmp_path):
    settings = experiment()
    execute(settings, tmp_path / "whole")
    with pytest.raises(Stopped):
        execute(settings, tmp_path / "stopped", stop_at(2))
    part = tmp_path / "stopped" / "checkpoint-0000003.part"
    part.mkdir()
    (part / "state.json").write_text("{")
    resume(tmp_path / "stopped")
    assert results(tmp_path / "stopped") == results(tmp_path / "whole")
    assert not part.exists()


def test_resume_of_a_finished_run_changes_nothing(tmp_path):
    execute(experiment(), tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}
    resumed = resume(tmp_path / "run", stop_at(1))
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")} == before
    assert np.array_equal(resumed.accuracy(), load_run(tmp_path / "run").accuracy())


def test_resume_is_refused_when_the_data_have_changed(tmp_path):
    path = write_csv(tmp_path / "own.csv")
    with pytest.raises(Stopped):
        execute(
            change_options(
                Experiment(), FAST | {"dataset": str(path), "rounds": 3, "checkpoint": 1}
            ),
            tmp_path / "run",
            stop_at(2),
        )
    text = path.read_text()
    path.write_text(text.replace("yes", "no", 1))
    with pytest.raises(BadInput, match=r"the data have changed since .* was started"):
        resume(tmp_path / "run")
    path.write_text(text)
    assert resume(tmp_path / "run").about["status"] == "finished"


def harm(checkpoint: Path) -> None:
    data = bytearray((checkpoint / "state.safetensors").read_bytes())
    data[-1] ^= 1
    (checkpoint / "state.safetensors").write_bytes(bytes(data))


CHANGES = {"method": "ditto", "rounds": 9, "participation": 0.3, "checkpoint": 1}


def test_a_run_with_checkpoints_of_changes_is_resumed_bit_identically(tmp_path, monkeypatch):
    execute(experiment(**CHANGES), tmp_path / "whole")
    monkeypatch.setattr("coterie.running.execute.LARGE", 0)
    built = set()
    for stop in range(1, 9):
        folder = tmp_path / f"stopped{stop}"
        with pytest.raises(Stopped):
            execute(experiment(**CHANGES), folder, stop_at(stop))
        built.add((list_checkpoints(folder)[-1] / "base.json").exists())
        resume(folder, lambda report: None)
        assert results(folder) == results(tmp_path / "whole")
        assert not (
            list_checkpoints(folder)[-1] / "base.json"
        ).exists()  # the last one stands alone
    assert built == {True, False}


def test_a_run_survives_the_loss_of_any_one_checkpoint_of_changes_or_base(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.running.execute.LARGE", 0)
    execute(experiment(**CHANGES), tmp_path / "whole")
    folder = tmp_path / "stopped"
    with pytest.raises(Stopped):
        execute(experiment(**CHANGES), folder, stop_at(8))
    names = [path.name for path in list_checkpoints(folder)]
    assert len(names) > 2
    for name in names:
        copy = tmp_path / f"without-{name}"
        shutil.copytree(folder, copy)
        harm(copy / name)
        resume(copy, lambda report: None)
        assert results(copy) == results(tmp_path / "whole")


def test_a_checkpoint_of_changes_holds_the_clients_that_changed_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.running.execute.LARGE", 0)
    loop = opened(experiment(method="ditto", rounds=9, participation=0.25))
    keeper, changed = CheckpointWriter(tmp_path), []
    loop.go(lambda loop, report: keeper.save(loop, {}) if loop.done > 4 else None, until=5)
    before = set(loop.engine.dump()[0][0])
    loop.go(lambda loop, report: changed.append(loop.engine.dump_changes()[0][0]), until=6)
    assert len(before) > 1
    assert len(changed[0]) == 1
    keeper.save(loop, {})
    assert (list_checkpoints(tmp_path)[-1] / "base.json").exists()
    again = opened(experiment(method="ditto", rounds=9, participation=0.25))
    restore_checkpoint(again, list_checkpoints(tmp_path)[-1])
    leaves = (pytree.tree_leaves(one.engine.dump()) for one in (loop, again))
    for a, b in zip(*leaves, strict=True):
        assert np.array_equal(a, b)


def test_resume_from_damaged_checkpoints_alone_is_refused(tmp_path):
    with pytest.raises(Stopped):
        execute(experiment(), tmp_path / "run", stop_at(2))
    for folder in list_checkpoints(tmp_path / "run"):
        harm(folder)
    with pytest.raises(
        BadInput,
        match=r"checkpoint .* is damaged \(state.safetensors is not as it was written\): .*begin "
        r"anew",
    ):
        resume(tmp_path / "run")


def test_a_run_killed_by_the_system_and_resumed_is_bit_identical(tmp_path):
    """SIGKILL at no chosen moment, in another process, resumed through the command line."""
    settings = IMAGES | {"rounds": 80, "checkpoint": 8, "eval_every": 40}
    arguments = [
        "run",
        "ditto",
        "--out",
        str(tmp_path / "killed"),
        *(f"--{k}={v}" for k, v in settings.items()),
    ]
    code = "import torch; torch.set_num_threads(1); from coterie.cli.main import main; main()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 600
    while (
        len(list_checkpoints(tmp_path / "killed")) == 0
        or list_checkpoints(tmp_path / "killed")[-1].name < "checkpoint-0000008"
    ):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert json.loads((tmp_path / "killed" / "run.json").read_text())["status"] == "running"
    command(["resume", str(tmp_path / "killed")])
    execute(change_options(Experiment(), settings | {"method": "ditto"}), tmp_path / "whole")
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


def command(arguments: list[str]) -> None:
    before = sys.argv
    sys.argv = ["coterie", *arguments]
    try:
        cli.main()
    finally:
        sys.argv = before


def test_nothing_a_run_leaves_is_pickled_or_half_written(tmp_path):
    execute(experiment(method="ucfl"), tmp_path / "run")
    files = [p for p in (tmp_path / "run").rglob("*") if p.is_file()]
    kinds = {".toml", ".json", ".jsonl", ".parquet", ".rows", ".safetensors", ""}
    assert {p.suffix for p in files} == kinds
    assert [p.name for p in files if not p.suffix] == [".lock"]
    assert not any(p.read_bytes().startswith((b"\x80", b"PK")) for p in files)
    source = Path(coterie.__file__).parent
    for path in (
        p
        for room in ("core", "results", "running", "comparison")
        for p in (source / room).glob("*.py")
    ):
        text = path.read_text()
        assert not any(
            option in text
            for option in ("import pickle", "torch.save(", "torch.load(", "allow_pickle")
        )


# Models


def right(module: nn.Module, federation, client: int) -> float:
    rows = torch.as_tensor(federation.test[client])
    with torch.no_grad():
        return float((module(federation.x[rows]).argmax(1) == federation.y[rows]).float().mean())


@pytest.mark.parametrize("method", ["ditto", "finetune", "persfl"])
def test_a_loaded_model_is_a_plain_module_with_the_accuracy_of_the_table(method, tmp_path):
    run = execute(
        experiment(method=method, **({"distil_epochs": 1} if method == "persfl" else {})),
        tmp_path / "run",
    )
    federation = federation_of(run.experiment)
    for client, accuracy in enumerate(run.accuracy()):
        module = coterie.load_model(run.folder, client)
        assert type(module).__module__.startswith("torch.nn")
        assert not module.training
        assert right(module, federation, client) == pytest.approx(accuracy, abs=1e-6)
    assert len({run.model(i)(federation.x[:1]).sum().item() for i in range(4)}) == 4  # each its own


def test_models_are_kept_only_if_wanted_and_asked_for_by_number_or_name(tmp_path):
    path = write_csv(tmp_path / "own.csv")
    run = execute(
        change_options(Experiment(), FAST | {"dataset": str(path), "rounds": 1}), tmp_path / "run"
    )
    by_name, by_number = run.model("site1").state_dict(), run.model(1).state_dict()
    assert all(torch.equal(by_name[k], by_number[k]) for k in by_name)
    for client, message in (
        (3, "no client 3: its clients are 0 to 2"),
        (-1, "no client -1"),
        ("site9", "no client 'site9'"),
    ):
        with pytest.raises(BadInput, match=message):
            run.model(client)
    none = execute(
        change_options(Experiment(), FAST | {"dataset": str(path), "rounds": 1, "models": "no"}),
        tmp_path / "none",
    )
    assert not (none.folder / "models").exists()
    with pytest.raises(BadInput, match="set to keep no models"):
        none.model(0)
    (run.folder / "models" / "client-00000.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(BadInput, match="is damaged"):
        run.model(0)


# Python objects


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, x):
        return self.layers(x)


def test_own_arrays_and_an_own_network_through_python(tmp_path):
    data, settings = arrays(), FAST | {"rounds": 3, "checkpoint": 1}
    run = coterie.run("ditto", dataset=data, model=Net, lam=0.5, out=tmp_path / "run", **settings)
    assert run.experiment.dataset["name"] == "python:mine"
    assert run.experiment.model["name"] == "python:Net"
    assert run.experiment.partition["name"] == "user"
    federation = federation_of(run.experiment, data)
    for client, accuracy in enumerate(run.accuracy()):
        assert right(run.model(client, Net), federation, client) == pytest.approx(
            accuracy, abs=1e-6
        )
    with pytest.raises(
        BadInput, match="a network of your own: pass the function that makes it as build="
    ):
        run.model(0)
    with pytest.raises(BadInput, match="does not fit the network that `build` makes"):
        run.model(0, lambda: nn.Linear(6, 2))
    assert np.array_equal(coterie.load(run.folder).accuracy(), run.accuracy())


def test_a_run_of_python_objects_is_resumed_with_them_and_not_without(tmp_path):
    settings = FAST | {"rounds": 3, "checkpoint": 1}
    coterie.run("ditto", dataset=arrays(), model=Net, out=tmp_path / "whole", **settings)
    with pytest.raises(Stopped):
        coterie.run(
            "ditto", dataset=arrays(), model=Net, out=tmp_path / "run", watch=stop_at(2), **settings
        )
    with pytest.raises(
        BadInput,
        match="'python:mine' were given as Python objects: give them again from Python, as data=",
    ):
        coterie.resume(tmp_path / "run")
    with pytest.raises(
        BadInput,
        match="'python:Net' was given as a Python object: give it again from Python, as model=",
    ):
        coterie.resume(tmp_path / "run", data=arrays())
    with pytest.raises(
        BadInput, match=r"was started with .*'parameters': 47.*, not .*'parameters': 14"
    ):
        coterie.resume(tmp_path / "run", data=arrays(), model=lambda: nn.Linear(6, 2))
    coterie.resume(tmp_path / "run", data=arrays(), model=Net)
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_own_arrays_are_dealt_as_the_words_say(tmp_path):
    settings = {
        "partition": "dirichlet",
        "alpha": 5.0,
        "num_clients": 3,
        "validation": 0,
        "test": 0.5,
    }
    run = coterie.run(
        "local", dataset=arrays(False), out=tmp_path / "run", rounds=1, **settings, **FAST
    )
    assert len(run.rows) == 3
    assert run.experiment.partition["alpha"] == 5.0
    assert run.about["rows"]["validation"] == [0, 0, 0]


def test_a_federation_is_taken_as_it_is(tmp_path):
    federation = tiny()
    run = coterie.run(
        "fedavg", dataset=federation, model=Net3, out=tmp_path / "run", rounds=1, **FAST
    )
    assert run.about["rows"]["train"] == [len(r) for r in federation.train]
    with pytest.raises(
        BadInput, match="dataset is a Federation, partitioned already: leave out num_clients"
    ):
        coterie.run("fedavg", dataset=federation, num_clients=3, out=tmp_path / "no")


class Net3(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(x)


def test_federations_that_no_engine_could_run_are_refused(tmp_path):
    good = tiny()
    x, y = good.x.clone(), good.y.clone()
    x[3, 1], y[5] = float("nan"), 3
    far = [*good.test[:-1], np.array([10_000])]
    for bad, message in (
        (good._replace(x=x), "NaN or infinity"),
        (good._replace(y=y), "labels 0 to 3, but 3 classes: give 0 to 2"),
        (good._replace(test=far), "rows 0 to 10,000: give 0 to "),
        (
            good._replace(train=[np.zeros(0, int), *good.train[1:]]),
            "client 0 \\('0'\\) of the federation has no training rows",
        ),
        (good._replace(names=["a"]), "5 clients in train, but 1 in names"),
    ):
        with pytest.raises(BadInput, match=message):
            coterie.run("fedavg", dataset=bad, model=Net3, out=tmp_path / "run", rounds=1, **FAST)
    assert not (tmp_path / "run").exists()


def test_a_data_set_with_labels_outside_its_classes_is_refused(tmp_path):
    x, y = np.zeros((40, 3), np.float32), np.arange(40) % 4
    data = Dataset("mine", x, y, 3, np.ones(40, bool), None)
    with pytest.raises(BadInput, match="labels 0 to 3, but 3 classes"):
        coterie.run("fedavg", dataset=data, out=tmp_path / "run", rounds=1, **FAST)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": lambda: nn.Linear(7, 2)}, r"cannot take rows of shape \[6\]"),
        ({"model": lambda: nn.Linear(6, 1)}, None),  # one logit tells two classes apart
        (
            {"model": lambda: nn.Sequential(nn.Linear(6, 2), nn.Flatten(0))},
            r"outputs of shape \[\] a row",
        ),
        ({"model": nn.Linear(6, 2)}, "model is a module: give the function or class that makes it"),
        (
            {"dataset": np.zeros((4, 3))},
            "dataset is a ndarray: give a name, a path, a frame",
        ),
        ({"partition": {"name": "iid", "alpa": 1}}, r"unknown option 'alpa' in \[partition\]"),
        ({"train": {"lr": -1}}, "lr = -1: give a number above 0"),
        (
            {"model": [Net, lambda: nn.Linear(6, 2)]},
            "fedavg needs one architecture for all clients, 2 were given",
        ),
    ],
)
def test_python_objects_that_do_not_fit_are_refused(settings, message, tmp_path):
    settings = (
        {"dataset": arrays(), "out": tmp_path / "run", "rounds": 1, "num_clients": 4}
        | FAST
        | settings
    )
    if message is None:
        assert 0 <= coterie.run("fedavg", **settings).summary().mean <= 1
        return
    with pytest.raises(BadInput, match=message):
        coterie.run("fedavg", **settings)
    assert not (tmp_path / "run").exists()


def test_a_network_that_tells_too_few_classes_apart_is_refused(tmp_path):
    with pytest.raises(
        BadInput,
        match=r"gives outputs of shape \[2\] a row, but the data have 3 classes: give \[3\]",
    ):
        coterie.run("fedavg", dataset=tiny(), model=Net, out=tmp_path / "run", rounds=1, **FAST)


def test_an_own_method_is_run_by_its_name_with_its_options(tmp_path):
    def slower(model, train, factor: float = 0.5, unsaid=2):
        return METHODS["fedavg"](model, train._replace(lr=train.lr * factor * unsaid))

    coterie.register(slower)
    try:
        run = coterie.run(
            "slower",
            dataset=arrays(),
            out=tmp_path / "run",
            rounds=1,
            factor="0.25",
            unsaid="1",
            **FAST,
        )
        assert run.experiment.options == {"factor": 0.25, "unsaid": 1}
        with pytest.raises(BadInput, match="did you mean 'factor'"):
            coterie.run("slower", dataset=arrays(), facto=1, out=tmp_path / "no")
    finally:
        del METHODS["slower"]


def test_runs_without_an_out_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        coterie.run("local", dataset=arrays(), rounds=1, models=False, **FAST)
    names = sorted(p.name for p in (tmp_path / "runs").iterdir())
    assert len(names) == 2
    assert all("-local-mine" in name for name in names)


def test_data_without_classes_are_judged_by_their_loss(tmp_path):
    run = execute(
        change_options(
            Experiment(),
            FAST | {"dataset": "gaussian", "num_clients": 5, "rounds": 1, "method": "selffl"},
        ),
        tmp_path / "run",
    )
    assert run.measure == "loss"
    assert run.summary().worst == run.client_values().max() > 0
    assert torch.is_tensor(run.model(0)(torch.zeros(2, 1)))


def test_validation_summaries_weigh_by_validation_rows(tmp_path):
    federation = tiny(validation=8)
    uneven = federation._replace(
        validation=[rows[: 2 + 2 * (i % 4)] for i, rows in enumerate(federation.validation)]
    )  # the other half of each chooses between methods
    run = coterie.run("local", dataset=uneven, model=Net3, out=tmp_path / "run", rounds=1, **FAST)
    rows, found = np.array([1, 2, 3, 4, 1]), run.accuracy("validation")
    assert run.summary("validation").weighted == pytest.approx((rows * found).sum() / rows.sum())
