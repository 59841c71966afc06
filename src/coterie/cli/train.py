"""`coterie run`, `compare` and `resume`: train, and print what came of it."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import click

from coterie.cli.options import (
    PASS_THROUGH,
    SEEDS,
    parse_arguments,
    parse_seeds,
    say_seeds,
    split_method_options,
)
from coterie.cli.printing import print_line
from coterie.cli.show import resumable_work, show_comparison, show_run
from coterie.cli.show_tuning import print_search, show_tuning
from coterie.comparison import execute as comparisons
from coterie.comparison.defaults import DEFAULT_METHODS, find_runnable
from coterie.comparison.limits import limits_of
from coterie.comparison.plan import FILE, ComparisonPlan, plan_of
from coterie.core.errors import BadInput
from coterie.experiment.config import (
    REGISTRIES,
    SECTIONS,
    Experiment,
    change_options,
    known_options_of,
    options_of,
    read_experiment_file,
    read_toml,
)
from coterie.experiment.recipes import data_name_of, find_config
from coterie.methods.registry import METHODS
from coterie.reports.report import write_report
from coterie.results.comparison import Comparison
from coterie.results.folder import name_run_folder
from coterie.running import execute as experiments

OPTION_HINTS = {"--dp": "(--dp client needs --weighting equal)"}
WIDE_HELP = "Every column of a comparison, who beats whom, and all scores."


def _options_help() -> str:
    """Every word of an experiment, section by section, as the end of a help page."""
    known = known_options_of(Experiment(method=""))
    lines = ["\b", "Words, by section, with the options of the names that are usual:"]
    for section in SECTIONS:
        choices = REGISTRIES.get(section, {})
        names = f"--{section} NAME ({', '.join(choices)}) " if choices else ""
        words = [
            f"--{w.replace('_', '-')}"
            for w in known[section]
            if w not in ("name", "chosen", "seed")
        ]
        if section == "engine":  # few enough to show what each has of its own
            own = {
                n: [f"--{w.replace('_', '-')}" for w in options_of("engine", n)] for n in choices
            }
            words = [w for w in words if not any(w in options for options in own.values())]
            words += [f"({n}: {' '.join(options)})" for n, options in own.items() if options]
        words = [f"{w} {OPTION_HINTS[w]}" if w in OPTION_HINTS else w for w in words]
        text = (
            names + " ".join(words)
            if section != "options"
            else "those of the method: see `coterie methods METHOD`"
        )
        lines += textwrap.wrap(
            f"{section:10}{text}", 78, subsequent_indent=" " * 10, break_on_hyphens=False
        )
    return "\n".join(
        [*lines, f"{'and':10}--seed; --data.seed where the data shall not change with it"]
    )


@click.command(
    context_settings=PASS_THROUGH, short_help="Train one method.", epilog=_options_help()
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[METHOD] [--WORD VALUE]...")
@click.option("--config", help="A TOML file, or the name of a recipe.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the run; default runs/TIME-METHOD-DATA.",
)
@click.option("--quiet", is_flag=True, help="No progress display.")
def run(arguments: tuple[str, ...], config: str | None, out: Path | None, quiet: bool) -> None:
    """Train METHOD and write a run folder.

    Any word of an experiment is an option, as in --data mnist --split dirichlet --alpha 0.3
    --rounds 100; write --SECTION.WORD where a word has two meanings. Words of the command line
    change those of --config.
    """
    method, words = parse_arguments(arguments, "METHOD")
    if not (method or config or "method" in words):
        raise BadInput(f"name a method, as in `coterie run ditto`: {', '.join(METHODS)}")
    experiment = read_experiment_file(find_config(config)) if config else Experiment()
    experiment = change_options(experiment, ({"method": method} if method else {}) | words)
    folder = out or name_run_folder(Path("runs"), f"{experiment.method}-{data_name_of(experiment)}")
    with resumable_work(folder, quiet) as show:
        finished = experiments.execute(
            experiment, folder, lambda r: show(experiment.method, experiment.seed, r)
        )
    show_run(finished)


@click.command(
    short_help="Train several methods alike and compare them client by client.",
    context_settings=PASS_THROUGH,
    epilog=_options_help(),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[DATA] [--WORD VALUE]...")
@click.option(
    "--methods",
    help="Names separated by commas (ditto@2 is ditto once more), or 'all': every one that these "
    f"data allow. With DATA, --trials or --budget alone: {', '.join(DEFAULT_METHODS)}.",
)
@click.option("--seeds", help=f"{SEEDS}.")
@click.option("--config", help="A TOML file, or the name of a recipe.")
@click.option(
    "--tune",
    multiple=True,
    metavar="METHOD.OPTION=V1,V2",
    help="Values to try (V1;V2 where values have commas); validation accuracy chooses. In a search "
    "also a range, as ditto.lam=0.01..10.",
)
@click.option(
    "--trials",
    metavar="N",
    help="Search the options of every method, with so many trials for each.",
)
@click.option(
    "--budget",
    metavar="TIME",
    help="Search for about so long, as 15m, the final runs included: every method has an equal "
    "share. With --trials, what comes first ends it.",
)
@click.option(
    "--target",
    type=float,
    help="Also tell how soon each method reaches this accuracy, from 0 to 1.",
)
@click.option(
    "--report/--no-report",
    default=True,
    help="Whether to write the page report.html; it is written by default.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the comparison; default runs/TIME-compare.",
)
@click.option("--wide", is_flag=True, help=WIDE_HELP)
@click.option("--quiet", is_flag=True, help="No progress display.")
def compare(
    arguments: tuple[str, ...],
    methods: str | None,
    seeds: str | None,
    config: str | None,
    tune: tuple[str, ...],
    trials: str | None,
    budget: str | None,
    target: float | None,
    report: bool,
    out: Path | None,
    wide: bool,
    quiet: bool,
) -> None:
    """Train METHODS on the same data, splits, budgets and seeds; print the answer and a table, and
    write a report.

    Takes the words of `coterie run`; METHOD.WORD sets one for a single method, as in --ditto.lam
    0.5. DATA is --data: a name, or a file of your own.
    """
    alone, words = parse_arguments(arguments, "DATA")
    common, own = split_method_options(words)
    common = ({} if alone is None else {"data": alone}) | common
    grids: dict[str, dict[str, list[str]]] = {}
    for entry in tune:
        name, option, choices = _parse_grid(entry)
        grids.setdefault(name, {})[option] = choices
    if target is not None and not 0 <= target <= 1:
        raise BadInput(f"target = {target:g}: give an accuracy from 0 to 1")
    file = read_toml(find_config(config)) if config else {}
    names = None if methods is None else [n.strip() for n in methods.split(",") if n.strip()]
    limits = {"trials": trials, "budget": budget}
    search = limits_of({word: value for word, value in limits.items() if value is not None})
    if seeds:
        say_seeds(seeds)
    said = (parse_seeds(seeds) if seeds else None, common, own, grids)
    if names is None and not {"methods", "method"} & set(file) and (alone or search):
        names = _select_possible(
            plan_of(file, list(DEFAULT_METHODS), *said, strict=False, search=search)
        )
        print_line(f"methods: {', '.join(names)}")
    elif names == ["all"]:
        names = _select_possible(plan_of(file, list(METHODS), *said, strict=False, search=search))
    plan = plan_of(file, names, *said, search=search)
    folder = out or name_run_folder(Path("runs"), "compare")
    print_search(plan)
    with resumable_work(folder, quiet, comparisons.count_runs(plan)) as show:
        comparison = comparisons.compare(
            plan.experiments, plan.seeds, folder, show, plan.grids, search=plan.search
        )
    _print_comparison(comparison, target, report, wide)


def _print_comparison(
    comparison: Comparison, target: float | None = None, report: bool = True, wide: bool = False
) -> None:
    """Print what a comparison found, and write its page."""
    show_comparison(comparison, target, wide)
    show_tuning(comparison)
    if report:
        print_line(f"report: {write_report([comparison.folder])}")


def _select_possible(plan: ComparisonPlan) -> list[str]:
    """The methods that these data and networks allow; why the others are left out is said."""
    names, refused = find_runnable(plan.experiments)
    for name, why in refused.items():
        click.echo(f"coterie: without {name}: {why}", err=True)
    return names


def _parse_grid(entry: str) -> tuple[str, str, list[str]]:
    place, equals, choices = entry.partition("=")
    name, dot, option = place.partition(".")
    if not (equals and dot and choices):
        raise BadInput(
            f"--tune {entry}: write METHOD.OPTION=V1,V2, as in --tune ucfl.batches=2,5,10"
        )
    return name, option, choices.split(";" if ";" in choices else ",")


@click.command(short_help="Go on with a run or comparison that was stopped.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--quiet", is_flag=True, help="No progress display.")
@click.option("--wide", is_flag=True, help=WIDE_HELP)
@click.option(
    "--allow-change",
    is_flag=True,
    help="Branch off into a new folder with the words that config.toml has now.",
)
def resume(folder: Path, quiet: bool, wide: bool, allow_change: bool) -> None:
    """Go on from the last checkpoint of FOLDER; the result is the same as if it had never
    stopped.

    A run goes on with the words it began with. To change words of [train], [schedule] or [options]
    (as to add rounds), write them into its config.toml and give --allow-change.
    """
    with resumable_work(folder, quiet) as show:
        if (folder / FILE).exists():
            comparisons.check_no_branch(folder, allow_change)
            result: Any = comparisons.resume_comparison(folder, show)
        else:
            result = experiments.resume(
                folder, lambda r: show(folder.name, None, r), allow_change=allow_change
            )
    _print_comparison(result, wide=wide) if isinstance(result, Comparison) else show_run(result)
