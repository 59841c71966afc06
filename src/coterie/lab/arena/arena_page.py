"""docs/arena.md: what the arena found, written from its stored results and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path

import numpy as np

from coterie.analysis.ranks import Ranking
from coterie.analysis.scores import find_score
from coterie.core.files import write_text
from coterie.core.option_names import rename_options
from coterie.lab.arena.budget_section import (
    rank_by_budget,
    render_budget_section,
    render_equal_section,
    render_information_section,
)
from coterie.lab.arena.guide_section import CHOOSE, render_choose_page, render_guide_section
from coterie.lab.arena.newcomer_section import render_newcomer_section, summarize_newcomers
from coterie.lab.arena.results import (
    BOUNDS,
    ArenaResults,
    Row,
    arena_scores_of,
    select_runs,
)
from coterie.lab.arena.summary import (
    ArenaSummary,
    compute_points,
    rank_complete_methods,
    summarize_results,
)

PAGE, RESULTS, PICTURES = "arena.md", Path("results") / "arena.parquet", "pictures"
LONG = 2000  # steps per client from which a run is no short one
NOTABLE_GRADIENTS = 1.5  # times FedAvg's gradients that are worth a word
HEAD = "# Arena"
SOURCE = """
All methods on the same federations, tuned with the same number of trials each. Written by
`coterie arena --write docs` from [the stored results](results/arena.parquet), a row per run with
every client's number; `coterie arena --run` runs it, or goes on.
"""


def write_page(results: ArenaResults, docs: Path) -> Path:
    """The page and its pictures, and what the page on choosing takes from them."""
    from coterie.lab.arena.arena_figures import draw_all

    choose = render_choose_page(results, docs)  # which may be refused, and then nothing is written
    found, whole = summarize_results(results), rank_complete_methods(results)
    came, budgets = summarize_newcomers(results), rank_by_budget(results)
    draw_all(found, whole, compute_points(results), came, budgets, docs / PICTURES)
    write_text(docs / PAGE, render_page(results))
    if choose:
        write_text(docs / CHOOSE, choose)
    return docs / PAGE


def render_page(results: ArenaResults) -> str:
    """The page as text."""
    found, came = summarize_results(results), summarize_newcomers(results)
    whole = rank_complete_methods(results)
    parts = [
        HEAD,
        _result_section(found, whole),
        SOURCE,
        _about_section(results),
        _describe_unequal_work(found, str(results.about.get("unlike", ""))),
        _federations_section(results),
        _ranks_section(found, whole),
        render_equal_section(results),
        render_information_section(results),
        render_budget_section(results),
        _costs_section(found),
        _fairness_section(found),
        _dropout_section(found, results),
        render_newcomer_section(came, results.about["newcomers"]) if came else "",
        render_guide_section(arena_scores_of(results)),
        _chosen_options_section(results),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _result_section(found: ArenaSummary, whole: Ranking) -> str:
    """What the page found, in a few sentences."""
    if not whole.methods:
        return ""
    rank = dict(zip(whole.methods, whole.rank, strict=True))
    best, wins = whole.methods[0], dict(zip(found.methods, found.wins, strict=True))
    work = dict(zip(found.methods, found.gradients, strict=True))
    top = [
        f"[{name}](methods/{name}.md) ({rank[name]:.1f}, with {work[name]:.1f} times FedAvg's "
        "gradients)"
        for name in whole.methods[:3]
    ]
    said = (
        f"**Result.** Among the {pluralize(len(whole.methods), 'method')} that ran on all "
        f"{pluralize(whole.n, 'federation')} the best mean ranks have {_join_names(top)}. {best} "
        f"is best on {wins[best]:.0f} of the {whole.n}"
        f"{': no method is best everywhere' if max(wins.values()) < whole.n else ''}."
    )
    baselines = [f"{name} ranks {rank[name]:.1f}" for name in ("local", "fedavg") if name in rank]
    said += f" Of the baselines {_join_names(baselines)}." if baselines else ""
    if not isnan(whole.distance):
        worse = int((whole.rank - whole.rank[0] > whole.distance).sum())
        said += (
            f" {best} is significantly better than {worse} of the {len(whole.methods) - 1} others "
            f"(Nemenyi, 5 %: mean ranks more than {whole.distance:.1f} apart)."
        )
    return said


def _about_section(results: ArenaResults) -> str:
    about, runs = results.about, results.runs
    rows = select_runs(results)
    seeds = {
        f: sorted({r["seed"] for r in rows if r["federation"] == f})
        for f in _federation_names(results)
    }
    few = sorted({len(found) for found in seeds.values()})
    said = pluralize(few[0], "seed") if len(few) == 1 else f"{few[0]} to {few[-1]} seeds"
    partly = _list_short_methods(rows, seeds)
    methods = len(set(runs["method"].to_pylist()))
    return (
        f"{len(runs):,} runs: {pluralize(methods, 'method')}, "
        f"{pluralize(len(seeds), 'federation')}, {said} "
        f"each; {about['rounds']} rounds of {about['steps']} steps for everybody but those named "
        f"below, {_format_span(about['trials'])} trials per method on the validation rows of the "
        f"first seed. "
        f"Version {about['coterie']}, {about['date'][:10]}, {about['machine']}."
        f"{_describe_length(results)}"
        + (
            f" Ran with fewer seeds than their federation's others: {', '.join(partly)}; their "
            "numbers are moved by what their seeds gave the methods that ran with all."
            if partly
            else ""
        )
    )


def _list_short_methods(rows: Sequence[Row], seeds: Mapping[str, Sequence[int]]) -> list[str]:
    """Methods that ran with fewer seeds than the other methods of a federation."""
    ran: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        ran.setdefault((row["method"], row["federation"]), set()).add(row["seed"])
    short = (m for (m, f), found in ran.items() if len(found) < len(seeds[f]))
    return list(dict.fromkeys(short))


def _describe_length(results: ArenaResults) -> str:
    """What the length of the runs says, and what of the arena is not there yet."""
    about = results.about
    said = (
        " These are short runs of small networks: they say which method gets far with little, not "
        "where each ends."
        if about["rounds"] * about["steps"] < LONG
        else ""
    )
    missing = [name for name in about.get("planned", ()) if name not in about["federations"]]
    if missing:
        said += f" **In part**: {', '.join(missing)} are not run yet."
    if about.get("not_run"):
        said += f" Methods that are not run: {', '.join(about['not_run'])}."
    return said


def _format_span(numbers: int | Sequence[int]) -> str:
    """A number, or the least and the most of several."""
    found = [numbers] if isinstance(numbers, int) else numbers
    return " to ".join(map(str, sorted({min(found), max(found)}))) if found else "no"


def pluralize(count: int, what: str) -> str:
    """A count with its word."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def _describe_unequal_work(found: ArenaSummary, extra: str) -> str:
    """What is not the same for all methods, in spite of equal steps."""
    more = [
        f"{name} {found.gradients[k]:.1f}"
        for k, name in enumerate(found.methods)
        if found.gradients[k] > NOTABLE_GRADIENTS
    ]
    lines = ["Not alike: "]
    if more:
        lines.append(
            "some methods take gradients beyond these steps by their own rule or in a fine-tuning "
            f"at the end (times FedAvg's: {', '.join(more)}), and their ranks are to be read with "
            "that. "
        )
    return "".join([*lines, extra])


