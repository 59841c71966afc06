"""Convolutions and pools in machine code are what torch makes of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from coterie.core.method import Train
from coterie.core.model import Model
from coterie.engines.local.native import compiler
from coterie.engines.local.tracing import Untraceable
from coterie.engines.settings import ExecutionSettings
from helpers.federations import assert_same, float64, personal, play, tiny
from helpers.steps import Rows, make, stepped, taken

pytestmark = pytest.mark.skipif(not compiler.find_compiler(), reason="no C compiler here")
g = torch.Generator().manual_seed(0)


def numbers(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=g, dtype=dtype)


def check(forward, *leaves):
    step = stepped(forward)
    tight = {torch.float64: 1e-12, torch.float32: 2e-4}[leaves[0].dtype]
    for found, right in zip(taken(step, *leaves), step(*leaves), strict=True):
        torch.testing.assert_close(found, right, rtol=tight, atol=tight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("x", "w", "words"),
    [
        ((2, 3, 12, 12), (6, 3, 5, 5), {}),
        ((2, 1, 28, 28), (16, 1, 3, 3), {"padding": 1}),
        ((3, 4, 9, 11), (5, 4, 3, 3), {"padding": 1}),
        ((2, 3, 9, 9), (7, 3, 3, 3), {"stride": 2, "padding": 1}),
        ((2, 3, 10, 10), (33, 3, 3, 3), {"stride": 2}),
        ((2, 20, 5, 5), (18, 20, 1, 1), {}),
        ((2, 5, 8, 8), (12, 5, 1, 1), {"stride": 2}),
        ((2, 3, 34, 34), (4, 3, 1, 1), {"stride": 2}),  # the last row and column are read by none
        ((2, 3, 12, 12), (4, 3, 2, 2), {"stride": 3, "padding": 1}),
        ((2, 2, 11, 11), (3, 2, 3, 3), {"dilation": 2, "padding": 2}),
        ((2, 2, 9, 13), (70, 2, 3, 5), {"padding": (1, 2)}),
        ((1, 1, 3, 3), (1, 1, 3, 3), {}),
        ((2, 2, 13, 13), (70, 2, 7, 7), {}),
        ((2, 1, 15, 15), (40, 1, 3, 12), {}),
        ((3, 2, 15, 15), (6, 2, 4, 4), {"padding": 1}),
        ((2, 6, 7, 7), (9, 2, 3, 3), {"groups": 3, "padding": 1}),
        ((2, 5, 6, 6), (5, 1, 3, 3), {"groups": 5, "stride": 2, "padding": 1}),
        ((2, 9, 4, 80), (2, 9, 2, 7), {"padding": (0, 3)}),
        ((2, 3, 5, 6), (4, 3, 1, 1), {"padding": 1}),  # kernels that read nothing but the border
        ((6, 8, 4, 4), (5, 8, 3, 3), {"padding": 1}),  # several images fill a tile
        ((3, 6, 3, 140), (4, 6, 2, 3), {}),  # rows longer than two tiles
    ],
)
def test_a_convolution_and_its_slopes_are_torchs(x, w, words, dtype):
    def forward(x, w, b):
        return functional.conv2d(x, w, b, **words).relu().square().sum()

    check(forward, numbers(*x, dtype=dtype), numbers(*w, dtype=dtype), numbers(w[0], dtype=dtype))


def test_a_convolution_may_have_no_bias_and_no_relu():
    def forward(x, w):
        return functional.conv2d(x, w, padding=1).tanh().sum()

    check(forward, numbers(2, 3, 6, 6), numbers(4, 3, 3, 3))


def test_a_relu_is_kept_apart_where_the_convolution_is_read_elsewhere_too():
    def forward(x, w):
        inner = functional.conv2d(x, w)
        return (inner.relu() * inner).sum()

    check(forward, numbers(2, 3, 6, 6), numbers(4, 3, 3, 3))


@pytest.mark.parametrize("part", [0, 1])
def test_a_half_of_the_channels_is_read_as_torch_reads_it(part):
    def forward(x, w):
        half = x.chunk(2, 1)[part]
        inner = functional.conv2d(half, w, padding=1, groups=2)
        pooled = functional.max_pool2d(x.transpose(2, 3)[:, 1:3], 2)
        return (inner * half).tanh().sum() + pooled.square().sum()

    check(forward, numbers(3, 8, 6, 5), numbers(4, 2, 3, 3))


POOLS = [
    nn.MaxPool2d(2),
    nn.MaxPool2d(3),
    nn.MaxPool2d(2, stride=3),
    nn.AvgPool2d(2),
    nn.AvgPool2d(3, stride=4),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("pool", POOLS, ids=str)
@pytest.mark.parametrize("side", [4, 7, 10, 14, 28, 36, 52])
def test_a_pool_and_its_slopes_are_torchs(pool, side, dtype):
    n = 15 * side**2  # no two so close that rounding may make either the larger one
    x = (4 * torch.randperm(n, dtype=dtype) / n - 2).reshape(3, 5, side, side)
    scale = numbers(*pool(x).shape, dtype=dtype)
    for inner in (torch.relu, torch.tanh):
        check(lambda x, s, inner=inner: (pool(inner(x)) * s).sum(), x, scale)


def test_of_equal_numbers_the_first_has_the_slope():
    x = torch.ones(4, 3, 14, 14, dtype=torch.float64)
    x[:, :, ::3, ::5] = 2.0
    check(lambda x, s: (nn.functional.max_pool2d(x, 2) * s).sum(), x, numbers(4, 3, 7, 7))


def test_not_a_number_is_the_largest_of_its_window():
    x = numbers(8, 3, 14, 14)
    x[0, 0, 3, 3] = x[7, 2, 13, 13] = float("nan")
    step = stepped(lambda x: nn.functional.max_pool2d(x, 2).sum())
    found, right = taken(step, x)[0], step(x)[0]
    assert torch.equal(found.isnan(), right.isnan())
    assert torch.equal(found.nan_to_num(), right.nan_to_num())


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, stride=(1, 2)),
        nn.Conv2d(4, 4, 13, padding=6),
        nn.ConvTranspose2d(4, 4, 3),
        nn.MaxPool2d(2, dilation=2),
        nn.AvgPool2d(2, divisor_override=3),
    ],
    ids=str,
)
def test_what_has_no_c_is_told(layer):
    layer = layer.to(torch.float64)
    with pytest.raises(Untraceable, match="there is no C for"):
        taken(stepped(lambda x: layer(x).square().sum()), numbers(2, 4, 9, 9))


def of_images() -> nn.Module:
    """A network that reads six features as an image."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Conv2d(5, 4, (1, 2)),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


