"""Laws of methods that keep layers at home (FedPer, LG-FedAvg, FedBN, FedRep), and of SCAFFOLD."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.core.model import Model
from coterie.methods.fedper import keep_layers_local
from coterie.methods.registry import METHODS
from coterie.results.metric_table import values_of
from helpers.federations import (
    SEQUENTIAL,
    STACKED,
    TRAIN,
    assert_same,
    float64,
    given,
    personal,
    play,
    tiny,
    tiny_model,
)

MOMENTUM = TRAIN._replace(momentum=0.9, weight_decay=0.01)


def layers(loop, name):
    """{client: parameters of a layer of its own model}."""
    out = {}
    for _, chunk, views in loop.engine.points(loop.everyone, loop.payload(), loop.when()):
        for k, i in enumerate(chunk):
            out[i] = torch.cat(
                [
                    a[k].flatten()
                    for n, a in views["personal"].params.items()
                    if n.startswith(name + ".")
                ]
            )
    return out


def spread(models):
    """The largest difference between two clients."""
    return max(float((a - b).abs().max()) for a in models.values() for b in models.values())


def bytes_of(loop, metric):
    return values_of(loop.table.whole(), metric, "", "", 1)[1].item()


# FedPer and LG-FedAvg


@pytest.mark.parametrize(("method", "head"), [("fedper", 0), ("lgfedavg", 2)])
def test_nothing_at_home_is_fedavg(method, head):
    with float64():
        assert_same(
            personal(play(method, train=MOMENTUM, options={"head": head})),
            personal(play("fedavg", train=MOMENTUM)),
        )


def test_everything_at_home_is_local_training():
    with float64():
        loop = play(
            lambda model, train: keep_layers_local(model, train, lambda name: True), train=MOMENTUM
        )
        assert_same(personal(loop), personal(play("local", train=MOMENTUM)))
        assert bytes_of(loop, "bytes_up") == 0


@pytest.mark.parametrize(
    ("method", "own", "shared"),
    [("fedper", "2", "0"), ("fedrep", "2", "0"), ("lgfedavg", "0", "2")],
)
def test_shared_layers_are_equal_and_own_layers_are_not(method, own, shared):
    loop = play(method)
    assert spread(layers(loop, shared)) == 0
    assert spread(layers(loop, own)) > 1e-3
    size = sum(np.prod(s) for k, s in tiny_model().shapes.items() if k.startswith(shared + "."))
    assert bytes_of(loop, "bytes_up") == 5 * 4 * size
    assert bytes_of(loop, "bytes_down") == 5 * (4 * size + 8)  # and the seed


def test_lgfedavg_is_the_complement_of_fedper():
    """In the first round, before what came back differs, each keeps and averages what the other
    averages and keeps.
    """
    with float64():
        per, lg, fed, alone = (play(m, rounds=1) for m in ("fedper", "lgfedavg", "fedavg", "local"))
        assert_same(layers(per, "0"), layers(fed, "0"))
        assert_same(layers(per, "2"), layers(alone, "2"))
        assert_same(layers(lg, "0"), layers(alone, "0"))
        assert_same(layers(lg, "2"), layers(fed, "2"))


def test_own_layers_of_absent_clients_rest():
    loop = play("fedper", rounds=5, participation=0.4, until=2)
    before = layers(loop, "2")
    loop.go(until=3)
    after = layers(loop, "2")
    moved = [i for i in before if not torch.equal(before[i], after[i])]
    assert len(moved) == 2


@pytest.mark.parametrize(
    ("method", "head", "line"),
    [
        (
            "fedper",
            2,
            "fedper.head = 2, but tiny-5 has 2 layers .* give 0 to 1, another --model, or use "
            "local",
        ),
        (
            "fedrep",
            2,
            "fedrep.head = 2, but tiny-5 has 2 layers .* give 0 to 1, another --model, or use "
            "local",
        ),
        ("lgfedavg", 3, "lgfedavg.head = 3, but tiny-5 has 2 layers .* give 1 to 2"),
        ("lgfedavg", 0, "lgfedavg.head = 0"),
        *((method, -1, f"{method}.head = -1") for method in ("fedper", "fedrep", "lgfedavg")),
    ],
)
def test_a_head_that_leaves_nothing_to_share_is_refused(method, head, line):
    with pytest.raises(BadInput, match=line):
        METHODS[method](tiny_model(), TRAIN, head=head)


@pytest.mark.parametrize("method", ["fedper", "lgfedavg", "fedrep"])
def test_a_network_of_one_layer_cannot_be_divided(method):
    model = Model(lambda: nn.Linear(6, 3), name="line")
    with pytest.raises(
        BadInput, match=r"line has only one layer: give another --model, or use fedavg"
    ):
        METHODS[method](model, TRAIN)


# FedRep


def test_fedrep_without_head_is_fedavg():
    with float64():
        wanted = personal(play("fedavg", train=MOMENTUM))
        assert_same(
            personal(play("fedrep", train=MOMENTUM, options={"head": 0, "head_epochs": 0})), wanted
        )


@pytest.mark.parametrize("settings", [STACKED, SEQUENTIAL])
def test_fedrep_descends_on_the_head_and_then_on_the_body(settings):
    """One client, all rows a step: three steps on the head with the body held, then two on the body
    with the new head.
    """
    with float64():
        federation, model = tiny(clients=1), tiny_model()
        train = Train(batch_size=1000, lr=0.1, local_epochs=2, momentum=0.5)
        start = play("fedrep", federation, [model], until=0, train=train)
        module = model.module(model.start(int(start.position.server.seed)))
        x, y = federation.x[federation.train[0]], federation.y[federation.train[0]]
        for part, steps in ((module[2], 3), (module[0], 2)):
            optimizer = torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.5)
            for _ in range(steps):
                module.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                optimizer.step()
        loop = play("fedrep", federation, [model], 1, settings, train, options={"head_epochs": 3})
        wanted = torch.cat([p.detach().flatten() for p in module.parameters()])
        assert_same(personal(loop), {0: wanted})


def test_fedrep_refuses_less_than_no_epochs():
    with pytest.raises(BadInput, match="head_epochs = -1"):
        METHODS["fedrep"](tiny_model(), TRAIN, head_epochs=-1)


# FedBN


def test_fedbn_never_sends_batchnorm():
    """Neither parameters nor running statistics are in payload or server; they differ from client
    to client.
    """
    loop = play("fedbn")
    travels = loop.payload()(0).base
    assert set(travels.params) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert not travels.buffers
    assert spread(layers(loop, "1")) > 1e-3
    assert spread(layers(loop, "0")) == spread(layers(loop, "3")) == 0
    states = loop.engine.states[0].everything()[1]
    assert set(states.params) == {"1.weight", "1.bias"}
    assert set(states.buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert (states.buffers["1.running_mean"].std(0) > 1e-3).all()


def test_fedbn_of_one_client_is_fedavg():
    with float64():
        model, federation = tiny_model(norm=True), tiny(clients=1)
        assert_same(
            personal(play("fedbn", federation, [model])),
            personal(play("fedavg", federation, [model])),
        )


def test_fedbn_refuses_models_without_batchnorm():
    with pytest.raises(BadInput, match="tiny-5 has none"):
        METHODS["fedbn"](tiny_model(), TRAIN)


# SCAFFOLD


def test_scaffold_of_one_client_is_sgd():
    with float64():
        federation = tiny(clients=1)
        for train in (TRAIN, MOMENTUM):
            loop = play("scaffold", federation, train=train, rounds=4)
            assert_same(personal(loop), personal(play("fedavg", federation, train=train, rounds=4)))


def test_scaffold_of_equal_clients_is_fedavg():
    """Equal gradients: nothing to correct."""
    with float64():
        x, y = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
        federation, train = given([(x, y)] * 3), Train(batch_size=1000, lr=0.1, local_epochs=4)
        loop = play("scaffold", federation, train=train, rounds=3)
        assert_same(personal(loop), personal(play("fedavg", federation, train=train, rounds=3)))


@pytest.mark.parametrize("weighting", ["size", "equal"])
def test_the_common_variate_is_the_mean_of_the_clients(weighting):
    """c = sum_i p_i c_i over all clients, whoever takes part; a client never asked has c_i = 0."""
    with float64():
        loop = play(
            "scaffold",
            rounds=6,
            participation=0.6,
            dropout_clients=0.2,
            train=TRAIN._replace(weighting=weighting),
        )
        clients, states = loop.engine.states[0].everything()
        p = (
            torch.as_tensor(loop.federation.sizes, dtype=torch.float64)
            if weighting == "size"
            else torch.ones(5)
        )
        p = (p / p.sum())[clients]
        for name, c in loop.position.server.c.params.items():
            assert float(c.abs().max()) > 1e-3
            torch.testing.assert_close(
                c, torch.tensordot(p, states.params[name], 1), rtol=1e-9, atol=1e-12
            )


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_clients_variate_is_its_mean_gradient(rounds, momentum):
    """Steps so small that the gradient of every client stays: c_i is that gradient, after one round
    and after more.
    """
    with float64():
        x = torch.tensor([[[1.0, 2.0, -1.0]], [[0.5, -1.0, 3.0]]])
        model = Model(lambda: nn.Linear(3, 1, bias=False), task="squared")
        train = Train(batch_size=1, lr=1e-9, local_steps=7, momentum=momentum)
        federation = given([(row, torch.tensor([50.0])) for row in x], classes=0)
        loop = play("scaffold", federation, [model], rounds, train=train)
        w = loop.position.server.x.params["weight"]
        found = loop.engine.states[0].gather([0, 1]).params["weight"]
        for c_i, row in zip(found, x, strict=True):
            torch.testing.assert_close(c_i, (row @ w.T - 50.0) * row, rtol=1e-5, atol=1e-5)


def quadratics(curvature, centre):
    """f_i(w) = a_i / 2 (w - b_i)^2, one row a client."""
    rows = [
        (torch.tensor([[a**0.5]]), torch.tensor([a**0.5 * b]))
        for a, b in zip(curvature, centre, strict=True)
    ]
    return given(rows, classes=0), Model(lambda: nn.Linear(1, 1, bias=False), task="squared")


@pytest.mark.parametrize("sample", [1.0, 0.7])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_scaffold_reaches_the_optimum_where_fedavg_drifts(sample, momentum):
    with float64():
        a, b = [0.2, 1.0, 4.0], [5.0, -1.0, 2.0]
        federation, model = quadratics(a, b)
        train = Train(batch_size=1, lr=0.05, local_steps=10, momentum=momentum)
        optimum = sum(p * q for p, q in zip(a, b, strict=True)) / sum(a)
        found = {}
        for method in ("scaffold", "fedavg"):
            loop = play(method, federation, [model], 60, train=train, participation=sample)
            found[method] = float(personal(loop)[0])
        assert found["scaffold"] == pytest.approx(optimum, abs=1e-3)
        assert abs(found["fedavg"] - optimum) > 0.1


def test_a_newcomer_leaves_the_common_variate_the_mean_of_the_clients():
    with float64():
        loop = play("scaffold", train=TRAIN._replace(weighting="equal"))
        wider = loop.program[0].method.admit(loop.position.server)
        torch.testing.assert_close(wider.share, torch.full((6,), 1 / 6))
        states = loop.engine.states[0].everything()[1]
        for name, c in wider.c.params.items():
            torch.testing.assert_close(c, states.params[name].sum(0) / 6, rtol=1e-9, atol=1e-12)


def test_scaffold_sends_two_models_each_way():
    loop, size = play("scaffold", rounds=1), 4 * tiny_model().size
    assert bytes_of(loop, "bytes_down") == bytes_of(loop, "bytes_up") == 5 * 2 * size
    assert bytes_of(loop, "bytes_broadcast") == 2 * size
    assert all(leaf.dim() for leaf in pytree.tree_leaves(loop.payload()(0)))
