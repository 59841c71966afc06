"""The rows of a run's table that speak of its newcomers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coterie.core.errors import BadInput
from coterie.data.federation import PARTS, Federation
from coterie.data.newcomers import with_few_rows, with_newcomers
from coterie.engines.base import Metrics
from coterie.experiment.config import Experiment
from coterie.experiment.schedule import Schedule
from coterie.results.newcomer_results import part_name_of
from coterie.running.loop import Loop
from coterie.running.newcomer_training import (
    WAYS,
    finished_run_of,
    rule_of,
    train_newcomers,
    with_rows,
)


def check_newcomers(experiment: Experiment, federation: Federation) -> None:
    """Refuse, before any work, options on newcomers that have no effect or cannot work."""
    schedule, late = experiment.schedule, federation.newcomers
    if late is None:
        for option in ("newcomer_rounds", "few_shot"):
            value = getattr(schedule, option)
            if value != Schedule._field_defaults[option]:
                raise BadInput(
                    f"{option} = {value}, but there are no newcomers: give --newcomers 0.2 too"
                )
        return
    if experiment.guard.dp != "none":
        raise BadInput(
            f"newcomers with dp = {experiment.guard.dp}: what newcomers learn is in no budget; "
            "leave out one of them"
        )
    if "test" not in schedule.parts and schedule.parts != ("validation",):  # as tuning has them
        raise BadInput("newcomers are measured on test rows: add test to --parts")
    lacking = [name for name, rows in zip(late.names, late.test, strict=True) if not len(rows)]
    if lacking:
        raise BadInput(f"newcomer '{lacking[0]}' has no test rows to be measured on")
    if schedule.few_shot and not _split_sizes(federation, schedule)[0]:
        smallest = min(map(len, late.train))
        raise BadInput(
            f"few_shot = {','.join(map(str, schedule.few_shot))}, but the smallest newcomer has "
            f"{smallest} training rows: give numbers below"
        )


def _split_sizes(federation: Federation, schedule: Schedule) -> tuple[list[int], list[int]]:
    """(the sizes that every newcomer has rows for, the other ones)."""
    late = federation.newcomers
    smallest = min(map(len, late.train)) if late else 0
    sizes = sorted(set(schedule.few_shot))
    return [s for s in sizes if s < smallest], [s for s in sizes if s >= smallest]


def measure_newcomers(loop: Loop, say: Callable[[str], None]) -> dict[str, Any]:
    """Give every newcomer a model in each of WAYS and write its test results into the table; what
    run.json says so.
    """
    federation, late = loop.federation, loop.federation.newcomers
    if late is None or "test" not in loop.schedule.parts:
        return {}
    run = finished_run_of(loop, with_newcomers(federation))
    for way in WAYS:
        _write_metrics(loop, way, part_name_of(None), train_newcomers(run, way).measure())
    sizes, left = _split_sizes(federation, loop.schedule)
    if left:
        say(f"few_shot {','.join(map(str, left))} is left out: not every newcomer has more rows")
    for size in sizes:
        few = federation._replace(newcomers=with_few_rows(late, size, loop.seed))
        smaller = with_rows(run, with_newcomers(few))
        for way in WAYS:
            _write_metrics(loop, way, part_name_of(size), train_newcomers(smaller, way).measure())
    return {
        "clients": late.names,
        "rows": {part: [len(rows) for rows in getattr(late, part)] for part in PARTS},
        "rule": rule_of(run).rule,
        "rounds": run.few,
        "few_shot": sizes,
    }


def _write_metrics(loop: Loop, way: str, part: str, measured: Metrics) -> None:
    stage = loop.program[loop.position.stage].name
    for (view, _, metric), column in measured.items():
        if view == "personal":
            loop.table.add(stage, loop.done, np.arange(len(column)), way, part, metric, column)
