"""A transformer with LoRA adapters: every method that needs no more than a network runs on it."""

import warnings

import pytest
import torch
from safetensors.torch import load_file

import coterie
from coterie.data.dataset import Dataset
from coterie.results.metric_table import total_of
from helpers.runs import FAST

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lora_text

METHODS = (
    *("local", "fedavg", "finetune", "fedprox", "ditto", "pfedme", "apfl", "scaffold", "fedper"),
    *("fedrep", "lgfedavg", "fedala", "fedamp", "fedfomo", "ifca", "ucfl", "cfl", "perfedavg"),
    *("persfl", "pfedhn", "fml", "selffl"),
)
WORDS = FAST | {"width": 2, "rounds": 1, "batch_size": 8, "local_steps": 1}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return lora_text.dataset(persons=2, each=20)


def trainable() -> int:
    return sum(p.numel() for p in lora_text.lora().parameters() if p.requires_grad)


def test_bytes_are_those_of_the_trainable_parameters(data, tmp_path):
    run = coterie.run("fedavg", dataset=data, model=lora_text.lora, out=tmp_path / "r", **WORDS)
    assert (
        total_of(run.table, "bytes_down") == total_of(run.table, "bytes_up") == 2 * 4 * trainable()
    )
    (model,) = run.about["models"]
    assert model["parameters"] == trainable() < model["frozen"]


def test_stacked_persons_equal_one_after_another_and_load_again(data, tmp_path):
    found = {}
    for path in ("vectorized", "sequential"):
        settings = WORDS | {"path": path, "local_steps": 3}
        run = coterie.run(
            "ditto", dataset=data, model=lora_text.lora, out=tmp_path / path, **settings
        )
        found[path] = load_file(run.folder / "models" / "client-00001.safetensors")
    for name, tensor in found["vectorized"].items():
        torch.testing.assert_close(tensor, found["sequential"][name], rtol=1e-4, atol=1e-5)
    rows = torch.as_tensor(data.x[:7])
    one, other = (
        coterie.load_model(tmp_path / path, 1, build=lora_text.lora)(rows).logits
        for path in ("vectorized", "sequential")
    )
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_adapters(method, data, tmp_path):
    settings = {k: v for k, v in WORDS.items() if k != "local_steps" or method != "selffl"}
    run = coterie.run(method, dataset=data, model=lora_text.lora, out=tmp_path / "r", **settings)
    assert 0 <= run.summary().mean <= 1
