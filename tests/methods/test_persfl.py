"""Laws of PersFL: which global model becomes a client's teacher, what a student learns from it, and
which student is kept.
"""

import copy
import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from coterie.core.errors import BadInput
from coterie.core.method import BatchPlan, Train
from coterie.core.model import Model
from coterie.core.point import Point, pick
from coterie.engines.base import Moment
from coterie.engines.local import autotune
from coterie.methods.persfl import SOFT
from coterie.methods.registry import METHODS
from coterie.methods.students import Best, find_best, keep_better
from coterie.methods.teacher import GlobalModels, Tally, Teacher, adopt
from coterie.results.metric_table import values_of
from helpers.federations import TRAIN, assert_same, float64, personal, play, tiny, tiny_model

FAST = {"distil_epochs": 1, "lambdas": "0.5", "temperatures": "5"}
THESIS_GRID = {"lambdas": "0,0.25,0.5,0.75,1", "temperatures": "1,5,25"}
SWIFT = Train(batch_size=4, lr=0.6)  # validation losses rise and fall


def state(loop, client):
    return pick(loop.engine.states[0].gather([client]), 0)


def note(loop, name):
    return loop.engine.client_notes(loop.everyone)[name]


def view(loop, name):
    """A view of every client as one flat vector of parameters."""
    out = {}
    for _, chunk, views in loop.engine.points(loop.everyone, loop.payload(), loop.when()):
        rows = torch.cat([t.flatten(1) for t in views[name].params.values()], 1)
        out |= {i: rows[k] for k, i in enumerate(chunk)}
    return out


def fedavg_models(rounds, train, **schedule):
    """G_0 .. G_E of plain FedAvg, replayed round by round."""
    loop = play("fedavg", rounds=rounds, train=train, until=0, **schedule)
    models = [loop.position.server.w]
    for e in range(rounds):
        loop.go(until=e + 1)
        models.append(loop.position.server.w)
    return models


def measured(module, federation, client):
    """Loss and accuracy of an ordinary module on a client's validation part."""
    rows = federation.validation[client]
    with torch.no_grad():
        logits = module.eval()(federation.x[rows])
    right = (logits.argmax(1) == federation.y[rows]).double().mean()
    return float(F.cross_entropy(logits, federation.y[rows])), float(right)


def best_round(models, candidates, client, federation):
    model = tiny_model()
    return min(
        candidates, key=lambda e: (measured(model.module(models[e]), federation, client)[0], e)
    )


def test_the_teacher_is_the_global_model_of_lowest_validation_loss():
    with float64():
        federation, models = tiny(), fedavg_models(8, SWIFT)
        loop = play("persfl", rounds=8, train=SWIFT, options=FAST)
        wanted = {i: best_round(models, range(1, 9), i, federation) for i in loop.everyone}
        assert note(loop, "teacher_round") == wanted
        assert len(set(wanted.values())) > 1
        for i, e in wanted.items():
            torch.testing.assert_close(
                view(loop, "teacher")[i],
                torch.cat([t.flatten() for t in models[e].params.values()]),
            )


def test_the_random_start_is_no_teacher():
    with float64():
        wild = Train(batch_size=4, lr=30.0)
        models = fedavg_models(2, wild)
        loop = play("persfl", rounds=2, train=wild, options=FAST)
        rounds = note(loop, "teacher_round")
        assert any(best_round(models, range(3), i, tiny()) == 0 for i in loop.everyone)
        assert all(rounds[i] == best_round(models, (1, 2), i, tiny()) for i in loop.everyone)


def test_a_client_validates_only_what_it_receives():
    with float64():
        models = fedavg_models(6, SWIFT, participation=0.4)
        loop = play("persfl", rounds=6, train=SWIFT, participation=0.4, options=FAST, until=0)
        received = {i: set() for i in loop.everyone}
        original = loop.engine.exchange

        def watched(trip):
            for i in trip.clients:
                received[i].add(trip.when.round if trip.when.stage == "train" else 6)
            return original(trip)

        loop.engine.exchange = watched
        loop.go()
        wanted = {i: best_round(models, received[i] - {0}, i, tiny()) for i in loop.everyone}
        assert note(loop, "teacher_round") == wanted
        assert wanted != {i: best_round(models, range(1, 7), i, tiny()) for i in loop.everyone}


def test_the_global_model_is_that_of_fedavg():
    with float64():
        assert_same(
            view(play("persfl", rounds=3, options=FAST), "global"),
            personal(play("fedavg", rounds=3)),
        )