def _federation_names(results: ArenaResults) -> list[str]:
    return list(dict.fromkeys(results.runs["federation"].to_pylist()))


def _federations_section(results: ArenaResults) -> str:
    found, about, rows = compute_points(results), results.about["federations"], select_runs(results)
    lines = [
        "## On each federation",
        "",
        "Points are 100 times the measure, the mean over clients of test rows; an R2 below -1 "
        "counts as -1, so that one client does not decide alone. A method that knows the true "
        "groups (oracle) cannot win." + _describe_settled(results),
        "",
        "| federation | | clients | seeds | measure | best | second | fedavg | local |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for f, name in enumerate(found.federations):
        mine = [row for row in rows if row["federation"] == name and row["values"]]
        order = [
            (found.methods[k], found.values[f, k])
            for k in np.argsort(-np.nan_to_num(found.values[f], nan=-np.inf))
            if found.methods[k] not in BOUNDS and not isnan(found.values[f, k])
        ]
        baselines = [_format_number(dict(order).get(b, np.nan)) for b in ("fedavg", "local")]
        top = [*(f"{method} {value:.1f}" for method, value in order[:2]), "", ""][:2]
        clients, measure = (
            (str(len(mine[0]["values"])), find_score(mine[0]["measure"]).label)
            if mine
            else ("", "")
        )
        seeds = str(len({row["seed"] for row in mine}))
        lines.append(
            format_row(name, about[name]["says"], clients, seeds, measure, *top, *baselines)
        )
    return "\n".join(lines)


def _describe_settled(results: ArenaResults) -> str:
    """Where the validation loss of the two baselines had its least value."""
    about = results.about["federations"]
    known = {name: one["settled"] for name, one in about.items() if one.get("settled")}
    if not known:
        return ""
    said = "; ".join(
        f"{name} {', '.join(f'{method} {at}' for method, at in one.items())}"
        for name, one in known.items()
    )
    return (
        f" The loss on validation rows is least in these rounds of {results.about['rounds']}, and "
        f"rises or stays after them: {said}."
    )


def format_row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def _format_number(value: float, form: str = ".1f") -> str:
    return "" if isnan(value) else f"{value:{form}}"


def _ranks_section(found: ArenaSummary, whole: Ranking) -> str:
    more = (
        "" if isnan(whole.p) else f" Friedman's test that all methods are equal: p = {whole.p:.2g}."
    )
    if not isnan(whole.distance):
        more += (
            f" Two mean ranks that are less than {whole.distance:.1f} apart do not differ "
            "significantly (Nemenyi, 5 %)."
        )
    lines = [
        "## Average ranks",
        "",
        "![Mean rank of every method, with bars over those that do not differ significantly]"
        "(pictures/arena-ranks.png)",
        "",
        f"Over {pluralize(whole.n, 'federation')}, {pluralize(len(whole.methods), 'method')} "
        "that were tried "
        f"on all of them.{more} A method that was tried on some federations only is ranked among "
        "those that were tried there. *Behind* is the mean of the points behind the best "
        "method of a federation. *Gradients* are times FedAvg's, those of a fine-tuning at the end "
        "with them.",
        "",
        "| method | mean rank | behind | wins | federations | gradients |",
        "|---|---|---|---|---|---|",
    ]
    for k, name in enumerate(found.methods):
        behind, wins = _format_number(found.behind[k]), f"{found.wins[k]:.0f}"
        lines.append(
            format_row(
                f"[{name}](methods/{name}.md)",
                f"{found.rank[k]:.1f}",
                behind,
                "a bound" if name in BOUNDS else wins,
                f"{found.tried[k]:.0f}",
                _format_number(found.gradients[k]),
            )
        )
    lines += ["", "![Points behind the best, per federation](pictures/arena-behind.png)"]
    return "\n".join(lines)


def _costs_section(found: ArenaSummary) -> str:
    known = [k for k in range(len(found.methods)) if not isnan(found.bytes[k])]
    if not known:
        return (
            "## Accuracy against bytes\n\nBytes are given in times of FedAvg's, which did not run."
        )
    other = ("local", *BOUNDS)
    cheap = [k for k in known if found.bytes[k] <= 1.005 and found.methods[k] not in other]
    best = [found.methods[k] for k in cheap[:3]]
    lines = [
        "## Accuracy against bytes",
        "",
        "![Points behind the best against bytes](pictures/arena-bytes.png)",
        "",
        "Bytes and gradients are times FedAvg's, the mean over federations. Of the methods that "
        f"send no more than FedAvg, the best ranks have {_join_names(best)}.",
        "",
        "| method | bytes | gradients | behind |",
        "|---|---|---|---|",
    ]
    for k in sorted(known, key=lambda k: found.bytes[k]):
        lines.append(
            f"| {found.methods[k]} | {found.bytes[k]:.2f} | "
            f"{_format_number(found.gradients[k], '.2f')} "
            f"| {_format_number(found.behind[k])} |"
        )
    return "\n".join(lines)


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1] if names else "none"


