"""`coterie arena`: all methods on the same federations, and what that says of when to use which."""

from __future__ import annotations

from pathlib import Path

import click
from rich import box
from rich.table import Table as Grid

from coterie.cli.printing import print_line, print_table
from coterie.cli.show import resumable_work
from coterie.comparison.limits import format_time
from coterie.core.errors import BadInput
from coterie.core.files import read_text
from coterie.lab.arena.arena_page import RESULTS, write_page
from coterie.lab.arena.cells import Arena, list_cells, read_arena, run_cells, state_of
from coterie.lab.arena.estimate import estimate_arena
from coterie.lab.arena.guide import (
    GUIDE_FILE,
    check_guide,
    format_guide,
    guide_of,
    read_guide,
    write_guide,
)
from coterie.lab.arena.guide_section import exclude_public
from coterie.lab.arena.results import (
    ArenaResults,
    collect_results,
    list_stored,
    read_results,
    write_results,
)
from coterie.lab.arena.rules import judge_rules

DEFAULT_OUT = Path("runs") / "arena"


@click.command(short_help="All methods on the same federations, tuned alike.")
@click.argument("federations", nargs=-1, metavar="[FEDERATION]...")
@click.option("--run", "start", is_flag=True, help="Run what is not finished yet.")
@click.option(
    "--out", type=click.Path(path_type=Path), help=f"Folder of the runs; default {DEFAULT_OUT}."
)
@click.option("--methods", help="Only these, separated by commas.")
@click.option("--judge", "judged", is_flag=True, help="Print how well rules to choose by predict.")
@click.option(
    "--write",
    type=click.Path(path_type=Path),
    help="Folder of docs: write results/arena.parquet from the runs, arena.md with its pictures "
    "and the table of choose.md. Results stored there are kept: --run goes on from them, and "
    "without runs the pages alone are written.",
)
@click.option(
    "--store", is_flag=True, help="With --write: store the guide that `coterie advise` reads."
)
@click.option("--time", "measure", is_flag=True, help="Estimate what it takes on this machine.")
@click.option("--quiet", is_flag=True, help="No progress display.")
def arena(
    federations: tuple[str, ...],
    start: bool,
    out: Path | None,
    methods: str | None,
    judged: bool,
    write: Path | None,
    store: bool,
    measure: bool,
    quiet: bool,
) -> None:
    """List the cells of the arena (a federation with a seed, all methods on it), or run them.

    What is finished is kept, so an arena that was stopped goes on. The first seed tunes every
    method with the same number of trials; other seeds, and the cells in which some clients do not
    answer or come after training (newcomers), take its options.
    """
    names = [name.strip() for name in (methods or "").split(",") if name.strip()]
    found = read_arena(methods=names)
    wanted = list_cells(found, federations)
    if (judged or write) and federations:
        raise BadInput("--judge and --write speak of all federations: name none")
    if measure and (start or write or judged):
        raise BadInput("--time runs and writes nothing: give it alone")
    if store and not write:
        raise BadInput("--store belongs to --write: add it, or leave --store out")
    if not start and write:
        _check_no_effect("--write, which takes all runs that are there", methods=methods)
    elif not start and judged:
        reads = "--judge, which reads the guide that comes with coterie"
        _check_no_effect(reads, out=out, methods=methods)
    for option, folder in (("out", out), ("write", write)):
        if folder and folder.exists() and not folder.is_dir():
            raise BadInput(f"--{option} {folder} is a file: give a folder")
    if measure:
        show_times(found, federations, out or DEFAULT_OUT)
        return
    if start:
        before = list_stored(_find_stored(write))
        with resumable_work(out or DEFAULT_OUT, quiet, len(wanted)) as watch:
            for _ in run_cells(found, out or DEFAULT_OUT, wanted, watch, print_line, before):
                pass
    if write:
        write_all(found, out, write, store)
    if judged:
        show_rules()
    if not (write or judged):
        show_cells(found, out or DEFAULT_OUT, federations)


def _check_no_effect(reading: str, **given: object) -> None:
    """Refuse options that change nothing of what is asked for."""
    for option, value in given.items():
        if value:
            raise BadInput(f"--{option} has no effect on {reading}: leave it out")


