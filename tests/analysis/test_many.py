import numpy as np
import pytest

from coterie.analysis.client_scores import score_clients
from coterie.analysis.scores import score_task, scores_of


def crowd(seed, kinds, dtype, task="classes"):
    rng = np.random.default_rng(seed)
    counts = rng.choice([0, 1, 2, 3, 5, 9, 17, 40, 130], 200)
    n = counts.sum()
    truth = rng.integers(0, kinds, n)
    said = rng.dirichlet(np.full(kinds, 0.4), n)
    said[rng.random(n) < 0.3] = np.round(said[rng.random(n) < 0.3][:1], 1)  # ties
    said[rng.random(n) < 0.002] = np.nan  # a model that diverged
    return counts, truth, said.astype(dtype)


@pytest.mark.parametrize("task", ["classes", "ordinal"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kinds", [2, 3, 10, 62])
def test_scores_of_many_clients_are_bit_for_bit_those_of_each(kinds, dtype, task):
    counts, truth, said = crowd(kinds, kinds, dtype)
    names = [score.name for score in scores_of(task)]
    with np.errstate(invalid="ignore"):
        found = score_clients(task, truth, said, counts, names)
        ends = np.cumsum(counts)[:-1]
        pairs = zip(np.split(truth, ends), np.split(said, ends), strict=True)
        wanted = [score_task(task, y, p, names) for y, p in pairs]
    assert list(found) == names
    for name in names:
        np.testing.assert_array_equal(found[name], [one[name] for one in wanted], err_msg=name)


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_scores_of_many_clients_of_other_tasks_are_those_of_each(task):
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 6, 30)
    shape = (counts.sum(), 3) if task == "multilabel" else counts.sum()
    truth, said = rng.integers(0, 2, shape).astype(float), rng.random(shape)
    found = score_clients(task, truth, said, counts, ["mae", "r2", "f1", "auc"])
    ends = np.cumsum(counts)[:-1]
    for k, (y, p) in enumerate(zip(np.split(truth, ends), np.split(said, ends), strict=True)):
        one = score_task(task, y, p, list(found))
        np.testing.assert_array_equal([found[name][k] for name in found], list(one.values()))


def test_only_the_scores_asked_for_are_made():
    counts, truth, said = crowd(1, 3, np.float64)
    assert list(score_clients("classes", truth, said, counts, ["auc", "f1"])) == ["f1", "auc"]
