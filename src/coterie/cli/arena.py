"""`coterie arena`: all methods on the same federations, and what that says of when to use which."""

from __future__ import annotations

from pathlib import Path

import click
from rich import box
from rich.table import Table as Grid

from coterie.analysis.guide import judge
from coterie.cli.printing import say, show
from coterie.cli.show import work
from coterie.comparison.arena import Arena, cells, read_arena, run, state
from coterie.comparison.arena_results import collect, write_results
from coterie.comparison.guide import guide_of, read_guide, write_guide
from coterie.core.errors import BadInput
from coterie.reports.arena import PAGE, RESULTS, write_page

OUT = Path("runs") / "arena"


@click.command(short_help="All methods on the same federations, tuned alike.")
@click.argument("federations", nargs=-1, metavar="[FEDERATION]...")
@click.option("--run", "start", is_flag=True, help="Run what is not finished yet.")
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True)
@click.option("--methods", help="Only these, separated by commas.")
@click.option("--judge", "judged", is_flag=True, help="Print how well the guide's rules predict.")
@click.option(
    "--write",
    type=click.Path(path_type=Path),
    help="Folder of docs: write arena.md, its pictures and results, and the guide of `advise`.",
)
@click.option("--quiet", is_flag=True, help="No progress display.")
def arena(
    federations: tuple[str, ...],
    start: bool,
    out: Path,
    methods: str | None,
    judged: bool,
    write: Path | None,
    quiet: bool,
) -> None:
    """List the cells of the arena (a federation with a seed, all methods on it), or run them.

    What is finished is kept, so an arena that was stopped goes on. The first seed tunes every
    method with the same number of trials; other seeds, and the cells in which some clients do not
    answer or come after training (newcomers), take its words.
    """
    found = read_arena(methods=methods.split(",") if methods else ())
    wanted = cells(found, federations)
    if (judged or write) and federations:
        raise BadInput("--judge and --write speak of all federations: name none")
    if start:
        with work(out, quiet, len(wanted)) as watch:
            for _ in run(found, out, wanted, watch, say):
                pass
    if write:
        write_all(found, out, write)
    if judged:
        show_rules()
    if not (write or judged):
        show_cells(found, out, federations)


def write_all(found: Arena, out: Path, docs: Path) -> None:
    """The results, the page with its pictures, and the guide."""
    results = collect(found, out)
    write_results(results, docs / RESULTS)
    write_page(results, docs)
    write_guide(guide_of(results))
    say(f"wrote {docs / PAGE} and {docs / RESULTS} from {len(results.runs):,} runs")


def show_cells(found: Arena, out: Path, federations: tuple[str, ...]) -> None:
    """How far every cell has come."""
    turns = list(dict.fromkeys(cell.folder.name for cell in cells(found)))
    heads = ("federation", "", *(turn.replace("-", "\n") for turn in turns))
    grid = Grid(*heads, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in federations or found.grounds:
        states = {cell.folder.name: state(cell, out) for cell in cells(found, [name])}
        words = [
            "finished" if s.finished else f"{s.done} of {s.wanted}" if s.wanted else "-"
            for s in states.values()
        ]
        ground = found.grounds[name]
        grid.add_row(name, "natural" if ground.natural else "dealt", *words)
    show(grid)
    say(f"{len(found.methods)} methods, {found.trials} trials each; `coterie arena --run` goes on.")


def show_rules() -> None:
    """Every rule with its regret, each federation left out once."""
    known = read_guide().known
    grid = Grid("rule", "points behind the best", "most", "chosen")
    for rule in judge(known):
        counts = {m: rule.chosen.count(m) for m in dict.fromkeys(rule.chosen)}
        often = sorted(counts, key=lambda m: -counts[m])[:3]
        more = ", ..." if len(counts) > 3 else ""
        chosen = ", ".join(f"{m} {counts[m]}x" for m in often) + more
        grid.add_row(rule.rule, f"{rule.mean:.2f}", f"{rule.regret.max():.2f}", chosen)
    show(grid)
    say(f"{len(known.federations)} federations, each left out once; the rule sees the others.")
