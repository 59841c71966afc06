"""Laws of FedBABU: the head of the start stays until it is fine-tuned, the body is FedAvg's."""

import pytest
import torch
from torch import nn

from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.core.point import split
from coterie.methods.registry import METHODS
from helpers.federations import TRAIN, assert_same, float64, personal, play, tiny, tiny_model

MOMENTUM = TRAIN._replace(momentum=0.9, weight_decay=0.01)
BODY = 5 * 7  # numbers of the tiny network's body, which come first


def test_without_fine_tuning_all_have_the_head_of_the_start():
    model = tiny_model()
    loop = play("fedbabu", models=[model], train=MOMENTUM, options={"tune_epochs": 0})
    start = model.start(int(loop.position.server.seed))
    head = split(start, model.head(1))[0]
    wanted = torch.cat([a.flatten() for a in head.params.values()])
    for found in (personal(loop), personal(loop, "global")):
        for w in found.values():
            torch.testing.assert_close(w[BODY:], wanted, rtol=0, atol=0)
            assert not torch.equal(
                w[:BODY], torch.cat([a.flatten() for a in start.params.values()])[:BODY]
            )


def test_the_body_descends_under_the_head_of_the_start_and_the_head_is_tuned_after():
    """One client, all rows a step: two steps on the body, then three on the head."""
    with float64():
        federation, model = tiny(clients=1), tiny_model()
        train = Train(batch_size=1000, lr=0.1, local_epochs=2, momentum=0.5)
        loop = play("fedbabu", federation, [model], 1, train=train, options={"tune_epochs": 3})
        module = model.module(model.start(int(loop.position.server.seed)))
        x, y = federation.x[federation.train[0]], federation.y[federation.train[0]]
        for part, steps in ((module[0], 2), (module[2], 3)):
            optimizer = torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.5)
            for _ in range(steps):
                module.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                optimizer.step()
        assert_same(personal(loop), {0: torch.cat([p.flatten() for p in module.parameters()])})


@pytest.mark.parametrize(
    ("tune", "moved"), [("head", (False, True)), ("body", (True, False)), ("full", (True, True))]
)
def test_only_the_named_part_is_tuned(tune, moved):
    loop = play("fedbabu", options={"tune": tune})
    before, after = personal(loop, "global")[0], personal(loop)[0]
    parts = (slice(None, BODY), slice(BODY, None))
    assert tuple(not torch.equal(before[part], after[part]) for part in parts) == moved


def test_fine_tuning_changes_nothing_of_what_is_shared():
    with float64():
        tuned, plain = play("fedbabu"), play("fedbabu", options={"tune_epochs": 0})
        personal(tuned)
        assert_same(personal(tuned, "global"), personal(plain))


def test_there_must_be_a_head():
    with pytest.raises(BadInput, match=r"fedbabu\.head = 0, but tiny-5 has 2 layers"):
        METHODS["fedbabu"](tiny_model(), TRAIN, head=0)
