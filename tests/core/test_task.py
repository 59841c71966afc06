"""Laws of what outputs mean: every loss is the one that textbooks and libraries have."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import mean_pinball_loss, mean_poisson_deviance

import coterie
from coterie.analysis.scores import SCORED, NumberPredictions, scores_of, trivial_scores_of
from coterie.core import task as tasks
from coterie.core.errors import BadInput
from coterie.core.options import check_table
from coterie.core.task import (
    TASKS,
    cumulative_logits,
    find_task,
    is_task,
    level_log_probs,
    name_tasks,
)
from coterie.data.options import DataOptions

RNG = torch.Generator().manual_seed(0)
ROWS = 40


def outputs(width):
    return torch.randn(ROWS, width, generator=RNG)


def test_a_regression_is_learnt_by_half_the_squared_error_and_told_in_its_own_unit():
    task, z = tasks.regression(centre=50.0, spread=10.0), outputs(1)
    y = torch.randn(ROWS, generator=RNG)
    torch.testing.assert_close(task.losses(z, y), 0.5 * (z[:, 0] - y) ** 2)
    torch.testing.assert_close(task.predict(z), 50 + 10 * z[:, 0].double())
    torch.testing.assert_close(task.truth(y), 50 + 10 * y.double())
    errors = (task.predict(z) - task.truth(y)).abs()
    torch.testing.assert_close(task.counted(z, y).double(), errors, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", [0.5, 0.1, 0.9])
def test_a_quantile_is_learnt_by_the_pinball_loss(level):
    task = TASKS[f"quantile:{level}"].learn(50.0, 10.0)
    z, y = outputs(1), torch.randn(ROWS, generator=RNG)
    theirs = mean_pinball_loss(y.numpy(), z[:, 0].numpy(), alpha=level)
    assert float(task.losses(z, y).mean()) == pytest.approx(theirs, rel=1e-5)
    said, truth = task.predict(z).numpy(), task.truth(y).numpy()
    [first, *_] = scores_of(task.name)
    assert first.name == task.measure
    assert first.of(NumberPredictions(truth, said)) == pytest.approx(10 * theirs, rel=1e-5)
    assert float(task.counted(z, y).mean()) == pytest.approx(10 * theirs, rel=1e-5)
    assert not first.higher
    constants = np.linspace(-3, 3, 601)
    losses = [float(task.losses(torch.full((ROWS, 1), c), y).mean()) for c in constants]
    below = float((y <= constants[int(np.argmin(losses))] + 0.005).float().mean())
    assert below == pytest.approx(level, abs=1.5 / ROWS)


@pytest.mark.parametrize(("name", "delta"), [("huber", 1.0), ("huber:1.35", 1.35)])
def test_hubers_loss_is_that_of_torch(name, delta):
    task, z = TASKS[name].learn(50.0, 10.0), 3 * outputs(1)
    y = torch.randn(ROWS, generator=RNG)
    wanted = F.huber_loss(z[:, 0], y, reduction="none", delta=delta)
    torch.testing.assert_close(task.losses(z, y), wanted)
    assert task.name == name


@pytest.mark.parametrize("name", ["quantile:0", "quantile:1", "quantile:", "huber:-1", "huber:x"])
def test_a_number_that_a_family_does_not_have_is_no_task(name):
    assert not is_task(name)
    with pytest.raises(BadInput, match="task = "):
        check_table(DataOptions(task=name))


def test_who_guesses_a_quantile_knows_its_training_rows():
    train, truth = np.arange(101.0), np.arange(50.0, 101.0)
    found = trivial_scores_of("quantile:0.9", train, truth, 0)
    assert found["pinball_0.9"] == pytest.approx(
        mean_pinball_loss(truth, np.full(51, 90.0), alpha=0.9)
    )
    assert {"pinball_0.9", "mae", "rmse", "r2"} == set(found)


def test_counts_are_learnt_by_half_the_poisson_deviance():
    task, z = tasks.counts(mean=6.0), outputs(1)
    y = torch.randint(0, 15, (ROWS,), generator=RNG).float()
    rate = 6 * z[:, 0].double().exp()
    torch.testing.assert_close(task.predict(z), rate)
    theirs = mean_poisson_deviance(y.numpy(), rate.numpy()) / 2 / 6
    assert float(task.losses(z, y).mean()) == pytest.approx(theirs, rel=1e-5)
    exact = torch.log(y.clamp(min=1e-30) / 6)[:, None]
    assert float(task.losses(exact, y).abs().max()) < 1e-5


def test_ordered_classes_have_probabilities_that_sum_to_1_and_fall_in_order():
    z = outputs(4)
    assert bool((cumulative_logits(z).diff(dim=-1) < 0).all())
    p = tasks.ordinal().predict(z)
    assert p.shape == (ROWS, 5)
    torch.testing.assert_close(p.sum(-1), torch.ones(ROWS))
    above = torch.sigmoid(cumulative_logits(z))
    for k in range(4):
        torch.testing.assert_close(p[:, k + 1 :].sum(-1), above[:, k], rtol=1e-4, atol=1e-6)
    y = torch.randint(0, 5, (ROWS,), generator=RNG)
    wanted = -p[torch.arange(ROWS), y].log()
    torch.testing.assert_close(tasks.ordinal().losses(z, y), wanted, rtol=1e-4, atol=1e-5)


def test_ordered_classes_stay_finite_far_out():
    z = torch.tensor([[80.0, 3.0, 3.0], [-80.0, 3.0, 3.0], [0.0, 60.0, 60.0]], requires_grad=True)
    level_log_probs(z).sum().backward()
    assert bool(torch.isfinite(level_log_probs(z)).all())
    assert bool(torch.isfinite(z.grad).all())


def test_several_labels_are_learnt_by_binary_cross_entropy():
    z, y = outputs(3), torch.randint(0, 2, (ROWS, 3), generator=RNG).float()
    task = tasks.multilabel()
    wanted = F.binary_cross_entropy_with_logits(z, y, reduction="none").mean(-1)
    torch.testing.assert_close(task.losses(z, y), wanted)
    right = ((z > 0).float() == y).float().mean(-1)
    torch.testing.assert_close(task.counted(z, y), right)


def test_weights_multiply_the_loss_of_their_class():
    weights, z = [0.5, 2.0, 1.5], outputs(3)
    y = torch.randint(0, 3, (ROWS,), generator=RNG)
    each = F.cross_entropy(z, y, reduction="none")
    torch.testing.assert_close(tasks.classes(weights).losses(z, y), each * torch.tensor(weights)[y])
    torch.testing.assert_close(tasks.classes().losses(z, y), each)


@pytest.mark.parametrize(
    ("task", "width"),
    [
        (tasks.classes(), 4),
        (tasks.one_logit(), 1),
        (tasks.regression(3.0, 2.0), 1),
        (tasks.counts(5.0), 1),
        (tasks.ordinal(), 3),
        (tasks.multilabel(), 3),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_outputs_are_at_no_distance_from_themselves_and_at_one_from_others(task, width):
    z = outputs(width)
    said = task.soften(z, 2.0)
    assert float(task.distance(said, z, 2.0).abs().max()) < 1e-5
    apart = task.distance(said, z + torch.linspace(1, 2, width), 2.0)
    assert bool((apart > -1e-6).all())
    assert float(apart.mean()) > 1e-3 or task.name == "classes"
    assert np.isfinite(apart.numpy()).all()


def test_texts_are_as_far_apart_padded_as_alone():
    """Otherwise the length of padding would say how much is learnt from others."""
    goal = tasks.causal_lm()
    told, mine = torch.randn(2, 3, 4, 7, generator=RNG)
    alone = goal.distance(goal.soften(told, 1.0), mine, 1.0)
    chances = F.softmax(told[0, :3], -1)  # the last token has none to come
    wanted = F.kl_div(F.log_softmax(mine[0, :3], -1), chances, reduction="sum") / 3
    torch.testing.assert_close(alone[0], wanted)
    told, mine = (F.pad(outputs, (0, 0, 0, 9)) for outputs in (told, mine))
    torch.testing.assert_close(goal.distance(goal.soften(told, 1.0), mine, 1.0), alone)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_record_agrees_with_the_goal_and_the_scores_that_it_names(task):
    goal = task.learn(weights=[[0.5, 2.0, 1.5]] * (1 + task.several))
    assert find_task(goal.name).form is task.form
    assert find_task(task.learn_by_name().name) is task
    assert [score.name for score in scores_of(task.name)] == list(task.scores)
    if task.scores:
        assert goal.measure == task.measure
        assert {task.probe, *task.in_files} <= {*task.scores, ""}
        known = set(SCORED[task.form.name].scores)
        told = [name for who in task.form.trivial for name in who.scores or task.scores]
        assert set(told) == set(task.scores) <= known
    assert (task.most > 1) == task.has_classes
    width = task.outputs(task.least, 3)
    assert goal.answer(outputs(width)).shape == ((ROWS, width) if task.several else (ROWS,))


def test_a_goal_that_no_record_knows_is_no_task_of_a_label():
    assert not find_task("mine").has_label
    assert "mine" not in name_tasks()
    assert [s.name for s in scores_of("mine")] == list(TASKS["classes"].scores)


def test_no_code_compares_names_of_tasks():
    """Whatever depends on the task is in its record, so that a new one is a record and no more."""
    names, found = set(TASKS) - {"classes"}, []
    for path in Path(coterie.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            inside = ast.walk(node) if isinstance(node, ast.Compare | ast.MatchValue) else ()
            found += [
                f"{path.name}:{part.lineno}"
                for part in inside
                if isinstance(part, ast.Constant) and part.value in names
            ]
    assert found == []
