"""What the command line prints: tables and the progress line."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich import box
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as Grid

from coterie.analysis.answer import Answer
from coterie.analysis.scores import find_score, scores_of
from coterie.analysis.significance import Difference, RankTable
from coterie.analysis.tiles import summarize_answer
from coterie.cli.printing import build_console, format_value, print_line, print_table
from coterie.cli.show_newcomers import show_newcomers
from coterie.core.errors import CannotWrite, Interrupted
from coterie.core.quantities import QuantityKind, from_json
from coterie.core.task import find_task
from coterie.data.federation import PARTS, Federation, summarize_clients
from coterie.data.inspection import (
    compute_quantiles,
    find_problems,
    summarize_columns,
    summarize_target,
)
from coterie.data.read.file_rows import UserData
from coterie.experiment.config import options_of
from coterie.experiment.differences import describe_differences
from coterie.experiment.reference import about_named, describe_named
from coterie.methods.declare import group_refusals, unused_of
from coterie.methods.listing import list_methods
from coterie.methods.registry import METHODS
from coterie.results.comparison import TIE, Comparison, MethodRow
from coterie.results.costs import FLOAT, SYSTEMS, costs_of, costs_until
from coterie.results.guard_summary import format_guard
from coterie.results.informed import find_informed
from coterie.results.metric_table import mean_logged
from coterie.results.run import Run
from coterie.running.loop import RoundReport
from coterie.running.progress_lines import LineProgress, RunCounter, format_seconds, print_named

T = TypeVar("T")
MAX_LISTED = 50  # clients listed by `coterie data`
MAX_NAMED = 4  # methods listed in a cell
CHOSEN_MARK = "> "  # before the method to use


def _method_docs(name: str) -> list[str]:
    """The paragraphs at the head of a method's file."""
    return (inspect.getdoc(inspect.getmodule(METHODS[name])) or "").split("\n\n")


def show_method(name: str) -> None:
    """All about one method: the head of its file, what its builder says, its options."""
    options = options_of("method", name)  # refuses an unknown name
    for paragraph in [*_method_docs(name), about_named("method", name)]:
        print_line(paragraph + "\n")
    if arena := next((m.describe_arena() for m in list_methods() if m.name == name), ""):
        print_line(wrap_text(f"In the arena: {arena}.") + "\n")
    ignored = [
        w if when is None else f"{w} (unless {when[0]} = {format_value(when[1])})"
        for w, when in unused_of(METHODS[name]).items()
    ]
    if ignored:
        print_line(f"Of [train], {name} does not use {', '.join(ignored)}.\n")
    for why, settings in group_refusals(METHODS[name]).items():
        print_line(f"It refuses {', '.join(settings)}, since {why}.\n")
    if not options:
        print_line(f"{name} has no options.")
        return
    grid = Grid("option", "default", "takes", "meaning")
    for entry in describe_named("method", name):
        grid.add_row(entry.name, entry.default, entry.takes, entry.meaning)
    print_table(grid)
    first = describe_named("method", name)[0]
    print_line(f"Set one as in `coterie run {name} --{first.name} {first.default or 'VALUE'}`.")


def show_data(federation: Federation) -> None:
    """Who holds how much."""
    title = f"{federation.name}: {federation.clients:,} clients"
    rows, more = summarize_clients(federation), _label_columns(federation)
    grid = Grid("client", "name", *PARTS, *more, "group", title=title)
    for k, row in enumerate(rows[:MAX_LISTED]):
        counts = [str(getattr(row, part)) for part in PARTS]
        label = [f"{values[k]:.4g}" for values in more.values()]
        grid.add_row(str(row.client), row.name, *counts, *label, str(row.group))
    print_table(grid)
    if len(rows) > MAX_LISTED:
        print_line(f"... and {len(rows) - MAX_LISTED:,} more clients; over all of them:")
        _show_quantiles(federation, more)
    sizes = federation.sizes
    print_line(
        f"training rows: {sizes.sum():,} in all, {sizes.min():,} to {sizes.max():,} a client"
    )


