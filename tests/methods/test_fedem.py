"""Laws of FedEM: one component is FedAvg, a round is expectation and maximization in plain torch,
and a client says what its mixture of probabilities says.
"""

import pytest
import torch
import torch.nn.functional as F

import coterie
from coterie.core.method import Batch, Train
from coterie.core.model import Model
from coterie.core.point import pick
from coterie.methods.components import join_networks
from coterie.methods.fedem import fedem
from coterie.networks.assembled import assemble_model
from coterie.networks.probabilities import mix_classes
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model

WHOLE = Train(batch_size=1000, lr=0.1, local_steps=2, momentum=0.5)


def test_one_component_is_fedavg():
    with float64():
        found = personal(play("fedem", rounds=3, train=WHOLE, options={"components": 1}))
        wanted = personal(play("fedavg", rounds=3, train=WHOLE))
        assert_same({i: w[:-1] for i, w in found.items()}, wanted)  # the last is the share
        assert all(w[-1] == 1 for w in found.values())


def test_two_rounds_are_expectation_and_maximization_in_plain_torch():
    with float64():
        federation, model = tiny(3), tiny_model()
        options = {"components": 2}
        start = play("fedem", federation, [model], until=0, train=WHOLE, options=options)
        common = [pick(start.position.server.w, m) for m in range(2)]
        pi = [torch.full((2,), 0.5) for _ in range(3)]
        rows = sum(map(len, federation.train))
        for _ in range(2):
            sums = [0.0, 0.0]
            for i, mine in enumerate(federation.train):
                x, y = federation.x[mine], federation.y[mine]
                nets = [model.module(w) for w in common]
                losses = torch.stack([F.cross_entropy(n(x), y, reduction="none") for n in nets])
                joint = pi[i][:, None] * (-losses.detach()).exp()
                q = joint / joint.sum(0)
                pi[i] = q.mean(1)
                for m, net in enumerate(nets):
                    move = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
                    for _ in range(2):
                        move.zero_grad()
                        (q[m] * F.cross_entropy(net(x), y, reduction="none")).mean().backward()
                        move.step()
                    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
                    sums[m] = sums[m] + len(mine) / rows * flat
            common = [model.point(fill(model, flat)) for flat in sums]
        wanted = {i: torch.cat([*sums, pi[i]]) for i in range(3)}
        loop = play("fedem", federation, [model], 2, train=WHOLE, options=options)
        assert_same(personal(loop), wanted)
        assert all((share - 0.5).abs().max() > 1e-4 for share in pi)


def fill(model, flat):
    module = model.build()
    torch.nn.utils.vector_to_parameters(flat, module.parameters())
    return module


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_mixture_says_the_mean_of_probabilities(outputs):
    with float64():
        model = Model(lambda: torch.nn.Linear(4, outputs), "binary" if outputs == 1 else "classes")
        whole = assemble_model(model, "mixture:components=2")
        both = [model.start(seed) for seed in (1, 2)]
        stacked = coterie.core.point.stack(both)
        x, shares = torch.randn(5, 4), torch.tensor([0.3, 0.7])
        y = torch.zeros(5, dtype=torch.long)
        batch = Batch(x, y, torch.ones(5), torch.arange(5), torch.tensor(0))
        wanted = sum(s * model.chances(w, batch) for s, w in zip(shares, both, strict=True))
        found = whole.chances(join_networks(shares, stacked), batch)
        torch.testing.assert_close(found, wanted)


def test_a_share_of_0_counts_as_nothing():
    outputs = torch.tensor([[[2.0, 1.0]], [[-5.0, 4.0]]])
    found = mix_classes(outputs, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(found.softmax(-1), outputs[0].softmax(-1))


def test_groups_that_contradict_each_other_take_other_components():
    """Two groups whose labels are turned round: clients of one group have the same component."""
    federation = tiny(6)._replace(x=tiny(6).x * 2)
    loop = play("fedem", federation, rounds=40, options={"components": 2}, seed=1)
    shares = loop.engine.states[0].gather(list(range(6)))
    best = shares.argmax(1)
    assert all(best[i] == best[i % 2] for i in range(6))
    assert best[0] != best[1]
    both = play("fedavg", federation, rounds=40, seed=1).evaluate()["personal", "train", "loss"]
    assert loop.evaluate()["personal", "train", "loss"].mean() < 0.1 * both.mean()


def test_a_newcomer_learns_its_shares_alone():
    method = fedem(tiny_model(), Train())
    (alone,) = method.newcomer.round
    assert [one.plan.part for one in alone.passes] == ["train"]
    assert alone.passes[0] == method.round[0].passes[0]


def test_a_saved_mixture_is_read_back(tmp_path):
    run = coterie.run(
        "fedem", dataset="digits", model="dnn", rounds=1, clients=3, out=tmp_path / "run"
    )
    module = coterie.load_model(run.folder, 0)
    assert module.shares.sum() == pytest.approx(1)
    assert len(module.nets) == 3
