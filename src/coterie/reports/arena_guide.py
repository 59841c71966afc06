"""What the arena says of which method to use when: the rules that were judged, and what did best
where clients differ in the same way.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coterie.analysis.guide import (
    BARS,
    CHANCE,
    MEANING,
    SINGLE,
    Known,
    Lead,
    Properties,
    judge,
    lead,
)
from coterie.comparison.arena_results import Results, known_of
from coterie.core.errors import BadInput
from coterie.core.files import read_text
from coterie.methods.listing import listed

CHOOSE = "choose.md"
BEGIN, END = "<!-- arena: begin -->", "<!-- arena: end -->"
NAMED = 3  # methods of each kind
STAR = "\\*"  # after a method that needs public rows


def public_methods() -> set[str]:
    """The methods that need public rows."""
    return {method.name for method in listed() if "public" in method.needs}


def private_only(known: Known) -> Known:
    """What is known of the methods that need no public rows."""
    return known.only(set(known.methods) - public_methods())


# Rules


def guide_section(known: Known) -> str:
    """The part of the page that tells what was measured of federations, and how rules fare."""
    lines = [
        "## Which method when",
        "",
        "What can be measured of a federation on its training rows in a minute:",
        "",
        *(f"- *{name}*: {MEANING[name]}" for name in Properties._fields),
        "",
        "| federation | " + " | ".join(Properties._fields) + " | best | behind: local | fedavg |",
        "|---|" + "---|" * (len(Properties._fields) + 3),
    ]
    for f, name in enumerate(known.federations):
        numbers = " | ".join(f"{value:.2f}" for value in known.properties[f])
        best = known.methods[int(np.nanargmax(known.points[f]))]
        bars = [
            f"{known.regret[f, known.methods.index(bar)]:.1f}" if bar in known.methods else ""
            for bar in BARS
        ]
        lines.append(f"| {name} | {numbers} | {best} | {' | '.join(bars)} |")
    return "\n".join([*lines, "", *_rules(known)])


def _rules(known: Known) -> list[str]:
    """Every rule, with all methods and with those that need no public rows."""
    judged, without = judge(known), {j.rule: j for j in judge(private_only(known))}
    if not judged or not without:
        return ["A rule is judged on a federation that it has not seen: run a second one."]
    leads = (lead(judged), lead(list(without.values())))
    lines = [
        f"{_verdict(*leads)} Each federation is left out once, the rule sees the others, and its "
        "choice is measured on the one left out, in points behind the best method there "
        "(`coterie arena --judge`). Which rule that looks is the best was decided by the same "
        "score, which favours it a little. `coterie advise` does the same with the methods that "
        "your data allow, and prints the figures.",
        "",
        "| rule | points behind the best | most | without public rows |",
        "|---|---|---|---|",
    ]
    for j in judged:
        other = f"{without[j.rule].mean:.2f}" if j.rule in without else ""
        used = " (in use)" if all(j.rule == found.taken for found in leads) else ""
        lines.append(f"| {j.rule}{used} | {j.mean:.2f} | {j.regret.max():.2f} | {other} |")
    return lines


def _verdict(every: Lead, private: Lead) -> str:
    """Whether looking at the data helps, and what advice does therefore."""
    sets = {"with all methods": every, "with those that need no public rows": private}
    if all(found.taken == SINGLE for found in sets.values()):
        figures = ", ".join(f"{what} {_figures(found)}" for what, found in sets.items())
        return (
            "**No rule that looks at the federation beats the best single method by more than "
            f"chance**, which is {CHANCE} standard errors: {figures}. So `coterie advise` names "
            "the arena's best methods that your data allow, and shows the nearest federations for "
            "information."
        )
    said = [
        f"{what} {'the best single method' if found.taken == SINGLE else repr(found.taken)} is in "
        f"use ({_figures(found)})"
        for what, found in sets.items()
    ]
    return f"A rule that looks at the federation is used where it wins: {', '.join(said)}."


def _figures(found: Lead) -> str:
    return f"the best such rule gains {found.gain:+.1f} points (standard error {found.error:.1f})"


# Where clients differ in the same way


def choose_table(results: Results) -> str:
    """What did best on the federations whose clients differ in the same way."""
    known, told = known_of(results), results.about["federations"]
    kinds: dict[str, list[int]] = {}
    for f, name in enumerate(known.federations):
        kinds.setdefault(told[name].get("differs", ""), []).append(f)
    kinds.pop("", None)
    kinds["you do not know"] = list(range(len(known.federations)))
    lines = [
        "| they differ in | try | local | fedavg | in the arena |",
        "|---|---|---|---|---|",
    ]
    for differs, places in kinds.items():
        where = [known.federations[f] for f in places]
        named = "all" if len(where) == len(known.federations) else ", ".join(where)
        bars = [_behind(known, places, bar) for bar in BARS]
        cells = (differs, _best(known, places), *bars, named)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _behind(known: Known, places: list[int], method: str) -> str:
    """Points behind the best method, mean over some federations."""
    if method not in known.methods:
        return ""
    return f"{known.regret[places, known.methods.index(method)].mean():.1f}"


def _best(known: Known, places: list[int]) -> str:
    """The methods of least mean regret, and the best ones that need no public rows."""
    public = public_methods()
    order = np.argsort(known.regret[places].mean(axis=0), kind="stable")
    names = [known.methods[k] for k in order]
    first = names[:NAMED]
    private = [name for name in names if name not in public][:NAMED]
    shown = [name for name in names if name in first or name in private]
    return ", ".join(
        f"[{name}](methods/{name}.md){STAR * (name in public)} {_behind(known, places, name)}"
        for name in shown
    )


def choose_page(results: Results, docs: Path) -> str:
    """The page on choosing with its table written anew; empty where the folder has no such page."""
    path = docs / CHOOSE
    if not path.exists():
        return ""
    text = read_text(path)
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise BadInput(f"{path} needs the lines {BEGIN} and {END} once, to write a table between")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n{choose_table(results)}\n{END}{after}"