def _fairness_section(found: ArenaSummary) -> str:
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
            f"| {found.methods[k]} | {_format_number(found.worst[k])} | "
            f"{_format_number(found.spread[k])} |"
        )
    return "\n".join(lines)


def _dropout_section(found: ArenaSummary, results: ArenaResults) -> str:
    rows = select_runs(results, drop=True)
    title = "## Clients that do not answer"
    if not rows:
        return f"{title}\n\nNot run yet."
    where = len({row["federation"] for row in rows})
    lines = [
        title,
        "",
        f"Each sampled client drops out with probability {results.about['drop']:.0%} in every "
        f"round ({pluralize(where, 'federation')}, the options that were chosen without). Points "
        "lost, mean; a negative number is a gain.",
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


def _chosen_options_section(results: ArenaResults) -> str:
    """What was chosen for each method, federation by federation."""
    rows = [row for row in select_runs(results) if row["seed"] == results.runs["seed"][0].as_py()]
    lines = ["## What was chosen", "", "On the validation rows of the first seed.", ""]
    for method in dict.fromkeys(row["method"] for row in rows):
        said = []
        for row in rows:
            settings = rename_options(json.loads(row["words"]))
            if row["method"] == method and settings:
                said.append(
                    f"{row['federation']} {', '.join(f'{k} {v}' for k, v in settings.items())}"
                )
        lines.append(f"- **{method}**: {'; '.join(said) or 'nothing to choose'}")
    return "\n".join(lines)
