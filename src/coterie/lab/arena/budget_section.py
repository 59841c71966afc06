"""Ranks of the arena under other terms: fewer steps, equal gradients, equal information."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np

from coterie.analysis.nan_math import drop_nan
from coterie.analysis.ranks import rank_rows
from coterie.lab.arena.results import (
    BOUNDS,
    ArenaResults,
    Row,
    build_block,
    select_runs,
    to_points,
)
from coterie.methods.listing import list_methods

PICTURE = "arena-budgets"
EXTRA = ("public", "validation")  # rows that some methods need beyond those all train on


def rank_by(
    results: ArenaResults,
    values: Callable[[Row], Sequence[float]],
    among: Collection[str] = (),
    where: Collection[str] = (),
) -> dict[str, float]:
    """{method: mean rank} by other numbers than a run's last ones, of the methods that have them on
    every federation; among: only these methods; where: only these federations.
    """
    rows = [
        row
        for row in select_runs(results)
        if row["method"] not in BOUNDS
        and (not among or row["method"] in among)
        and (not where or row["federation"] in where)
    ]
    found = build_block(rows, lambda row: _mean_points(row, values(row)))
    whole = [k for k in range(len(found.methods)) if not np.isnan(found.values[:, k]).any()]
    if not whole:
        return {}
    ranks = rank_rows(found.values[:, whole]).mean(axis=0)
    order = np.argsort(ranks, kind="stable")
    return {found.methods[whole[i]]: float(ranks[i]) for i in order}


def _mean_points(row: Row, values: Sequence[float]) -> float:
    kept = drop_nan(to_points(row, values)) if len(values) else np.zeros(0)
    return float(kept.mean()) if len(kept) else np.nan


def values_at(row: Row, steps: int) -> Sequence[float]:
    """Every client's number of a run after so many steps; empty where it was not evaluated then."""
    return next((one["values"] for one in row["course"] if one["steps"] == steps), [])


def rank_by_budget(results: ArenaResults) -> dict[int, dict[str, float]]:
    """{steps per client: {method: mean rank}}, the whole run last; of the methods that have a rank
    at every budget. Empty where nothing was kept on the way.
    """
    about = results.about
    numbers: dict[int, Callable[[Row], Sequence[float]]] = {
        steps: partial(values_at, steps=steps) for steps in about.get("budgets", ())
    }
    numbers[int(about["rounds"]) * int(about["steps"])] = lambda row: row["values"]
    found = [set(rank_by(results, values)) for values in numbers.values()]
    both = set.intersection(*found)
    if len(numbers) < 2 or not both:
        return {}
    return {steps: rank_by(results, values, both) for steps, values in numbers.items()}


def agreement_of(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Spearman's correlation of two orders of the same methods."""
    a, b = (rank_rows(np.array([[-ranks[m] for m in one]]))[0] for ranks in (one, other))
    return float(np.corrcoef(a, b)[0, 1]) if len(a) > 1 and a.std() and b.std() else np.nan


def render_budget_section(results: ArenaResults) -> str:
    """How ranks move with the steps that everybody takes; empty where it is not known."""
    found = rank_by_budget(results)
    if not found:
        return ""
    *early, last = found
    said = ", ".join(
        f"{agreement_of(found[steps], found[last]):.2f} at {steps:,} steps" for steps in early
    )
    lines = [
        "## How ranks move with the budget",
        "",
        "From the same runs, so that options are those chosen for the whole length. Spearman's "
        f"correlation with the ranks after {last:,} steps per client: {said}. Fine-tuning before "
        "use counts at every budget; a method whose last stage shapes its models, as persfl's, is "
        "judged early without it.",
        "",
        f"![Mean rank after {', '.join(f'{s:,}' for s in found)} steps](pictures/{PICTURE}.png)",
        "",
        "| method | " + " | ".join(f"{steps:,} steps" for steps in found) + " |",
        "|---|" + "---|" * len(found),
    ]
    for name in found[last]:
        lines.append(f"| {name} | " + " | ".join(f"{found[s][name]:.1f}" for s in found) + " |")
    return "\n".join(lines)


def render_equal_section(results: ArenaResults) -> str:
    """Ranks where nobody takes more gradients than FedAvg; empty where it is not known."""
    equal = rank_by(results, lambda row: row["equal"])
    if not equal:
        return ""
    whole = rank_by(results, lambda row: row["values"], equal)
    lines = [
        "## Equal gradients",
        "",
        "Every method is judged in the last round by which it has taken no more gradients than "
        "FedAvg takes in all, a fine-tuning before use counted. One that takes five a step stops "
        "after a fifth of the rounds.",
        "",
        "| method | equal gradients | equal steps |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| {m} | {r:.1f} | {whole[m]:.1f} |" for m, r in equal.items())])


def render_information_section(results: ArenaResults) -> str:
    """Ranks among methods that see the same rows, on the federations where all kinds of them ran;
    empty where there are none.
    """
    needs = {
        one.name: [option for option in one.needs if option in EXTRA] for one in list_methods()
    }
    rows = [row for row in select_runs(results) if row["method"] not in BOUNDS]
    ran = {row["method"] for row in rows}
    where = set.intersection(
        *({r["federation"] for r in rows if kind in needs.get(r["method"], [])} for kind in EXTRA)
    )
    sets = {
        "neither": {m for m in ran if not needs.get(m)},
        "validation rows": {m for m in ran if "public" not in needs.get(m, [])},
        "public rows": {m for m in ran if "validation" not in needs.get(m, [])},
        "both": ran,
    }
    ranks = {
        what: rank_by(results, lambda row: row["values"], names, where) if names else {}
        for what, names in sets.items()
    }
    if not where or not ranks["both"]:
        return ""
    lines = [
        "## Equal information",
        "",
        "Mean ranks among the methods that may use, beyond their clients' training rows, public "
        f"rows, validation rows, both or neither; on the {len(where)} federations where methods of "
        "all these kinds ran, of the methods that ran on each. Everybody was tuned on validation "
        "rows.",
        "",
        f"| method | {' | '.join(ranks)} |",
        "|---|" + "---|" * len(ranks),
    ]
    for name in ranks["both"]:
        cells = [f"{found[name]:.1f}" if name in found else "" for found in ranks.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
