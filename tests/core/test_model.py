"""Any network: what it computes on every path is what plain PyTorch says, and it can be loaded."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Train
from coterie.core.model import Model, layer_of
from coterie.core.point import Point, pick
from coterie.engines.base import ExchangeRequest, Moment
from coterie.engines.local.native.compiler import find_compiler
from coterie.engines.settings import ExecutionSettings
from coterie.running.loop import Loop
from helpers.federations import SEQUENTIAL, STACKED, assert_same, float64, personal, play, tiny

METHODS = ["local", "fedavg", "ditto", "fedper", "pfedme"]
TRAIN = Train(batch_size=4, lr=0.05, local_steps=3)
TOKENS = 7


class Tied(nn.Module):
    """Two dense layers with one weight, beside a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        self.two.weight = self.one.weight
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.two(torch.tanh(self.one(x)))))


class TiedWords(nn.Module):
    """Tokens in, tokens out: the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(TOKENS, 5, padding_idx=0), nn.Linear(5, TOKENS)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))


class Reader(nn.Module):
    """A recurrent layer over six steps of one feature, read at its last step."""

    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.rnn = kind(1, 4, batch_first=True, **options)
        ways = 2 if self.rnn.bidirectional else 1
        self.head = nn.Linear((self.rnn.proj_size or 4) * ways, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out, end = self.rnn(x.unsqueeze(-1))
        return self.head(out[:, -1]), end  # a tuple: the first is the output


class Attentive(nn.Module):
    """Two transformer layers with dropout, batch first or not."""

    def __init__(self, dropout: float = 0.3, batch_first: bool = True) -> None:
        super().__init__()
        self.dense, self.batch_first = nn.Linear(1, 4), batch_first
        one = nn.TransformerEncoderLayer(4, 2, 8, dropout, batch_first=batch_first)
        self.body = nn.TransformerEncoder(one, 2, enable_nested_tensor=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.dense(x.unsqueeze(-1))
        steps = steps if self.batch_first else steps.transpose(0, 1)
        return self.head(self.body(steps).mean(1 if self.batch_first else 0))


class Images(nn.Module):
    """InstanceNorm with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x.reshape(-1, 2, 3)).flatten(1))


class Branch(nn.Module):
    """A network that looks at what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(x)
        return out if self.head.bias.sum() > 0 else 2 * out


class Counter(nn.Module):
    """A layer that writes over its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
        return self.head(x) / (1 + self.passes)


def spectral() -> nn.Module:
    return nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(6, 5), n_power_iterations=2),
        nn.Tanh(),
        parametrizations.spectral_norm(nn.Linear(5, 3)),
    )


def weighted() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3))


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(TOKENS, 4), nn.Flatten(), nn.Linear(24, 3))


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 3))
    net[0].requires_grad_(False)
    return net


NETWORKS = {
    "spectral_norm": spectral,
    "weight_norm": weighted,
    "tied": Tied,
    "embedding": words,
    "tied words": TiedWords,
    "lstm": lambda: Reader(nn.LSTM, num_layers=2, dropout=0.3),
    "lstm both ways": lambda: Reader(nn.LSTM, bidirectional=True, proj_size=2),
    "gru": lambda: Reader(nn.GRU, num_layers=2, bidirectional=True),
    "rnn": lambda: Reader(nn.RNN, nonlinearity="relu"),
    "instance norm": Images,
    "transformer": Attentive,
    "frozen": frozen,
    "branch": Branch,
    "writer": Counter,
}
ALONE = ("branch",)  # those that can only run one client after another


def data(name: str):
    """The tiny federation, with tokens where the network takes them."""
    federation = tiny(public=0)
    if name in ("embedding", "tied words"):
        tokens = (federation.x * 10).long().abs() % TOKENS
        classes = TOKENS if name == "tied words" else 3
        federation = federation._replace(x=tokens, classes=classes)
    return federation


def trained(name: str, method: str, settings: ExecutionSettings, **more: object) -> Loop:
    federation, model = data(name), Model(NETWORKS[name], name=name)
    model.check(federation.input_shape, federation.x.dtype)
    options = {"inner": 2} if method == "pfedme" else {}
    return play(
        method, federation, [model], train=TRAIN, settings=settings, options=options, **more
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_gives_one_result_on_every_path(name, method):
    if name in ("branch", "writer") and method == "fedper":
        pytest.skip("it has one layer, so that nothing is left to share")
    with float64():
        alone = trained(name, method, SEQUENTIAL, participation=0.6)
        chosen = trained(name, method, ExecutionSettings(), participation=0.6)
        assert_same(personal(chosen), personal(alone))
        if name in ALONE:
            assert chosen.engine.settings[0].path == "sequential"
        else:
            assert_same(
                personal(trained(name, method, STACKED, participation=0.6)), personal(alone)
            )


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ALONE])
def test_a_traced_network_gives_the_same_result(name):
    with float64():
        found = [
            personal(trained(name, "fedavg", STACKED._replace(compile=word), rounds=1))
            for word in ("no", "trace")
        ]
        assert_same(*found)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ALONE])
