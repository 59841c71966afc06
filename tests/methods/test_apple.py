"""Laws of APPLE: clients descend on their core model and on what they take of each, fixed
relationships are FedAvg, and the hold of the first rounds fades.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from coterie.core.method import Train
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model

WHOLE = Train(batch_size=1000, lr=0.1, local_steps=2, momentum=0.5)


def test_with_relationships_that_do_not_move_single_steps_are_fedavg():
    """v_i = mean_j w_j of all clients, and N p_ii = 1 of a gradient goes into each w_j."""
    with float64():
        train = WHOLE._replace(local_steps=1, weighting="equal")
        loop = play("apple", rounds=4, train=train, options={"lr_p": 0})
        assert_same(personal(loop), personal(play("fedavg", rounds=4, train=train)))


def test_a_client_without_others_trains_alone():
    with float64():
        one = tiny(clients=1)
        loop = play("apple", one, rounds=3, train=WHOLE, options={"lr_p": 0})
        assert_same(personal(loop), personal(play("local", one, rounds=3, train=WHOLE)))


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_two_rounds_are_steps_of_autograd_on_core_models_and_relationships(scale):
    """The same with plain tensors: SGD on w_i and p_i of f_i(sum_j p_ij w_j) + the hold on p_i."""
    options = {"mu": 0.7, "lr_p": 0.02, "hold_rounds": 3, "fade": "cosine", "core_scale": scale}
    with float64():
        federation, model = tiny(3), tiny_model()
        loop = play("apple", federation, [model], 2, train=WHOLE, options=options)
        start = play("apple", federation, [model], until=0, train=WHOLE).position.server
        share = torch.tensor([float(len(rows)) for rows in federation.train])
        share = share / share.sum()
        cores = [{k: a[i].clone() for k, a in start.models.params.items()} for i in range(3)]
        p = [share.clone() for _ in range(3)]
        module = model.module(model.start(0))

        def mix(p_i, all_cores):
            return {k: sum(p_i[j] * all_cores[j][k] for j in range(3)) for k in cores[0]}

        for fading in (1.0, 0.75):  # (1 + cos(pi r / 3)) / 2
            after = []
            for i, rows in enumerate(federation.train):
                own = {k: a.clone().requires_grad_() for k, a in cores[i].items()}
                mine = p[i].clone().requires_grad_()
                move = torch.optim.SGD(own.values(), lr=0.1 * (scale or 3), momentum=0.5)
                move_p = torch.optim.SGD([mine], lr=0.02, momentum=0.5)
                for _ in range(2):
                    v = mix(mine, [*cores[:i], own, *cores[i + 1 :]])
                    out = functional_call(module, v, (federation.x[rows],))
                    loss = F.cross_entropy(out, federation.y[rows])
                    loss = loss + fading * 0.7 / 2 * (mine - share).square().sum()
                    move.zero_grad(), move_p.zero_grad()
                    loss.backward()
                    move.step(), move_p.step()
                after.append({k: a.detach() for k, a in own.items()})
                p[i] = mine.detach()
            cores = after
        wanted = {i: torch.cat([a.flatten() for a in mix(p[i], cores).values()]) for i in range(3)}
        assert_same(personal(loop), wanted)
        assert all((row - share).abs().max() > 1e-3 for row in p)


@pytest.mark.parametrize(
    ("fade", "wanted"), [("cosine", [1, 0.75, 0.25, 0, 0]), ("exponential", [1, 0.1, 0.01, 0, 0])]
)
def test_the_hold_fades_over_its_rounds(fade, wanted):
    options = {"hold_rounds": 3, "fade": fade}
    found = [
        float(play("apple", rounds=5, until=r, options=options).position.server.hold)
        for r in range(5)
    ]
    assert found == pytest.approx(wanted)
    assert not play("apple", until=0, options={"hold_rounds": 0}).position.server.hold


def test_a_held_client_stays_at_the_shares_of_rows():
    """The stronger the hold, the less p moves."""
    moves = []
    for mu in (0.0, 10.0):
        loop = play("apple", rounds=3, options={"mu": mu, "lr_p": 0.05, "hold_rounds": 99})
        p = loop.engine.states[0].everything()[1].p.params
        share = loop.position.server.share
        moves.append(float((p["others"] + torch.diag(p["own"]) - share).abs().max()))
    assert moves[1] < 0.5 * moves[0]


def test_a_client_that_comes_later_takes_from_the_others_and_gives_nothing():
    federation = tiny(6)
    parts = ("train", "validation", "test", "names")
    short = federation._replace(
        **{part: getattr(federation, part)[:5] for part in parts}, groups=federation.groups[:5]
    )
    loop = play("apple", short, rounds=6, until=2)
    loop.admit(federation)
    before = loop.position.server
    loop.go(until=4)
    after = loop.position.server
    assert len(after.share) == 5
    assert not torch.equal(after.models.params["0.weight"], before.models.params["0.weight"])
    own = loop.engine.states[0].gather([5])
    assert own.p.params["others"].shape == (1, 5)
    total = own.p.params["own"] + own.p.params["others"].sum()
    assert 0.5 < float(total) < 1.5
    assert torch.isfinite(personal(loop)[5]).all()
