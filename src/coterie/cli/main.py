"""The command line: thin commands over the same words as Python."""

from __future__ import annotations

import logging
import os
import sys
import textwrap
import warnings
from collections.abc import Callable
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from coterie.cli.show import (
    say,
    show_comparison,
    show_data,
    show_method,
    show_methods,
    show_own,
    show_run,
    work,
)
from coterie.cli.tuning import say_search, show_tuning
from coterie.cli.words import FREE, Interrupted, seeds_of, words_of
from coterie.comparison import execute as comparisons
from coterie.comparison.limits import limits_of
from coterie.comparison.plan import FILE, ComparisonPlan, plan_of
from coterie.comparison.usual import USUAL, possible
from coterie.core.errors import BadInput, Diverged, nearest, shown
from coterie.core.version import __version__
from coterie.data.told import NOTES, Told
from coterie.experiment.build import federation_of, own_of
from coterie.experiment.config import (
    REGISTRIES,
    SECTIONS,
    Experiment,
    change,
    chosen_names,
    fields,
    options_of,
    read_experiment_file,
    read_toml,
)
from coterie.experiment.recipes import config_path, data_name
from coterie.methods.registry import METHODS
from coterie.reports.report import write_report
from coterie.results.comparison import Comparison
from coterie.results.folder import run_folder
from coterie.running import execute as experiments


def main() -> None:
    """Entry point: what a user can mend is one line and exit code 2, training that diverged one
    line and exit code 3.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without é or ± still shows the rest
    warnings.simplefilter("always", Told)
    warnings.showwarning = _show_told(warnings.showwarning)
    NOTES.setLevel(logging.INFO)
    NOTES.handlers = [OneLine()]
    try:
        cli(standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # as in `coterie methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except BadInput as problem:
        _fail(str(problem))
    except Diverged as stop:
        _fail(f"stopped: {stop}", 3)
    except click.ClickException as problem:
        _fail(problem.format_message())
    except (Interrupted, click.exceptions.Abort, KeyboardInterrupt) as stop:
        _fail(str(stop) or "stopped", 130)
    except OSError as problem:
        _fail(f"{problem.filename or 'the system'}: {problem.strerror or problem}")


class OneLine(logging.Handler):
    """Prints what was read as what, every line once."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line not in self.said:
            self.said.add(line)
            click.echo(f"coterie: {line}", err=True)


def _show_told(usual: Callable[..., None]) -> Callable[..., None]:
    """Print what the data have to say as a line of its own, once; leave other warnings alone."""
    said: set[str] = set()

    def show_told(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, Told):
            usual(message, category, *rest, **more)
        elif str(message) not in said:
            said.add(str(message))
            click.echo(f"coterie: {message}", err=True)

    return show_told


def _fail(line: str, code: int = 2) -> None:
    print(f"coterie: {' '.join(line.split())}", file=sys.stderr)
    sys.exit(code)


WIDE = "Every column of a comparison, who beats whom, and all scores."
ELSEWHERE = {  # commands that are loaded when they are asked for
    "report": "coterie.cli.report",
    "reproduce": "coterie.cli.reproduce",
    "ui": "coterie.cli.ui",
    "export": "coterie.cli.export",
    "predict": "coterie.cli.predict",
    "serve": "coterie.cli.serve",
    "federation": "coterie.cli.deployment",
    "server": "coterie.cli.deployment",
    "site": "coterie.cli.deployment",
}


