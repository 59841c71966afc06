"""What a model looks at: permutation importance and partial dependence of any function of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from coterie.core.rng import Rng


def permutation_importance(
    score: Callable[[np.ndarray], float],
    x: np.ndarray,
    group: Sequence[int],
    repeats: int,
    rng: Rng,
) -> float:
    """How much of a score (more is better) is lost where the inputs of one column, `group`, change
    places between rows: the mean over `repeats` permutations (Breiman, 2001).
    """
    group, before, lost = list(group), score(x), []
    for _ in range(repeats):
        mixed = x.copy()
        mixed[:, group] = x[rng.permutation(len(x))][:, group]
        lost.append(before - score(mixed))
    return float(np.mean(lost))


def partial_dependence(
    predict: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    group: Sequence[int],
    values: np.ndarray,
) -> np.ndarray:
    """[values, ...] the mean prediction where all rows have the same value in one column
    (Friedman, 2001); values: [values, inputs of the column].
    """
    found = []
    for value in values:
        same = x.copy()
        same[:, list(group)] = value
        found.append(predict(same).mean(0))
    return np.stack(found)
