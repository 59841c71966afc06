"""Options chosen on validation data: every point of a grid is tried with every seed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.analysis.numbers import mean_of
from coterie.comparison.plan import own_words
from coterie.core.errors import Diverged
from coterie.core.files import write
from coterie.experiment.config import Experiment
from coterie.results.run import Run


def candidates(
    experiment: Experiment, grid: Mapping[str, Sequence[Any]]
) -> list[tuple[dict[str, Any], Experiment]]:
    """(options, experiment) for every point of a grid; a candidate sees validation data only, and
    keeps nothing.
    """
    found = []
    for choice in itertools.product(*grid.values()) if grid else ():
        words = dict(zip(grid, choice, strict=True))
        candidate = own_words(experiment, words)
        schedule, keep = (
            candidate.schedule._replace(parts=("validation",)),
            candidate.keep._replace(models=False, checkpoint=0),
        )
        found.append((words, replace(candidate, schedule=schedule, keep=keep)))
    return found


def tune(
    name: str,
    experiment: Experiment,
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    folder: Path,
    one: Callable[[str, int, Experiment, Path], Run],
) -> Experiment:
    """The experiment with the options of best mean on validation data over the seeds; what was
    tried is written down.
    """
    tried = []
    for number, (words, candidate) in enumerate(candidates(experiment, grid), 1):
        label = f"{name} {' '.join(f'{k}={v}' for k, v in words.items())}"
        scores, sign = [], 1
        for seed in seeds:
            place = folder / f"try{number}-seed{seed}"
            try:
                run = one(label, seed, replace(candidate, seed=seed), place)
            except Diverged:
                scores.append(np.nan)
                continue
            scores.append(mean_of(run.measured("validation")))
            sign = run.judged.sign
        worth = sign * float(np.mean(scores))
        tried.append((-np.inf if np.isnan(worth) else worth, words, scores))
    best = max(tried, key=lambda t: t[0])[1]  # the first of equals; a try that diverged is the last
    report = {
        "tried": [
            {"options": words, "validation": [None if s != s else s for s in scores]}
            for _, words, scores in tried
        ],
        "best": best,
    }
    write(folder / "tuning.json", json.dumps(report, indent=1))
    return own_words(experiment, best)
