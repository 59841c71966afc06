"""The closed form of a dense network's gradient is what autograd gives."""

import pytest
import torch
from torch import nn

from coterie.core.dense_gradient import find_dense_layers
from coterie.core.method import Batch
from coterie.core.model import Model
from coterie.core.task import classes
from helpers.federations import float64


def chain(*layers):
    return nn.Sequential(nn.Flatten(), *layers)


DENSE = {
    "linear": lambda: chain(nn.Linear(6, 3)),
    "without bias": lambda: chain(nn.Linear(6, 3, bias=False)),
    "hidden": lambda: chain(nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 3)),
    "deep": lambda: chain(nn.Linear(6, 5), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU()),
    "relu first": lambda: chain(nn.ReLU(), nn.Linear(6, 3)),
}


def batch_of(task, outputs):
    rng = torch.Generator().manual_seed(3)
    y = {
        "classes": torch.randint(0, outputs, (7,), generator=rng),
        "binary": torch.randint(0, 2, (7,), generator=rng).double(),
        "squared": torch.randn(7, outputs, generator=rng, dtype=torch.float64),
    }[task]
    mask = torch.tensor([1.0, 1, 1, 1, 1, 0, 0], dtype=torch.float64)
    x = torch.randn(7, 2, 3, generator=rng, dtype=torch.float64)
    return Batch(x, y, mask, torch.arange(7), torch.tensor(0))


@pytest.mark.parametrize("task", ["classes", "binary", "squared", "weighted"])
@pytest.mark.parametrize("name", DENSE)
def test_gradient_and_loss_are_those_of_autograd(name, task):
    with float64():
        last = [nn.Linear(3, 1)] if task == "binary" else []
        goal = classes((1.0, 2.0, 0.5)) if task == "weighted" else task
        model = Model(lambda: nn.Sequential(*DENSE[name](), *last), task=goal)
        assert find_dense_layers(model.build()) is not None
        batch, point = batch_of(model.task, 3), model.start(1)
        found, loss = model.grad_and_loss(point, batch)
        wanted, known = model.grad_and_loss(point, batch, loss=model.data_loss)
        assert list(found.params) == list(wanted.params)
        torch.testing.assert_close(found.params, wanted.params, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(loss, known, rtol=1e-12, atol=1e-12)


def hooked():
    net = DENSE["linear"]()
    net[1].register_forward_hook(lambda layer, given, out: 2 * out)
    return net


def shared():
    layer = nn.Linear(6, 6)
    return chain(layer, layer)


@pytest.mark.parametrize(
    "make",
    [
        hooked,
        shared,
        lambda: nn.Linear(6, 3),
        lambda: chain(nn.Linear(6, 3), nn.Tanh()),
        lambda: chain(nn.Linear(6, 3), nn.Dropout(0.5)),
        lambda: chain(nn.Linear(6, 3), nn.BatchNorm1d(3)),
        lambda: chain(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))),
        lambda: nn.Sequential(nn.Linear(6, 3), nn.Flatten()),
        lambda: nn.Sequential(nn.Flatten(0), nn.Linear(6, 3)),
    ],
)
def test_anything_else_is_left_to_autograd(make):
    assert find_dense_layers(make()) is None