def test_before_distillation_a_client_uses_its_teacher_or_else_the_global_model():
    with float64():
        loop = play("persfl", rounds=3, participation=0.4, until=2)
        models, own = fedavg_models(2, TRAIN, participation=0.4), personal(loop)
        flat = [torch.cat([t.flatten() for t in w.params.values()]) for w in models]
        taught = {
            i for i in loop.everyone if i in loop.engine.states[0] and state(loop, i).round == 1
        }
        assert 0 < len(taught) < 5
        for i in loop.everyone:
            torch.testing.assert_close(own[i], flat[1 if i in taught else 2])


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_client_lost_in_the_second_stage_uses_its_teacher_or_else_the_global_model(rounds):
    with float64():
        loop = play("persfl", rounds=rounds, until=rounds)
        loop.schedule = loop.schedule._replace(dropout_clients=0.999999)
        before = {i: int(state(loop, i).round) for i in loop.everyone}
        loop.go()
        assert loop.position.stage == 1
        assert {i: int(state(loop, i).teacher.round) for i in loop.everyone} == before
        assert all(
            (e > 0) == (rounds > 1) for e in before.values()
        )  # in one round a client sees the random start only
        assert_same(personal(loop), view(loop, "teacher" if rounds > 1 else "global"))


# The second stage against an ordinary PyTorch loop over the batches the engine drew


def soft_loss(kind, reduction, teacher, student, T):
    t, s = F.log_softmax(teacher / T, 1), F.log_softmax(student / T, 1)
    share = 1 if reduction == "batchmean" else 1 / student.shape[1]
    if kind == "kl_ts":
        return F.kl_div(s, t, reduction="batchmean", log_target=True) * share
    if kind == "kl_st":
        return F.kl_div(t, s, reduction="batchmean", log_target=True) * share
    return F.cross_entropy(student / T, t.exp()) * share


def distilled(loop, model, client, train, epochs, lam, T, kind="kl_ts", reduction="batchmean"):
    """A student's best checkpoint as (accuracy, -loss, -epoch, parameters)."""
    point = state(loop, client).teacher.w
    teacher, student = model.module(point).eval(), model.module(point)
    optimizer = torch.optim.SGD(
        student.parameters(), train.lr, train.momentum, weight_decay=train.weight_decay
    )
    found = []
    for e in range(epochs):
        at, each = loop.engine.feed.batches(
            BatchPlan(batch_size=train.batch_size), f"train-{e}", Moment("distil", 0), [client]
        )
        student.train()
        for s in range(each[0]):
            batch, _ = at(s)
            real = batch.mask[0] > 0
            x, y = batch.x[0][real], batch.y[0][real]
            optimizer.zero_grad()
            logits = student(x)
            loss = (1 - lam) * F.cross_entropy(logits, y)
            if lam:
                loss = loss + lam * T**2 * soft_loss(
                    kind, reduction, teacher(x).detach(), logits, T
                )
            loss.backward()
            optimizer.step()
        loss, accuracy = measured(student, loop.federation, client)
        found.append(
            (
                accuracy,
                -loss,
                -e,
                torch.cat([p.detach().flatten() for p in copy.deepcopy(student).parameters()]),
            )
        )
    return max(found, key=lambda f: f[:3])


@pytest.mark.parametrize(
    ("soft", "reduction", "norm"),
    [
        ("kl_ts", "batchmean", False),
        ("kl_ts", "elementwise", False),
        ("kl_st", "batchmean", False),
        ("ce", "elementwise", False),
        ("kl_ts", "batchmean", True),  # the teacher's BatchNorm uses its running statistics
    ],
)
def test_distillation_and_selection_equal_plain_pytorch(soft, reduction, norm):
    with float64():
        model, lams, temps = tiny_model(norm=norm), (0.0, 0.25, 0.75), (1.0, 5.0)
        options = {
            "lambdas": "0,0.25,0.75",
            "temperatures": "1,5",
            "distil_epochs": 4,
            "soft": soft,
            "reduction": reduction,
        }
        federation = tiny(validation=9)
        # a last batch of one row has no variance: BatchNorm in PyTorch refuses it
        federation = federation._replace(
            train=[r[: len(r) - (len(r) % 4 == 1)] for r in federation.train]
        )
        loop = play("persfl", federation, [model], rounds=3, train=SWIFT, options=options)
        own = view(loop, "personal")
        for i in loop.everyone:
            grid = {
                (lam, T): distilled(loop, model, i, SWIFT, 4, lam, T, soft, reduction)
                for lam in lams
                for T in temps[: 1 if lam == 0 else 2]
            }
            lam, T = max(grid, key=lambda k: (*grid[k][:2], -k[0], -k[1]))
            assert (note(loop, "lambda")[i], note(loop, "T")[i]) == (lam, T)
            torch.testing.assert_close(own[i], grid[lam, T][3], rtol=1e-9, atol=1e-9)
            for (lam, T), result in grid.items():
                assert note(loop, f"grid_accuracy[lambda={lam:g},T={T:g}]")[i] == pytest.approx(
                    result[0]
                )


