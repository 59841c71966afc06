"""Laws of Fed-RoD: the generic part is FedAvg's with balanced classes, the personal head stands on
top of it and moves nothing but itself.
"""

import torch
from torch import nn

from coterie.core.method import Train
from helpers.federations import assert_same, float64, given, personal, play, tiny, tiny_model

WHOLE = Train(batch_size=1000, lr=0.1, local_epochs=2, momentum=0.5)


def test_without_balance_the_generic_part_is_fedavg():
    with float64():
        loop = play("fedrod", rounds=3, train=WHOLE, options={"gamma": 0})
        assert_same(personal(loop, "global"), personal(play("fedavg", rounds=3, train=WHOLE)))


def test_a_client_with_equally_many_rows_of_each_class_is_not_balanced():
    with float64():
        x, y = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
        found = [
            personal(play("fedrod", given([(x, y)]), train=WHOLE, options={"gamma": gamma}))
            for gamma in (0, 1)
        ]
        assert_same(*found)


def test_both_heads_descend_on_their_own_loss():
    """One client, all rows a step: the balanced softmax moves body and generic head, the plain loss
    of the sum the personal head alone.
    """
    with float64():
        federation, model = tiny(clients=1), tiny_model()
        loop = play("fedrod", federation, [model], 2, train=WHOLE)
        start = play("fedrod", federation, [model], until=0, train=WHOLE).position.server.w
        module, own = model.module(start), nn.Linear(5, 3)
        nn.init.zeros_(own.weight), nn.init.zeros_(own.bias)
        x, y = federation.x[federation.train[0]], federation.y[federation.train[0]]
        prior = torch.bincount(y, minlength=3).double()
        assert len(prior.unique()) > 1
        for _ in range(2):
            moves = [
                torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.5) for part in (module, own)
            ]
            for _ in range(2):
                z = module[:2](x)
                generic = module[2](z)
                odds = prior * generic.exp()
                loss = -(odds.gather(1, y[:, None])[:, 0] / odds.sum(1)).log().mean()
                both = generic.detach() + own(z.detach())
                for move in moves:
                    move.zero_grad()
                (loss + nn.functional.cross_entropy(both, y)).backward()
                for move in moves:
                    move.step()
        generic = [p.detach().flatten() for p in module.parameters()]
        assert_same(personal(loop, "global"), {0: torch.cat(generic)})
        sums = [*generic[:2], generic[2] + own.weight.flatten(), generic[3] + own.bias]
        assert_same(personal(loop), {0: torch.cat(sums).detach()})


def test_a_class_that_a_client_does_not_have_is_not_unlearned():
    """The balanced softmax leaves it out: its output's weights stay where they were."""
    with float64():
        x, y = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2
        federation, model = given([(x, y)]), tiny_model()
        start = play("fedrod", federation, [model], until=0).position.server.w.params
        after = play("fedrod", federation, [model]).position.server.w.params
        torch.testing.assert_close(after["2.weight"][2], start["2.weight"][2])
        assert not torch.allclose(after["2.weight"][0], start["2.weight"][0])