def _label_columns(federation: Federation) -> dict[str, list[float]]:
    """What a table says of every client's labels: how many classes, or their mean and spread."""
    if federation.classes:
        return {"classes": [float(row.classes) for row in summarize_clients(federation)]}
    if federation.y.ndim > 1:
        return {}
    found = summarize_target(federation)
    return {"mean": [mean for mean, _ in found], "spread": [spread for _, spread in found]}


def _show_quantiles(federation: Federation, more: Mapping[str, list[float]]) -> None:
    """What clients hold where they are too many to list."""
    grid = Grid("per client", "least", "25 %", "median", "75 %", "most")
    for name, values in compute_quantiles(federation, more):
        form = ",.0f" if name in (*PARTS, "classes") else ".4g"
        grid.add_row(name, *(f"{value:{form}}" for value in values))
    print_table(grid)


def show_own(whole: UserData, federation: Federation) -> None:
    """What a user's own table holds, what is done with it, and what looks wrong."""
    x, prepared = whole.data.x, federation.preparation
    for line in whole.remarks:
        print_line(textwrap.fill(f"{whole.data.name}: {line}", 80, subsequent_indent="  "))
    if whole.columns is not None and prepared is not None:
        inputs = len(prepared.outputs)
        print_line(
            f"{len(x):,} rows, {len(whole.columns):,} columns, {inputs:,} inputs of the model"
        )
        columns = summarize_columns(whole, prepared)
        grid = Grid(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        widths = {"column": 15, "kind": 8, "missing": 7, "holds": 22, "becomes": 24}
        for head, width in widths.items():  # 80 characters with the blanks between them
            grid.add_column(head, width=width, overflow="fold")
        for found in columns[:MAX_LISTED]:
            gaps = f"{found.missing:.1%}" if found.missing else ""
            grid.add_row(found.name, found.kind, gaps, found.holds, found.becomes)
        print_table(grid, 80)
        if len(columns) > MAX_LISTED:
            print_line(f"... and {len(columns) - MAX_LISTED:,} more columns")
    wrong = find_problems(whole)
    for line in wrong:
        print_line(textwrap.fill(f"look at: {line}", 80, subsequent_indent="  "))
    if not wrong:
        print_line("nothing looks wrong")


@contextmanager
def progress(
    quiet: bool, runs: int = 1
) -> Iterator[Callable[[str, int | None, RoundReport], None]]:
    """One live line: which of the runs, how far, how long it takes yet. Where the output is no
    terminal, a few plain lines; what must be said is said in any case.
    """
    if quiet:
        yield print_named
    elif not sys.stdout.isatty():
        yield LineProgress(runs).note
    else:
        with _build_progress() as bars:
            yield _BarProgress(bars, runs).note


class _BarProgress(RunCounter):
    """One line that is drawn anew."""

    def __init__(self, bars: Progress, runs: int):
        super().__init__(runs)
        self.bars, self.task = bars, bars.add_task("", total=None, left="", loss="")

    def note(self, label: str, seed: int | None, report: RoundReport) -> None:
        print_named(label, seed, report)
        if not report.rounds:
            return
        more: dict[str, Any] = {}
        if report.accuracy is not None and report.loss is not None:
            more["loss"] = f"loss {report.loss:.3f}"
        self.bars.update(
            self.task,
            description=self.place(label, seed, report),
            total=report.rounds,
            completed=report.round,
            left=f"{format_seconds(self.estimate_left(report))} left",
            **more,
        )


def _build_progress() -> Progress:
    """The columns of the live line: they fit 80 characters."""
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    ]
    return Progress(*columns, console=build_console())


