"""Laws of the networks: counts, layers, stacked gradients, the LSTM cell, initial values,
refusals.
"""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from coterie.core.errors import BadInput
from coterie.experiment.config import Experiment, change_options
from coterie.networks.registry import NETS, build_network, options_of
from coterie.networks.word_bag import Bag
from coterie.running.assembly import assemble, load_federation

torch.set_num_threads(1)

COUNTS = [
    ("mlr", (784,), 10, {}, 7_850),
    ("mlr", (60,), 10, {}, 610),
    ("dnn", (784,), 10, {}, 79_510),
    ("dnn", (60,), 10, {"hidden": 20}, 1_430),
    ("cifarnet", (3, 32, 32), 10, {}, 62_006),
    ("cnncifar", (3, 32, 32), 10, {}, 64_102),
    ("lenet5", (1, 28, 28), 62, {}, 48_846),
    ("lenet5", (3, 32, 32), 10, {}, 62_006),
    ("kt-lenet", (3, 28, 28), 10, {}, 44_726),
    ("kt-alexnet", (3, 28, 28), 10, {}, 20_126_538),
    ("kt-alexnet", (3, 32, 32), 10, {}, 23_272_266),
    ("kt-resnet18", (3, 32, 32), 10, {}, 11_173_962),
    ("kt-shufflenet", (3, 32, 32), 10, {}, 1_268_646),
    ("mcmahan", (1, 28, 28), 10, {}, 1_663_370),
    ("mcmahan", (3, 32, 32), 10, {}, 2_156_490),
    ("lstm", (25, 300), 2, {}, 1_095_937),
    # not in the papers' table
    ("smallcnn", (1, 8, 8), 10, {}, 160 + 4_640 + 1_290),
    ("mean", (3,), 1, {}, 3),
    ("bag", (64,), 2, {"words": 5_000}, 160_000 + 66),
    ("logistic", (13,), 2, {}, 14),
]
TABLE = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
NARROW = [
    ("mlr", (1, 8, 8), 10, {}, 10),
    ("dnn", (1, 8, 8), 10, {"hidden": 12}, 10),
    ("cifarnet", (3, 32, 32), 10, {}, 10),
    ("cnncifar", (3, 32, 32), 10, {}, 10),
    ("lenet5", (1, 28, 28), 62, {}, 62),
    ("mcmahan", (1, 9, 12), 4, {}, 4),
    ("smallcnn", (1, 8, 8), 10, {}, 10),
    ("kt-lenet", (1, 28, 20), 10, {}, 10),
    ("kt-alexnet", (3, 28, 33), 10, {"width": 0.02}, 10),
    ("kt-resnet18", (1, 28, 28), 10, {"width": 0.06}, 10),
    ("kt-shufflenet", (3, 28, 28), 10, {"width": 0.1}, 10),
    ("lstm", (5, 6), 2, {"hidden": 4}, 1),
    ("lstm", (5, 6), 3, {"hidden": 4, "layers": 1}, 3),
    ("lstm", (5,), 2, {"hidden": 4, "table": TABLE}, 1),
    ("mean", (3,), 1, {}, 3),
    ("bag", (7,), 3, {"dimensions": 4, "words": 50}, 3),
    ("logistic", (13,), 2, {}, 1),
    ("logistic", (13,), 3, {}, 3),
]


def label(case):
    return f"{case[0]}-{'x'.join(map(str, case[1]))}"


def seeded(seed, name, shape, classes, **chosen):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_network(name, shape, classes, **chosen)


def inputs(net, shape, *lead):
    generator = torch.Generator().manual_seed(1)
    if getattr(net, "table", None) is not None or isinstance(net, Bag):
        return torch.randint(len(TABLE), (*lead, *shape), generator=generator)
    return torch.randn(*lead, *shape, generator=generator, dtype=next(net.parameters()).dtype)


@pytest.mark.parametrize("case", COUNTS, ids=label)
def test_parameter_counts_are_exact(case):
    name, shape, classes, chosen, count = case
    with torch.device("meta"):
        net = build_network(name, shape, classes, **chosen)
    assert sum(p.numel() for p in net.parameters()) == count


def test_every_net_is_counted_and_vectorized():
    """Those of a folder have tests of their own."""
    own = {name for name, net in NETS.items() if not net.wants_base}
    assert {case[0] for case in COUNTS} == {case[0] for case in NARROW} == own


@pytest.mark.parametrize("case", [c for c in COUNTS if c[0] != "mean"], ids=label)
def test_full_size_nets_give_a_logit_a_class(case):
    name, shape, classes, chosen, _ = case
    with torch.device("meta"):
        out = build_network(name, shape, classes, **chosen)(torch.zeros(2, *shape))
    assert out.shape == (2, 1 if NETS[name].one_logit and classes == 2 else classes)


