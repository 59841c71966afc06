"""Laws of pFedHN."""

import numpy as np
import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Train
from coterie.core.point import Point, flatten, pick
from coterie.methods.pfedhn import build_hypernetwork, generate, pfedhn, pull_back
from helpers.federations import float64, personal, play, tiny, tiny_model, watched

SHAPES = {"a.weight": (4, 3), "a.bias": (4,)}
PLAIN = {"server_momentum": 0.0, "server_weight_decay": 0.0, "hyper_lr": 0.05}


def loose(phi):
    return torch.cat([a.flatten() for a in phi.params.values()])


def test_the_vector_jacobian_product_is_the_derivative():
    """Against central differences of phi, v -> sum_i weight_i <h(v_i; phi), Delta_i>, one
    coordinate after another.
    """
    with float64():
        rng = np.random.default_rng(0)
        phi = build_hypernetwork(SHAPES, 2, 4, 2, rng)
        v = torch.as_tensor(rng.normal(size=(3, 2)))
        delta = {k: torch.as_tensor(rng.normal(size=(3, *shape))) for k, shape in SHAPES.items()}
        weights = torch.tensor([0.2, 0.5, 0.3])
        d_phi, d_v = pull_back(phi, v, delta, weights, SHAPES)

        def pairing(params, v, weights):
            theta = generate(params, v, SHAPES)
            return sum((weights * (theta[k] * delta[k]).flatten(1).sum(1)).sum() for k in SHAPES)

        def slope(tensor, value):
            out = torch.zeros_like(tensor)
            for k in np.ndindex(*tensor.shape):
                step = torch.zeros_like(tensor)
                step[k] = 1e-6
                out[k] = (value(tensor + step) - value(tensor - step)) / 2e-6
            return out

        for name, a in phi.params.items():
            wanted = slope(a, lambda b, name=name: pairing(phi.params | {name: b}, v, weights))
            torch.testing.assert_close(d_phi.params[name], wanted, rtol=0, atol=1e-7)
        wanted = slope(
            v, lambda b: pairing(phi.params, b, torch.ones(3))
        )  # each v_i by its own product, whatever its weight
        torch.testing.assert_close(d_v, wanted, rtol=0, atol=1e-7)


def test_one_averaged_step_at_the_phi_that_was_sent():
    """phi by the weighted mean of the clients' products, each by autograd on its own; v_i by the
    client's own.
    """
    with float64():
        loop, [(sent, replies, _)] = watched("pfedhn", options=PLAIN)
        before = play("pfedhn", until=0, options=PLAIN).position.server
        after, shapes = loop.position.server, tiny_model().shapes
        share = replies.sizes / replies.sizes.sum()
        total = {k: torch.zeros_like(a) for k, a in before.phi.params.items()}
        for i in range(5):
            phi = {k: a.clone().requires_grad_() for k, a in before.phi.params.items()}
            v = before.v[i : i + 1].clone().requires_grad_()
            theta = generate(phi, v, shapes)
            torch.testing.assert_close({k: a[0].detach() for k, a in theta.items()}, sent[i].params)
            pairing = sum(
                (a[0] * replies.upload.delta.params[k][i]).sum() for k, a in theta.items()
            )
            *slopes, of_v = torch.autograd.grad(pairing, [*phi.values(), v])
            total = {k: a + share[i] * g for (k, a), g in zip(total.items(), slopes, strict=True)}
            torch.testing.assert_close(after.v[i], before.v[i] - 0.05 * of_v[0], rtol=0, atol=1e-9)
        for k, a in before.phi.params.items():
            torch.testing.assert_close(after.phi.params[k], a - 0.05 * total[k], rtol=0, atol=1e-9)


def test_delta_is_what_local_training_took_away():
    with float64():
        model, federation = tiny_model(), tiny()
        train = Train(batch_size=100, lr=0.2, local_steps=1)
        _, [(sent, replies, traffic)] = watched(
            "pfedhn", federation=federation, models=[model], train=train
        )
        for i, rows in enumerate(federation.train):
            ones = torch.ones(len(rows))
            batch = Batch(
                federation.x[rows],
                federation.y[rows],
                ones,
                torch.arange(len(rows)),
                torch.tensor(0),
            )
            wanted = 0.2 * model.grad(sent[i], batch)
            torch.testing.assert_close(pick(replies.upload.delta, i).params, wanted.params)
        assert traffic.up == traffic.down == 5 * 8 * model.size


def test_the_model_used_is_the_hyper_networks():
    with float64():
        loop = play("pfedhn", rounds=3)
        server = loop.position.server
        made = flatten(Point(generate(server.phi.params, server.v, tiny_model().shapes)))
        for i, w in personal(loop).items():
            torch.testing.assert_close(w, made[i])


def test_embeddings_of_silent_clients_stay():
    loop, [(_, replies, _)] = watched("pfedhn", participation=0.4)
    before = play("pfedhn", until=0).position.server
    silent = [i for i in range(5) if i not in replies.ids.tolist()]
    assert silent
    assert torch.equal(loop.position.server.v[silent], before.v[silent])
    assert not torch.equal(loop.position.server.v[replies.ids], before.v[replies.ids])


def test_momentum_decay_and_clip():
    with float64():
        start = play("pfedhn", until=0).position.server
        first = play("pfedhn", until=1, options=PLAIN).position.server
        heavy = {**PLAIN, "server_momentum": 0.5}
        servers = [play("pfedhn", until=n, options=heavy).position.server for n in (1, 2)]
        torch.testing.assert_close(
            loose(servers[0].phi), loose(first.phi)
        )  # momentum starts at rest
        step = loose(servers[1].phi - servers[0].phi)
        torch.testing.assert_close(step, -0.05 * loose(servers[1].phi_speed))
        decayed = play(
            "pfedhn", until=1, options={**PLAIN, "server_weight_decay": 0.1}
        ).position.server
        torch.testing.assert_close(
            loose(decayed.phi), loose(first.phi) - 0.05 * 0.1 * loose(start.phi)
        )
        short = play("pfedhn", until=1, options={**PLAIN, "clip": 1e-3}).position.server
        moved = loose(short.phi - start.phi).square().sum() + (short.v - start.v).square().sum()
        assert float(moved.sqrt()) == pytest.approx(0.05 * 1e-3, rel=1e-6)


def test_batchnorm_buffers_are_averaged_beside():
    models = [tiny_model(norm=True)]
    loop, [(_, replies, _)] = watched("pfedhn", models=models)
    share = replies.sizes / replies.sizes.sum()
    for name, b in loop.position.server.buffers.items():
        if b.is_floating_point():
            torch.testing.assert_close(
                b, torch.tensordot(share, replies.upload.buffers[name], dims=1)
            )
    assert loop.position.server.buffers


def test_a_newcomer_starts_amid_the_others():
    loop = play("pfedhn")
    method = loop.program[0].method
    wider = method.admit(loop.position.server)
    torch.testing.assert_close(wider.v[5], loop.position.server.v.mean(0))
    assert method.round[0].send(wider, 5, None).params.keys() == tiny_model().shapes.keys()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"hyper_hidden": 0}, "hyper_hidden = 0"),
        ({"hyper_lr": 0.0}, "hyper_lr = 0"),
        ({"server_momentum": 1.0}, "server_momentum = 1"),
        ({"clip": 0.0}, "clip = 0"),
        ({"embedding": -1}, "embedding = -1"),
    ],
    ids=str,
)
def test_bad_options_are_refused_in_one_line(options, line):
    with pytest.raises(BadInput, match=line):
        pfedhn(tiny_model(), Train(), **options)
