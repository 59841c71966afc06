"""Laws of FedKD: mentor and mentee by plain torch, its limits, and updates of low rank."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.core.model import Model
from coterie.core.point import Vector, pick
from coterie.methods.fedkd import fedkd
from coterie.methods.low_rank import truncate
from coterie.networks.registry import build_network
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model

WHOLE = Train(batch_size=1000, lr=0.1, local_steps=2, momentum=0.5)
ALL = {"energy": 1.0, "energy_end": 1.0}


def update(*shapes):
    rng = torch.Generator().manual_seed(0)
    return Vector({str(k): torch.randn(shape, generator=rng) for k, shape in enumerate(shapes)})


def test_by_labels_alone_and_with_all_energy_it_is_fedavg_and_local_side_by_side():
    with float64():
        options = {"distil": 0.0, "features": 0.0, **ALL}
        loop = play("fedkd", rounds=3, train=WHOLE, options=options)
        assert_same(personal(loop), personal(play("local", rounds=3, train=WHOLE)))
        average = personal(play("fedavg", rounds=3, train=WHOLE))
        assert_same(personal(loop, "global"), average)


@pytest.mark.parametrize(("distil", "features"), [(1.0, 1.0), (0.3, 2.0)])
def test_a_second_round_is_that_of_plain_torch(distil, features):
    """Two networks and W on the two losses, the other's probabilities and the divisor constant;
    mentor and mentee are alike until the first mean."""
    with float64():
        federation, model = tiny(), tiny_model()
        options = {"distil": distil, "features": features, **ALL}
        first = play("fedkd", federation, [model], 2, train=WHOLE, options=options, until=1)
        loop = play("fedkd", federation, [model], 2, train=WHOLE, options=options)
        states = first.engine.states[0].gather(list(range(5)))
        total, rows, mentors = 0.0, sum(map(len, federation.train)), {}
        for i, mine in enumerate(federation.train):
            nets = (
                model.module(pick(states.mentor, i)),
                model.module(first.position.server.w),
                torch.nn.Linear(5, 5, bias=False),
            )
            nets[2].load_state_dict({"weight": states.link.params["W"][i]})
            teach(*nets, federation.x[mine], federation.y[mine], distil, features)
            flat = [torch.cat([p.detach().flatten() for p in net.parameters()]) for net in nets]
            mentors[i], total = flat[0], total + len(mine) / rows * flat[1]
            after = loop.engine.states[0].gather([i]).link.params["W"].flatten()
            torch.testing.assert_close(after, flat[2])
            assert (flat[2] - torch.eye(5).flatten()).abs().max() > 1e-6
        assert_same(personal(loop), mentors, 1e-8)
        assert_same(personal(loop, "global"), dict.fromkeys(range(5), total), 1e-8)


def teach(mentor, mentee, link, x, y, distil, features):
    """The two steps of a round on all rows, W with the mentor's loss."""
    nets = (mentor, mentee, link)
    moves = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5) for net in nets]
    for _ in range(2):
        h_t, h_s = mentor[:2](x), mentee[:2](x)
        z_t, z_s = mentor[2](h_t), mentee[2](h_s)
        task_t, task_s = F.cross_entropy(z_t, y), F.cross_entropy(z_s, y)
        divisor = (task_t + task_s).detach()
        soft_t, soft_s = F.softmax(z_t, 1).detach(), F.softmax(z_s, 1).detach()
        to_t = F.kl_div(F.log_softmax(z_t, 1), soft_s, reduction="batchmean")
        to_s = F.kl_div(F.log_softmax(z_s, 1), soft_t, reduction="batchmean")
        apart = features * F.mse_loss(h_t, link(h_s))
        loss_t = task_t + (distil * to_t + apart) / divisor
        loss_s = task_s + (distil * to_s + apart) / divisor
        of_t = torch.autograd.grad(loss_t, [*mentor.parameters(), link.weight], retain_graph=True)
        of_s = torch.autograd.grad(loss_s, list(mentee.parameters()))
        mine = [p for net in nets for p in net.parameters()]
        for p, slope in zip(mine, (*of_t[:-1], *of_s, of_t[-1]), strict=True):
            p.grad = slope
        for move in moves:
            move.step()


