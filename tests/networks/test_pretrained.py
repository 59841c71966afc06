"""Laws of pretrained networks: one backbone for all, padding that changes nothing, adapters that
train as peft and transformers say.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import coterie
from coterie.cli.show import show_run
from coterie.core.errors import BadInput
from coterie.core.method import Batch
from coterie.core.model import Model
from coterie.core.point import Point, pick
from coterie.networks import pretrained
from coterie.networks.pretrained import hf
from coterie.results.metric_table import total_of
from coterie.serving.generation import Sampling, generate
from helpers.pretrained import (
    TOKENS,
    bert,
    gpt2,
    resnet,
    save_tokenizer,
    speakers_frame,
    vit,
    write_others,
)

pytest.importorskip("peft")
FAST = {"compile": "no", "path": "vectorized", "width": 3, "rounds": 1, "batch_size": 8}
LANGUAGE = {"client": "speaker", "text": "text", "task": "causal_lm", "tokens": TOKENS}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("bases")
    made = {"gpt2": gpt2, "bert": bert, "vit": vit, "resnet": resnet}
    return {name: str(make(base / name)) for name, make in made.items()}


def texts(rows=5):
    x = torch.randint(3, 23, (rows, TOKENS), generator=torch.Generator().manual_seed(0))
    x[1, 5:] = -1
    x[3, 2:] = -1
    return x


def batch_of(x, y):
    return Batch(x, y, torch.ones(len(x)), torch.arange(len(x)), torch.tensor(1))


def moved(model, seed=0):
    """A point where adapters do something: B starts at 0."""
    torch.manual_seed(seed)
    point = model.start(0)
    return Point({k: p + 0.3 * torch.randn_like(p) for k, p in point.params.items()}, point.buffers)


def language(folder, **words):
    return Model(lambda: hf((TOKENS,), 1, base=folder, task="causal_lm", **words), "causal_lm")


def classifier(folder, shape=(TOKENS,), **words):
    return Model(lambda: hf(shape, 2, base=folder, task="classes", **words), "classes")


def test_the_backbone_is_in_memory_once(folders):
    models = [language(folders["gpt2"]), language(folders["gpt2"], lora_r=2)]
    places = {
        p.data_ptr()
        for model in models
        for net in (model._train, model._eval, model.module(model.start(0)))
        for name, p in net.named_parameters()
        if name.endswith("wte.weight")
    }
    assert len(places) == 1
    assert all("lora_" in name for name in models[0].shapes)
    assert not any(name in models[0].base_names for name in models[0].tensors(models[0].start(0)))


def test_the_loss_is_that_of_transformers(folders):
    """Over the tokens of a batch, padding left out."""
    model, x = language(folders["gpt2"]), texts()
    point = moved(model)
    net = model.module(point).net
    with torch.no_grad():
        told = {"input_ids": x.clamp(min=0), "attention_mask": (x >= 0).long()}
        wanted = net(**told, labels=torch.where(x >= 0, x, -100)).loss
    assert torch.allclose(model.loss(point, batch_of(x, x)), wanted, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_padding_changes_nothing(folders, name):
    model, x = classifier(folders[name]), texts()
    point = moved(model)
    y = torch.zeros(1, dtype=torch.long)
    for row, length in ((1, 5), (3, 2)):
        whole = model.logits(point, batch_of(x[row : row + 1], y))
        short = model.logits(point, batch_of(x[row : row + 1, :length], y))
        assert torch.allclose(whole, short, atol=1e-5)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    return write_others(tmp_path_factory.mktemp("others"))


@pytest.mark.parametrize("name", ["bloom", "gemma3", "mistral", "opt"])
def test_windows_and_distances_are_those_of_transformers(others, name):
    """A text in a padded batch has the outputs of transformers alone, and goes on as there."""
    model, x = language(others[name]), texts()
    model.check((TOKENS,), x.dtype)  # OPT draws dropout by functions
    point = moved(model)
    net = model.module(point)
    found = model.logits(point, batch_of(x, x))
    for row, said in zip(x, found, strict=True):
        real = row[row >= 0]
        assert torch.allclose(said[: len(real)], net.net(real[None]).logits[0], atol=1e-4)
    prompts, greedy = [x[0, :7].tolist(), x[3, :2].tolist()], Sampling(6, temperature=0)
    rows = {key: torch.stack([leaf, leaf]) for key, leaf in point.params.items()}
    for _ in range(2):
        told = [list(prompt) for prompt in prompts]
        for pieces in generate(net, rows, prompts, [greedy] * 2):
            for piece in pieces:
                told[piece.row].append(piece.token)
        for prompt, said in zip(prompts, told, strict=True):
            ids = torch.tensor([prompt])
            words = {"attention_mask": torch.ones_like(ids), "do_sample": False}
            assert net.net.generate(input_ids=ids, max_new_tokens=6, **words)[0].tolist() == said
        net.stacks = False  # as for layers that torch cannot stack


def test_a_classifier_with_windows_sees_what_it_sees_in_transformers(others):
    model, x = classifier(others["modernbert"]), texts()
    point = moved(model)
    found, net = model.logits(point, batch_of(x, x)), model.module(point).net
    for row, said in zip(x, found, strict=True):
        assert torch.allclose(said, net(row[None, row >= 0]).logits[0], atol=1e-4)


def test_a_network_that_padding_changes_is_refused(folders, monkeypatch):
    monkeypatch.setattr(pretrained, "_read_texts", lambda net, ids, *_: net(ids).logits)
    with pytest.raises(BadInput, match="padding changes what it says"):
        hf((TOKENS - 1,), 2, base=folders["bert"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt2", {"lora_dropout": 0.2, "adapters": 2}),
        ("bert", {"lora_r": 0}),
        ("vit", {}),
        ("resnet", {"target_modules": "convolution"}),
    ],
)
def test_stacked_clients_have_the_gradients_of_each_alone(folders, name, words):
    images = name in ("vit", "resnet")
    shape = (1, 8, 8) if images else (TOKENS,)
    x = torch.randn(5, 1, 8, 8) if images else texts()
    model = classifier(folders[name], shape, **words)
    model.check(shape, x.dtype)
    points = [moved(model, seed) for seed in range(2)]
    stack = torch.utils._pytree.tree_map(lambda *leaves: torch.stack(leaves), *points)
    batch = batch_of(x, torch.tensor([0, 1, 1, 0, 1]))
    found = torch.func.vmap(lambda w: model.grad(w, batch))(stack)
    for k, point in enumerate(points):
        alone = model.grad(point, batch)
        for key, value in pick(found, k).params.items():
            assert torch.allclose(value, alone.params[key], atol=1e-5), key


def test_bloom_has_the_gradients_of_transformers(others, tmp_path):
    """transformers writes the backward of its activation itself; torch.func cannot run that."""
    model, x = language(others["bloom"]), texts()[:1]
    point = moved(model)
    theirs = AutoModelForCausalLM.from_pretrained(others["bloom"]).requires_grad_(False)
    theirs.transformer.word_embeddings_layernorm.weight.requires_grad_(True)
    theirs(input_ids=x).logits.square().sum().backward()
    wanted = theirs.transformer.word_embeddings_layernorm.weight.grad
    net = model.module(Point({k: 0 * p for k, p in point.params.items()}, point.buffers)).net
    key, weight = next(
        (k, p) for k, p in net.named_parameters() if k.endswith("word_embeddings_layernorm.weight")
    )

    def squared(p):
        return torch.func.functional_call(net, {key: p}, (), {"input_ids": x}).logits.square().sum()

    found = torch.func.grad(squared)(weight.detach())
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)
    save_tokenizer(Path(others["bloom"]))
    net = f"hf:{others['bloom']}"
    run = coterie.run(
        "local", dataset=speakers_frame(), model=net, out=tmp_path, **LANGUAGE, **FAST
    )
    assert any(bool(p.any()) for k, p in leaves_of(run, 0).items() if "lora_B" in k)


def test_what_cannot_be_is_refused(folders, tmp_path):
    frame = speakers_frame()
    with pytest.raises(BadInput, match="no causal language model"):
        language(folders["bert"])
    with pytest.raises(BadInput, match="lower --tokens"):
        hf((99,), 2, base=folders["bert"])
    with pytest.raises(BadInput, match="no adapter"):
        language(folders["gpt2"], lora_r=0)
    with pytest.raises(BadInput, match="is not the network that was trained on"):
        language(folders["gpt2"], digest="0" * 64)
    with pytest.raises(BadInput, match=r"no config\.json"):
        language(str(tmp_path))
    with pytest.raises(BadInput, match="target_modules = 'nothing'"):
        language(folders["gpt2"], target_modules="nothing")
    with pytest.raises(BadInput, match="give --model hf:FOLDER"):
        coterie.run("local", dataset=frame, out=tmp_path / "a", **LANGUAGE, **FAST)
    with pytest.raises(BadInput, match="name their column with --text"):
        coterie.run(
            "local",
            dataset=frame,
            client="speaker",
            label="mood",
            task="causal_lm",
            out=tmp_path / "b",
            **FAST,
        )


@pytest.fixture(scope="module")
def runs(folders, tmp_path_factory):
    """Runs of a language model by scheme: {name: run}."""
    out, frame = tmp_path_factory.mktemp("runs"), speakers_frame()
    plain = f"hf:{folders['gpt2']}"
    schemes = {
        "global": ("fedavg", {}),
        "share A": ("fedper", {"own": "*lora_B*"}),
        "frozen A": ("fedavg", {"freeze": "*lora_A*"}),
        "both": ("fedper", {"own": "*.personal.*", "adapters": 2}),
    }
    words = {**LANGUAGE, **FAST, "lr": 0.5, "model": plain, "lora_r": 2}
    return {
        name: coterie.run(method, dataset=frame, out=out / name, **words, **own)
        for name, (method, own) in schemes.items()
    }


def leaves_of(run, client):
    return dict(coterie.load_model(run.folder, client).named_parameters())


def alike(run, part):
    """Whether all clients have the same of the parameters whose names hold a part."""
    each = [leaves_of(run, k) for k in range(3)]
    names = [name for name in each[0] if part in name]
    assert names
    return all(torch.equal(each[0][n], other[n]) for other in each[1:] for n in names)


def test_a_scheme_says_which_leaves_are_shared(runs):
    assert alike(runs["global"], "lora_A")
    assert alike(runs["global"], "lora_B")
    assert alike(runs["share A"], "lora_A")
    assert not alike(runs["share A"], "lora_B")
    assert alike(runs["both"], ".default.")
    assert not alike(runs["both"], ".personal.")
    start = dict(
        hf((TOKENS,), 1, base=leaf_base(runs), task="causal_lm", lora_r=2).named_parameters()
    )
    frozen = leaves_of(runs["frozen A"], 0)
    assert all(torch.any(frozen[n] != 0) for n in start if "lora_B" in n)


def leaf_base(runs):
    return runs["global"].experiment.model["name"].removeprefix("hf:")


def test_bytes_are_those_of_what_is_shared(runs):
    sent = {name: total_of(run.table, "bytes_up") for name, run in runs.items()}
    size = {"lora_A": 0, "lora_B": 0}
    for name, leaf in leaves_of(runs["global"], 0).items():
        for part in size:
            size[part] += leaf.numel() * (part in name)
    clients = 3
    assert sent["global"] == 4 * clients * (size["lora_A"] + size["lora_B"])
    assert sent["share A"] == 4 * clients * size["lora_A"]
    assert sent["frozen A"] == 4 * clients * size["lora_B"]
    assert sent["both"] == sent["global"]


def test_perplexity_is_that_of_all_tokens_of_a_client(runs):
    run = runs["share A"]
    frame = run.table.to_pandas()
    mine = frame[(frame.metric == "perplexity") & (frame.part == "test") & (frame.client == 0)]
    loss = frame[(frame.metric == "loss") & (frame.part == "test") & (frame.client == 0)]
    assert np.allclose(np.exp(loss.value.to_numpy()[-1]), mine.value.to_numpy()[-1])
    assert set(frame.metric) >= {"perplexity", "accuracy", "loss"}


def test_a_run_holds_no_copy_of_the_backbone(runs):
    files = sorted(p.name for p in (runs["global"].folder / "models").iterdir())
    assert files == ["client-00000.safetensors", "models.json"]


def test_ranks_may_differ_by_client(folders, tmp_path):
    """HetLoRA: truncated on the way down, padded and weighted by ||BA|| on the way up."""
    import hetlora

    from coterie.methods.registry import METHODS

    torch.manual_seed(0)
    name = "layer.lora_{}.default.weight"
    small, large = (
        Point({name.format("A"): torch.randn(2, r, 5), name.format("B"): torch.randn(2, 4, r)}, {})
        for r in (1, 3)
    )
    padded = hetlora.pad(small, 3)
    assert [tuple(leaf.shape) for leaf in padded.params.values()] == [(2, 3, 5), (2, 4, 3)]
    for k, norm in enumerate(hetlora.norms_of(padded)):
        b, a = (small.params[name.format(part)][k] for part in ("B", "A"))
        assert torch.allclose(norm, (b @ a).norm())
    first = pick(padded, 0)
    assert all(
        torch.equal(leaf, small.params[key][0])
        for key, leaf in hetlora.truncate(first, 1).params.items()
    )
    assert not torch.allclose(hetlora.norms_of(large), hetlora.norms_of(padded))
    base = folders["gpt2"]
    ranks = [f"hf:{base}:lora_r={r}:lora_alpha={2 * r}" for r in (1, 3)]
    words = {**LANGUAGE, **FAST, "lr": 0.5, "rounds": 2}
    coterie.register(hetlora.hetlora)
    try:
        run = coterie.run(
            "hetlora",
            dataset=speakers_frame(),
            model=",".join(ranks),
            out=tmp_path / "run",
            **words,
        )
        odd = f"hf:{base}:lora_r=1,hf:{base}:lora_r=3"
        with pytest.raises(BadInput, match="one scale"):
            coterie.run(
                "hetlora", dataset=speakers_frame(), model=odd, out=tmp_path / "odd", **words
            )
    finally:
        del METHODS["hetlora"]
    shapes = [
        {leaf.shape[0] for key, leaf in leaves_of(run, k).items() if "lora_A" in key}
        for k in range(3)
    ]
    assert shapes == [{1}, {3}, {1}]
    low, high = leaves_of(run, 0), leaves_of(run, 1)
    for key in low:
        if "lora_A" in key:
            assert torch.allclose(low[key], high[key][:1])


def test_parameters_of_adapters_are_mixed_by_any_method(folders, tmp_path):
    for method in ("ktpfl-h", "apfl"):
        run = coterie.run(
            method,
            dataset=speakers_frame(),
            model=f"hf:{folders['gpt2']}",
            out=tmp_path / method,
            **LANGUAGE,
            **FAST,
        )
        assert np.isfinite(run.summary().mean)


def test_a_summary_says_what_travels_beside_the_whole_network(runs, capsys):
    show_run(runs["share A"])
    said = " ".join(capsys.readouterr().out.split())
    leaves = leaves_of(runs["share A"], 0)
    train = sum(leaf.numel() for name, leaf in leaves.items() if "lora_" in name)
    whole = sum(leaf.numel() for leaf in leaves.values())
    assert f"{train:,} of {whole:,} parameters train" in said
    assert f"the whole network would be {8 * whole / 1000:,.1f} KB" in said


def test_a_text_that_is_its_own_label_is_a_language(folders, tmp_path):
    words = {"client": "speaker", "text": "text", "label": "text", "tokens": TOKENS}
    net = f"hf:{folders['gpt2']}"
    run = coterie.run(
        "local", dataset=speakers_frame(), model=net, out=tmp_path / "run", **words, **FAST
    )
    assert run.task == "causal_lm"
    assert run.judged.name == "perplexity"


def test_images_have_adapters_and_heads_of_their_own(folders, tmp_path):
    words = FAST | {"dataset": "digits", "num_clients": 3}
    for name, own in (("vit", {}), ("resnet", {"lora_r": 0})):
        out = tmp_path / name
        run = coterie.run("local", model=f"hf:{folders[name]}", out=out, **words, **own)
        trained = [k for k, p in leaves_of(run, 0).items() if p.requires_grad]
        assert any("classifier" in key for key in trained)
        assert any("lora_" in key for key in trained) == (name == "vit")
        assert run.model("0").predict(np.zeros((2, 1, 8, 8), np.uint8)).shape == (2,)
