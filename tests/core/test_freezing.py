"""Frozen parts: named by the beginning of a name, neither trained, sent nor stored per client."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import coterie
from coterie.core.errors import BadInput
from coterie.core.freezing import freeze_builder, matches_pattern, select_parameters
from coterie.core.model import Model
from coterie.experiment.build import federation_of
from coterie.results.folder import read_about
from coterie.results.metric_table import total_of
from helpers.runs import IMAGES, arrays, results

WORDS = IMAGES | {"rounds": 2, "eval_every": 2}
OWN = {k: v for k, v in WORDS.items() if k in ("path", "width", "compile", "threads", "batch_size")}
OWN |= {"rounds": 2, "eval_every": 2}


class Net(nn.Module):
    """A backbone that is drawn anew at every building, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
        self.head = nn.Linear(4, 2)
        self.register_buffer("places", torch.arange(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x)[:, self.places])


def test_a_name_means_a_layer_with_all_in_it_and_a_star_any_name():
    assert matches_pattern("backbone.0.weight", "backbone")
    assert matches_pattern("backbone.0.weight", "backbone.0")
    assert not matches_pattern("backbone2.weight", "backbone")
    assert matches_pattern("a.lora_A.weight", "*lora_*")
    assert select_parameters("a, *.bias", ["a.weight", "b.bias", "c.weight"], "freeze", "net") == {
        "a.weight",
        "b.bias",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("body", "freeze = 'body' is no part of Net, which has backbone.0, backbone.2, head: give"),
        ("backbone,body", "freeze = 'body' is no part of Net"),
        ("backbone,head", "leaves nothing of Net to train"),
        ("*", "leaves nothing of Net to train"),
    ],
)
def test_what_freezes_nothing_or_all_is_one_line(text, says):
    with pytest.raises(BadInput, match=says):
        freeze_builder(Net, text, "Net")
    with pytest.raises(BadInput, match=says):
        coterie.run("fedavg", dataset=arrays(), model=Net, freeze=text, **OWN)


def test_only_the_trainable_part_travels_and_is_stored_beside_the_frozen_one(tmp_path):
    run = coterie.run(
        "fedavg", dataset=arrays(), model=Net, freeze="backbone", out=tmp_path / "r", **OWN
    )
    trainable, frozen = 4 * 2 + 2, 6 * 5 + 5 + 5 * 4 + 4
    assert (
        total_of(run.table, "bytes_down")
        == total_of(run.table, "bytes_up")
        == 2 * 4 * 4 * trainable
    )
    assert read_about(run.folder)["models"] == [
        {"name": "Net", "parameters": trainable, "frozen": frozen}
    ]
    files = sorted(p.name for p in (run.folder / "models").glob("*.safetensors"))
    assert files == ["client-00000.safetensors", "frozen-0.safetensors"]  # one model for all
    assert set(load_file(run.folder / "models" / files[0])) == {"head.weight", "head.bias"}
    held = load_file(run.folder / "models" / "frozen-0.safetensors")
    assert sum(t.numel() for t in held.values()) == frozen
    assert coterie.load(run.folder).experiment.model["freeze"] == "backbone"


def test_a_loaded_model_predicts_as_the_run_measured(tmp_path):
    data = arrays()
    run = coterie.run(
        "ditto", dataset=data, model=Net, freeze="backbone", out=tmp_path / "r", **OWN
    )
    held = load_file(run.folder / "models" / "frozen-0.safetensors")
    federation = federation_of(run.experiment, data)
    for client in range(4):
        module = coterie.load_model(run.folder, client, build=Net)
        assert torch.equal(module.backbone[0].weight, held["backbone.0.weight"])
        rows = federation.test[client]
        right = module(federation.x[rows]).argmax(1) == federation.y[rows]
        assert right.float().mean() == pytest.approx(run.accuracy()[client])