def track_progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items one by one, with a bar on a terminal."""
    if not sys.stdout.isatty() or total < 2:
        yield from items
        return
    columns = [TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=build_console()) as bars:
        yield from bars.track(items, total=total)


def _describe_clients(runs: list[Run]) -> str:
    """How many clients have what they are judged by: hostile ones, and those whose rows allow no
    such value, have none.
    """
    all_of_them = len(runs[0].rows)
    counts = {int((~np.isnan(run.client_values(run.part))).sum()) for run in runs}
    if counts in ({all_of_them}, {0}):
        return f"{all_of_them:,} clients"
    least, most = min(counts), max(counts)
    count = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f"{count} of {all_of_them:,} clients (the others have none)"


def show_run(run: Run) -> None:
    """A run's clients, one line per view."""
    heads = (
        "view",
        f"mean {run.judged.label}",
        f"weighted by {run.part} rows",
        "deviation over clients",
        "worst client",
    )
    grid = Grid(*heads)
    for view in run.views:
        grid.add_row(view, *(_format_number(v, run) for v in run.summary(run.part, view)))
    judged = run.judged
    print_line(f"{run.name}: {run.part} {judged.label}{judged.unit} of {_describe_clients([run])}")
    print_table(grid)
    scores = run.scores()
    if scores:
        known = [(find_score(name), value) for name, value in scores.items()]
        shares = [f"{s.label} {s.text(value)}" for s, value in known if s.share]
        rest = [f"{s.label} {s.text(value)}" for s, value in known if not s.share]
        parts = [f" in %: {', '.join(shares)}"] if shares else []
        parts += [f"{'' if shares else ': '}{', '.join(rest)}"] if rest else []
        line = f"Means over the clients' own models{'; '.join(parts)}"
        print_line(textwrap.fill(line, 80, subsequent_indent="  "))
    show_newcomers({run.name: run.newcomers()}, {run.name: run})
    for line in (*_describe_traffic(run), *_list_warnings(run)):
        print_line(line)
    print_line(f"run: {run.folder}")


def _count_parameters(run: Run) -> tuple[int, int] | None:
    """How many parameters train, and how many there are, where parts of a network are frozen."""
    known = [net for net in run.about.get("models", []) if net.get("frozen")]
    if not known:
        return None
    return max((net["parameters"], net["parameters"] + net["frozen"]) for net in known)


def _describe_traffic(run: Run) -> list[str]:
    """What travels beside the whole network, where parts of it are frozen."""
    known, costs = _count_parameters(run), costs_of(run)
    asked = float(costs.clients.sum())
    if known is None or not asked:
        return []
    train, whole = known
    sent = float(costs.down.sum() + costs.up.sum()) / asked
    line = (
        f"{train:,} of {whole:,} parameters train: {sent / 1000:,.1f} KB per client and round, "
        f"down and up; the whole network would be {2 * FLOAT * whole / 1000:,.1f} KB"
    )
    return [textwrap.fill(line, 80, subsequent_indent="  ")]


def _list_warnings(run: Run) -> list[str]:
    """What a mean alone would hide: updates that were left out, training that learned nothing."""
    said, lost = format_guard(run), run.diverged_clients
    if lost:
        said.append(
            f"Diverged for {len(lost)} of {len(run.rows):,} clients; train.lr = "
            f"{run.experiment.train.lr:g} may be too high"
        )
    elif run.left_out:
        updates = "1 update" if run.left_out == 1 else f"{run.left_out:,} updates"
        clients = len(run.left_out_clients)
        said.append(
            f"Left out: {updates} of {clients} client{'s' * (clients > 1)} that were not finite; "
            f"train.lr = {run.experiment.train.lr:g} may be too high"
        )
    if not np.isfinite(run.client_values(run.part)).any():
        said.append(f"No client has a finite {run.part} {run.judged.label}.")
    floor, judged = run.floor, run.judged
    mean = run.summary(run.part).mean
    if floor is not None and not judged.sign * mean > judged.sign * floor + TIE:
        reached = (
            f"is right in {100 * floor:.2f} %"
            if run.measure == "accuracy"
            else f"has a {judged.label} of {judged.text(floor)}"
        )
        said.append(f"No better than {run.knows_nothing}, which {reached}")
    return said


def _format_number(value: float, run: Run) -> str:
    return run.judged.text(value)


def show_comparison(
    comparison: Comparison, target: float | None = None, wide: bool = False
) -> None:
    """The answer, the table with the best mean first, and how soon each method reaches a target.

    wide: every column, who beats whom and the other scores too.
    """
    first, rows = comparison.first, _sort_rows(comparison)
    found = comparison.answer
    if found:
        show_answer(found)
    elif comparison.remarks():
        print_line(wrap_text(" ".join(comparison.remarks())) + "\n")
    show_header(comparison)
    use = found.use if found else None
    if wide:
        _show_rows(rows, first, comparison.diverged, use)
        _show_scores(comparison, [row.method for row in rows])
        _show_differences(comparison, [row.method for row in rows])
        if find_task(first.task).scores:
            _show_views(comparison)
    else:
        _show_narrow(comparison, rows, use)
    show_newcomers(comparison.newcomers(), {name: r[0] for name, r in comparison.runs.items()})
    if target is not None:
        _show_target(comparison, target)
    more = ", clients.csv and newcomers.csv" if comparison.newcomers() else " and clients.csv"
    print_line(f"runs, table.csv{more}: {comparison.folder}")