def test_a_compiled_network_gives_the_same_result_or_is_refused_by_what_it_lacks(name):
    with float64():
        plain = personal(trained(name, "local", STACKED, rounds=1))
        compiled = STACKED._replace(compile="yes")
        if find_compiler() and name != "spectral_norm":
            assert_same(plain, personal(trained(name, "local", compiled, rounds=1)))
            return
        with pytest.raises(BadInput, match=r"cannot be compiled \(.*\): use compile = auto"):
            trained(name, "local", compiled, rounds=1)


def test_a_network_that_branches_on_its_values_is_refused_on_paths_it_cannot_take():
    with pytest.raises(BadInput, match=r"cannot run with path = vectorized \(.*\): use auto"):
        trained("branch", "fedavg", STACKED)
    with pytest.raises(BadInput, match=r"cannot be compiled \(.*\): use compile = auto"):
        trained("branch", "fedavg", SEQUENTIAL._replace(compile="yes"))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_trial_leaves_what_the_run_holds_as_it_was(name):
    loop = trained(name, "ditto", ExecutionSettings(), until=0)
    before = [t.clone() for t in pytree.tree_leaves(loop.position.server)]
    trip = ExchangeRequest(
        number=0,
        when=Moment("train", 0),
        clients=loop.everyone,
        send=loop.payload(),
        answered=set(loop.everyone),
        averaged=set(loop.everyone),
    )
    loop.engine.choose(trip)
    assert not loop.engine.settings[0].open
    after = pytree.tree_leaves(loop.position.server)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not loop.engine.states[0].slots


# Against plain PyTorch


def batch_of(x: Tensor) -> Batch:
    n = len(x)
    return Batch(
        x, torch.zeros(n, dtype=torch.long), torch.ones(n), torch.arange(n), torch.tensor(3)
    )


def moved(point: Point, seed: int = 5) -> Point:
    """The point somewhere else."""
    rng = torch.Generator().manual_seed(seed)
    return Point(
        {k: p + 0.1 * torch.randn(p.shape, generator=rng) for k, p in point.params.items()},
        point.buffers,
    )


PLAIN = {k: v for k, v in NETWORKS.items() if k not in ("lstm", "transformer")} | {
    "lstm": lambda: Reader(nn.LSTM, num_layers=2, bidirectional=True),
    "gru bare": lambda: Reader(nn.GRU, bias=False),
    "transformer": lambda: Attentive(0.0),
    "transformer, steps first": lambda: Attentive(0.0, batch_first=False),
}


@pytest.mark.parametrize("name", PLAIN)
def test_outputs_gradients_and_buffers_are_those_of_plain_pytorch(name):
    with float64():
        model, x = Model(PLAIN[name]), data(name).x[:8]
        point = moved(model.start(1))
        plain, batch = model.module(point).train(), batch_of(x)
        out = plain(x)
        out = out[0] if isinstance(out, tuple) else out
        own, fresh = model.forward(point, batch)
        torch.testing.assert_close(own, out)
        F.cross_entropy(out, batch.y).backward()
        slope = model.grad(point, batch)
        for k, p in plain.named_parameters():
            if p.requires_grad:
                torch.testing.assert_close(slope.params[k], p.grad)
        for k, b in plain.named_buffers():
            torch.testing.assert_close(fresh[k], b)
        used = Point(point.params, fresh)
        with torch.no_grad():
            again = plain.eval()(x)
        torch.testing.assert_close(
            model.logits(used, batch), again[0] if isinstance(again, tuple) else again
        )


def test_masks_of_attention_are_those_of_plain_pytorch():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            ahead = torch.triu(torch.ones(2, 2, dtype=torch.bool), 1)
            k, v = x[:, :6].reshape(-1, 2, 3), x[:, 6:16].reshape(-1, 2, 5)
            out, seen = self.attend(
                x[:, 16:24].reshape(-1, 2, 4), k, v, attn_mask=ahead, key_padding_mask=x[:, 24:] > 1
            )
            return torch.cat([out.flatten(1), seen.flatten(1)], 1)

    with float64():
        x = torch.randn(5, 26, generator=torch.Generator().manual_seed(0))
        x[:, 24] = 0  # the first key is always there
        model = Model(Masked)
        point = moved(model.start(0))
        with torch.no_grad():
            torch.testing.assert_close(model.logits(point, batch_of(x)), model.module(point)(x))


def test_a_dropout_that_is_used_twice_draws_twice():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.drop = nn.Parameter(torch.ones(1)), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.drop(x * self.scale), self.drop(x * self.scale)], 1)

    model = Model(Twice)
    out, _ = model.forward(model.start(0), batch_of(torch.ones(4, 50)))
    assert not torch.equal(out[:, :50], out[:, 50:])
    assert 0.3 < (out == 0).float().mean() < 0.7


# Frozen parameters


