"""What the arena says of clients that came after training: how well each method's rule serves them,
against the other rules, training alone and the global model fine-tuned.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from coterie.analysis.nan_math import mean_of, nan_max, nan_mean
from coterie.lab.arena.results import (
    BOUNDS,
    ArenaResults,
    Block,
    Row,
    build_block,
    select_runs,
    to_points,
)
from coterie.results.newcomer_results import ALONE, FINE_TUNED, RULE

PICTURE = "arena-newcomers"


class NewcomerSummary(NamedTuple):
    """How newcomers fared with every method that has a rule for them, the best one first; [methods]
    each, NaN where nothing is known.
    """

    methods: tuple[str, ...]
    behind: np.ndarray  # points behind the best rule of a federation, mean
    alone: np.ndarray  # points that the rule gains over training alone, mean
    base: np.ndarray  # points of training alone with the method's own options, mean
    tuned: np.ndarray  # points that it gains over the global model fine-tuned, mean
    counted: np.ndarray  # federations that these numbers are of
    federations: int
    newcomers: int  # of all federations together
    ruleless: tuple[str, ...]  # methods that have no rule of their own
    missing: dict[str, tuple[str, ...]]  # {method: federations where it did not get so far}


def summarize_newcomers(results: ArenaResults) -> NewcomerSummary | None:
    """What the runs with newcomers say; None where no rule was measured."""
    rows = select_runs(results, newcomers=True)
    ended = [row for row in rows if row["values"]]
    own = {row["method"] for row in ended if row["newcomer_does"]}
    if not own:
        return None
    mine = [row for row in rows if row["method"] in own]
    rule = build_block(mine, lambda row: mean_of(to_points(row, row[f"newcomers_{RULE}"])))
    real = [k for k, name in enumerate(rule.methods) if name not in BOUNDS]
    behind = nan_mean(nan_max(rule.values[:, real], 1) - rule.values, 0)
    order = np.argsort(np.nan_to_num(behind, nan=np.inf), kind="stable")
    known = {row["federation"]: len(row[f"newcomers_{RULE}"]) for row in ended}
    return NewcomerSummary(
        methods=tuple(rule.methods[k] for k in order),
        behind=behind[order],
        alone=_mean_gains(mine, ALONE)[order],
        base=nan_mean(build_block(mine, _points_alone).values, 0)[order],
        tuned=_mean_gains(mine, FINE_TUNED)[order],
        counted=(~np.isnan(rule.values)).sum(axis=0)[order],
        federations=len(known),
        newcomers=sum(known.values()),
        ruleless=tuple(dict.fromkeys(row["method"] for row in ended if row["method"] not in own)),
        missing=_find_missing(results, rule, known),
    )


def _points_alone(row: Row) -> float:
    """Points of training alone in a run."""
    return mean_of(to_points(row, row[f"newcomers_{ALONE}"]))


def _mean_gains(rows: Sequence[Row], way: str) -> np.ndarray:
    """[methods] points of the rule over another way, newcomer by newcomer, mean."""

    def gain(row: Row) -> float:
        ours, theirs = (to_points(row, row[f"newcomers_{w}"]) for w in (RULE, way))
        return mean_of(ours - theirs)

    return nan_mean(build_block(rows, gain).values, 0)


def _find_missing(
    results: ArenaResults, rule: Block, where: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """The federations on which a method ran with all clients, but not to its end with newcomers."""
    found = {
        (f, m)
        for i, f in enumerate(rule.federations)
        for k, m in enumerate(rule.methods)
        if not np.isnan(rule.values[i, k])
    }
    found |= {
        (row["federation"], row["method"])
        for row in select_runs(results, newcomers=True)
        if row["values"] and not row["newcomer_does"]
    }
    lost: dict[str, tuple[str, ...]] = {}
    for row in select_runs(results):
        f, method = row["federation"], row["method"]
        if f in where and (f, method) not in found and f not in lost.get(method, ()):
            lost[method] = (*lost.get(method, ()), f)
    return lost


def render_newcomer_section(found: NewcomerSummary, share: float) -> str:
    """The part of the page that says it."""
    who = f"{share:.0%} of the clients" if share < 1 else f"{share:.0f} clients per federation"
    # as printed, so that whoever counts in the table finds the same
    behind, over_alone, over_tuned, base = (
        np.round(values, 1) + 0.0 for values in (found.behind, found.alone, found.tuned, found.base)
    )
    lines = [
        "## Newcomers",
        "",
        f"{who} are kept out of training and come when it is over ({found.newcomers:,} newcomers "
        f"of {found.federations} federation{'s' * (found.federations > 1)}, the options that were "
        "chosen without). Each gets a model by the method's own rule, by training alone and by "
        "fine-tuning the method's global model ([rules](methods.md#newcomers)). *Behind* is the "
        "mean of the points behind the best rule of a federation; gains of the rule over the two "
        "other ways are newcomer by newcomer, means over federations, and a negative number is a "
        "loss. *Alone* is what training alone reaches with the options that were chosen for that "
        "method, such as its learning rate: another number in every row, so gains of two methods "
        f"do not compare, their *behind* does. {_describe_verdict(over_alone, over_tuned)} "
        f"{_describe_chance(found)}"
        f"{_describe_left_out(found)}",
        "",
        f"![Points of newcomers behind the best rule, and gains](pictures/{PICTURE}.png)",
        "",
        "| method | behind | alone | gain over alone | gain over fine-tuning | federations |",
        "|---|---|---|---|---|---|",
    ]
    for k, name in enumerate(found.methods):
        gains = f"{base[k]:.1f} | {over_alone[k]:+.1f} | {over_tuned[k]:+.1f}"
        numbers = f"{behind[k]:.1f} | {gains}"
        lines.append(f"| {name} | {numbers} | {found.counted[k]} |")
    return "\n".join(line.rstrip() for line in lines)


def _describe_verdict(over_alone: np.ndarray, over_tuned: np.ndarray) -> str:
    """How many rules are worth having."""
    rules, alone, tuned = len(over_alone), (over_alone > 0).sum(), (over_tuned > 0).sum()
    return (
        f"Of {rules} rule{'s' * (rules > 1)}, {alone or 'none'} {'does' if alone == 1 else 'do'} "
        f"better than training alone on average, and {tuned or 'none'} better than fine-tuning."
    )


def _describe_chance(found: NewcomerSummary) -> str:
    """How far the numbers go by chance, which the baseline tells that does the same twice."""
    if "local" not in found.methods:
        return ""
    gain = found.alone[found.methods.index("local")]
    return (
        "The rule of local is training alone too, from another random start: its gain over it, "
        f"{np.round(gain, 1) + 0.0:+.1f}, is chance, and other gains of that size may be too. "
    )


def _describe_left_out(found: NewcomerSummary) -> str:
    """Who is not in the table, and why."""
    said = []
    if found.ruleless:
        whose = "its" if len(found.ruleless) == 1 else "their"
        said.append(
            f"{', '.join(found.ruleless)} (no rule of {whose} own: newcomers fine-tune what they "
            "are sent)"
        )
    for where in dict.fromkeys(found.missing.values()):
        names = [name for name, lost in found.missing.items() if lost == where]
        said.append(f"{', '.join(names)} on {', '.join(where)} (no finished run there)")
    return f"Left out: {'; '.join(said)}." if said else ""