def show_answer(answer: Answer) -> None:
    """The headline, a small table of its figures, and the sentences that it leaves out."""
    summary = summarize_answer(answer)
    print_line(wrap_text(summary.headline) + "\n")
    if summary.tiles:
        grid = Grid(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for tile in summary.tiles:
            grid.add_column(tile.label)
        grid.add_row(*(tile.value for tile in summary.tiles))
        grid.add_row(*(tile.note for tile in summary.tiles))
        print_table(grid, 80)
        print_line("")
    if summary.details:
        print_line(wrap_text(" ".join(summary.details)) + "\n")


def show_header(comparison: Comparison) -> None:
    """What the table below holds, of which clients, and how these differ."""
    first, some = comparison.first, next(iter(comparison.runs.values()))
    seeds = f"{len(some)} seed{'s' if len(some) > 1 else ''}"
    print_line(
        wrap_text(
            f"{first.part.capitalize()} {first.judged.label}{first.judged.unit} of every client's "
            f"own model: {_describe_clients(some)} ({describe_differences(first.experiment)}), "
            f"{seeds}{'' if comparison.fixed_partition else ', each with a partition of its own'}"
        )
    )


def show_methods(comparison: Comparison) -> None:
    """The header and the table that fits 80 characters."""
    show_header(comparison)
    _show_narrow(comparison, _sort_rows(comparison), None)


def wrap_text(text: str, width: int = 80) -> str:
    """Text in lines that fit a terminal; no word is broken, and no number parted from its unit."""
    kept = re.sub(r"(?<=\d) (?=%|MB|points)", "\u00a0", text)
    lines = textwrap.fill(kept, width, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\u00a0", " ")


def _show_narrow(comparison: Comparison, rows: list[MethodRow], use: str | None) -> None:
    """What fits 80 characters: the mean, the difference to a baseline, the worst client."""
    first, measure = comparison.first, comparison.measure
    lost, informed = comparison.partly_diverged, find_informed(comparison)
    sound = [name for name in ("local", "fedavg") if name in comparison.runs and name not in lost]
    base = next(iter(sound), None)
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("method", no_wrap=True)
    heads = ["mean", *([f"against {base}, 95 % interval"] if base else []), "worst client"]
    for head in heads:
        grid.add_column(head, justify="right")
    for row in rows:
        gap = ""
        if row.method in lost:
            whom = f"for {lost[row.method].partition(' (')[0]}"
            grid.add_row(row.method, "diverged", *([whom] if base else []))
            continue
        if base and row.method != base:
            gap = _format_interval(comparison.difference(row.method, base), measure.scale)
        cells = [
            _format_number(row.mean, first),
            *([gap] if base else []),
            _format_number(row.worst, first),
        ]
        mark = " *" if row.method in informed else ""
        grid.add_row(f"{CHOSEN_MARK if row.method == use else ''}{row.method}{mark}", *cells)
    for name in comparison.diverged:
        grid.add_row(name, "diverged")
    for one in comparison.references:
        cells = [_format_number(one.mean, first), _format_number(one.worst, first)]
        if base:
            cells.insert(1, "")
        grid.add_row(f"({one.name}: scikit-learn)", *cells)
    print_table(grid)
    note = f"{CHOSEN_MARK}to use, chosen on select rows. " if use else ""
    note += "(In brackets: no federated learning.) " if comparison.references else ""
    if informed:
        listed = ", ".join(f"{what} ({name})" for name, what in informed.items())
        note += f"* is given what no federation knows of itself: {listed}. "
    print_line(wrap_text(f"{note}Every column: `coterie resume {comparison.folder} --wide`."))


def _sort_rows(comparison: Comparison) -> list[MethodRow]:
    return sorted(comparison.rows(), key=lambda r: r.mean, reverse=comparison.first.judged.higher)


def _show_rows(rows: list[MethodRow], first: Run, diverged: Iterable[str], use: str | None) -> None:
    """One row per method; columns that would be empty are left out."""

    def numbers(field: str) -> list[str]:
        return [_format_number(getattr(row, field), first) for row in rows]

    names = [f"{CHOSEN_MARK if row.method == use else ''}{row.method}" for row in rows]
    columns = {"method": names, "mean": numbers("mean")}
    if any(row.low == row.low for row in rows):
        columns["95 % over\nseeds"] = [
            f"± {_format_number(row.high - row.mean, first)}" for row in rows
        ]
    columns |= {
        "weighted": numbers("weighted"),
        "deviation\nover clients": numbers("deviation"),
        "worst\nclient": numbers("worst"),
    }
    best = any(row.at_best == row.at_best for row in rows)
    if best:
        columns["at best\nround"] = [
            f"{_format_number(row.at_best, first)} ({row.best_round:.0f})" for row in rows
        ]
    columns |= {
        "MB down": [f"{row.bytes_down / 1e6:.2f}" for row in rows],
        "MB up": [f"{row.bytes_up / 1e6:.2f}" for row in rows],
        "s per round": [f"{row.seconds:.3f}" for row in rows],
    }
    if any(row.left_out for row in rows):
        columns["updates\nleft out"] = [f"{row.left_out:g}" for row in rows]
    grid = Grid(*columns)
    for cells in zip(*columns.values(), strict=True):
        grid.add_row(*cells)
    for name in diverged:
        grid.add_row(name, "diverged")
    print_table(grid)
    if known := _count_parameters(first):
        print_line(
            f"{known[0]:,} of {known[1]:,} parameters train: of the whole network the MB would be "
            f"{known[1] / known[0]:.1f} times as many."
        )
    if best:
        print_line(
            "Figures are of the last round; at best round: of the one (in brackets) whose "
            f"{first.judged.label} on select rows is best."
        )


def _show_scores(comparison: Comparison, methods: list[str]) -> None:
    """The scores of the clients' own models at the end, where they were measured."""
    found = comparison.scores()
    task = find_task(comparison.first.task)
    shown = [score for score in scores_of(task.name) if score.name not in task.in_files]
    known = [score for score in shown if score.name in found[methods[0]]]
    if not known:
        return
    grid = Grid(
        "method",
        *(
            score.label.replace(" ", "\n") + ("" if score.higher else "\n(low is good)")
            for score in known
        ),
    )
    for method in methods:
        values = [found[method][score.name] for score in known]
        pairs = zip(known, values, strict=True)
        grid.add_row(method, *(s.text(v) if v == v else "-" for s, v in pairs))
    nothing = comparison.first.trivial
    if nothing and comparison.first.part == "test" and not task.has_classes:
        grid.add_row("(guessing)", *(s.text(nothing.get(s.name, np.nan)) for s in known))
    share = " in %" if all(score.share for score in known) else ""
    print_line(f"More measures{share}, means over the clients' own models:")
    print_table(grid)


def _show_differences(comparison: Comparison, methods: list[str]) -> None:
    """Every method against the two that it must beat, client by client, and whom it beats beyond
    chance.
    """
    if len(methods) < 2:
        return
    others = [name for name in ("fedavg", "local") if name in comparison.runs]
    ranks = comparison.ranks()
    place = dict(zip(ranks.methods, ranks.rank, strict=True))
    share = comparison.first.judged.share
    grid = Grid(
        "method", *(f"against {name}" for name in others), "mean rank", "significantly better than"
    )
    for method in methods:
        found = {name: comparison.difference(method, name) for name in others if name != method}
        cells = [
            _format_interval(found[name], 100 if share else 1) if name in found else ""
            for name in others
        ]
        grid.add_row(method, *cells, f"{place[method]:.2f}", _list_beaten(ranks, method))
    over = f"{ranks.n} {ranks.population}"
    averaged = (
        "seeds averaged"
        if ranks.population == "clients"
        else "as each seed partitions the data anew"
    )
    unit = "points" if share else f"{comparison.first.judged.label} (above 0 is better)"
    print_line(
        f"Difference in {unit}, client by client, with a 95 % interval (bootstrap over {over}, "
        f"{averaged});"
    )
    print_line(
        f"ranks and significance over {over} (Wilcoxon signed-rank, Holm-corrected over all "
        "pairs, 5 %)"
    )
    print_table(grid)
    if ranks.note:
        print_line(ranks.note[:1].upper() + ranks.note[1:] + ".")


def _list_beaten(ranks: RankTable, method: str) -> str:
    """Whom a method is significantly better than: by name where they are few, or where few are
    missing.
    """
    others = [name for name in ranks.methods if name != method]
    beaten = [name for name in others if ranks.beats(method, name)]
    missing = [name for name in others if name not in beaten]
    if not beaten:
        return "-"
    if not missing and len(others) > 1:
        return "every other"
    if len(beaten) > MAX_NAMED:
        return (
            f"all but {', '.join(missing)}"
            if len(missing) <= MAX_NAMED
            else f"{len(beaten)} of {len(others)}"
        )
    return ", ".join(beaten)


def _show_target(comparison: Comparison, target: float) -> None:
    """How soon every method reaches a target: rounds, bytes, simulated time."""
    first = comparison.first
    grid = Grid("method", "round", "MB", *SYSTEMS)
    for name, round in comparison.rounds_to(target).items():
        if round is None:
            grid.add_row(name, "not reached", *[""] * (1 + len(SYSTEMS)))
            continue
        runs = comparison.runs[name]
        traffic = np.mean([costs_until(run, round, "bytes") for run in runs]) / 1e6
        times = [
            np.mean([costs_until(run, round, "time", system) for run in runs]) for system in SYSTEMS
        ]
        grid.add_row(name, str(round), f"{traffic:.2f}", *(f"{time:,.0f}" for time in times))
    goal = _format_number(target, first) + (" %" if first.judged.share else "")
    print_line(
        f"First measured round with a mean {first.part} {first.judged.label} of {goal}, and its "
        "cost until then:"
    )
    print_line(
        "MB down and up, and simulated time in downlinks of one model (uplinks one after another)"
    )
    print_table(grid)


def _show_views(comparison: Comparison) -> None:
    """What else a method's clients could use (such as its global model), and the shares of clients
    that it logs.
    """
    for name, runs in comparison.runs.items():
        others = [view for view in runs[0].views if view != "personal"]
        means = {
            view: float(np.mean([run.summary(run.part, view).mean for run in runs]))
            for view in others
        }
        settings = [f"{view} {runs[0].judged.text(value)}" for view, value in means.items()]
        for key, note in from_json(runs[0].about.get("notes", {})).items():
            noted = (
                [mean_logged(run.table, key) for run in runs]
                if note.kind is QuantityKind.SHARE
                else []
            )
            if not np.isnan(noted).all():
                settings.append(
                    f"{note.label} in {100 * float(np.nanmean(noted)):.0f} % of its clients' rounds"
                )
        if settings:
            print_line(f"{name} also: {', '.join(settings)}")


def _format_interval(difference: Difference, scale: float) -> str:
    mean, low, high = (scale * value for value in difference[:3])
    form = "+.2f" if scale == 100 else "+.3g"
    return f"{mean:{form}}" if low != low else f"{mean:{form}} [{low:{form}}, {high:{form}}]"


@contextmanager
def resumable_work(
    folder: Path, quiet: bool, runs: int = 1
) -> Iterator[Callable[[str, int | None, RoundReport], None]]:
    """Work on a folder, shown as it goes; whoever stops it sees how to go on."""
    try:
        with progress(quiet, runs) as show:
            yield show
    except KeyboardInterrupt:
        begun = any(folder.glob("*.toml"))
        raise Interrupted(
            f"stopped; `coterie resume {folder}` goes on" if begun else "stopped"
        ) from None
    except CannotWrite as problem:
        way = f", then `coterie resume {folder}` goes on" if _can_resume(folder) else ""
        raise CannotWrite(f"{problem}{way}") from None


def _can_resume(folder: Path) -> bool:
    """Whether a folder has options to go on with; one that is gone is said to have had them."""
    try:
        return not folder.exists() or any(folder.glob("*.toml"))
    except OSError:
        return True