def write_all(found: Arena, out: Path | None, docs: Path, store: bool) -> None:
    """The results, where there are runs, and from them the page with its pictures; the guide too
    where it is to be stored.
    """
    stored, folder = _find_stored(docs), out or DEFAULT_OUT
    runs = any(state_of(cell, folder).finished for cell in list_cells(found))
    if runs or out:  # a folder that is named must have runs
        results = collect_results(found, folder, stored if runs else None)
    elif stored:
        results = stored
    else:
        raise BadInput(
            f"no cell of the arena is finished below {folder}, and there is no {docs / RESULTS}: "
            "`coterie arena --run` runs it"
        )
    guide = guide_of(results)
    if store:
        check_guide(guide)
    path, count = docs / RESULTS, f"{len(results.runs):,} runs"
    page = write_page(results, docs)
    if runs:
        write_results(results, path)
    print_line(
        f"wrote {page} and {path} from {count}" if runs else f"wrote {page} from {path}, {count}"
    )
    if store:
        write_guide(guide, GUIDE_FILE)
        print_line(f"stored the guide of `coterie advise` in {GUIDE_FILE}")
    elif not GUIDE_FILE.exists() or format_guide(guide) != read_text(GUIDE_FILE):
        print_line("`coterie advise` keeps its guide, which has other results; --store replaces it")


def _find_stored(docs: Path | None) -> ArenaResults | None:
    """The results that are stored in a folder of docs, if there are any."""
    path = docs / RESULTS if docs else None
    return read_results(path) if path and path.exists() else None


def show_cells(found: Arena, out: Path, federations: tuple[str, ...]) -> None:
    """How far every cell has come."""
    turns = list(dict.fromkeys(cell.folder.name for cell in list_cells(found)))
    heads = ("federation", "clients", *(turn.replace("-", "\n") for turn in turns))
    grid = Grid(*heads, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in federations or found.grounds:
        states = {cell.folder.name: state_of(cell, out) for cell in list_cells(found, [name])}
        settings = [
            "finished" if s.finished else f"{s.done} of {s.wanted}" if s.wanted else "-"
            for s in states.values()
        ]
        ground = found.grounds[name]
        grid.add_row(name, "natural" if ground.natural else "artificial", *settings)
    print_table(grid)
    count = len(found.methods)
    print_line(
        f"{count} method{'s' * (count != 1)}, {found.trials} trials each; `coterie arena --run` "
        "goes on."
    )


def show_times(found: Arena, federations: tuple[str, ...], out: Path) -> None:
    """What every federation takes, and what is left of it."""
    heads = ("federation", "a run of fedavg", "all cells", "left")
    grid = Grid(*heads, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    rows = estimate_arena(found, federations or tuple(found.grounds), out)
    for one in rows:
        grid.add_row(one.ground, f"{one.run:.1f} s", *map(format_time, (one.all, one.left)))
    print_table(grid)
    print_line(f"{format_time(sum(one.left for one in rows))} are left on one thread, about.")


def show_rules() -> None:
    """Every rule with its regret, each federation left out once."""
    known = read_guide().known
    without = {rule.rule: rule for rule in judge_rules(exclude_public(known))}
    grid = Grid("rule", "points behind the best", "most", "without public rows", "chosen")
    for rule in judge_rules(known):
        counts = {m: rule.chosen.count(m) for m in dict.fromkeys(rule.chosen)}
        often = sorted(counts, key=lambda m: -counts[m])[:3]
        more = ", ..." if len(counts) > 3 else ""
        chosen = ", ".join(f"{m} {counts[m]}x" for m in often) + more
        other = f"{without[rule.rule].mean:.2f}" if rule.rule in without else ""
        grid.add_row(rule.rule, f"{rule.mean:.2f}", f"{rule.regret.max():.2f}", other, chosen)
    print_table(grid)
    print_line(
        f"{len(known.federations)} federations, each left out once; the rule sees the others."
    )
    print_line(
        "Without public rows: of the methods that need none, the points behind the best of them."
    )
