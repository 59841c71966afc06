"""Every network that ends with its head is head(body(x)), whatever it is made of."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.core.errors import BadInput
from coterie.core.method import Batch
from coterie.core.model import Model
from coterie.core.point import Point
from coterie.core.split import Split, find_head
from coterie.networks.assembled import assemble
from coterie.networks.registry import NETS, build_network
from helpers.federations import tiny_model

SHAPES = {"lstm": (5, 3), "bag": (6,), "mlr": (6,), "logistic": (6,), "dnn": (6,), "mean": (6,)}
OPTIONS = {"bag": {"words": 9}, "kt-resnet18": {"width": 0.1}, "kt-shufflenet": {"width": 0.1}}
WITHOUT_BODY = ("mlr", "logistic", "mean")


class Classifier(nn.Module):
    """A head of several layers with dropout, as transformers' networks have one."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.drop, self.out = nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3)

    def forward(self, z: Tensor) -> Tensor:
        return self.out(self.drop(torch.tanh(self.dense(z))))


class Transformer(nn.Module):
    """Tokens of two numbers, attention, dropout in body and head, a record as output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
        self.classifier = Classifier()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(self.embed(x)).mean(1)
        return self.classifier(z), z


class Changed(nn.Module):
    """A network that goes on after its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.head(self.body(x).relu()), -1)


class Tied(nn.Module):
    """The head's weight is another layer's too."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
        self.head.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.one(x).relu())


def batch_of(x: Tensor) -> Batch:
    rows = len(x)
    return Batch(
        x,
        torch.zeros(rows, dtype=torch.long),
        torch.ones(rows),
        torch.arange(rows),
        torch.tensor(5),
    )


def built_in(name: str) -> tuple[Model, Batch]:
    shape = SHAPES.get(name, (1, 28, 28))
    model = Model(lambda: build_network(name, shape, 3, **OPTIONS.get(name, {})), name=name)
    x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
    return model, batch_of((x * 8).long() if name == "bag" else x)


def assert_split(model: Model, batch: Batch, head: int | str = 1) -> Split:
    """head(body(x)) is the network, trained and used, and so is its gradient."""
    split, w = Split(model, head, "test"), model.init(np.random.default_rng(0))
    z, fresh = split.body.forward(w, batch)
    outputs, buffers = model.forward(w, batch)
    torch.testing.assert_close(split.head(w.params, z, batch), outputs)
    assert z.shape == (len(batch.mask), split.width)
    for name, one in buffers.items():
        torch.testing.assert_close(fresh[name], one)
    slope, *_ = split.gradients_of(
        lambda params, z: model.data_loss(split.head(params, z, batch), batch), w, batch
    )
    for name, one in model.grad(w, batch).params.items():
        torch.testing.assert_close(slope.params[name], one)
    return split


@pytest.mark.parametrize("name", [name for name in NETS if name not in (*WITHOUT_BODY, "hf")])
def test_every_built_in_network_is_head_of_body(name):
    model, batch = built_in(name)
    assert assert_split(model, batch).part == "head"


def read_by_words() -> tuple[Model, Batch]:
    """An LSTM that looks words up."""
    table = torch.rand(9, 3)
    model = Model(lambda: build_network("lstm", (6,), 3, hidden=4, table=table), name="lstm")
    return model, batch_of(torch.arange(24).reshape(4, 6) % 9)


@pytest.mark.parametrize("name", ["words", *(n for n in NETS if n not in (*WITHOUT_BODY, "hf"))])
def test_every_built_in_network_takes_what_methods_put_around_its_head(name):
    """A memory without rows and a second head that is the same change nothing but a constant, also
    where a network asks for the type of its head's weight."""
    model, batch = read_by_words() if name == "words" else built_in(name)
    net = model.build().eval()
    plain, bias, width = net(batch.x), net.head.bias, net.head.in_features
    memory = f"memory:part=head:width={width}:rows=2:classes=3:neighbours=1:reach=1"
    for around, wanted in (
        (memory, plain.log_softmax(-1)),
        (f"policy:part=head:width={width}", plain + bias),
        ("mixture:components=2", plain.log_softmax(-1)),
        (f"valve:part=head:width={width}", None),
    ):
        found = assemble(copy.deepcopy(net), around).eval()(batch.x)
        if wanted is not None:
            torch.testing.assert_close(found, wanted)
        assert found.shape == (4, 3)


@pytest.mark.parametrize("name", WITHOUT_BODY)
def test_a_network_of_one_layer_has_no_body(name):
    with pytest.raises(BadInput, match="has only one layer: give another --model"):
        Split(built_in(name)[0], 1, "test")


def test_a_transformer_is_cut_where_its_head_is_named():
    """Dropout draws the same numbers on both sides of the cut as in the whole."""
    model, x = Model(Transformer, name="transformer"), torch.rand(4, 3, 2)
    assert assert_split(model, batch_of(x), "classifier").width == 8
    assert assert_split(model, batch_of(x)).part == "classifier.out"


def test_features_are_what_the_head_is_given_in_use():
    model = tiny_model(norm=True, dropout=0.5)
    split, w = Split(model, 1, "test"), model.init(np.random.default_rng(0))
    batch = batch_of(torch.rand(4, 6))
    module = model.module(w)
    z = split.features(w, batch)
    torch.testing.assert_close(z, module[:-1](batch.x))
    torch.testing.assert_close(module[-1](z), model.logits(w, batch))


def test_a_cut_network_shares_its_weights_with_the_whole():
    model, _ = built_in("dnn")
    body = model.cut_before("head")
    assert body.layer("head").weight is model.layer("head").weight


def test_two_layers_are_a_head_only_where_they_are_one_part():
    model = Model(Transformer, name="transformer")
    assert Split(model, 2, "test").part == "classifier"
    with pytest.raises(BadInput, match="must be one part of the network: give --head 1"):
        Split(built_in("lenet5")[0], 2, "test")


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (Tied, "shares weights with other layers"),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.Conv1d(1, 3, 1)), "is a Conv1d"),
        (
            lambda: nn.Sequential(
                nn.Linear(6, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
            ),
            "running statistics",
        ),
    ],
)
def test_a_head_that_cannot_be_run_alone_is_refused(build, why):
    model = Model(build, name="net")
    with pytest.raises(BadInput, match=why):
        Split(model, "1" if build is not Tied else "head", "test")


def test_a_network_that_goes_on_after_its_head_is_refused():
    model = Model(Changed, name="changed")
    split = Split(model, 1, "test")
    with pytest.raises(BadInput, match="changed does not end with 'head', whose output it changes"):
        split.features(model.start(0), batch_of(torch.rand(4, 6)))


def test_a_name_that_is_no_part_is_refused():
    with pytest.raises(BadInput, match=r"test.head = tail: give .* such as 2"):
        find_head(tiny_model(), "tail", "test")


def test_a_linear_head_is_asked_for_where_it_is_needed():
    plain = Model(
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3, bias=False)), name="no-bias"
    )
    with pytest.raises(BadInput, match=r"a head that is one nn\.Linear with a bias"):
        Split(plain, 1, "test", linear=True)
    assert (
        Split(plain, 1, "test")
        .head(
            Point({"1.weight": torch.ones(3, 4)}).params,
            torch.ones(2, 4),
            batch_of(torch.ones(2, 6)),
        )
        .tolist()
        == [[4.0] * 3] * 2
    )
