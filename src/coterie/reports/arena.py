"""docs/arena.md: what the arena found, written from its stored results and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isnan
from pathlib import Path

import numpy as np

from coterie.analysis.guide import MEANING, Known, Properties, best_rule, judge
from coterie.analysis.ranks import Ranking
from coterie.analysis.scores import named
from coterie.comparison.arena_results import BOUNDS, Results, known_of, runs_with
from coterie.core.files import write
from coterie.reports.arena_newcomers import arrived, newcomer_section
from coterie.reports.arena_numbers import Summary, points, summary, whole_ranking

PAGE, RESULTS, PICTURES = "arena.md", Path("results") / "arena.parquet", "pictures"
MORE = 1.5  # times FedAvg's gradients that are worth a word
HEAD = """# Arena

All methods on the same federations, tuned with the same number of trials each. Written by
`coterie arena --write docs` from [the stored results](results/arena.parquet), a row per run with
every client's number; `coterie arena --run` runs it, or goes on.
"""


def write_page(results: Results, docs: Path) -> Path:
    """The page and its pictures."""
    from coterie.reports.arena_pictures import draw_all

    found, whole = summary(results), whole_ranking(results)
    draw_all(found, whole, points(results), arrived(results), docs / PICTURES)
    write(docs / PAGE, page(results))
    return docs / PAGE


def page(results: Results) -> str:
    """The page as text."""
    found, came = summary(results), arrived(results)
    parts = [
        HEAD,
        _about(results),
        _unlike(found, str(results.about.get("unlike", ""))),
        _federations(results),
        _ranks(found, whole_ranking(results)),
        _costs(found),
        _fairness(found),
        _dropped(found, results),
        newcomer_section(came, results.about["newcomers"]) if came else "",
        _guide(known_of(results)),
        _words(results),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


# Words


def _about(results: Results) -> str:
    told, runs = results.about, results.runs
    rows = runs_with(results)
    seeds = {f: sorted({r["seed"] for r in rows if r["federation"] == f}) for f in _names(results)}
    few = sorted({len(found) for found in seeds.values()})
    said = f"{few[0]}" if len(few) == 1 else f"{few[0]} to {few[-1]}"
    once = said == "1"
    methods = len(set(runs["method"].to_pylist()))
    return (
        f"{len(runs):,} runs: {methods} methods, {len(seeds)} federations, {said} "
        f"seed{'' if once else 's'} each; {told['rounds']} rounds of {told['steps']} steps for "
        f"everybody, {told['trials']} trials per method on the validation rows of the first seed. "
        f"Version {told['coterie']}, {told['date'][:10]}, {told['machine']}. These are short runs "
        "of small networks: they say which method gets far with little, not where each ends."
    )


def _unlike(found: Summary, told: str) -> str:
    """What is not the same for all methods, in spite of equal steps."""
    more = [
        f"{name} {found.gradients[k]:.1f}"
        for k, name in enumerate(found.methods)
        if found.gradients[k] > MORE
    ]
    lines = ["Not alike: "]
    if more:
        lines.append(
            "some methods take gradients beyond these steps by their own rule (times FedAvg's: "
            f"{', '.join(more)}), and their ranks are to be read with that. "
        )
    return "".join([*lines, told])


def _names(results: Results) -> list[str]:
    return list(dict.fromkeys(results.runs["federation"].to_pylist()))


def _federations(results: Results) -> str:
    found, told, rows = points(results), results.about["federations"], runs_with(results)
    lines = [
        "## On each federation",
        "",
        "Points are 100 times the measure, the mean over clients of test rows. A method that is "
        "told the true groups (oracle) cannot win.",
        "",
        "| federation | | clients | seeds | measure | best | second | fedavg | local |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for f, name in enumerate(found.federations):
        mine = [row for row in rows if row["federation"] == name and row["values"]]
        order = [
            (found.methods[k], found.values[f, k])
            for k in np.argsort(-np.nan_to_num(found.values[f], nan=-np.inf))
            if found.methods[k] not in BOUNDS
        ]
        bars = [_number(dict(order).get(bar, np.nan)) for bar in ("fedavg", "local")]
        top = [f"{method} {value:.1f}" for method, value in order[:2]]
        lines.append(
            f"| {name} | {told[name]['says']} | {len(mine[0]['values'])} "
            f"| {len({row['seed'] for row in mine})} | {named(mine[0]['measure']).label} "
            f"| {' | '.join(top)} | {' | '.join(bars)} |"
        )
    return "\n".join(lines)


def _number(value: float, form: str = ".1f") -> str:
    return "" if isnan(value) else f"{value:{form}}"


def _ranks(found: Summary, whole: Ranking) -> str:
    told = "" if isnan(whole.p) else f" Friedman's test that all are alike: p = {whole.p:.2g}."
    lines = [
        "## Average ranks",
        "",
        "![Mean rank of every method, with bars over those that are not told apart]"
        "(pictures/arena-ranks.png)",
        "",
        f"Over {whole.n} federations, {len(whole.methods)} methods that were tried on all of them."
        f"{told} Two mean ranks that are less than {whole.distance:.1f} apart are not told apart "
        "(Nemenyi, 5 %). A method that was tried on some federations only is ranked among those "
        "that were tried there. *Behind* is the mean of the points behind the best method of a "
        "federation.",
        "",
        "| method | mean rank | behind | wins | federations |",
        "|---|---|---|---|---|",
    ]
    for k, name in enumerate(found.methods):
        behind, wins = _number(found.behind[k]), f"{found.wins[k]:.0f}"
        lines.append(
            f"| [{name}](methods/{name}.md) | {found.rank[k]:.1f} | {behind} "
            f"| {'a bound' if name in BOUNDS else wins} | {found.tried[k]:.0f} |"
        )
    lines += ["", "![Points behind the best, per federation](pictures/arena-behind.png)"]
    return "\n".join(lines)


def _costs(found: Summary) -> str:
    known = [k for k in range(len(found.methods)) if not isnan(found.bytes[k])]
    other = ("local", *BOUNDS)
    cheap = [k for k in known if found.bytes[k] <= 1.005 and found.methods[k] not in other]
    best = [found.methods[k] for k in cheap[:3]]
    lines = [
        "## Accuracy against bytes",
        "",
        "![Points behind the best against bytes](pictures/arena-bytes.png)",
        "",
        "Bytes and gradients are times FedAvg's, the mean over federations. Of the methods that "
        f"send no more than FedAvg, the best ranks have {_listed(best)}.",
        "",
        "| method | bytes | gradients | behind |",
        "|---|---|---|---|",
    ]
    for k in sorted(known, key=lambda k: found.bytes[k]):
        lines.append(
            f"| {found.methods[k]} | {found.bytes[k]:.2f} | {_number(found.gradients[k], '.2f')} "
            f"| {_number(found.behind[k])} |"
        )
    return "\n".join(lines)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1] if names else "none"


def _fairness(found: Summary) -> str:
    lines = [
        "## Fairness and the worst tenth",
        "",
        "Points of the worst tenth of the clients behind the method that serves them best on a "
        "federation, and the deviation over clients, means over federations.",
        "",
        "![Worst tenth behind the best, against the mean behind the best]"
        "(pictures/arena-worst.png)",
        "",
        "| method | worst tenth behind | deviation over clients |",
        "|---|---|---|",
    ]
    for k in np.argsort(np.nan_to_num(found.worst, nan=np.inf), kind="stable"):
        lines.append(
            f"| {found.methods[k]} | {_number(found.worst[k])} | {_number(found.spread[k])} |"
        )
    return "\n".join(lines)


def _dropped(found: Summary, results: Results) -> str:
    rows = runs_with(results, drop=True)
    title = "## Clients that do not answer"
    if not rows:
        return f"{title}\n\nNot run yet."
    where = len({row["federation"] for row in rows})
    lines = [
        title,
        "",
        f"Each client asked is lost with a chance of {results.about['drop']:.0%} in every round "
        f"({where} federations, the words that were chosen without). Points lost, mean; a negative "
        "number is a gain.",
        "",
        "![Points lost where clients do not answer](pictures/arena-drop.png)",
        "",
        "| method | points lost |",
        "|---|---|",
    ]
    for k in np.argsort(np.nan_to_num(found.dropped, nan=np.inf), kind="stable"):
        if not isnan(found.dropped[k]):
            lines.append(f"| {found.methods[k]} | {found.dropped[k]:+.1f} |")
    return "\n".join(lines)


def _guide(known: Known) -> str:
    judged = judge(known)
    nearest = best_rule(judged)
    single = next(j for j in judged if j.rule == "best single method")
    taken = f"nearest {nearest}" if nearest else single.rule
    verdict = (
        f"**Asking the {nearest} nearest federation{'s' if nearest > 1 else ''} beats the best "
        "single method**, and `coterie advise` goes by it"
        if nearest
        else "**No rule that looks at the federation beats the best single method here**, and "
        "`coterie advise` says so and names that one first"
    )
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
            _number(known.regret[f, known.methods.index(bar)]) if bar in known.methods else ""
            for bar in ("local", "fedavg")
        ]
        lines.append(f"| {name} | {numbers} | {best} | {' | '.join(bars)} |")
    lines += [
        "",
        f"{verdict}. Each federation is left out once, the rule sees the others, and its choice is "
        "measured on the one left out, in points behind the best method there "
        "(`coterie arena --judge`). The number of federations to ask was itself chosen by this "
        "score, which favours it a little.",
        "",
        "| rule | points behind the best | most |",
        "|---|---|---|",
        *(
            f"| {j.rule}{' (in use)' if j.rule == taken else ''} | {j.mean:.2f} "
            f"| {j.regret.max():.2f} |"
            for j in judged
        ),
    ]
    return "\n".join(lines)


def _words(results: Results) -> str:
    """What was chosen for each method, federation by federation."""
    rows = [row for row in runs_with(results) if row["seed"] == results.runs["seed"][0].as_py()]
    lines = ["## What was chosen", "", "On the validation rows of the first seed.", ""]
    for method in dict.fromkeys(row["method"] for row in rows):
        said = []
        for row in rows:
            words = json.loads(row["words"])
            if row["method"] == method and words:
                said.append(
                    f"{row['federation']} {', '.join(f'{k} {v}' for k, v in words.items())}"
                )
        lines.append(f"- **{method}**: {'; '.join(said) or 'nothing to choose'}")
    return "\n".join(lines)