def test_frozen_parameters_do_not_train_travel_or_lie_in_states():
    with float64():
        loop = trained("frozen", "ditto", STACKED)
        model = loop.engine.models[0]
        assert set(model.frozen) == {"0.weight", "0.bias"}
        assert model.size == 2 * 50 + 51 * 3
        assert (
            set(model.start(3).params)
            == set(model.shapes)
            == {"1.weight", "1.bias", "3.weight", "3.bias"}
        )
        buffers = 2 * 50 + 1
        rows = loop.table.whole().to_pylist()
        down = next(row["value"] for row in rows if row["metric"] == "bytes_down")
        assert down == 5 * 8 * (model.size + buffers)
        for _, chunk, views in loop.engine.points(*loop.ask()):
            for k in range(len(chunk)):
                module = model.module(pick(views["personal"], k))
                assert torch.equal(module[0].weight, model.frozen["0.weight"])
                assert not module[0].weight.requires_grad


def test_a_network_without_anything_to_train_is_refused():
    with pytest.raises(BadInput, match="no parameter to train"):
        Model(lambda: nn.Linear(3, 2).requires_grad_(False), name="stone")


def test_training_with_frozen_layers_equals_plain_pytorch():
    with float64():
        model, federation = Model(frozen), data("frozen")
        point = model.start(0)
        plain = model.module(point).train()
        rows = federation.x[:8]
        batch = batch_of(rows)
        optimizer = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(plain(rows), batch.y).backward()
            optimizer.step()
            point = point - 0.1 * model.grad(point, batch)
        for k, p in plain.named_parameters():
            torch.testing.assert_close((model.frozen | point.params)[k], p.detach())


# Saved and loaded


@pytest.mark.parametrize("name", NETWORKS)
def test_a_saved_model_is_loaded_by_plain_pytorch_and_says_the_same(name, tmp_path):
    with float64():
        loop = trained(name, "ditto", SEQUENTIAL, rounds=1)
        model, x = loop.engine.models[0], loop.federation.x[:9]
        _, _, views = next(iter(loop.engine.points(*loop.ask())))
        point = pick(views["personal"], 0)
        whole = {k: t.contiguous().clone() for k, t in model.tensors(point).items()}
        save_file(whole, tmp_path / "model.safetensors")
        plain = NETWORKS[name]()
        plain.load_state_dict(load_file(tmp_path / "model.safetensors"))  # strict: all is there
        with torch.no_grad():
            found = [net.eval()(x) for net in (plain, model.module(point))]
        for out in found:
            out = out[0] if isinstance(out, tuple) else out
            torch.testing.assert_close(model.logits(point, batch_of(x)), out)


def test_a_parametrized_layer_is_one_layer():
    assert layer_of("2.parametrizations.weight.original0") == layer_of("2.bias") == "2"
    assert layer_of("parametrizations.weight.0._u") == layer_of("bias") == ""
    inside = Model(spectral).head(1)
    names = [*Model(spectral).start(0).params, *Model(spectral).start(0).buffers]
    assert {k for k in names if inside(k)} == {k for k in names if k.startswith("2.")}


def test_old_weight_norm_is_refused_with_the_way_out():
    def old() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return nn.utils.weight_norm(nn.Linear(6, 3))

    with pytest.raises(BadInput, match=r"use nn\.utils\.parametrizations\.weight_norm"):
        Model(old)


def test_what_a_network_gives_is_named_where_it_is_no_tensor():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.head(x)}

    with pytest.raises(BadInput, match="gives a dict: give a tensor, or a tuple"):
        Model(Named).check((6,))


def test_outputs_are_counted_where_the_last_parameter_does_not_tell():
    model = Model(TiedWords)
    model.check((6,), torch.int64)
    assert model.outputs == TOKENS
    assert np.isfinite(model.size)


class Gated(nn.Module):
    """It branches on what it computes, and has a layer that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.idle, self.norm = nn.Conv2d(1, 3, 2), nn.Linear(2, 2), nn.BatchNorm2d(3)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(self.turn(x)).tanh()
        return self.head((z * 2 if z.sum() > -1e9 else z).flatten(1))


def test_plain_autograd_gives_the_gradient_and_the_buffers_of_torch_func():
    with float64():
        model = Model(Gated, input_shape=(1, 2, 3))
        point = model.start(0)
        batch = Batch(
            x=torch.randn(4, 1, 2, 3),
            y=torch.tensor([0, 1, 2, 1]),
            mask=torch.tensor([1.0, 1, 1, 0]),
            place=torch.arange(4),
            key=torch.tensor(1),
        )
        with torch.no_grad():
            found, loss = model.grad_and_loss(point, batch)
        assert not any(one.requires_grad for one in pytree.tree_leaves((found, loss)))
        wanted, value = model.grad_and_loss(point, batch)  # where autograd is on, torch.func
        assert_same(found.params, wanted.params, 1e-12)
        assert_same(found.fresh, wanted.fresh, 1e-12)
        torch.testing.assert_close(loss, value)
        assert not found.params["idle.weight"].any()


def test_a_dense_network_is_checked_without_the_second_that_torchs_compiler_takes_to_load():
    script = (
        "import sys\nfrom coterie.core.model import Model\n"
        "from coterie.networks.registry import build_network\n"
        "Model(lambda: build_network('mlr', (4,), 3), input_shape=(4,)).check((4,))\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
