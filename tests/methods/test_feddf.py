"""Laws of FedDF and pFedDF."""

import numpy as np
import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.core.model import Model, kl
from coterie.core.point import flatten, mean, pick, stack
from coterie.core.tree import load_tree, save_tree
from coterie.methods.feddf import DistillationBudget, distil, ensemble, feddf, pfeddf
from coterie.networks.registry import build_network
from helpers.federations import (
    SEQUENTIAL,
    assert_same,
    float64,
    personal,
    play,
    tiny,
    tiny_model,
    watched,
)

OFF = {"distil_steps": 0}
LONG = {"draw": 24, "public_batch_size": 8, "distil_steps": 150, "patience": 150, "distil_lr": 0.01}


def pair():
    return [tiny_model(5), tiny_model(8)]


def one(point):
    return flatten(stack([point]))[0]


@pytest.mark.parametrize(
    "schedule", [{}, {"participation": 0.6, "dropout_clients": 0.2}], ids=["everyone", "sampled"]
)
def test_without_distillation_it_is_fedavg(schedule):
    with float64():
        mine = play("feddf", rounds=3, options=OFF, **schedule)
        assert_same(personal(mine), personal(play("fedavg", rounds=3, **schedule)))


def test_without_distillation_each_architecture_is_averaged_alone():
    with float64():
        loop, [(sent, replies, _)] = watched("feddf", models=pair(), options=OFF)
        assert [g.architecture for g in replies.groups] == [0, 1]
        for a, group in enumerate(replies.groups):
            assert group.ids.tolist() == [i for i in range(5) if i % 2 == a]
            wanted = mean(group.upload, group.weights)
            torch.testing.assert_close(loop.position.server.prototypes[a].params, wanted.params)
            assert sent[a].params.keys() == wanted.params.keys()


def test_the_target_is_the_softmax_of_the_mean_logits_of_all_models():
    with float64():
        _, [(_, replies, _)] = watched("feddf", models=pair())
        x = replies.public.x
        logits = [
            g.model.module(pick(g.upload, k))(x).detach()
            for g in replies.groups
            for k in range(len(g.ids))
        ]
        assert len(logits) == 5
        torch.testing.assert_close(ensemble(replies, replies.public), (sum(logits) / 5).softmax(-1))


def test_both_architectures_come_near_to_the_ensemble():
    with float64():
        federation = tiny(public=60)
        options = LONG | {"draw": 60}
        loop, [(_, replies, _)] = watched(
            "feddf", federation=federation, models=pair(), options=options
        )
        target = ensemble(replies, replies.public)
        for a, group in enumerate(replies.groups):
            gaps = []
            for w in (mean(group.upload, group.weights), loop.position.server.prototypes[a]):
                gaps.append(
                    float(kl(target, group.model.logits(w, replies.public), replies.public))
                )
            assert gaps[1] < 0.3 * gaps[0]
        noted = loop.server_notes()
        assert (noted["kl_after"] < 0.5 * noted["kl_before"]).all()


def test_knowledge_crosses_architectures():
    """A prototype none of whose clients has seen a class learns it from the other architecture."""
    federation = tiny(6, groups=1, public=100)
    train = [
        rows[federation.y[rows].numpy() != 2] if i % 2 == 0 else rows
        for i, rows in enumerate(federation.train)
    ]
    federation = federation._replace(train=train)
    rows = np.concatenate(federation.test)
    rows = rows[federation.y[rows].numpy() == 2]
    found = {}
    for steps in (0, 60):
        options = LONG | {"draw": 100, "public_batch_size": 64, "distil_steps": steps}
        loop = play("feddf", federation, pair(), rounds=5, options=options)
        module = loop.engine.models[0].module(loop.position.server.prototypes[0])
        found[steps] = float((module(federation.x[rows]).argmax(-1) == 2).float().mean())
    assert found[0] < 0.2
    assert found[60] > 0.6


