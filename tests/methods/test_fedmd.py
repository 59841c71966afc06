"""FedMD: everyone is taught by the mean of all."""

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.errors import BadInput
from coterie.core.method import Stage
from coterie.core.point import pick
from coterie.methods.local import local
from coterie.methods.registry import METHODS
from helpers.federations import (
    OPTIONS,
    SEQUENTIAL,
    TRAIN,
    assert_same,
    float64,
    personal,
    play,
    tiny,
    tiny_model,
    watched,
)

DRAW = OPTIONS["fedmd"]["draw"]


def state(loop, i):
    return pick(loop.engine.states[0].gather([i]), 0)


@pytest.mark.parametrize("match", ["soft", "logits"])
def test_the_target_is_the_equal_mean_of_all_outputs(match):
    with float64():
        model = tiny_model()
        loop, ((_, first, _), (sent, _, _)) = watched(
            "fedmd", models=[model], options={"match": match, "temperature": 3.0}
        )
        outputs = torch.stack([model.logits(state(loop, i).before, first.public) for i in range(5)])
        if match == "soft":
            outputs = torch.softmax(outputs / 3, -1)
        torch.testing.assert_close(first.upload, outputs)
        for i in range(5):
            torch.testing.assert_close(sent[i], outputs.mean(0))


@pytest.mark.parametrize("match", ["soft", "logits"])
def test_distillation_is_a_plain_step_on_the_distance(match):
    with float64():
        model = tiny_model()
        options = {
            "match": match,
            "public_batch_size": DRAW,
            "temperature": 3.0,
            "lam": 0.5,
            "T2_scale": False,
            "distil_lr": 0.2,
            "distil_epochs": 1,
        }
        loop, ((_, first, _), (sent, _, _)) = watched("fedmd", models=[model], options=options)
        for i in range(5):
            module = model.module(state(loop, i).before)
            logits = module(first.public.x)
            if match == "soft":
                loss = nn.functional.kl_div(
                    torch.log_softmax(logits / 3, -1), sent[i], reduction="batchmean"
                )
            else:
                loss = nn.functional.l1_loss(logits, sent[i])
            (0.5 * loss).backward()
            for name, p in module.named_parameters():
                torch.testing.assert_close(
                    state(loop, i).w.params[name], (p - 0.2 * p.grad).detach()
                )


def test_logits_come_nearer_to_their_mean():
    loop = play("fedmd", rounds=3, options={"match": "logits", "distil_epochs": 3})
    notes = loop.engine.client_notes(loop.everyone)
    assert np.mean(list(notes["mae_after"].values())) < 0.8 * np.mean(
        list(notes["mae_before"].values())
    )


def test_logits_of_three_architectures_agree_on_both_paths():
    with float64():
        models = [tiny_model(5), tiny_model(7, norm=True), tiny_model(3)]
        options = {"match": "logits"}
        stacked = play("fedmd", tiny(7), models, rounds=3, options=options, participation=5)
        assert_same(
            personal(stacked),
            personal(
                play("fedmd", tiny(7), models, 3, SEQUENTIAL, options=options, participation=5)
            ),
        )


def test_one_target_is_broadcast_to_all():
    loop, trips = watched("fedmd")
    size = DRAW * 3 * 4
    assert sum(t.up for _, _, t in trips) == 5 * size
    assert sum(t.down for _, _, t in trips) == 5 * (size + 8)
    assert sum(t.broadcast for _, _, t in trips) == size + 8
    assert loop.position.server.said.shape == (DRAW, 3)  # kept for newcomers


def test_pretraining_is_private_training_of_everyone():
    with float64():
        early = play("fedmd", options={"pretrain": 3}, until=1, participation=2)
        alone = play(
            lambda model, train: (
                Stage("pretrain", local(model, train._replace(local_epochs=3)), 1, everyone=True),
            )
        )
        assert_same(personal(early), personal(alone))
        late = play("fedmd", options={"pretrain": 3}, rounds=2)
        assert late.done == 3
        assert_same(
            personal(late),
            personal(play("fedmd", options={"pretrain": 3}, rounds=2, settings=SEQUENTIAL)),
        )


@pytest.mark.parametrize(
    "options",
    [{"match": "logit"}, {"pretrain": -1}, {"temperature": 0.0}, {"match": "logits", "lam": -1.0}],
)
def test_bad_options_are_refused_by_name(options):
    with pytest.raises(BadInput, match=list(options)[-1]):
        METHODS["fedmd"](tiny_model(), TRAIN, **options)