@pytest.mark.parametrize("case", NARROW, ids=label)
def test_stacked_gradients_equal_each_clients_own(case):
    name, shape, classes, chosen, outputs = case
    nets = [seeded(seed, name, shape, classes, **chosen).double().eval() for seed in range(3)]
    parameters, buffers = stack_module_state(nets)
    x = inputs(nets[0], shape, 3, 4)
    target = torch.randn(
        3, 4, outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )

    def loss(parameters, buffers, x, target):
        return (functional_call(nets[0], (parameters, buffers), (x,)) - target).square().mean()

    grads = vmap(grad(loss))(parameters, buffers, x, target)
    for i, net in enumerate(nets):
        out = net(x[i])
        assert out.shape == (4, outputs)
        (out - target[i]).square().mean().backward()
        for key, parameter in net.named_parameters():
            torch.testing.assert_close(grads[key][i], parameter.grad, rtol=1e-9, atol=1e-12)
        assert any(parameter.grad.abs().max() > 0 for parameter in net.parameters())


@pytest.mark.parametrize("case", NARROW, ids=label)
def test_initial_values_come_from_torchs_generator_alone(case):
    name, shape, classes, chosen, _ = case
    first = nn.utils.parameters_to_vector(seeded(0, name, shape, classes, **chosen).parameters())
    again = nn.utils.parameters_to_vector(seeded(0, name, shape, classes, **chosen).parameters())
    other = nn.utils.parameters_to_vector(seeded(1, name, shape, classes, **chosen).parameters())
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name == "mean")
    assert name != "mean" or not first.any()


@pytest.mark.parametrize("case", NARROW, ids=label)
def test_head_is_the_last_dense_layer(case):
    name, shape, classes, chosen, outputs = case
    net = build_network(name, shape, classes, **chosen)
    if name != "mean":
        assert isinstance(net.head, nn.Linear)
        assert net.head.out_features == outputs
        assert list(net.parameters())[-1] is net.head.bias


def test_lstm_equals_torchs_with_its_second_bias_zero():
    ours = seeded(0, "lstm", (25, 300), 2)
    theirs = nn.LSTM(300, 256, num_layers=2, batch_first=True)
    with torch.no_grad():
        for layer, cell in enumerate(ours.cells):
            getattr(theirs, f"weight_ih_l{layer}").copy_(cell.of_input)
            getattr(theirs, f"weight_hh_l{layer}").copy_(cell.of_state)
            getattr(theirs, f"bias_ih_l{layer}").copy_(cell.bias)
            getattr(theirs, f"bias_hh_l{layer}").zero_()
        x = inputs(ours, (25, 300), 3)
        states, _ = theirs(x)
        torch.testing.assert_close(ours.cells(x), states, rtol=0, atol=1e-5)
        torch.testing.assert_close(ours(x), ours.head(states[:, -1]), rtol=0, atol=1e-5)
        assert max(p.abs().max() for p in ours.cells.parameters()) <= 256**-0.5


def test_lstm_table_is_looked_up_and_never_a_parameter_or_buffer():
    by_index = seeded(0, "lstm", (5,), 2, hidden=4, table=TABLE)
    by_vector = seeded(0, "lstm", (5, 6), 2, hidden=4)
    assert by_index.state_dict().keys() == by_vector.state_dict().keys()
    assert not list(by_index.buffers())
    tokens = inputs(by_index, (5,), 3)
    assert torch.equal(by_index(tokens), by_vector(TABLE[tokens]))
    assert torch.equal(by_index(tokens.to(torch.uint8)), by_vector(TABLE[tokens]))


def test_lenet5_starts_as_the_authors_network_does():
    net, default = seeded(0, "lenet5", (3, 32, 32), 10), seeded(0, "cifarnet", (3, 32, 32), 10)
    for key, weight in net.named_parameters():
        weight = weight.detach()
        if weight.dim() == 1:
            assert not weight.any(), key
            continue
        fans = weight[0].numel() + (len(weight) if weight.dim() == 2 else 0)
        bound = (6 / fans) ** 0.5
        assert 0.97 * bound < weight.abs().max() <= bound, key
        assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.1), key
        assert default.get_parameter(key).abs().max() <= weight[0].numel() ** -0.5


