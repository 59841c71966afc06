"""Laws of adapters in use: as files of peft, in a service, and for texts that go on."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from peft import PeftModel
from starlette.testclient import TestClient
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import coterie
from coterie.cli.export import export
from coterie.core.errors import BadInput
from coterie.serving.app import build_app
from coterie.serving.generation import Sampling, choose_token, generate
from coterie.serving.generation_worker import Generator
from coterie.serving.service import Service, ServiceLimits
from helpers.pretrained import TOKENS, bert, gpt2, speakers_frame, vit

FAST = {"compile": "no", "path": "vectorized", "width": 3, "rounds": 1, "batch_size": 8, "lr": 0.5}
LIMITS = ServiceLimits(seconds=120)


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """(run, folder of the base) of a language model with two adapters per client."""
    folder = tmp_path_factory.mktemp("language")
    base = gpt2(folder / "base")
    words = {"client": "speaker", "text": "text", "task": "causal_lm", "tokens": TOKENS}
    own = {"model": f"hf:{base}", "lora_r": 2, "adapters": 2, "own": "*.personal.*"}
    run = coterie.run(
        "fedper", dataset=speakers_frame(), out=folder / "run", **words, **own, **FAST
    )
    return run, base


@pytest.fixture(scope="module")
def exported(language, tmp_path_factory):
    out = tmp_path_factory.mktemp("peft") / "out"
    said = CliRunner().invoke(export, [str(language[0].folder), "--to", "peft", "--out", str(out)])
    assert said.exit_code == 0, said.output
    return out


def open_adapter(base, folder):
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder).eval()


def test_an_exported_adapter_says_what_the_model_says(language, exported):
    run, base = language
    ids = torch.tensor([[1, 4, 5, 6, 7], [1, 9, 9, 3, 2]])
    found = {}
    for client in ("s0", "s1", "s2"):
        with torch.no_grad():
            mine = coterie.load(run.folder, client).module(ids)
            found[client] = open_adapter(base, exported / client)(input_ids=ids).logits
        assert torch.allclose(mine, found[client], atol=1e-5)
    assert not torch.allclose(found["s0"], found["s1"], atol=1e-3)  # clients differ
    plain = AutoModelForCausalLM.from_pretrained(base)(input_ids=ids).logits
    assert not torch.allclose(found["s0"], plain, atol=1e-3)  # and the adapter does something
    about = json.loads((exported / "s0" / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == str(base)
    assert about["r"] == 4
    card = (exported / "s0" / "README.md").read_text()
    digest = json.loads((exported / "s0" / "model.json").read_text())["network"]["options"][
        "digest"
    ]
    assert "base model" in card
    assert digest in card


def test_a_merged_model_needs_no_adapter(language, tmp_path):
    run, base = language
    ids = torch.tensor([[1, 4, 5, 6, 7]])
    args = [str(run.folder), "--to", "peft", "--merge", "--client", "s1"]
    said = CliRunner().invoke(export, [*args, "--out", str(tmp_path / "out")])
    assert said.exit_code == 0, said.output
    before = AutoModelForCausalLM.from_pretrained(base)(input_ids=ids).logits
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "s1").eval()
    with torch.no_grad():
        wanted = coterie.load(run.folder, "s1").module(ids)
        assert torch.allclose(whole(input_ids=ids).logits, wanted, atol=1e-5)
        assert (
            torch.allclose(coterie.load(run.folder, "s0").module(ids), wanted, atol=1e-3) is False
        )
    assert torch.equal(AutoModelForCausalLM.from_pretrained(base)(input_ids=ids).logits, before)
    assert AutoTokenizer.from_pretrained(tmp_path / "out" / "s1")("w1 w2")["input_ids"][0] == 1


def test_adapters_of_classifiers_leave_too(tmp_path):
    """With the layers above the backbone, which are trained as well."""
    frame, base = speakers_frame(), bert(tmp_path / "bert")
    words = {"client": "speaker", "text": "text", "label": "mood", "tokens": TOKENS}
    run = coterie.run(
        "local", dataset=frame, model=f"hf:{base}", out=tmp_path / "run", **words, **FAST
    )
    _export(run, tmp_path / "out")
    plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
    mine = PeftModel.from_pretrained(plain, tmp_path / "out" / "s0").eval()
    told = AutoTokenizer.from_pretrained(base)(
        frame["text"].to_list(), padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        found = mine(input_ids=told["input_ids"], attention_mask=told["attention_mask"]).logits
    wanted = coterie.load(run.folder, "s0").outputs(frame)
    assert torch.allclose(found, wanted, atol=1e-5)


def test_adapters_of_images_leave_too(tmp_path):
    base = vit(tmp_path / "vit")
    run = coterie.run(
        "fedavg",
        dataset="digits",
        num_clients=3,
        model=f"hf:{base}",
        out=tmp_path / "run",
        **FAST,
    )
    _export(run, tmp_path / "out")
    plain = AutoModelForImageClassification.from_pretrained(
        base, num_labels=10, ignore_mismatched_sizes=True
    )
    mine = PeftModel.from_pretrained(plain, tmp_path / "out" / "0").eval()
    x = torch.rand(4, 1, 16, 16)
    with torch.no_grad():
        wanted = coterie.load(run.folder, "0").module(x)
        assert torch.allclose(mine(pixel_values=x).logits, wanted, atol=1e-5)


def _export(run, out):
    said = CliRunner().invoke(export, [str(run.folder), "--to", "peft", "--out", str(out)])
    assert said.exit_code == 0, said.output


def test_clients_go_on_together_as_each_alone(language, exported):
    """Prompts of several lengths, greedily: what `generate` of transformers says of each."""
    run, base = language
    service = Service(run.folder, None, LIMITS)
    generator = Generator(service.served)
    clients, prompts = [0, 1, 2, 1], ["w3", "w1 w2 w4 w5", "w7 w7", "w1 w2"]
    ids = [generator.read_prompt(c, p, Sampling(8)) for c, p in zip(clients, prompts, strict=True)]
    said = [list(prompt) for prompt in ids]
    steps = generate(
        generator.network(0), service.served.gather(clients), ids, [Sampling(8, temperature=0)] * 4
    )
    for pieces in steps:
        for piece in pieces:
            said[piece.row].append(piece.token)
    for client, prompt, found in zip(clients, ids, said, strict=True):
        alone = open_adapter(base, exported / f"s{client}")
        asked = torch.tensor([prompt])
        wanted = alone.generate(
            input_ids=asked,
            attention_mask=torch.ones_like(asked),
            max_new_tokens=8,
            do_sample=False,
        )[0]
        assert found == wanted.tolist()
    service.worker.close()


def test_sampling_keeps_to_its_options():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    draws = np.linspace(0, 0.999, 200)
    assert {choose_token(logits, Sampling(), d) for d in draws} == {0, 1, 2, 3}
    assert {choose_token(logits, Sampling(top_k=2), d) for d in draws} == {0, 1}
    assert {choose_token(logits, Sampling(top_p=0.6), d) for d in draws} == {0, 1}
    assert {choose_token(logits, Sampling(top_p=1e-6), d) for d in draws} == {0}
    assert {choose_token(logits, Sampling(temperature=0), d) for d in draws} == {0}
    share = np.mean([choose_token(logits, Sampling(), d) == 0 for d in draws])
    assert abs(share - 0.5) < 0.02
    hot = np.mean([choose_token(logits, Sampling(temperature=100), d) == 0 for d in draws])
    assert abs(hot - 0.25) < 0.05


def test_the_service_generates_whole_and_as_it_grows(language):
    run, _ = language
    service = Service(run.folder, None, LIMITS)
    with TestClient(build_app(service, loopback=False)) as client:
        for seed in range(9):  # a text of more than one token
            words = {"prompt": "w3 w4", "max_tokens": 6, "seed": seed}
            whole = client.post("/clients/s0/generate", json=words)
            assert whole.status_code == 200, whole.text
            if whole.json()["tokens"] > 1:
                break
        again = client.post("/clients/s0/generate", json=words).json()
        assert again == whole.json()
        assert again["finish_reason"] in ("stop", "length")
        with client.stream("POST", "/clients/s0/generate", json=words | {"stream": True}) as told:
            events = [json.loads(line[6:]) for line in told.iter_lines() if line]
        assert "".join(event["text"] for event in events) == again["text"]
        assert events[-1]["tokens"] == again["tokens"]
        assert len(events) > 1
        for odd, why in (
            ({"prompt": ""}, None),
            ({"prompt": "w1", "max_tokens": 99}, "more than the 16"),
            ({"prompt": "w1", "top_p": 0}, "top_p is 0"),
            ({"prompt": "w1", "heat": 1}, "unknown option 'heat'"),
            ({"text": "w1"}, "the body must be"),
        ):
            refused = client.post("/clients/s0/generate", json=odd)
            if why:
                assert refused.status_code == 422
                assert why in refused.json()["problem"]
        assert "/clients/{client}/generate" in client.get("/openapi.json").json()["paths"]


def test_slots_hold_adapters_alone(language):
    """The backbone is not among what is stacked."""
    service = Service(language[0].folder, None, LIMITS)
    held = service.served.gather([0, 1, 2])
    assert held
    assert all("lora_" in name and len(tensor) == 3 for name, tensor in held.items())
    service.worker.close()


def test_a_network_without_adapter_is_refused(tmp_path):
    run = coterie.run("local", dataset="digits", num_clients=3, out=tmp_path / "run", rounds=1)
    said = CliRunner().invoke(export, [str(run.folder), "--to", "peft"])
    assert said.exit_code
    assert isinstance(said.exception, BadInput | SystemExit)
