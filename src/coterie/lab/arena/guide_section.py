"""What the arena says of which method to use when: the rules that were judged, and what did best
where clients differ in the same way.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coterie.core.errors import BadInput
from coterie.core.files import read_text
from coterie.lab.arena.results import ArenaResults, arena_scores_of
from coterie.lab.arena.rules import (
    BASELINES,
    CHANCE,
    MEANINGS,
    SINGLE,
    ArenaScores,
    Properties,
    RuleLead,
    find_lead,
    judge_rules,
)
from coterie.methods.listing import list_methods

CHOOSE = "choose.md"
BEGIN, END = "<!-- arena: begin -->", "<!-- arena: end -->"
MAX_NAMED = 3  # methods of each kind
STAR = "\\*"  # after a method that needs public rows


def find_public_methods() -> set[str]:
    """The methods that need public rows."""
    return {method.name for method in list_methods() if "public" in method.needs}


def exclude_public(known: ArenaScores) -> ArenaScores:
    """What is known of the methods that need no public rows."""
    return known.only(set(known.methods) - find_public_methods())


# Rules


def render_guide_section(known: ArenaScores) -> str:
    """The part of the page that says what was measured of federations, and how rules fare."""
    lines = [
        "## Which method when",
        "",
        "What can be measured of a federation on its training rows in a minute:",
        "",
        *(f"- *{name}*: {MEANINGS[name]}" for name in Properties._fields),
        "",
        "| federation | " + " | ".join(Properties._fields) + " | best | behind: local | fedavg |",
        "|---|" + "---|" * (len(Properties._fields) + 3),
    ]
    for f, name in enumerate(known.federations):
        numbers = " | ".join(f"{value:.2f}" for value in known.properties[f])
        best = known.methods[int(np.nanargmax(known.points[f]))]
        bars = [
            f"{known.regret[f, known.methods.index(bar)]:.1f}" if bar in known.methods else ""
            for bar in BASELINES
        ]
        lines.append(f"| {name} | {numbers} | {best} | {' | '.join(bars)} |")
    return "\n".join([*lines, "", *_rules_lines(known)])


def _rules_lines(known: ArenaScores) -> list[str]:
    """Every rule, with all methods and with those that need no public rows."""
    judged, without = judge_rules(known), {j.rule: j for j in judge_rules(exclude_public(known))}
    if not judged or not without:
        return ["A rule is judged on a federation that it has not seen: run a second one."]
    leads = (find_lead(judged), find_lead(list(without.values())))
    lines = [
        f"{_describe_verdict(*leads)} Each federation is left out once, the rule sees the "
        "others, and its "
        "choice is measured on the one left out, in points behind the best method there "
        "(`coterie arena --judge`). Which rule that looks is the best was decided by the same "
        "score, which favours it a little. `coterie advise` prints the same figures for the "
        "methods that your data allow.",
        "",
        "| rule | points behind the best | most | without public rows |",
        "|---|---|---|---|",
    ]
    for j in judged:
        other = f"{without[j.rule].mean:.2f}" if j.rule in without else ""
        used = " (in use)" if j.rule == SINGLE else ""
        lines.append(f"| {j.rule}{used} | {j.mean:.2f} | {j.regret.max():.2f} | {other} |")
    return lines


def _describe_verdict(every: RuleLead, private: RuleLead) -> str:
    """Whether looking at the data helps, and what advice does therefore."""
    sets = {"with all methods": every, "with those that need no public rows": private}
    if all(found.taken == SINGLE for found in sets.values()):
        figures = ", ".join(f"{what} {_format_lead(found)}" for what, found in sets.items())
        return (
            "**No rule that looks at the federation beats the best single method by more than "
            f"chance**, which is {CHANCE} standard errors: {figures}. So `coterie advise` names "
            "the arena's best methods that your data allow, whatever the data look like."
        )
    said = [
        f"{what} {'the best single method' if found.taken == SINGLE else repr(found.taken)} is "
        f"ahead ({_format_lead(found)})"
        for what, found in sets.items()
    ]
    return (
        f"A rule that looks at the federation wins somewhere: {', '.join(said)}. `coterie advise` "
        "does not look, and says so."
    )


def _format_lead(found: RuleLead) -> str:
    return f"the best such rule gains {found.gain:+.1f} points (standard error {found.error:.1f})"


# Where clients differ in the same way


def build_choose_table(results: ArenaResults) -> str:
    """What did best on the federations whose clients differ in the same way."""
    known, about = arena_scores_of(results), results.about["federations"]
    kinds: dict[str, list[int]] = {}
    for f, name in enumerate(known.federations):
        kinds.setdefault(about[name].get("differs", ""), []).append(f)
    kinds.pop("", None)
    kinds["you do not know"] = list(range(len(known.federations)))
    lines = [
        "| they differ in | try | local | fedavg | in the arena |",
        "|---|---|---|---|---|",
    ]
    for differs, places in kinds.items():
        where = [known.federations[f] for f in places]
        named = "all" if len(where) == len(known.federations) else ", ".join(where)
        bars = [_mean_regret(known, places, bar) for bar in BASELINES]
        cells = (differs, _list_best(known, places), *bars, named)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean_regret(known: ArenaScores, places: list[int], method: str) -> str:
    """Points behind the best method, mean over some federations."""
    if method not in known.methods:
        return ""
    return f"{known.regret[places, known.methods.index(method)].mean():.1f}"


def _list_best(known: ArenaScores, places: list[int]) -> str:
    """The methods of least mean regret, and the best ones that need no public rows."""
    public = find_public_methods()
    order = np.argsort(known.regret[places].mean(axis=0), kind="stable")
    names = [known.methods[k] for k in order]
    first = names[:MAX_NAMED]
    private = [name for name in names if name not in public][:MAX_NAMED]
    shown = [name for name in names if name in first or name in private]
    return ", ".join(
        f"[{name}](methods/{name}.md){STAR * (name in public)} {_mean_regret(known, places, name)}"
        for name in shown
    )


def render_choose_page(results: ArenaResults, docs: Path) -> str:
    """The page on choosing with its table written anew; empty where the folder has no such page."""
    path = docs / CHOOSE
    if not path.exists():
        return ""
    text = read_text(path)
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise BadInput(f"{path} needs the lines {BEGIN} and {END} once, to write a table between")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n{build_choose_table(results)}\n{END}{after}"
