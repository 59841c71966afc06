"""What a comparison chooses where nobody says it: the learning rate and the network of a method.

Validation rows choose, step by step (`comparison.steps`), with as many trials for every method. In
a comparison of one's own table that is done without being asked for, within a time: how many trials
fit is decided once, by what the first trial of every method takes, and is written into the plan, so
that no clock changes what a plan chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from coterie.comparison.cache import AssemblyCache
from coterie.comparison.limits import SearchLimits, format_time
from coterie.comparison.plan import ComparisonPlan, set_method_options
from coterie.comparison.steps import LEAST_TRIALS, LINEAR, MOST_TRIALS, dense_for
from coterie.core.errors import BadInput
from coterie.data.client_rows import counts_of
from coterie.data.federation import Federation
from coterie.data.messages import log
from coterie.experiment.config import Experiment, resolve_names
from coterie.running.assembly import is_own_table, open_loop
from coterie.running.execute import threads_of

AS_GIVEN = "learning rate and network stay as given"


def settle_steps(plan: ComparisonPlan, prepared: AssemblyCache) -> ComparisonPlan:
    """The plan with the networks that these data and methods allow; without a search that nobody
    asked for where the data are no table of one's own, or validation rows may not choose.
    """
    seed = plan.seeds[0]
    first = replace(next(iter(plan.experiments.values())), seed=seed)
    federation = prepared.federation(first)
    asked = not (plan.search and plan.search.budget)
    if not (asked or _may_choose(first, federation)):
        return plan._replace(grids={}, search=None)
    cells = federation.clients * prod(federation.input_shape)
    dense = dense_for(int(counts_of(federation.train).sum()), cells)

    def usable(name: str, network: str) -> bool:
        tried = set_method_options(plan.experiments[name], {"model": network})
        try:
            with threads_of(tried):
                open_loop(prepared.assembly(replace(tried, seed=seed)))
        except BadInput as problem:
            if asked:
                log(f"{name}: model = {network} is not tried: {problem}")
            return False
        return True

    grids: dict[str, dict[str, Any]] = {}
    for name, grid in plan.grids.items():
        known = dict(grid)
        if "model" in grid:
            given = resolve_names(plan.experiments[name])["model"]
            others = [n for n in dict.fromkeys((LINEAR, dense)) if n != given and usable(name, n)]
            known["model"] = [given, *others]
        grids[name] = known
    return plan._replace(grids=grids)


def _may_choose(experiment: Experiment, federation: Federation) -> bool:
    """Whether a comparison that says nothing of it chooses on validation rows."""
    if not is_own_table(experiment, federation) or experiment.engine["name"] != "local":
        return False
    if experiment.guard.dp != "none":  # every trial would cost privacy
        return False
    if not counts_of(federation.validation).sum():
        log(f"{AS_GIVEN}: there are no validation rows to choose on")
        return False
    return True


def decide_trials(
    plan: ComparisonPlan, search: SearchLimits, play: Callable[[str, float], float | None]
) -> ComparisonPlan:
    """The plan with a number of trials for every method.

    play: the processor's seconds of a method's first trial; None: more than it may take.
    """
    limit, spent = search.seconds / LEAST_TRIALS, 0.0
    for name in plan.grids:
        seconds = play(name, limit - spent)
        if seconds is None:
            log(
                f"{AS_GIVEN}: one run of each method takes more than {format_time(limit)} of the "
                f"{search.budget} for such a choice ({name} was cut off); --lr auto --model auto "
                "choose all the same"
            )
            return plan._replace(grids={}, search=None)
        spent += seconds
    trials = min(MOST_TRIALS, int(search.seconds / spent))
    log(
        f"validation rows choose learning rate and network: at most {trials} trials of each "
        f"method, at most {format_time(trials * spent)}; --budget 0 leaves them as given"
    )
    return plan._replace(search=search._replace(trials=trials))