# Low rank


def test_a_matrix_keeps_the_fewest_singular_values_that_hold_its_energy():
    with float64():
        values = torch.tensor([3.0, 2.0, 1.0])  # energies 9, 4, 1 of 14
        left, right = (torch.linalg.qr(torch.randn(n, 3))[0] for n in (5, 4))
        matrix = left @ torch.diag(values) @ right.T
        for energy, rank in ((0.5, 1), (0.64, 1), (0.65, 2), (0.92, 2), (0.93, 3), (1.0, 3)):
            found, share = truncate(Vector({"w": matrix}), torch.tensor(energy))
            wanted = left[:, :rank] @ torch.diag(values[:rank]) @ right[:, :rank].T
            torch.testing.assert_close(found.params["w"], wanted)
            assert float(share) == pytest.approx(min(rank * (5 + 4 + 1), 20) / 20)


def test_all_energy_changes_nothing_and_less_of_it_is_less_far():
    with float64():
        given = update((7, 6), (4, 3, 2, 2), (5,))
        same, share = truncate(given, torch.tensor(1.0))
        assert float(share) == 1
        for k, a in given.params.items():
            torch.testing.assert_close(same.params[k], a)
        less, share = truncate(given, torch.tensor(0.6))
        assert float(share) < 1
        assert torch.equal(less.params["2"], given.params["2"])  # a vector
        for k in ("0", "1"):
            kept = float(less.params[k].square().sum() / given.params[k].square().sum())
            assert 0.6 <= kept < 1


def test_uploads_and_the_mean_are_of_low_rank():
    """With little energy an update of a matrix has rank 1 on its way up and on its way down."""
    with float64():
        options = {"energy": 0.01, "energy_end": 0.01}
        before = play("fedkd", until=0, options=options).position.server.w
        loop = play("fedkd", rounds=1, options=options)
        moved = loop.position.server.w - before
        for name in ("0.weight", "2.weight"):
            assert int(torch.linalg.matrix_rank(moved.params[name])) == 1
        sent = loop.engine.states[0].everything()[1].sent
        sizes = [(5, 6), (3, 5)]
        numbers = 8 + sum(m + n + 1 for m, n in sizes)
        assert float(sent[0]) == pytest.approx(numbers / 53)


def test_the_energy_grows_to_its_end():
    options = {"energy": 0.5, "energy_end": 0.9, "energy_rounds": 4}
    found = [
        float(play("fedkd", rounds=6, until=r, options=options).position.server.energy)
        for r in range(6)
    ]
    assert found == pytest.approx([0.6, 0.7, 0.8, 0.9, 0.9, 0.9])


# Another network


def test_a_larger_mentor_of_another_network_learns_beside_the_mentee():
    model = Model(lambda: build_network("dnn", (6,), 3, hidden=4), "classes", "dnn", (6,))
    options = {"auxiliary": "dnn:hidden=9"}
    early, late = (
        play("fedkd", models=[model], rounds=12, until=n, options=options).evaluate()
        for n in (0, 12)
    )
    for view in ("personal", "global"):
        assert np.mean(late[view, "train", "loss"]) < 0.8 * np.mean(early[view, "train", "loss"])


def test_what_cannot_be_cut_or_compared_is_refused_in_one_line():
    for network, task, line in (("mlr", "classes", "only one layer"),):
        with pytest.raises(BadInput, match=line):
            fedkd(Model(lambda: build_network(network, (6,), 3), task, network, (6,)), Train())
    with pytest.raises(BadInput, match=r"fedkd\.energy = 0"):
        fedkd(tiny_model(), Train(), energy=0)
