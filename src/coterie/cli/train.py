"""`coterie run`, `compare` and `resume`: train, and print what came of it."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from coterie.cli.options import (
    COMMAS,
    PASS_THROUGH,
    SEEDS,
    parse_arguments,
    parse_seeds,
    say_seeds,
    split_method_options,
)
from coterie.cli.plugin_option import PLUGIN
from coterie.cli.printing import print_line
from coterie.cli.show import resumable_work, show_comparison, show_run
from coterie.cli.show_tuning import print_search, show_tuning
from coterie.comparison import execute as comparisons
from coterie.comparison.defaults import DEFAULT_METHODS, find_runnable
from coterie.comparison.limits import read_limits
from coterie.comparison.plan import FILE, ComparisonPlan, plan_of
from coterie.core.errors import BadInput, format_value
from coterie.data.read.user_data import is_path
from coterie.experiment.config import (
    NAMED,
    REGISTRIES,
    Experiment,
    change_options,
)
from coterie.experiment.own_code import read_user_experiment, read_user_file, use_named
from coterie.experiment.recipes import data_name_of, find_config
from coterie.experiment.reference import describe_experiment
from coterie.methods.registry import METHODS
from coterie.reports.report import write_report
from coterie.results.comparison import Comparison
from coterie.results.folder import make_run_folder
from coterie.results.run import Run
from coterie.running import execute as experiments
from coterie.serving.explaining import explain_columns

DIVERGED = 3  # exit code
WIDE_HELP = "Every column of a comparison, who beats whom, and all scores."


class _ExperimentCommand(click.Command):
    """A command whose help ends with every option of an experiment, section by section; names that
    are given beside --help, as in `coterie run ditto --dataset synthetic --help`, bring theirs."""

    # the argument without a name, and the option that it sets
    lone, option = "METHOD", "method"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["arguments"] = [a for a in args if a not in ctx.help_option_names]
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        experiment = _find_named(ctx.meta["arguments"], self.lone, self.option)
        sections = describe_experiment(experiment)
        homes = Counter(["seed", *(e.name for entries in sections.values() for e in entries)])
        for section, entries in sections.items():
            formatter.write(f"\n[{section}]\n")
            if section == "options" and not experiment.method:
                formatter.write("  those of the method: see `coterie methods METHOD`\n")
            for entry in entries:
                flag = entry.flag if homes[entry.name] == 1 else f"--{section}.{entry.flag[2:]}"
                names = ""
                if entry.name == "name":
                    flag, names = f"--{section} NAME", f"{', '.join(REGISTRIES[section])}: "
                _write_option(formatter, flag, f"{names}{entry}")
        formatter.write("\n")
        _write_option(formatter, "--seed", "seed of the run [a whole number; default 0]")


def _write_option(formatter: click.HelpFormatter, flag: str, text: str) -> None:
    """An option and what is said of it, which begins in the same column everywhere."""
    lines = textwrap.wrap(text, 80 - 22, break_on_hyphens=False)
    if len(flag) > 18:
        lines.insert(0, "")
    for first, line in zip([flag, *[""] * (len(lines) - 1)], lines, strict=True):
        formatter.write(f"  {first:20}{line}".rstrip() + "\n")


class _CompareCommand(_ExperimentCommand):
    lone, option = "DATA", "dataset"


def _find_named(arguments: list[str], lone: str, option: str) -> Experiment:
    """The experiment with those names of the command line that are known."""
    experiment = Experiment(method="")
    try:
        alone, settings = parse_arguments(arguments, lone)
    except BadInput:
        return experiment
    settings |= {} if alone is None else {option: alone}
    for key in ("method", *NAMED):
        if key in settings:
            with suppress(BadInput):  # the command itself refuses it
                experiment = change_options(experiment, {key: settings[key]})
    return experiment


@click.command(
    cls=_ExperimentCommand, context_settings=PASS_THROUGH, short_help="Train one method."
)
@click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="[METHOD] [--OPTION VALUE]..."
)
@click.option("--config", help="A TOML file, or the name of a recipe.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the run; default runs/TIME-METHOD-DATA.",
)
@PLUGIN
@click.option("--quiet", is_flag=True, help="No progress display.")
def run(arguments: tuple[str, ...], config: str | None, out: Path | None, quiet: bool) -> None:
    """Train METHOD and write a run folder.

    Every option of an experiment is one here, as in --dataset mnist --partition dirichlet
    --alpha 0.3 --rounds 100; write --SECTION.OPTION where two sections have it. Options of the
    command line override those of --config. Names beside --help bring their options, as in
    `coterie run ditto --partition dirichlet --help`.
    """
    method, settings = parse_arguments(arguments, "METHOD")
    if not (method or config or "method" in settings):
        raise BadInput(f"name a method, as in `coterie run ditto`: {', '.join(METHODS)}")
    use_named(settings)
    if config:
        _refuse_comparison(config, method or str(settings.get("method", "")))
    experiment = read_user_experiment(find_config(config)) if config else Experiment()
    named = _name_once("method", method, settings) if method else {}
    experiment = change_options(experiment, named | settings)
    with (
        make_run_folder(out, f"{experiment.method}-{data_name_of(experiment)}") as folder,
        resumable_work(folder, quiet) as show,
    ):
        finished = experiments.execute(
            experiment, folder, lambda r: show(experiment.method, experiment.seed, r)
        )
    show_run(finished)
    _exit_if_diverged(finished)


def _name_once(option: str, value: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """What stands alone as an option, unless the option is given too and says something else."""
    if (other := settings.get(option, value)) != value:
        raise BadInput(
            f"'{value}' stands alone and --{option} is {format_value(other)}: name one of them"
        )
    return {option: value}


def _refuse_comparison(config: str, method: str) -> None:
    """Say what to type where a file of several methods is given to `coterie run`."""
    methods = read_user_file(find_config(config)).get("methods")
    if methods is None:
        return
    typed = f"coterie compare --config {config}"
    others = [name for name in ("local", "fedavg") if name != method]
    alone = f"; with {method}: `{typed} --methods {','.join([*others, method])}`" if method else ""
    many = f"{len(methods)} " if isinstance(methods, list) else ""
    raise BadInput(f"--config {config} compares {many}methods: type `{typed}`{alone}")


@click.command(
    cls=_CompareCommand,
    short_help="Train several methods alike and compare them client by client.",
    context_settings=PASS_THROUGH,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[DATA] [--OPTION VALUE]...")
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
    "share. With --trials, what comes first ends it. 0: on your own tables the learning rate and "
    "the network are not chosen either.",
)
@click.option(
    "--target",
    type=float,
    help="Also report how soon each method reaches this accuracy, from 0 to 1.",
)
@click.option(
    "--report/--no-report",
    default=True,
    help="Whether to write the page report.html; it is written by default.",
)
@click.option(
    "--references/--no-references",
    default=True,
    help="On your own tables: whether to add what scikit-learn reaches on the same rows without "
    "federated learning, alone and pooled; it is added by default.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the comparison; default runs/TIME-compare.",
)
@click.option("--wide", is_flag=True, help=WIDE_HELP)
@PLUGIN
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
    references: bool,
    out: Path | None,
    wide: bool,
    quiet: bool,
) -> None:
    """Train METHODS on the same data, partitions, budgets and seeds; print the answer and a table,
    and write a report.

    Takes the options of `coterie run`; METHOD.OPTION sets one for a single method, as in
    --ditto.lam 0.5. DATA is --dataset: a name, or a file of your own.
    """
    alone, settings = parse_arguments(arguments, "DATA")
    file = read_user_file(find_config(config)) if config else {}  # its plugins bring methods
    common, own = split_method_options(settings)
    if alone in METHODS:
        raise BadInput(f"'{alone}' is a method: {COMMAS}")
    common = ({} if alone is None else _name_once("dataset", alone, common)) | common
    grids: dict[str, dict[str, list[str]]] = {}
    for entry in tune:
        name, option, choices = _parse_grid(entry)
        grids.setdefault(name, {})[option] = choices
    if target is not None and not 0 <= target <= 1:
        raise BadInput(f"target = {target:g}: give an accuracy from 0 to 1")
    use_named(common | own)
    names = None if methods is None else [n.strip() for n in methods.split(",") if n.strip()]
    search, choose = read_limits(trials, budget)
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
    plan = plan_of(file, names, *said, search=search, choose=choose)
    print_search(plan)
    with (
        make_run_folder(out, "compare") as folder,
        resumable_work(folder, quiet, comparisons.count_runs(plan)) as show,
    ):
        comparison = comparisons.compare(
            plan.experiments,
            plan.seeds,
            folder,
            show,
            plan.grids,
            search=plan.search,
            references=references,
        )
    _print_comparison(comparison, target, report, wide)


def _print_comparison(
    comparison: Comparison, target: float | None = None, report: bool = True, wide: bool = False
) -> None:
    """Print what a comparison found, and write its page."""
    show_comparison(comparison, target, wide)
    show_tuning(comparison)
    if report:
        _explain_best(comparison)
        print_line(f"report: {write_report([comparison.folder])}")
    _exit_if_diverged(comparison)


def _explain_best(comparison: Comparison) -> None:
    """Measure which columns the recommended method's models use, for the report; where they cannot
    be measured, as where there are none, the report is without.
    """
    name = comparison.answer.use if comparison.answer else next(iter(comparison.runs), "")
    own = comparison.runs and is_path(comparison.first.experiment.dataset.get("name"))
    if own and name in comparison.runs:
        with suppress(BadInput):
            explain_columns(comparison.runs[name][0].folder)


def _exit_if_diverged(result: Run | Comparison) -> None:
    """Exit code 3 where anybody's training diverged, once all is written and said."""
    lost = (
        bool(result.diverged or result.partly_diverged)
        if isinstance(result, Comparison)
        else bool(result.diverged_clients)
    )
    if lost:
        sys.stdout.flush()
        sys.exit(DIVERGED)


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
@PLUGIN
@click.option(
    "--allow-change",
    is_flag=True,
    help="Branch off into a new folder with the options that config.toml has now.",
)
def resume(folder: Path, quiet: bool, wide: bool, allow_change: bool) -> None:
    """Go on from the last checkpoint of FOLDER; the result is the same as if it had never
    stopped.

    A run goes on with the options it began with. To change those of [train], [schedule] or
    [options] (as to add rounds), write them into its config.toml and give --allow-change.
    """
    with resumable_work(folder, quiet) as show:
        if (folder / FILE).exists():
            comparisons.check_no_branch(folder, allow_change)
            result: Any = comparisons.resume_comparison(folder, show)
        else:
            result = experiments.resume(
                folder, lambda r: show(folder.name, None, r), allow_change=allow_change
            )
    if isinstance(result, Comparison):
        _print_comparison(result, wide=wide)
    else:
        show_run(result)
        _exit_if_diverged(result)
