"""Laws of GPFL: a round is that of plain torch, and a client uses what it trained its head on."""

import pytest
import torch
import torch.nn.functional as F

import coterie
from coterie.core.method import Train
from coterie.core.point import pick
from coterie.networks.feature_heads import Valve
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model

WHOLE = Train(batch_size=1000, lr=0.05, local_steps=2, momentum=0.5)


def turn(valve, context, z):
    scale = valve.scale_norm(valve.scale(context).relu())
    shift = valve.shift_norm(valve.shift(context).relu())
    return (z * (1 + scale) + shift).relu()


def flat(*tensors):
    return torch.cat([a.detach().flatten() for a in tensors])


@pytest.mark.parametrize(("lam", "mu"), [(0.0, 0.0), (0.5, 0.2)])
def test_a_second_round_is_that_of_plain_torch(lam, mu):
    """Every client by torch's own autograd, from the server and the heads of the first round."""
    with float64():
        federation, model = tiny(), tiny_model()
        options = {"lam": lam, "mu": mu}
        first = play("gpfl", federation, [model], 2, train=WHOLE, options=options, until=1)
        loop = play("gpfl", federation, [model], 2, train=WHOLE, options=options)
        server, states = first.position.server, first.engine.states[0].gather(list(range(5)))
        rows, sums, heads = sum(map(len, federation.train)), [0.0, 0.0, 0.0], {}
        for i, mine in enumerate(federation.train):
            net, valve = model.build(), Valve(5)
            net.load_state_dict(server.body.params | pick(states.head, i).params)
            known = server.common.params["embedding"]
            names = [k for k in server.common.params if k != "embedding"]
            valve.load_state_dict({k: server.common.params[k] for k in names})
            embedding = known.clone().requires_grad_()
            x, y = federation.x[mine], federation.y[mine]
            shares = F.one_hot(y, 3).double().mean(0)
            move = torch.optim.SGD(net.parameters(), 0.05, momentum=0.5)
            held = torch.optim.SGD(
                [embedding, *valve.parameters()], 0.05, momentum=0.5, weight_decay=mu
            )
            for _ in range(2):
                z = net[:2](x)
                own, common = turn(valve, shares @ known, z), turn(valve, known.mean(0), z)
                angles = F.normalize(common) @ F.normalize(embedding).T
                apart = (common - known[y]).norm(dim=1).mean()
                loss = F.cross_entropy(net[2](own), y) + F.cross_entropy(angles, y) + lam * apart
                move.zero_grad(), held.zero_grad()
                loss.backward()
                move.step(), held.step()
            parts = (
                flat(*net[0].parameters()),
                flat(embedding).reshape(3, 5),
                flat(*(valve.get_parameter(k) for k in names)),
            )
            sums = [a + len(mine) / rows * b for a, b in zip(sums, parts, strict=True)]
            heads[i] = flat(*net[2].parameters()), shares
        body, embedding, valve = sums
        wanted = {
            i: torch.cat([body, valve, head, shares @ embedding])
            for i, (head, shares) in heads.items()
        }
        assert_same(personal(loop), wanted, 1e-7)


def test_a_client_s_context_is_that_of_its_own_classes():
    with float64():
        loop = play("gpfl", tiny(), rounds=1)
        shares = loop.engine.states[0].gather(list(range(5))).shares
        for i, rows in enumerate(tiny().train):
            wanted = F.one_hot(tiny().y[rows], 3).double().mean(0)
            torch.testing.assert_close(shares[i], wanted)


def test_groups_that_name_things_differently_have_heads_of_their_own():
    own, common = (
        play(name, tiny(8), rounds=20).evaluate()["personal", "test", "accuracy"].mean()
        for name in ("gpfl", "fedavg")
    )
    assert own > common + 0.2


def test_a_saved_network_with_a_valve_is_read_back(tmp_path):
    run = coterie.run(
        "gpfl", dataset="digits", model="dnn", rounds=1, clients=3, out=tmp_path / "r"
    )
    module = coterie.load_model(run.folder, 1)
    assert torch.isfinite(module(torch.zeros(2, 64))).all()
    assert module.head.context.abs().sum() > 0