@pytest.mark.parametrize("name", ["fedavg", "ditto", "pfedme", "persfl", "pfml", "selffl", "ucfl"])
def test_methods_on_images_give_the_same_compiled_and_as_written(name):
    with float64():
        federation, models = tiny(clients=5), [Model(of_images, input_shape=(6,))]
        found = play(name, federation, models, settings=ExecutionSettings("vectorized", 16, "yes"))
        assert [one.why for one in found.engine._steppers.values() if one.why] == []
        assert_same(personal(play(name, federation, models)), personal(found))


def test_slopes_that_are_rounding_alone_do_not_make_machine_code_wrong():
    """A norm takes off what the bias before it adds, so that its momentum is noise."""
    models = [Model(of_units, input_shape=(6,))]
    train = Train(batch_size=4, lr=0.1, momentum=0.9)
    settings = ExecutionSettings("vectorized", 16, "yes")
    found = play("fedavg", tiny(clients=5), models, train=train, settings=settings)
    assert [one.why for one in found.engine._steppers.values() if one.why] == []


def of_units() -> nn.Module:
    """Convolutions with biases before norms, a dozen of them."""
    units = [
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        for _ in range(12)
    ]
    first = nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 3, padding=1))
    return nn.Sequential(first, *units, nn.Flatten(), nn.Linear(24, 3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("x", "w", "words"),
    [
        ((2, 32, 12, 12), (64, 32, 3, 3), {}),
        ((3, 16, 8, 10), (16, 16, 5, 5), {"padding": 2}),
        ((2, 32, 22, 50), (16, 32, 3, 3), {"padding": (0, 1)}),  # more than is near at a time
        ((2, 13, 19, 19), (30, 13, 3, 3), {"stride": 2}),
        ((2, 48, 20, 20), (17, 16, 2, 2), {"groups": 3, "dilation": 2}),
        ((2, 16, 44, 44), (16, 16, 3, 3), {"stride": 2, "padding": 1}),
    ],
)
def test_slopes_behind_a_pool_are_multiplied_where_they_are_not_zero(x, w, words, dtype):
    w = (w[0] * words.get("groups", 1), *w[1:])

    def forward(x, w, b):
        return functional.max_pool2d(functional.conv2d(x, w, b, **words).relu(), 2).square().sum()

    leaves = [numbers(*x, dtype=dtype), numbers(*w, dtype=dtype), numbers(w[0], dtype=dtype)]
    text = make(stepped(forward), Rows(1, 1), *leaves).code.text
    assert "spread_sparse" in text
    assert "correlate_sparse" in text
    check(forward, *leaves)
