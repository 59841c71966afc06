"""Laws of FedAS: bodies are aligned with a client's features, and averaged by Fisher's trace."""

import torch
from torch import nn

from coterie.core.method import Train
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model, watched

WHOLE = Train(batch_size=1000, lr=0.1, local_epochs=2, momentum=0.5)


def test_one_client_without_alignment_is_fedper():
    with float64():
        federation = tiny(clients=1)
        loop = play("fedas", federation, rounds=3, train=WHOLE, options={"align_epochs": 0})
        assert_same(personal(loop), personal(play("fedper", federation, rounds=3, train=WHOLE)))


def test_the_body_is_aligned_class_by_class_with_the_last_model():
    """What is used after two rounds: the averaged body, three steps towards the class means."""
    with float64():
        federation, model = tiny(), tiny_model()
        options = {"align_epochs": 3, "lr_align": 0.2}
        loop = play("fedas", federation, [model], train=WHOLE, options=options)
        states, server = loop.engine.states[0], loop.position.server
        for i, rows in enumerate(federation.train):
            x, y = federation.x[rows], federation.y[rows]
            last = model.module(pick_state(states, i))
            means = {int(j): last[:2](x[y == j]).mean(0).detach() for j in y.unique()}
            used = model.module(pick_state(states, i))
            with torch.no_grad():
                used[0].weight.copy_(server.base.params["0.weight"])
                used[0].bias.copy_(server.base.params["0.bias"])
            move = torch.optim.SGD(used[0].parameters(), lr=0.2)
            for _ in range(3):
                z = used[:2](x)
                loss = sum(
                    nn.functional.mse_loss(z[y == j], m.expand_as(z[y == j]))
                    for j, m in means.items()
                )
                move.zero_grad()
                loss.backward()
                move.step()
            wanted = torch.cat([p.detach().flatten() for p in used.parameters()])
            torch.testing.assert_close(personal(loop)[i], wanted, rtol=1e-9, atol=1e-9)


def pick_state(states, i):
    stacked = states.gather([i])
    return type(stacked)({k: a[0] for k, a in stacked.params.items()})


def test_bodies_are_averaged_by_the_trace_of_fishers_matrix():
    """The trace is the sum over batches of the squared gradient under the trained model."""
    with float64():
        federation, model = tiny(), tiny_model()
        train = Train(batch_size=1000, lr=0.1, local_epochs=2)
        loop, trips = watched("fedas", federation=federation, models=[model], train=train)
        body, trace = trips[0][1].upload
        for i, rows in enumerate(federation.train):
            module = model.module(pick_state(loop.engine.states[0], i))
            nn.functional.cross_entropy(module(federation.x[rows]), federation.y[rows]).backward()
            wanted = sum(p.grad.square().sum() for p in module.parameters())
            torch.testing.assert_close(trace[i], wanted)
        assert trace.max() > 1.5 * trace.min()
        for k, stacked in body.params.items():
            mean = torch.tensordot(trace / trace.sum(), stacked, 1)
            torch.testing.assert_close(loop.position.server.base.params[k], mean)


def test_heads_never_travel():
    _, trips = watched("fedas")
    body, trace = trips[0][1].upload
    assert set(body.params) == {"0.weight", "0.bias"}
    assert trace.shape == (5,)