def test_lambda_zero_is_fine_tuning_with_the_best_checkpoint_on_validation():
    with float64():
        model, train = tiny_model(), Train(batch_size=4, lr=0.2, momentum=0.8, weight_decay=0.01)
        loop = play(
            "persfl",
            None,
            [model],
            train=train,
            options={"lambdas": 0, "temperatures": 1, "distil_epochs": 6},
        )
        results = {i: distilled(loop, model, i, train, 6, 0.0, 1.0) for i in loop.everyone}
        assert_same(personal(loop), {i: r[3] for i, r in results.items()})
        assert len({r[2] for r in results.values()}) > 1  # not always the same epoch


def test_a_student_of_its_teacher_alone_stays_the_teacher():
    with float64():
        loop = play("persfl", options={"lambdas": 1, "temperatures": 5, "distil_epochs": 2})
        assert_same(personal(loop), view(loop, "teacher"))


def test_kl_from_the_teacher_and_soft_cross_entropy_have_equal_gradients():
    with float64():
        teacher = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)).log_softmax(1)
        logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))

        def slope(kind):
            return torch.func.grad(lambda z: SOFT[kind](teacher, z.log_softmax(1)).sum())(logits)

        torch.testing.assert_close(slope("kl_ts"), slope("ce"))
        assert not torch.allclose(slope("kl_ts"), slope("kl_st"))
        assert_same(personal(play("persfl")), personal(play("persfl-gd")))


def test_the_elementwise_mean_divides_the_soft_loss_by_the_classes():
    """r [(1 - 1/2) CE + 1/2 KL / 3] = (2 r / 3) [(1 - 1/4) CE + 1/4 KL]."""
    with float64():
        common = {"temperatures": 5, "distil_epochs": 2}
        one = play(
            "persfl",
            options=common | {"lambdas": 0.5, "distil_lr": 0.3, "reduction": "elementwise"},
        )
        other = play("persfl", options=common | {"lambdas": 0.25, "distil_lr": 0.2})
        assert_same(personal(one), personal(other))


def test_the_last_model_can_be_everyones_teacher():
    with float64():
        loop = play("persfl", rounds=8, train=SWIFT, options=FAST | {"teacher": "last"})
        assert set(note(loop, "teacher_round").values()) == {8}
        assert_same(view(loop, "teacher"), personal(play("fedavg", rounds=8, train=SWIFT)))


def test_the_second_stage_uploads_nothing_and_takes_everyone():
    loop = play("persfl", rounds=2, participation=0.4)
    assert all(note(loop, "lambda")[i] >= 0 for i in loop.everyone)
    assert values_of(loop.table.whole(), "bytes_up", "", "", 2)[1] > 0
    assert values_of(loop.table.whole(), "bytes_up", "", "", 3)[1] == 0


@pytest.mark.parametrize("keep", [False, True])
def test_a_newcomer_takes_the_best_of_the_kept_models_or_the_last(keep):
    with float64():
        models = fedavg_models(6, SWIFT, participation=0.2)
        loop = play(
            "persfl",
            rounds=6,
            train=SWIFT,
            participation=0.2,
            until=6,
            options=FAST | {"keep_models": keep},
        )
        newcomers = [i for i in loop.everyone if i not in loop.engine.states[0]]
        loop.go()
        best = {i: best_round(models, range(1, 7), i, tiny()) for i in newcomers}
        rounds = note(loop, "teacher_round")
        assert len(loop.position.server.stack.params["0.weight"]) == (6 if keep else 1)
        assert any(e < 6 for e in best.values())
        assert {i: rounds[i] for i in newcomers} == (best if keep else dict.fromkeys(newcomers, 6))


def test_kept_models_change_nothing_for_clients_that_saw_all():
    with float64():
        assert_same(
            personal(play("persfl", rounds=3)),
            personal(play("persfl", rounds=3, options={"keep_models": True})),
        )


# Choices, by hand


@pytest.mark.parametrize(
    ("losses", "last", "wanted"),
    [
        ([0.5], False, 7),  # a tie leaves the earlier teacher
        ([0.4], False, 9),
        ([0.6, 0.4, 0.4], False, 8),  # the first of the lowest among rounds 7, 8, 9
        ([math.nan, 0.4, 0.6], False, 8),
        ([0.4, 0.4, 0.9], True, 9),
    ],
)
def test_a_teacher_is_replaced_by_the_first_strictly_better_model(losses, last, wanted):
    old = Teacher(Point({"w": torch.tensor(7.0)}), torch.tensor(0.5), torch.tensor(7))
    m = len(losses)
    models = GlobalModels(Point({"w": torch.arange(10.0 - m, 10.0)}), torch.tensor(9))
    new = adopt(
        old, models, Tally(2 * torch.tensor(losses), torch.zeros(m), torch.full((m,), 2.0)), last
    )
    assert (int(new.round), float(new.w.params["w"])) == (wanted, wanted)


