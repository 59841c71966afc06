"""Models on disk: equal ones lie there once, and every client finds its own."""

import json
import random
import shutil
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

import coterie
from coterie.core.errors import BadInput
from coterie.core.files import digest, save_tensors
from coterie.experiment.build import federation_of
from coterie.results import models as models_module
from coterie.results.models import LIST, load_model, read_checksums, read_weights, save_models
from coterie.results.personal_models import Models
from coterie.running.execute import execute, resume
from coterie.serving.batching import ServedRun
from coterie.serving.request_rows import CSV
from helpers.runs import Stopped, experiment, results, stop_at
from helpers.serving import people_run, write_people


def files_of(folder):
    return sorted(p.name for p in (folder / "models").glob("*.safetensors"))


def names(*numbers):
    return [f"client-{i:05d}.safetensors" for i in numbers]


class Engine:
    """Clients with the models that are given, in chunks that are given."""

    def __init__(self, chunks, value_of):
        self.chunks, self.value_of = chunks, value_of

    def model_of(self, architecture, view):
        return SimpleNamespace(
            name="mine",
            options={},
            input_shape=(2,),
            task="classes",
            frozen_tensors=dict,
            tensors=lambda point: point,
        )

    def points(self, clients, send, when):
        for chunk in self.chunks:
            stacked = torch.stack([torch.full((3, 2), self.value_of(i)) for i in chunk])
            yield 0, chunk, {"personal": {"w": stacked}}


def save(folder, chunks, value_of):
    folder.mkdir(exist_ok=True)
    clients = sorted(i for chunk in chunks for i in chunk)
    target = SimpleNamespace(outputs=lambda classes: classes)
    federation = SimpleNamespace(input_shape=(2,), classes=2, target=target)
    save_models(Engine(chunks, value_of), federation, clients, None, None, folder)
    known = read_checksums(folder)
    return {
        i: read_weights(models_module.model_path_of(folder, i, known), known)
        .tensors["w"][0, 0]
        .item()
        for i in clients
    }


def test_one_model_for_all_is_one_file(tmp_path):
    run = execute(experiment(rounds=1), tmp_path / "run")
    assert files_of(run.folder) == names(0)
    known = json.loads((run.folder / "models" / LIST).read_text())
    assert list(known) == names(0, 1, 2, 3)
    assert len(set(known.values())) == 1
    federation = federation_of(run.experiment)
    for client, accuracy in enumerate(run.accuracy()):
        rows = federation.test[client]
        for module in (run.model(client).module, load_model(run.folder, client)):
            right = module(federation.x[rows]).argmax(1) == federation.y[rows]
            assert right.float().mean() == pytest.approx(accuracy, abs=1e-6)


def test_models_that_differ_have_files_of_their_own(tmp_path):
    run = execute(experiment(method="ditto", rounds=1), tmp_path / "run")
    assert files_of(run.folder) == names(0, 1, 2, 3)


def test_a_model_per_cluster_is_a_file_per_cluster_of_its_first_client(tmp_path):
    found = save(tmp_path / "run", [list(range(6)), list(range(6, 10))], lambda i: float(i % 3))
    assert files_of(tmp_path / "run") == names(0, 1, 2)
    assert found == {i: float(i % 3) for i in range(10)}


def test_the_files_are_the_same_in_whatever_order_clients_come(tmp_path):
    def contents(folder):
        return {p.name: p.read_bytes() for p in (folder / "models").iterdir()}

    save(tmp_path / "one", [list(range(40))], lambda i: float(i * 7 % 5))
    for turn in range(5):  # as engines answer that are ready when they are
        clients = list(range(40))
        random.Random(turn).shuffle(clients)
        chunks = [clients[:13], clients[13:14], clients[14:]]
        folder = tmp_path / f"turn-{turn}"
        assert save(folder, chunks, lambda i: float(i * 7 % 5)) == {
            i: float(i * 7 % 5) for i in range(40)
        }
        assert contents(folder) == contents(tmp_path / "one")


