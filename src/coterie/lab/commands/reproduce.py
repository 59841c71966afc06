"""`coterie reproduce`: the papers' tables, run again and held beside what the papers print."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Column as Heading
from rich.table import Table as Grid

from coterie.cli.options import SEEDS, parse_seeds, say_seeds
from coterie.cli.printing import print_line, print_table
from coterie.cli.show import resumable_work
from coterie.core.errors import BadInput
from coterie.lab.papers import durations, miniatures
from coterie.lab.papers import reproduction as again
from coterie.lab.papers.judge import Column, Outcome
from coterie.lab.papers.paper_tables import PAPER_METRICS, PaperTable, can_run, read_papers
from coterie.lab.papers.reproduction import outcome_of, table_of
from coterie.lab.papers.reproduction_page import (
    form_of,
    other_figures,
    read_published,
    statements,
    store_verdicts,
    write_pages,
)

DEFAULT_OUT = Path("runs") / "reproduction"


@click.command(short_help="Run the papers' tables again, with verdicts.")
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True)
@click.option("--scale", type=float, help="Share of the rounds, for a shorter look.")
@click.option("--seeds", help=f"{SEEDS}; default the recipe's.")
@click.option("--methods", help="Only these of the recipes' methods now, as a list.")
@click.option("--recipes", help="Only these of the tables' recipes now, as a list.")
@click.option("--full", is_flag=True, help="The paper's own networks where a cheaper recipe is.")
@click.option("--show", "only_show", is_flag=True, help="Print what is there; run nothing.")
@click.option("--check", is_flag=True, help="A miniature of every recipe against stored figures.")
@click.option(
    "--store",
    is_flag=True,
    help="With --check: store the figures found; with --time: the times; with --write: the "
    "verdicts that the list shows.",
)
@click.option(
    "--time", "measure", is_flag=True, help="Measure what the recipes take on this machine."
)
@click.option("--threads", type=int, help="Threads of each run.")
@click.option(
    "--write",
    type=click.Path(path_type=Path),
    help="Folder of docs: write reproduction/ and results/ from the runs that are there; nothing "
    "is run.",
)
@click.option("--quiet", is_flag=True, help="No progress display.")
def reproduce(
    tables: tuple[str, ...],
    out: Path,
    scale: float | None,
    seeds: str | None,
    methods: str | None,
    recipes: str | None,
    full: bool,
    only_show: bool,
    check: bool,
    store: bool,
    measure: bool,
    threads: int | None,
    write: Path | None,
    quiet: bool,
) -> None:
    """List the tables and figures of the five papers, or run some of them.

    What is finished is kept, so a table that was stopped goes on. Verdicts: reproduced (numbers
    within a point, pairs and claims confirmed), trend (most of the order confirmed), undecided
    (level within one standard error), not reproduced, too small (not refuted, as the runs are
    smaller than the paper's), trivial (true by construction). In part: methods or columns are
    missing; 1 of 5 seeds: fewer repetitions than the recipe has; shortened: by --scale; older
    recipe: the recipe has changed since.
    """
    wanted = [table_of(name) for name in tables]
    _check_exclusive(check=check, time=measure, show=only_show, write=write)
    if store and not (check or write or measure):
        raise BadInput(
            "--store belongs to --check, --time or --write: add one, or leave --store out"
        )
    if write and wanted:
        raise BadInput("--write speaks of all tables, and runs none: name none")
    if not wanted or only_show or check or measure:
        _check_nothing_runs(
            scale=scale is not None and not (wanted and only_show),
            seeds=seeds,
            methods=methods,
            recipes=recipes,
            full=full,
            threads=threads,
        )
    if check:
        check_miniatures(wanted or list(read_papers().values()), store, quiet)
        return
    if measure:
        measure_times(wanted or list(read_papers().values()), store)
        return
    for table in wanted if not only_show else ():
        again.check_has_recipe(table)
    settings = {} if threads is None else {"threads": threads}
    only, some = (
        [name.strip() for name in (names or "").split(",") if name.strip()]
        for names in (methods, recipes)
    )
    if seeds:
        say_seeds(seeds)
    for table in wanted:
        if not only_show:
            with resumable_work(out, quiet) as watch:
                numbers = parse_seeds(seeds) if seeds else None
                length = 1.0 if scale is None else scale
                again.run_table(table, out, watch, numbers, length, not full, settings, only, some)
        show_outcome(outcome_of(table, out, scale), some)
    if write:
        print_line(f"wrote {write_pages(list(read_papers().values()), out, write)}")
        if store:
            print_line(
                f"stored the verdicts in {store_verdicts(list(read_papers().values()), write)}"
            )
    elif not wanted:
        show_tables(list(read_papers().values()), out)


def _check_exclusive(**given: Any) -> None:
    """Refuse two options that say what is done."""
    if len(said := [f"--{option}" for option, value in given.items() if value]) > 1:
        raise BadInput(f"{' and '.join(said)} are different things to do: give one of them")


def _check_nothing_runs(**given: Any) -> None:
    """Refuse what says how tables are run where none is."""
    for option, value in given.items():
        if value:
            raise BadInput(
                f"--{option} says how a table is run: name one, without --show or --check"
            )


def check_miniatures(tables: list[PaperTable], store: bool, quiet: bool) -> None:
    """Play a miniature of every recipe; figures that are not the stored ones end with exit 1."""
    recipes = miniatures.recipes_of(tables)
    with tempfile.TemporaryDirectory() as folder:
        tell = (lambda recipe: None) if quiet else (lambda recipe: print_line(f"... {recipe}"))
        found = miniatures.check_miniatures(recipes, Path(folder), tell)
    for recipe, why in found.missing.items():
        print_line(f"{recipe} was not checked: {why}")
    if store:
        print_line(
            f"stored the figures of {len(found.found)} recipes in "
            f"{miniatures.store_losses(found.found)}"
        )
        return
    for recipe, method, stored, new in found.differences:
        print_line(
            f"{recipe}, {method}: loss {new:g}, {'not stored' if stored is None else stored}"
        )
    runs = sum(len(losses) for losses in found.found.values())
    print_line(f"{runs} runs of {len(found.found)} recipes: {len(found.differences)} differ")
    if found.differences:
        raise SystemExit(1)


def measure_times(tables: list[PaperTable], store: bool) -> None:
    """Play the first rounds of every recipe and report what the whole would take."""
    for recipe in miniatures.recipes_of(tables):
        try:
            found = durations.measure_recipe(recipe)
        except BadInput as why:  # the data are not on this machine
            print_line(f"{recipe} was not measured: {why}")
            continue
        print_line(f"{recipe}: {durations.estimate_seed(found)} per seed")
        if store:
            print_line(f"stored it in {durations.write_durations({recipe: found})}")


def show_tables(tables: list[PaperTable], out: Path) -> None:
    """Every table with its published verdict, and how far it has come on this machine."""
    found = {table.id: outcome_of(table, out) for table in tables}
    some = any(one.verdict != "not run" for one in found.values())
    settings = (Heading(option, no_wrap=option == "id") for option in ("id", "place", "time"))
    grid = Grid(*settings, "published", *["here"] * some, box=box.SIMPLE_HEAD)
    known, published = durations.read_durations(), read_published()
    for table in tables:
        time = str(durations.estimate_table(table, known))
        option = published.get(table.id, "not run" if can_run(table) else "cannot be run")
        here = [_format_state(found[table.id])] * some
        grid.add_row(table.id, table.place, time, option, *here)
    print_table(grid)
    print_line("`coterie reproduce ID` runs one. Time: all seeds on one thread, as --time")
    print_line("measured it. Published: the verdicts of docs/reproduction.")
    if some:
        print_line(f"Here: the runs in {out}.")


def _format_state(found: Outcome) -> str:
    """How far a table's runs have come on this machine, and what they say."""
    return found.state if found.verdict == "not run" else f"{found.verdict}, {found.state}"


def show_outcome(found: Outcome, recipes: Sequence[str] = ()) -> None:
    """A table beside our runs, column by column; of these recipes only, where some are named."""
    table = found.table
    print_line(f"{table.paper}, {table.place}: {table.claim}")
    for column in found.columns:
        if recipes and not {column.column.recipe, column.column.cheaper} & set(recipes):
            continue
        if column.cells:
            print_table(_build_grid(table, column))
        for line in (*other_figures(column), *statements(column)):
            print_line(line)
        apart = ", read otherwise and not counted" if column.column.otherwise else ""
        print_line(f"{column.column.name} ({_describe_runs(column)}): {column.verdict}{apart}")
    if table.script:
        print_line(f"`python {table.script} --write docs/results` runs it.")
        return
    print_line(f"{table.id}: {_format_state(found)}")


def _describe_runs(column: Column) -> str:
    """What a column's figures are of."""
    facts = [column.recipe or "no recipe", *column.smaller]
    facts += ["at the end only"] if column.end_only else []
    facts += ["arithmetic"] if column.column.arithmetic else []
    return ", ".join([*facts, f"{column.done} of {column.wanted} runs"])


def _build_grid(table: PaperTable, column: Column) -> Grid:
    title = f"{column.column.name}: {PAPER_METRICS[column.column.metric]}"
    grid = Grid("", "paper", "ours", "95 % over seeds", "difference", title=title)
    form = form_of(column)
    for cell in column.cells:
        f = cell.figure
        spread = "" if isnan(f.spread) else f" ± {f.spread:g}"
        known = not isnan(f.ours.mean)
        grid.add_row(
            cell.row.label,
            "-" if isnan(f.paper) else f"{f.paper:g}{spread}",
            f"{f.ours.mean:{form}}" if known else "not run",
            f"[{f.ours.low:{form}}, {f.ours.high:{form}}]" if f.ours.n > 1 else "one seed" * known,
            f"{f.difference:+{form}}" if known and not isnan(f.paper) else "",
        )
    return grid
