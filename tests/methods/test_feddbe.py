"""Laws of FedDBE: the mean of the first round, the bias at home, the term that holds the body."""

import torch
from torch import nn

from coterie.core.method import Train
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model

WHOLE = Train(batch_size=1000, lr=0.1, local_epochs=2, momentum=0.5)


def test_the_common_mean_is_that_of_fedavgs_first_round_by_rows():
    """The first round trains as FedAvg, throws the networks away and keeps the mean features."""
    with float64():
        federation, model = tiny(), tiny_model()
        before = play("feddbe", federation, [model], until=0, train=WHOLE).position.server
        after = play("feddbe", federation, [model], until=1, train=WHOLE).position.server
        assert all(torch.equal(before.w.params[k], a) for k, a in after.w.params.items())
        found = []
        for rows in federation.train:
            module = model.module(before.w)
            move = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
            for _ in range(2):
                z = module[:2](federation.x[rows])
                move.zero_grad()
                nn.functional.cross_entropy(module[2](z), federation.y[rows]).backward()
                move.step()
            found.append(len(rows) * z.mean(0).detach())
        rows = sum(map(len, federation.train))
        torch.testing.assert_close(after.mean, sum(found) / rows, rtol=1e-9, atol=1e-12)


def test_a_step_descends_on_the_shifted_features_and_the_running_mean():
    with float64():
        federation, model = tiny(clients=1), tiny_model()
        options = {"kappa": 2.0, "mu": 0.3}
        first = play("feddbe", federation, [model], until=1, train=WHOLE, options=options)
        start, mean = first.position.server
        loop = play("feddbe", federation, [model], 1, train=WHOLE, options=options)
        x, y = federation.x[federation.train[0]], federation.y[federation.train[0]]
        module, bias = model.module(start), torch.zeros(5, requires_grad=True)
        move = torch.optim.SGD([*module.parameters(), bias], lr=0.1, momentum=0.5)
        running = torch.zeros(5)
        for _ in range(2):
            z = module[:2](x)
            running = 0.7 * running.detach() + 0.3 * z.mean(0)
            loss = nn.functional.cross_entropy(module[2](z + bias), y)
            move.zero_grad()
            (loss + 2.0 / 2 * (running - mean).square().sum() / 5).backward()
            move.step()
        wanted = [p.detach().flatten() for p in module.parameters()]
        assert_same(personal(loop, "global"), {0: torch.cat(wanted)})
        shifted = torch.cat([*wanted[:3], wanted[3] + module[2].weight @ bias]).detach()
        assert_same(personal(loop), {0: shifted})
        torch.testing.assert_close(
            loop.engine.states[0].gather([0]).params["b"][0], bias.detach(), rtol=1e-9, atol=1e-12
        )


def test_what_is_used_is_the_head_on_the_shifted_features():
    loop, model = play("feddbe"), tiny_model()
    state = loop.engine.states[0].gather([3]).params["b"][0]
    module, x = model.module(loop.position.server.w), torch.randn(4, 6)
    flat, parts = personal(loop)[3], []
    for name, shape in model.shapes.items():
        size = torch.Size(shape).numel()
        parts.append((name, flat[:size].reshape(shape)))
        flat = flat[size:]
    own = model.build()
    own.load_state_dict(dict(parts))
    torch.testing.assert_close(own(x), module[2](module[:2](x) + state))


def test_the_bias_never_travels():
    loop, size = play("feddbe"), tiny_model().size
    up, down = (
        {r["round"]: r["value"] for r in loop.table.whole().to_pylist() if r["metric"] == metric}
        for metric in ("bytes_up", "bytes_down")
    )
    assert up == {1: 5 * 4 * 5, 2: 5 * 4 * size, 3: 5 * 4 * size}
    assert set(down.values()) == {5 * 4 * (size + 5)}