SHORT = {
    nn.Conv2d: "conv",
    nn.ReLU: "relu",
    nn.MaxPool2d: "max",
    nn.AvgPool2d: "avg",
    nn.Flatten: "flat",
}
SHORT |= {nn.Linear: "dense", nn.Dropout: "drop", nn.BatchNorm2d: "bn"}
DENSE3 = "flat dense relu dense relu dense"


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("mlr", "flat dense"),
        ("dnn", "flat dense relu dense"),
        ("cifarnet", f"conv relu max conv relu max {DENSE3}"),
        ("cnncifar", f"conv relu max conv relu max {DENSE3}"),
        ("lenet5", f"conv relu avg conv relu avg {DENSE3}"),
        ("kt-lenet", f"conv relu max conv relu max {DENSE3}"),
        ("mcmahan", "conv relu max conv relu max flat dense relu dense"),
        ("smallcnn", "conv relu max conv relu max flat dense"),
        (
            "kt-alexnet",
            "conv relu max conv relu max conv relu conv relu conv relu max flat drop dense relu "
            "drop dense relu dense",
        ),
    ],
)
def test_layers_stand_in_the_published_order(name, layers):
    with torch.device("meta"):
        net = build_network(name, (3, 32, 32), 10)
    assert [
        SHORT[type(m)] for m in net.modules() if not isinstance(m, nn.Sequential)
    ] == layers.split()


def test_shuffle_units_follow_the_published_order():
    net = build_network("kt-shufflenet", (3, 8, 8), 10, width=0.1)
    parts = {
        "stem": net.stem,
        "left": net.stage1[0].left,
        "right": net.stage1[0].right,
        "last": net.last,
    }
    parts["later"] = net.stage1[1].right
    found = {key: " ".join(SHORT[type(m)] for m in part) for key, part in parts.items()}
    branch = "conv bn relu conv bn conv bn relu"
    assert found == {
        "stem": "conv bn",
        "left": "conv bn conv bn relu",
        "right": branch,
        "later": branch,
        "last": "conv bn relu",
    }


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("kt-resnet18", {"stem": 32, "stage1": 32, "stage2": 16, "stage3": 8, "stage4": 4}),
        ("kt-shufflenet", {"stem": 32, "stage1": 16, "stage2": 8, "stage3": 4, "last": 4}),
    ],
)
def test_deep_nets_halve_the_image_and_end_in_a_global_average(name, stages):
    net = seeded(0, name, (3, 32, 32), 10, width=0.1).eval()
    x = inputs(net, (3, 32, 32), 2)
    out = net(x)
    for stage, side in stages.items():
        x = net.get_submodule(stage)(x)
        assert x.shape[2:] == (side, side)
    torch.testing.assert_close(net.head(x.mean((2, 3))), out)


def test_biases_of_the_deep_nets_are_as_published():
    resnet, shuffle = (
        build_network("kt-resnet18", (3, 8, 8), 10, width=0.1),
        build_network("kt-shufflenet", (3, 8, 8), 10, width=0.1),
    )
    assert all(m.bias is None for m in resnet.modules() if isinstance(m, nn.Conv2d))
    assert all(m.bias is not None for m in shuffle.modules() if isinstance(m, nn.Conv2d))
    dropouts = [
        m.p
        for m in build_network("kt-alexnet", (3, 28, 28), 10, width=0.02).modules()
        if isinstance(m, nn.Dropout)
    ]
    assert dropouts == [0.5, 0.5]


def test_shuffle_unit_passes_its_first_half_to_the_even_channels():
    unit = build_network("kt-shufflenet", (3, 8, 8), 10, width=0.1).stage1[1].eval()
    x = torch.randn(2, 12, 4, 4, generator=torch.Generator().manual_seed(0))
    out = unit(x)
    assert torch.equal(out[:, ::2], x[:, :6])
    assert torch.equal(out[:, 1::2], unit.right(x[:, 6:]))