def test_what_a_stopped_process_left_of_a_client_is_not_taken_for_its_model(tmp_path):
    (tmp_path / "models").mkdir()
    for name in names(0, 1, 2):
        (tmp_path / "models" / name).write_bytes(b"left behind")
    assert save(tmp_path, [[0, 1, 2]], lambda i: 1.0) == {0: 1.0, 1: 1.0, 2: 1.0}
    assert files_of(tmp_path) == names(0)


def test_models_in_one_piece_of_memory_are_summed_once(tmp_path, monkeypatch):
    sums, packed = [], models_module.serialize_tensors

    def counted(*what):
        sums.append(1)
        return packed(*what)

    monkeypatch.setattr(models_module, "serialize_tensors", counted)
    execute(experiment(rounds=1), tmp_path / "fedavg")
    assert len(sums) == 1
    execute(experiment(method="ditto", rounds=1), tmp_path / "ditto")
    assert len(sums) == 1 + 4


def test_a_folder_with_a_file_per_client_is_still_read(tmp_path):
    run = execute(experiment(rounds=1), tmp_path / "run")
    weights = Models(run.folder).weights(0)
    known = {}
    for i, name in enumerate(names(0, 1, 2, 3)):  # as earlier versions wrote it
        path = run.folder / "models" / name
        save_tensors(weights.tensors, path, {"coterie": json.dumps(weights.about | {"client": i})})
        known[name] = digest(path)
    assert len(set(known.values())) == 4
    (run.folder / "models" / LIST).write_text(json.dumps(known))
    again = Models(run.folder)
    assert [again.path(i).name for i in range(4)] == names(0, 1, 2, 3)
    assert again.model(3).client == run.about["clients"][3]


def test_a_shared_file_that_is_damaged_or_gone_is_told_for_every_client(tmp_path):
    run = execute(experiment(rounds=1), tmp_path / "run")
    path = run.folder / "models" / names(0)[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    for client in (0, 3):
        with pytest.raises(BadInput, match=r"client-00000\.safetensors is damaged"):
            run.model(client)
    path.unlink()
    for client in (0, 3):
        with pytest.raises(BadInput, match=rf"client-0000{client}\.safetensors is missing: run"):
            run.model(client)


def test_a_run_that_goes_on_leaves_the_files_of_one_that_never_stopped(tmp_path):
    execute(experiment(), tmp_path / "whole")
    with pytest.raises(Stopped):
        execute(experiment(), tmp_path / "cut", stop_at(2))
    resume(tmp_path / "cut")
    assert files_of(tmp_path / "cut") == names(0)
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_shared_models_are_copied_loaded_served_and_added_to(tmp_path):
    run = people_run(tmp_path, method="fedavg")
    shutil.make_archive(str(tmp_path / "packed"), "zip", run.folder)
    folder = tmp_path / "there"
    shutil.unpack_archive(tmp_path / "packed.zip", folder)
    shutil.rmtree(run.folder)
    assert files_of(folder) == names(0)
    frame = pl.read_csv(tmp_path / "people.csv", infer_schema=False)
    served = ServedRun(folder, 2)
    for client in ("site-0", "site-2"):
        rows = frame.filter(site=client).drop("site")
        body = served.reader.read(CSV, rows.write_csv().encode(), client, 1000)
        (answer,) = served.answer([served.models.number(client)], [body])
        model = coterie.load(folder, client)
        assert model.card["client"] == client
        assert np.array_equal(answer.predictions, model.predict(rows))
    later = pl.read_csv(write_people(tmp_path / "later.csv", seed=1), infer_schema=False)
    coterie.update(folder, later.filter(site="site-2").drop("site"), "site-2", force=True)
    coterie.personalize(folder, frame.filter(site="site-1").drop("site"), "north")
    assert files_of(folder) == [*names(0), "later-00000.safetensors", "later-00001.safetensors"]
    old, new = (coterie.load(folder, client) for client in ("site-1", "site-2"))
    assert (old.card["version"], new.card["version"]) == (1, 2)
    assert any(not torch.equal(t, old.state_dict()[k]) for k, t in new.state_dict().items())