def test_the_held_out_rows_choose_the_step():
    """A rate that ruins the student: the start is kept, and the search ends when patience does."""
    with float64():
        _, [(_, replies, _)] = watched("feddf", options=OFF)
        model, public = tiny_model(), replies.public
        target = ensemble(replies, public)
        w = mean(replies.upload, replies.weights)
        seen = []

        def grad(*arguments):
            seen.append(1)
            return Model.grad(model, *arguments)

        model.grad = grad
        budget = DistillationBudget(batch=8, steps=500, patience=40, rate=50.0, held=0.25, clip=5.0)
        best, gaps = distil(model, w, public, target, budget, np.random.default_rng(0))
        assert torch.equal(one(best), one(w))
        assert gaps[0] == gaps[1]
        assert len(seen) == 40
        better, gaps = distil(
            model, w, public, target, budget._replace(rate=1e-3), np.random.default_rng(0)
        )
        assert gaps[1] < gaps[0]
        torch.testing.assert_close(
            one(w), one(mean(replies.upload, replies.weights))
        )  # the start is not written over
        assert not torch.equal(one(better), one(w))


def test_an_architecture_without_answers_keeps_its_prototype():
    with float64():
        loop, [(_, replies, _)] = watched("feddf", models=pair(), participation=1.0 / 5)
        [group] = replies.groups
        before = play("feddf", models=pair(), until=0).position.server
        silent = 1 - group.architecture
        assert torch.equal(
            one(loop.position.server.prototypes[silent]), one(before.prototypes[silent])
        )


@pytest.mark.parametrize("name", ["feddf", "pfeddf"])
def test_mixed_architectures_run_alike_on_both_paths(name, tmp_path):
    with float64():
        models = [tiny_model(5), tiny_model(4, norm=True, dropout=0.2)]
        loop = play(name, models=models, rounds=3)
        assert_same(
            personal(loop), personal(play(name, models=models, rounds=3, settings=SEQUENTIAL))
        )
        save_tree(loop.position.server, tmp_path, "server")
        back = load_tree(tmp_path, "server")
        assert torch.equal(one(back.prototypes[1]), one(loop.position.server.prototypes[1]))


def test_clients_send_models_and_never_touch_public_rows():
    _, [(_, _, traffic)] = watched("feddf")
    model = tiny_model()
    assert traffic.up == traffic.down == 5 * 4 * model.size
    with float64():
        wild = tiny()._replace(public=tiny().public._replace(x=tiny().public.x + 1e3))
        assert_same(
            personal(play("feddf", options=OFF)), personal(play("feddf", wild, options=OFF))
        )


def test_pfeddf_is_fine_tuned_feddf():
    with float64():
        options = OFF | {"tune_epochs": 5}
        assert_same(
            personal(play("pfeddf", options=options)),
            personal(play("finetune", options={"tune_epochs": 5})),
        )
        plain, tuned = play("feddf", rounds=3), play("pfeddf", rounds=3)
        torch.testing.assert_close(
            plain.position.server.prototypes[0].params, tuned.position.server.prototypes[0].params
        )
        losses = [loop.evaluate()["personal", "train", "loss"].mean() for loop in (plain, tuned)]
        assert losses[1] < losses[0]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"draw": 1}, "draw = 1"),
        ({"distil_steps": -1}, "distil_steps = -1"),
        ({"held": 1.0}, "held = 1"),
        ({"patience": 0}, "patience = 0"),
        ({"distil_lr": 0.0}, "distil_lr = 0"),
    ],
    ids=str,
)
def test_bad_options_are_refused_in_one_line(options, line):
    with pytest.raises(BadInput, match=line):
        feddf(tiny_model(), Train(), **options)


def test_what_it_needs_is_said():
    with pytest.raises(BadInput, match="public"):
        play("feddf", tiny(public=0))
    with pytest.raises(BadInput, match="20 public rows per round, 'tiny' has 12"):
        play("feddf", tiny(public=12))
    with pytest.raises(BadInput, match="class probabilities"):
        feddf(Model(lambda: build_network("mean", (6,), 1), "squared", "mean"), Train())
    with pytest.raises(BadInput, match="tune_epochs = 0"):
        pfeddf(tiny_model(), Train(), tune_epochs=0)