def test_a_network_of_coterie_s_own_is_frozen_by_a_word_and_built_again_from_its_files(tmp_path):
    run = coterie.run("ditto", freeze="dense1", out=tmp_path / "r", **WORDS)
    names = set(load_file(run.folder / "models" / "client-00000.safetensors"))
    assert names
    assert not any(name.startswith("dense1.") for name in names)
    assert coterie.load_model(run.folder, 0) is not None
    (run.folder / "models" / "frozen-0.safetensors").write_bytes(b"x")
    with pytest.raises(BadInput, match="is damaged"):
        coterie.load_model(run.folder, 0)
    (run.folder / "models" / "frozen-0.safetensors").unlink()
    with pytest.raises(BadInput, match=r"frozen-0\.safetensors is missing"):
        coterie.load_model(run.folder, 0)


@pytest.mark.parametrize("method", ["ditto", "fedper"])
def test_stacked_clients_equal_one_after_another(method, tmp_path):
    found = []
    for path in ("vectorized", "sequential"):
        run = coterie.run(
            method,
            dataset=arrays(),
            model=Net,
            freeze="backbone.0",
            out=tmp_path / path,
            **OWN | {"path": path},
        )
        found.append([load_file(p) for p in sorted((run.folder / "models").glob("client*"))])
    for one, other in zip(*found, strict=True):
        for name, tensor in one.items():
            torch.testing.assert_close(tensor, other[name])


def test_a_run_with_frozen_layers_goes_on_as_if_it_had_not_stopped(tmp_path):
    settings = WORDS | {"freeze": "dense1", "rounds": 3, "checkpoint": 1}
    whole = coterie.run("ditto", out=tmp_path / "whole", **settings)

    def stop(report):
        if report.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.run("ditto", out=tmp_path / "part", watch=stop, **settings)
    coterie.resume(tmp_path / "part")
    assert results(tmp_path / "part") == results(whole.folder)


def test_freezing_what_is_a_model_already_is_refused():
    with pytest.raises(BadInput, match="freeze = 'head' for net, which is a Model already"):
        coterie.run(
            "fedavg", dataset=arrays(), model=Model(Net, "classes", "net"), freeze="head", **OWN
        )


# Buffers that no file holds


def test_buffers_that_no_file_holds_are_of_no_point():
    model = Model(Net, name="net")
    assert not model.start(0).buffers
    model.check((6,))


def test_a_network_that_writes_over_such_a_buffer_is_refused():
    class Counting(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.places.copy_(self.places.flip(0))
            return super().forward(x)

    with pytest.raises(BadInput, match="writes over its buffer 'places', which no file holds"):
        Model(Counting, name="net").check((6,))


# FedPer


def test_fedper_keeps_the_named_parameters_at_home(tmp_path):
    run = coterie.run(
        "fedper", dataset=arrays(), model=Net, own="backbone", out=tmp_path / "r", **OWN
    )
    seed = 8
    assert total_of(run.table, "bytes_up") == 2 * 4 * 4 * (4 * 2 + 2)
    assert total_of(run.table, "bytes_down") == 2 * 4 * (4 * (4 * 2 + 2) + seed)
    first, second = (coterie.load_model(run.folder, i, build=Net) for i in (0, 1))
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.backbone[0].weight, second.backbone[0].weight)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"own": "tail"}, "fedper.own = 'tail' is no part of Net"),
        ({"own": "backbone,head"}, "leaves nothing of Net to share"),
        ({"own": "head", "head": 2}, "so does head = 2: leave out one of them"),
    ],
)
def test_fedper_refuses_names_that_leave_nothing(settings, says):
    with pytest.raises(BadInput, match=says):
        coterie.run(
            "fedper",
            dataset=arrays(),
            model=Net,
            **OWN,
            **{f"fedper.{k}": v for k, v in settings.items()},
        )


def test_frozen_layers_stay_as_they_were(tmp_path):
    run = coterie.run(
        "local", dataset=arrays(), model=Net, freeze="head", out=tmp_path / "r", **OWN
    )
    model = Model(freeze_builder(Net, "head", "Net"))
    held = load_file(run.folder / "models" / "frozen-0.safetensors")
    assert np.array_equal(held["head.weight"], model.frozen["head.weight"])
