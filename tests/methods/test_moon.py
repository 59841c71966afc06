"""Laws of MOON: FedAvg without its term and in a client's first round; then a step descends on the
contrast of the features with the received model's and the client's last.
"""

import pytest
import torch
from torch import nn

from coterie.core.method import Train
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model

WHOLE = Train(batch_size=1000, lr=0.1, local_epochs=3, momentum=0.5)


def test_without_its_term_it_is_fedavg():
    with float64():
        loop = play("moon", rounds=3, train=WHOLE, options={"mu": 0})
        assert_same(personal(loop), personal(play("fedavg", rounds=3, train=WHOLE)))


def test_the_first_round_is_fedavg():
    with float64():
        plain = [personal(play("fedavg", rounds=n, train=WHOLE)) for n in (1, 2)]
        found = [personal(play("moon", rounds=n, train=WHOLE)) for n in (1, 2)]
        assert_same(found[0], plain[0])
        assert (found[1][0] - plain[1][0]).abs().max() > 1e-4


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_a_second_round_descends_on_the_contrast(tau):
    """Every client by torch's own autograd, from the server of the first round and the client's
    last model; the server averages by rows.
    """
    with float64():
        federation, model = tiny(), tiny_model()
        first = play("moon", federation, [model], 2, train=WHOLE, until=1)
        w, last = first.position.server.w, first.engine.states[0].gather(list(range(5)))
        total, rows = 0.0, sum(map(len, federation.train))
        for i, mine in enumerate(federation.train):
            x, y = federation.x[mine], federation.y[mine]
            own = model.build()
            own.load_state_dict({k: a[i] for k, a in last.params.items()})
            received, module = model.module(w), model.module(w)
            move = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
            for _ in range(3):
                z = module[:2](x)
                near, far = (
                    (nn.functional.cosine_similarity(z, net[:2](x).detach()) / tau).exp()
                    for net in (received, own)
                )
                loss = nn.functional.cross_entropy(module[2](z), y)
                move.zero_grad()
                (loss - 3.0 * (near / (near + far)).log().mean()).backward()
                move.step()
            flat = torch.cat([p.detach().flatten() for p in module.parameters()])
            total = total + len(mine) / rows * flat
        options = {"mu": 3.0, "tau": tau}
        loop = play("moon", federation, [model], 2, train=WHOLE, options=options)
        assert_same(personal(loop), dict.fromkeys(range(5), total), 1e-8)


def test_a_client_keeps_what_it_trained_last():
    """Not what the server made of it; a client that was not asked keeps its older one."""
    with float64():
        loop = play("moon", rounds=1, train=WHOLE, until=1, participation=0.4)
        asked, states = loop.engine.states[0].everything()
        assert 0 < len(asked) < 5
        flat = torch.cat([a.flatten(1) for a in states.params.values()], 1)
        sizes = torch.as_tensor(loop.federation.sizes, dtype=flat.dtype)[asked]
        torch.testing.assert_close(personal(loop)[0], (sizes / sizes.sum()) @ flat)


def test_features_of_zero_have_a_gradient():
    """Rows that no ReLU lets through."""
    federation = tiny()
    model = tiny_model()

    def dead():
        net = model.build()
        nn.init.constant_(net[0].bias, -1e3)
        return net

    loop = play("moon", federation, [type(model)(dead, name="dead")], 3)
    assert all(torch.isfinite(w).all() for w in personal(loop).values())
