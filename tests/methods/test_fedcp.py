"""Laws of FedCP: a round is that of plain torch, features are shared out and none is lost, and
features that have not moved cost nothing.
"""

import pytest
import torch
import torch.nn.functional as F

import coterie
from coterie.core.method import Batch, Train
from coterie.core.point import pick
from coterie.methods.policy import WIDTHS, measure_discrepancy
from coterie.networks.feature_heads import PolicyNetwork, split_features
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model

WHOLE = Train(batch_size=1000, lr=0.1, local_steps=2, momentum=0.5)


def flat(*modules):
    return torch.cat([p.detach().flatten() for net in modules for p in net.parameters()])


def batch_of(n, real=None):
    mask = (torch.arange(n) < (real or n)).to(torch.get_default_dtype())
    return Batch(torch.zeros(n, 6), torch.zeros(n).long(), mask, torch.arange(n), torch.tensor(0))


@pytest.mark.parametrize("lam", [0.0, 2.0])
def test_a_second_round_is_that_of_plain_torch(lam):
    """Every client by torch's own autograd, from the server and the heads of the first round."""
    with float64():
        federation, model = tiny(), tiny_model()
        options = {"lam": lam}
        first = play("fedcp", federation, [model], 2, train=WHOLE, options=options, until=1)
        loop = play("fedcp", federation, [model], 2, train=WHOLE, options=options)
        server, heads = first.position.server, first.engine.states[0].gather(list(range(5)))
        total, of_policy, rows, wanted = 0.0, 0.0, sum(map(len, federation.train)), {}
        for i, mine in enumerate(federation.train):
            own = pick(heads, i).params
            received, net = model.module(server.w), model.module(server.w)
            net[2].load_state_dict({"weight": own["2.weight"], "bias": own["2.bias"]})
            policy = PolicyNetwork(5)
            policy.load_state_dict(server.policy.params)
            context = F.normalize(own["2.weight"].sum(0), dim=0)
            x, y = federation.x[mine], federation.y[mine]
            move = torch.optim.SGD([*net.parameters(), *policy.parameters()], 0.1, momentum=0.5)
            for _ in range(2):
                z, before = net[:2](x), received[:2](x).detach()
                shares = policy.norm(policy.dense(z * context)).relu().reshape(-1, 2, 5).softmax(1)
                out = net[2](shares[:, 0] * z) + received[2](shares[:, 1] * z)
                loss = F.cross_entropy(out, y) + lam * discrepancy(z, before)
                move.zero_grad()
                loss.backward()
                move.step()
            total = total + len(mine) / rows * flat(net)
            of_policy = of_policy + len(mine) / rows * flat(policy)
            weight = net[2].weight.detach()
            wanted[i] = (flat(net[2]), F.normalize(weight.sum(0), dim=0))
        body, head = total[:35], total[35:]
        found = {
            i: torch.cat([body, of_policy, head, own, context])
            for i, (own, context) in wanted.items()
        }
        assert_same(personal(loop), found, 1e-8)
        assert_same(personal(loop, "global"), dict.fromkeys(range(5), total), 1e-8)


def discrepancy(a, b):
    def kernel(p, q):
        return sum((-torch.cdist(p, q).square() / (2 * w)).exp() for w in WIDTHS).mean()

    return kernel(a, a.clone()) + kernel(b, b) - 2 * kernel(a, b)


def test_features_are_shared_out_and_none_is_lost():
    with float64():
        policy, z, context = PolicyNetwork(4), torch.randn(7, 4), torch.randn(4)
        mine, other = split_features(dict(policy.named_parameters()), context, z)
        torch.testing.assert_close(mine + other, z)
        assert (mine / z > 0).all()
        assert (other / z > 0).all()
        assert (mine - z / 2).abs().max() > 0.01


def test_the_discrepancy_is_0_of_equal_rows_and_knows_no_padding():
    with float64():
        a, b = torch.randn(6, 3), torch.randn(6, 3) + 1
        assert float(measure_discrepancy(a, a, batch_of(6))) == pytest.approx(0, abs=1e-12)
        wanted = discrepancy(a[:4], b[:4])
        torch.testing.assert_close(measure_discrepancy(a, b, batch_of(6, 4)), wanted)
        assert wanted > 0


def test_a_client_is_judged_by_its_two_heads():
    """What the network of a client says is what training computes."""
    with float64():
        federation, model = tiny(), tiny_model()
        loop = play("fedcp", federation, [model], 2)
        whole, server = loop.engine.model_of(0, "personal"), loop.position.server
        own = loop.engine.states[0].gather([3])
        for _, chunk, views in loop.engine.points([3], loop.payload(), loop.when()):
            point = pick(views["personal"], chunk.index(3))
        net = model.module(server.w)
        z = net[:2](federation.x[:8])
        weight, bias = own.params["2.weight"][0], own.params["2.bias"][0]
        context = F.normalize(weight.sum(0), dim=0)
        mine, other = split_features(server.policy.params, context, z)
        batch = batch_of(8)._replace(x=federation.x[:8])
        torch.testing.assert_close(
            whole.logits(point, batch), (mine @ weight.T + bias + net[2](other)).detach()
        )


def test_a_saved_network_of_two_heads_is_read_back(tmp_path):
    run = coterie.run(
        "fedcp", dataset="digits", model="dnn", rounds=1, clients=3, out=tmp_path / "r"
    )
    module = coterie.load_model(run.folder, 1)
    assert torch.isfinite(module(torch.zeros(2, 64))).all()
    assert float(module.head.context.norm().detach()) == pytest.approx(1, abs=1e-5)