def test_residual_block_adds_a_shortcut_that_is_plain_where_shapes_agree():
    net = build_network("kt-resnet18", (3, 8, 8), 10, width=0.1)
    blocks = [
        block for stage in (net.stage1, net.stage2, net.stage3, net.stage4) for block in stage
    ]
    plain = [isinstance(block.shortcut, nn.Identity) for block in blocks]
    assert plain == [True, True, False, True, False, True, False, True]
    block = blocks[0].eval()
    x = torch.randn(2, 6, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(block(x), (block.body(x) + x).clamp(min=0))


def test_deep_nets_train_with_batch_statistics_and_dropout():
    for name in ("kt-resnet18", "kt-shufflenet", "kt-alexnet"):
        net = seeded(0, name, (1, 28, 28), 10, width=0.05).train()
        net(inputs(net, (1, 28, 28), 4)).sum().backward()
        assert all(parameter.grad is not None for parameter in net.parameters())


@pytest.mark.parametrize("name", ["kt-alexnet", "kt-resnet18", "kt-shufflenet", "mcmahan"])
def test_width_scales_and_one_is_the_published_net(name):
    with torch.device("meta"):
        counts = [
            sum(p.numel() for p in build_network(name, (3, 28, 28), 10, **chosen).parameters())
            for chosen in ({"width": 0.5}, {"width": 1}, {}, {"width": 2.0})
        ]
    assert counts[0] < counts[1] == counts[2] < counts[3]


def test_options_are_read_from_the_signature():
    assert options_of("mlr") == {}
    assert options_of("dnn") == {"hidden": 100, "norm": False}
    assert options_of("kt-alexnet") == {"width": 1.0}
    assert options_of("lstm") == {"hidden": 256, "layers": 2, "table": None}


@pytest.mark.parametrize(
    ("name", "shape", "chosen", "line"),
    [
        ("lenet6", (1, 28, 28), {}, "unknown net 'lenet6'; did you mean 'lenet5'?"),
        ("dnn", (64,), {"hiden": 5}, "unknown option 'hiden' of net 'dnn'; did you mean 'hidden'?"),
        ("mlr", (64,), {"hidden": 5}, "unknown option 'hidden' of net 'mlr', which takes none"),
        (
            "dnn",
            (64,),
            {"hidden": 2.5},
            "hidden = 2.5 for net 'dnn': give a positive whole number, such as 100",
        ),
        (
            "dnn",
            (64,),
            {"hidden": True},
            "hidden = True for net 'dnn': give a positive whole number, such as 100",
        ),
        (
            "kt-resnet18",
            (3, 32, 32),
            {"width": 0},
            "width = 0 for net 'kt-resnet18': give a positive number, such as 1.0",
        ),
        (
            "kt-resnet18",
            (3, 32, 32),
            {"width": float("inf")},
            "width = inf for net 'kt-resnet18': give a positive number, such as 1.0",
        ),
        (
            "cifarnet",
            (64,),
            {},
            "net 'cifarnet' takes images [channels, height, width], but the input is 64: use dnn "
            "or mlr",
        ),
        (
            "cifarnet",
            (1, 8, 8),
            {},
            "net 'cifarnet' takes images of at least 16x16, but the input is 1x8x8: use smallcnn, "
            "dnn or mlr",
        ),
        (
            "smallcnn",
            (1, 3, 8),
            {},
            "net 'smallcnn' takes images of at least 4x4, but the input is 1x3x8: use dnn or mlr",
        ),
        (
            "lstm",
            (25,),
            {},
            "net 'lstm' takes [steps, features], but the input is 25: give its table of word "
            "vectors, or use dnn or mlr",
        ),
        (
            "lstm",
            (1, 8, 8),
            {},
            "net 'lstm' takes [steps, features], but the input is 1x8x8: use smallcnn, dnn or mlr",
        ),
        (
            "lstm",
            (25, 6),
            {"table": TABLE},
            "net 'lstm' takes token indices [steps] for its table, but the input is 25x6: use dnn "
            "or mlr",
        ),
        (
            "lstm",
            (25,),
            {"table": "glove.txt"},
            "table = 'glove.txt' for net 'lstm': give a tensor [words, features], one row per word",
        ),
        (
            "mlr",
            (),
            {},
            "input empty and classes = 10 for net 'mlr': every side and the number of classes "
            "must be at least 1",
        ),
    ],
)
def test_bad_input_is_one_line_with_the_way_out(name, shape, chosen, line):
    with pytest.raises(BadInput) as caught:
        build_network(name, shape, 10, **chosen)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("cifarnet", 16),
        ("lenet5", 16),
        ("mcmahan", 4),
        ("smallcnn", 4),
        ("kt-alexnet", 15),
        ("kt-resnet18", 1),
    ],
)
def test_the_least_image_works_and_one_less_is_refused(name, least):
    chosen = {"width": 0.02} if name.startswith("kt") else {}
    net = build_network(name, (1, least, least), 10, **chosen).eval()
    assert net(torch.zeros(2, 1, least, least)).shape == (2, 10)
    with pytest.raises(BadInput):
        build_network(name, (1, least, least - 1), 10, **chosen)


def test_a_dense_net_may_have_batchnorm():
    net = build_network("dnn", (6,), 3, hidden=5, norm=True)
    assert sum(isinstance(layer, nn.BatchNorm1d) for layer in net.modules()) == 1
    with pytest.raises(BadInput, match="give yes or no"):
        build_network("dnn", (6,), 3, norm=2)


def test_each_network_of_a_list_may_have_options_of_its_own():
    words = {
        "dataset": "digits",
        "method": "local",
        "num_clients": 4,
        "model": "dnn:hidden=7, dnn",
        "hidden": 9,
    }
    experiment = change_options(Experiment(), words)
    models = assemble(experiment, load_federation(experiment)).models
    assert [model.options["hidden"] for model in models] == [7, 9]
    with pytest.raises(BadInput, match=r"network 'dnn' has no option 'hiden'.*'hidden'"):
        change_options(Experiment(), {"model": "dnn:hiden=7", "hidden": 9})