class _Commands(click.Group):
    """Offers the nearest command for a mistyped one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in ELSEWHERE:
            return getattr(import_module(ELSEWHERE[cmd_name]), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            raise BadInput(f"unknown command {shown(args[0])}{nearest(args[0], known)}")
        return super().resolve_command(ctx, args)


def _words_help() -> str:
    """Every word of an experiment, section by section, as the end of a help page."""
    known = fields(Experiment(method=""))
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
            words += [f"({n}: {' '.join(options)})" for n, options in own.items() if options]
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


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Personalized federated learning: train and compare methods that give every client its "
    "own model.",
    epilog="Begin with `coterie run ditto`, or `coterie compare --config demo`.",
)
@click.version_option(__version__, prog_name="coterie")
@click.pass_context
def cli(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@cli.command(context_settings=FREE, short_help="Train one method.", epilog=_words_help())
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
    method, words = words_of(arguments, "METHOD")
    if not (method or config or "method" in words):
        raise BadInput(f"name a method, as in `coterie run ditto`: {', '.join(METHODS)}")
    experiment = read_experiment_file(config_path(config)) if config else Experiment()
    experiment = change(experiment, ({"method": method} if method else {}) | words)
    folder = out or run_folder(Path("runs"), f"{experiment.method}-{data_name(experiment)}")
    with work(folder, quiet) as show:
        finished = experiments.execute(
            experiment, folder, lambda r: show(experiment.method, experiment.seed, r)
        )
    show_run(finished)


@cli.command(
    short_help="Train several methods alike and compare them client by client.",
    context_settings=FREE,
    epilog=_words_help(),
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[DATA] [--WORD VALUE]...")
@click.option(
    "--methods",
    help="Names separated by commas (ditto@2 is ditto once more), or 'all': every one that these "
    f"data allow. With DATA, --trials or --budget alone: {', '.join(USUAL)}.",
)
@click.option("--seeds", help="How many seeds (0, 1, ...), or a list such as 3,5,8.")
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
@click.option("--wide", is_flag=True, help=WIDE)
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
    own: dict[str, dict[str, Any]] = {}
    alone, words = words_of(arguments, "DATA")
    common: dict[str, Any] = {} if alone is None else {"data": alone}
    for word, value in words.items():
        section, _, name = word.partition(".")
        if name and section.partition("@")[0] in METHODS:
            own.setdefault(section, {})[name] = value
        else:
            common[word] = value
    grids: dict[str, dict[str, list[str]]] = {}
    for entry in tune:
        name, option, choices = _grid(entry)
        grids.setdefault(name, {})[option] = choices
    if target is not None and not 0 <= target <= 1:
        raise BadInput(f"target = {target:g}: give an accuracy from 0 to 1")
    file = read_toml(config_path(config)) if config else {}
    names = None if methods is None else [n.strip() for n in methods.split(",") if n.strip()]
    limits = {"trials": trials, "budget": budget}
    search = limits_of({word: value for word, value in limits.items() if value is not None})
    said = (seeds_of(seeds) if seeds else None, common, own, grids)
    if names is None and not {"methods", "method"} & set(file) and (alone or search):
        names = _possible(plan_of(file, list(USUAL), *said, strict=False, search=search))
        say(f"methods: {', '.join(names)}")
    elif names == ["all"]:
        names = _possible(plan_of(file, list(METHODS), *said, strict=False, search=search))
    plan = plan_of(file, names, *said, search=search)
    folder = out or run_folder(Path("runs"), "compare")
    say_search(plan)
    with work(folder, quiet, comparisons.runs_of(plan)) as show:
        comparison = comparisons.compare(
            plan.experiments, plan.seeds, folder, show, plan.grids, search=plan.search
        )
    _tell(comparison, target, report, wide)


def _tell(
    comparison: Comparison, target: float | None = None, report: bool = True, wide: bool = False
) -> None:
    """Print what a comparison found, and write its page."""
    show_comparison(comparison, target, wide)
    show_tuning(comparison)
    if report:
        say(f"report: {write_report([comparison.folder])}")


def _possible(plan: ComparisonPlan) -> list[str]:
    """The methods that these data and networks allow; why the others are left out is said."""
    names, refused = possible(plan.experiments)
    for name, why in refused.items():
        click.echo(f"coterie: without {name}: {why}", err=True)
    return names


def _grid(entry: str) -> tuple[str, str, list[str]]:
    place, equals, choices = entry.partition("=")
    name, dot, option = place.partition(".")
    if not (equals and dot and choices):
        raise BadInput(
            f"--tune {entry}: write METHOD.OPTION=V1,V2, as in --tune ucfl.batches=2,5,10"
        )
    return name, option, choices.split(";" if ";" in choices else ",")


@cli.command(short_help="Go on with a run or comparison that was stopped.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--quiet", is_flag=True, help="No progress display.")
@click.option("--wide", is_flag=True, help=WIDE)
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
    with work(folder, quiet) as show:
        if (folder / FILE).exists():
            comparisons.check_no_branch(folder, allow_change)
            result: Any = comparisons.resume_comparison(folder, show)
        else:
            result = experiments.resume(
                folder, lambda r: show(folder.name, None, r), allow_change=allow_change
            )
    _tell(result, wide=wide) if isinstance(result, Comparison) else show_run(result)


@cli.command(short_help="List the methods, or tell all about one.")
@click.argument("name", required=False)
@click.option("--wide", is_flag=True, help="Papers, options and defaults of all methods.")
def methods(name: str | None, wide: bool) -> None:
    """Every method: what it needs and when to use it; with a NAME, all about that one."""
    if name:
        options_of("method", name)
    show_method(name) if name else show_methods(wide)


@cli.command(context_settings=FREE, short_help="Show how a data set is dealt to clients.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[DATA] [--WORD VALUE]...")
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    help="PNG or SVG to write; default DATA-SPLIT.png, numbered if taken.",
)
def data(arguments: tuple[str, ...], picture: Path | None) -> None:
    """Print the split of DATA (digits) as a table and draw it (clients x classes).

    Of a file or folder of your own it also says what each column holds and becomes, and what looks
    wrong. Takes --split, --clients, --validation, --test, --scale, --cut, the split's own options
    (--alpha, --classes-each, ...), --data-dir, --seed; for your own data --client, --label,
    --features, --categories, --missing, --one-hot, --cut-column, --separator.
    """
    from coterie.data.picture import SUFFIXES, split_picture

    name, words = words_of(arguments, "DATA")
    experiment = change(Experiment(method=""), ({"data": name} if name else {}) | words)
    if picture:
        for wrong, what in (
            (picture.exists(), "exists already: give another name"),
            (picture.suffix not in SUFFIXES, f"is no picture: end it in {' or '.join(SUFFIXES)}"),
            (not picture.parent.is_dir(), f"is in no folder: make {picture.parent} first"),
        ):
            if wrong:
                raise BadInput(f"{picture} {what}")
    whole = own_of(experiment)
    federation = federation_of(experiment, whole)
    if whole is not None:
        show_own(whole, federation)
    show_data(federation)
    if federation.classes:
        target = picture or _unused(
            Path(f"{data_name(experiment)}-{chosen_names(experiment)['split'] or 'split'}.png")
        )
        split_picture(federation, target)
        say(f"picture: {target}")


def _unused(path: Path) -> Path:
    target, k = path, 2
    while target.exists():
        target, k = path.with_stem(f"{path.stem}-{k}"), k + 1
    return target
