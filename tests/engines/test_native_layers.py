"""Layers and activations that people bring are machine code, and compute what torch computes."""

import pytest
import torch
import torch.nn.functional as F

from coterie.engines.local.native import compiler
from helpers.federations import float64
from helpers.steps import taken

pytestmark = pytest.mark.skipif(not compiler.find_compiler(), reason="no C compiler here")


def write_over(x):
    """Operations in place."""
    out = x.clone()
    out.mul_(2.0)
    out += 1
    return F.silu(out, inplace=True)


def attend(x, **words):
    heads = x.reshape(1, 2, 4, 6)
    return F.scaled_dot_product_attention(heads, heads.flip(2), heads * 0.5, **words)


MASK = torch.ones(4, 4).tril() > 0
IMAGES = 1, 2, 4, 6
LAYERS = {
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "elu": F.elu,
    "selu": F.selu,
    "leaky": F.leaky_relu,
    "relu6": F.relu6,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "glu": F.glu,
    "in place": write_over,
    "rms norm": lambda x: F.rms_norm(x, (6,)),
    "group norm": lambda x: F.group_norm(x.reshape(IMAGES), 2),
    "causal attention": lambda x: attend(x, is_causal=True),
    "masked attention": lambda x: attend(x, attn_mask=MASK),
    "overlapping means": lambda x: F.avg_pool2d(x.reshape(IMAGES), 3, 1),
    "means with a border": lambda x: F.avg_pool2d(x.reshape(IMAGES), 3, 2, padding=1),
    "means within a border": lambda x: F.avg_pool2d(
        x.reshape(IMAGES), 3, 2, padding=1, count_include_pad=False
    ),
    "means beyond the edge": lambda x: F.avg_pool2d(x.reshape(IMAGES), 3, 2, ceil_mode=True),
    "overlapping largest": lambda x: F.max_pool2d(x.reshape(IMAGES), 3, 1),
    "largest with a border": lambda x: F.max_pool2d(x.reshape(IMAGES), 3, 2, padding=1),
    "padded": lambda x: F.pad(x.reshape(IMAGES), (1, 2, 0, 1), value=0.5).square(),
    "cut": lambda x: F.pad(x, (-1, 2, 3, -2)).square(),
    "adaptive means": lambda x: F.adaptive_avg_pool2d(x.reshape(IMAGES), (2, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_their_gradients_are_those_of_torch(name):
    torch.manual_seed(0)
    layer = LAYERS[name]
    with float64():
        x = 3 * torch.randn(8, 6)
        weights = torch.randn(layer(x).shape)

        def step(x):
            return [x - 0.1 * torch.func.grad(lambda x: (layer(x) * weights).sum())(x)]

        (found,), (wanted,) = taken(step, x), step(x)
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_words_are_those_of_torch(mode):
    words, weights = torch.tensor([[0, 1, 1], [4, 2, 0]]), torch.randn(2, 3)

    def step(table, words, weights):  # what is no leaf is folded in single precision
        def loss(table):
            return (F.embedding_bag(words, table, mode=mode) * weights).sum()

        return [table - 0.1 * torch.func.grad(loss)(table), words, weights]

    table = torch.randn(5, 3)
    torch.testing.assert_close(
        taken(step, table, words, weights)[0], step(table, words, weights)[0]
    )


def test_erf_is_right_in_single_precision_everywhere():
    x = torch.linspace(-6, 6, 4001)
    (found,) = taken(lambda x: [torch.erf(x)], x)
    assert (found.double() - torch.erf(x.double())).abs().max() < 3e-7
