"""BatchNorm over the real rows of a padded batch: values, slopes and slopes of slopes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from coterie.core.draws import PassContext
from coterie.core.pure_layers import MaskedBatchNorm

SHAPES = {1: (6, 3), 2: (6, 3, 4), 3: (6, 3, 4, 5)}
REAL = 4  # of six rows


def normed(sides: int, affine: bool = True) -> tuple[MaskedBatchNorm, PassContext]:
    kind = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}[sides]
    context = PassContext()
    return MaskedBatchNorm(kind(3, affine=affine).double(), context).train(), context


def ours(layer, context, x, weight, bias, mask):
    given = dict(layer.named_buffers())
    if layer.weight is not None:
        given |= {"weight": weight, "bias": bias}
    with context.over(mask, torch.tensor(0)):
        return torch.func.functional_call(layer, given, (x,))


def plain(x, weight, bias):
    return F.batch_norm(x, None, None, weight, bias, training=True, eps=1e-5)


def inputs(sides: int):
    torch.manual_seed(sides)
    x = torch.randn(SHAPES[sides], dtype=torch.float64) * 3 + 5
    mask = torch.tensor([1.0] * REAL + [0.0] * (6 - REAL), dtype=torch.float64)
    return x, torch.rand(3, dtype=torch.float64) + 1, torch.randn(3, dtype=torch.float64), mask


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("sides", SHAPES)
def test_padded_rows_change_nothing(sides, affine):
    layer, context = normed(sides, affine)
    x, weight, bias, mask = inputs(sides)
    out = ours(layer, context, x, weight, bias, mask)
    told = (weight, bias) if affine else (None, None)
    torch.testing.assert_close(out[:REAL], plain(x[:REAL], *told))


@pytest.mark.parametrize("sides", SHAPES)
def test_slopes_and_slopes_of_slopes_are_those_of_the_real_rows(sides):
    layer, context = normed(sides)
    x, weight, bias, mask = inputs(sides)
    aim = torch.randn(x[:REAL].shape, dtype=torch.float64)

    def padded(x, weight, bias):
        return (ours(layer, context, x, weight, bias, mask)[:REAL] * aim).sin().sum()

    def short(x, weight, bias):
        return (plain(x[:REAL], weight, bias) * aim).sin().sum()

    def twice(f):
        def length(*args):
            return sum(g.square().sum() for g in grad(f, (0, 1, 2))(*args))

        return grad(length, (0, 1, 2))

    # torch's own batch norm has no slopes of slopes under torch.func: autograd takes them
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    first = torch.autograd.grad(short(*leaves), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
    for found, wanted in zip(grad(padded, (0, 1, 2))(x, weight, bias), first, strict=True):
        torch.testing.assert_close(found, wanted.detach())
    for found, wanted in zip(twice(padded)(x, weight, bias), second, strict=True):
        torch.testing.assert_close(found, wanted)


def test_padded_rows_that_a_loss_reads_have_the_slopes_of_their_own_outputs():
    layer, context = normed(3)
    x, weight, bias, mask = inputs(3)

    def total(x):
        return ours(layer, context, x, weight, bias, mask).sin().sum()

    x.requires_grad_()
    assert torch.autograd.gradcheck(total, (x,))
    assert torch.autograd.gradgradcheck(total, (x,))


def test_stacked_clients_are_each_for_itself():
    layer, context = normed(3)
    x, weight, bias, mask = inputs(3)
    many = [(x, weight, bias, mask), (x.flip(0) * 2, weight + 1, bias - 1, mask.flip(0))]
    x, weight, bias, mask = (torch.stack(parts) for parts in zip(*many, strict=True))

    def loss(x, weight, bias, mask):
        return ours(layer, context, x, weight, bias, mask).cos().sum()

    slopes = grad(loss, (0, 1, 2))
    together = vmap(slopes)(x, weight, bias, mask)
    for k in range(2):
        alone = slopes(x[k], weight[k], bias[k], mask[k])
        for found, wanted in zip(together, alone, strict=True):
            torch.testing.assert_close(found[k], wanted)