@pytest.mark.parametrize(
    ("accuracy", "loss", "wanted"),
    [
        ([0.5, 0.75, 0.5], [0.1, 0.9, 0.1], 1),  # accuracy first
        ([0.75, 0.5, 0.75], [0.4, 0.1, 0.3], 2),  # then loss
        ([0.5, 0.75, 0.75], [0.1, 0.3, 0.3], 1),  # then the first of the grid
        ([-1.0, -1.0, -1.0], [math.inf] * 3, 0),
    ],
)
def test_the_winner_has_the_best_accuracy_then_loss_then_the_first_place(accuracy, loss, wanted):
    a, b = torch.tensor([accuracy, accuracy]), torch.tensor([loss, loss])
    assert int(find_best(a[0], b[0])) == wanted
    assert vmap(find_best)(a, b).tolist() == [wanted, wanted]


@pytest.mark.parametrize(
    ("accuracy", "loss", "taken"),
    [
        (0.6, 9.0, True),
        (0.5, 0.2, True),
        (0.5, 0.3, False),
        (0.4, 0.1, False),
        (0.6, math.nan, False),
    ],
)
def test_a_checkpoint_is_replaced_by_a_strictly_better_one(accuracy, loss, taken):
    old = Best(Point({"w": torch.zeros(2)}), torch.tensor(0.5), torch.tensor(0.3))
    new = Best(Point({"w": torch.ones(2)}), torch.tensor(accuracy), torch.tensor(loss))
    assert bool(keep_better(old, new).w.params["w"][0] == 1) is taken


def test_students_that_tie_leave_the_smallest_lambda_then_temperature():
    with float64():
        loop = play(
            "persfl", options={"lambdas": "1,0.25", "temperatures": "25,5", "distil_lr": 1e-300}
        )
        assert set(note(loop, "lambda").values()) == {0.25}
        assert set(note(loop, "T").values()) == {5}


def test_lambda_zero_is_tried_once():
    loop = play("persfl", rounds=1, options=THESIS_GRID)
    names = [n for n in loop.engine.client_notes([0]) if n.startswith("grid")]
    assert len(names) == 13
    assert [n for n in names if "lambda=0," in n] == ["grid_accuracy[lambda=0,T=1]"]


def test_students_that_diverge_are_never_chosen():
    unchecked = inspect.unwrap(
        METHODS["persfl"]
    )  # such a rate is refused, but a lower one may diverge as well
    loop = play(unchecked, options={"lambdas": (0.0,), "distil_lr": 1e30, "distil_epochs": 3})
    assert all(torch.isfinite(w).all() for w in personal(loop).values())


def test_chunks_are_narrowed_to_the_students_that_fit(monkeypatch):
    with float64():
        wanted = personal(play("persfl", options=THESIS_GRID))
        monkeypatch.setattr(autotune, "CHUNK_BYTES", 2 * 13 * 8 * 4 * tiny_model().size)
        loop = play("persfl", until=0, options=THESIS_GRID)
        widths, original = [], loop.engine.work

        def watched(trip):
            for worked in original(trip):
                widths.append((trip.when.stage, len(worked.clients)))
                yield worked

        loop.engine.work = watched
        loop.go()
        assert {w for stage, w in widths if stage == "train"} == {5}
        assert max(w for stage, w in widths if stage == "distil") == 2
        assert_same(personal(loop), wanted)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"distil_epochs": 0}, "distil_epochs = 0"),
        ({"distil_lr": -1.0}, "distil_lr = -1"),
        (
            {"lambdas": "0,1.5"},
            r"persfl.lambdas = '0,1.5': give numbers separated by commas, each from 0 to 1, such "
            r"as 0,0.5,1",
        ),
        ({"lambdas": "0;1"}, "give numbers separated by commas"),
        ({"temperatures": "0,1"}, "above 0"),
        ({"temperatures": "inf"}, "above 0, up to 1,000,000"),
        ({"lambdas": ""}, "lambdas is empty"),
        ({"soft": "kl_tt"}, "give kl_ts, kl_st or ce"),
        ({"reduction": "elementwice"}, "give batchmean or elementwise"),
        ({"teacher": "first"}, "give best or last"),
    ],
)
def test_bad_options_are_refused(options, says):
    with pytest.raises(BadInput, match=says):
        play("persfl", options=options)


def test_models_without_classes_are_refused():
    with pytest.raises(BadInput, match="binary"):
        play("persfl", models=[Model(lambda: torch.nn.Linear(6, 1), "binary", "coin")])


def test_a_federation_without_validation_is_refused():
    with pytest.raises(BadInput, match="validation"):
        play("persfl", tiny(validation=0))
