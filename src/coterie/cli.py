"""The command line: thin commands over the same words as Python."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Grid

from . import __version__
from . import compare as comparisons
from . import experiment as experiments
from .compare import Comparison, Row
from .config import Experiment, change, from_toml, options_of, read_toml
from .errors import BadInput, nearest
from .methods import METHODS
from .run import Report

RECIPES = Path(__file__).parent / "recipes"
FREE = {"ignore_unknown_options": True, "allow_extra_args": True}
console = Console(highlight=False)


def main() -> None:
    """Entry point: what a user can mend is one line and exit code 2."""
    try:
        cli(standalone_mode=False)
    except BadInput as problem:
        _fail(str(problem))
    except click.UsageError as problem:
        _fail(problem.format_message())
    except click.exceptions.Abort:
        _fail("stopped", 130)
    except KeyboardInterrupt:
        _fail("stopped", 130)


def _fail(line: str, code: int = 2) -> None:
    print(f"coterie: {line}", file=sys.stderr)
    sys.exit(code)


def _wide() -> Console:
    """Tables are not squeezed when the output is a file or a pipe."""
    return console if console.is_terminal else Console(highlight=False, width=160)


class _Commands(click.Group):
    """Offers the nearest command for a mistyped one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise BadInput(f"unknown command '{args[0]}'{nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, help="Personalized federated learning: train and compare methods that give every client its own model.")
@click.version_option(__version__)
def cli() -> None:
    pass


def words_of(arguments: list[str]) -> dict[str, Any]:
    """`--word value`, `--word=value` and lone `--word` (yes) as words."""
    words: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) < 3:
            raise BadInput(f"'{word}' stands alone: options are written --name value")
        name, equals, value = word[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "yes"
        words[name] = value
    return words


def config_path(name: str) -> Path:
    """A TOML file, or a recipe by its name."""
    path, recipe = Path(name), RECIPES / f"{name}.toml"
    if path.exists() or not recipe.exists():
        if not path.exists():
            known = [p.stem for p in RECIPES.glob("*.toml")]
            raise BadInput(f"there is no file '{name}' and no recipe of that name{nearest(name, known)}")
        return path
    return recipe


@cli.command(context_settings=FREE, short_help="Train one method.")
@click.argument("method", required=False)
@click.option("--config", help="A TOML file, or the name of a recipe.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run; default runs/TIME-METHOD-DATA.")
@click.option("--quiet", is_flag=True, help="No progress display.")
@click.pass_context
def run(ctx: click.Context, method: str | None, config: str | None, out: Path | None, quiet: bool) -> None:
    """Train METHOD and write a run folder.

    Any field of an experiment is an option: --data, --split, --clients, --model, --rounds, --sample, --batch, --rate, --epochs,
    --steps, --seed, the method's own (see `coterie methods`); write SECTION.FIELD where a word has two meanings.
    """
    experiment = change(Experiment(), from_toml(read_toml(config_path(config)))) if config else Experiment()
    if not (method or config):
        raise BadInput(f"name a method: {', '.join(METHODS)}")
    experiment = change(experiment, ({"method": method} if method else {}) | words_of(ctx.args))
    name = Path(str(experiment.data["name"])).stem
    folder = out or experiments.run_folder(Path("runs"), f"{experiment.method}-{name}")
    with _progress(quiet) as show:
        finished = experiments.execute(experiment, folder, lambda r: show(experiment.method, experiment.seed, r))
    _show_run(finished)


@cli.command(short_help="Train several methods alike and compare them client by client.", context_settings=FREE)
@click.option("--methods", help="Names separated by commas, or 'all'.")
@click.option("--seeds", help="How many seeds (0, 1, ...), or a list such as 3,5,8.")
@click.option("--config", help="A TOML file, or the name of a recipe.")
@click.option("--tune", multiple=True, metavar="METHOD.OPTION=V1,V2", help="Values to try; validation accuracy chooses.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the comparison; default runs/TIME-compare.")
@click.option("--quiet", is_flag=True, help="No progress display.")
@click.pass_context
def compare(
    ctx: click.Context, methods: str | None, seeds: str | None, config: str | None, tune: tuple[str, ...], out: Path | None, quiet: bool
) -> None:
    """Train METHODS on the same data, splits, budgets and seeds, and print one table.

    Takes the options of `coterie run`; METHOD.OPTION sets an option of one method, as in --ditto.lam 0.5.
    """
    words = from_config = read_toml(config_path(config)) if config else {}
    names = _method_names(methods) if methods else from_config.get("methods")
    if not names:
        raise BadInput("name the methods: --methods local,fedavg,ditto or --methods all")
    numbers = _seeds(seeds) if seeds else from_config.get("seeds", [0])
    own: dict[str, dict[str, Any]] = {k: dict(v) for k, v in from_config.get("options", {}).items() if k in names}
    grids: dict[str, dict[str, list]] = {k: dict(v) for k, v in from_config.get("tune", {}).items() if k in names}
    words = {k: v for k, v in from_config.items() if k not in ("methods", "seeds", "options", "tune")}
    common = {}
    for word, value in words_of(ctx.args).items():
        section, _, name = word.partition(".")
        if name and section in METHODS:
            own.setdefault(section, {})[name] = value
        else:
            common[word] = value
    for entry in tune:
        name, option, choices = _grid(entry)
        grids.setdefault(name, {})[option] = choices
    base = change(change(Experiment(), from_toml(words)), common)
    planned = comparisons.plan(names, base, own, grids)
    folder = out or experiments.run_folder(Path("runs"), "compare")
    with _progress(quiet) as show:
        comparison = comparisons.compare(planned, numbers, folder, show, grids)
    show_comparison(comparison)


def _method_names(text: str) -> list[str]:
    names = list(METHODS) if text == "all" else [n.strip() for n in text.split(",") if n.strip()]
    for name in names:
        options_of("method", name)
    return names


def _seeds(text: str) -> list[int]:
    try:
        numbers = [int(n) for n in text.split(",")]
    except ValueError:
        raise BadInput(f"seeds = '{text}': give how many, or a list such as 3,5,8") from None
    if len(numbers) == 1 and numbers[0] < 1:
        raise BadInput(f"seeds = {numbers[0]}: at least one")
    return numbers if len(numbers) > 1 else list(range(numbers[0]))


def _grid(entry: str) -> tuple[str, str, list[str]]:
    place, equals, choices = entry.partition("=")
    name, dot, option = place.partition(".")
    if not (equals and dot):
        raise BadInput(f"--tune {entry}: write METHOD.OPTION=V1,V2, as in --tune ucfl.batches=2,5,10")
    return name, option, choices.split(",")


@cli.command(short_help="Go on with a run or comparison that was stopped.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--quiet", is_flag=True)
def resume(folder: Path, quiet: bool) -> None:
    """Go on from the last checkpoint of FOLDER; the result is the same as if it had never stopped."""
    with _progress(quiet) as show:
        if (folder / comparisons.FILE).exists():
            planned, seeds, grids = comparisons.read_plan(folder / comparisons.FILE)
            result: Any = comparisons.compare(planned, seeds, folder, show, grids)
        else:
            result = experiments.resume(folder, lambda r: show(folder.name, 0, r))
    show_comparison(result) if isinstance(result, Comparison) else _show_run(result)


@cli.command(short_help="List the methods, or tell all about one.")
@click.argument("name", required=False)
def methods(name: str | None) -> None:
    """Every method with its paper, options and defaults."""
    if name:
        options_of("method", name)
    grid = Grid("method", "paper", "options and defaults", show_lines=True)
    for known in [name] if name else METHODS:
        options = ", ".join(f"{k}={_plain(d)}" for k, (_, d) in options_of("method", known).items())
        grid.add_row(known, paper_of(known), options)
    _wide().print(grid)


def paper_of(name: str) -> str:
    """The first paragraph of the method's file: its paper."""
    text = inspect.getdoc(inspect.getmodule(METHODS[name])) or ""
    return " ".join(text.split("\n\n")[0].split())


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@cli.command(context_settings=FREE, short_help="Show how a data set is dealt to clients.")
@click.argument("name", default="digits")
@click.option("--picture", type=click.Path(path_type=Path), help="PNG or SVG to write; default DATA-SPLIT.png.")
@click.pass_context
def data(ctx: click.Context, name: str, picture: Path | None) -> None:
    """Print the split of data set NAME as a table and draw it (clients x classes).

    Takes --split, --clients, --validation, --test, the split's own options (--alpha, --classes-each, ...), --data-dir, --seed.
    """
    from .data.federation import table
    from .data.picture import split_picture

    experiment = change(Experiment(), {"data": name} | words_of(ctx.args))
    federation = experiments.federation_of(experiment)
    grid = Grid("client", "name", "train", "validation", "test", "classes", "group", title=f"{name}: {federation.clients} clients")
    rows = table(federation)
    for row in rows[:50]:
        grid.add_row(*(str(cell) for cell in row))
    out = _wide()
    out.print(grid)
    if len(rows) > 50:
        out.print(f"... and {len(rows) - 50:,} more clients")
    sizes = federation.sizes
    out.print(f"training rows: {sizes.sum():,} in all, {sizes.min():,} to {sizes.max():,} a client")
    target = picture or _unused(Path(f"{Path(name).stem}-{experiment.split.get('name') or 'split'}.png"))
    if federation.classes:
        split_picture(federation, target)
        out.print(f"picture: {target}")


def _unused(path: Path) -> Path:
    candidates = [path, *(path.with_stem(f"{path.stem}-{k}") for k in range(2, 10_000))]
    return next(p for p in candidates if not p.exists())


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, int, Report], None]]:
    """A live line a run; nothing when the output is not a terminal."""
    if quiet or not console.is_terminal:
        yield lambda method, seed, report: None
        return
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]} accuracy {task.fields[accuracy]} {task.fields[speed]} clients/s"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console) as progress:
        tasks: dict[tuple[str, int], Any] = {}

        def show(method: str, seed: int, report: Report) -> None:
            key = (method, seed)
            if key not in tasks:
                for old in tasks.values():
                    progress.update(old, visible=False)
                tasks[key] = progress.add_task(f"{method} seed {seed}", total=report.rounds, loss="-", accuracy="-", speed="-")
            shown: dict[str, Any] = {"speed": f"{report.clients / max(report.seconds, 1e-9):,.0f}"}
            if report.accuracy is not None:
                shown |= {"accuracy": f"{report.accuracy:.3f}", "loss": f"{report.loss:.3f}"}
            progress.update(tasks[key], completed=report.round, **shown)

        yield show


def _show_run(run: experiments.Run) -> None:
    grid = Grid("view", "mean accuracy", "weighted by test rows", "deviation over clients", "worst client")
    views = [v for v in ("personal", "global", "w_i") if len(run.accuracy(view=v))]
    for view in views:
        s = run.summary(view=view)
        grid.add_row(view, *(f"{100 * v:.2f}" for v in s))
    out = _wide()
    out.print(f"{run.name}, test part, {len(run.accuracy())} clients")
    out.print(grid)
    out.print(f"run: {run.folder}")


def show_comparison(comparison: Comparison) -> None:
    """The table, best mean first."""
    first = next(iter(comparison.runs.values()))
    seeds, clients = len(first), len(first[0].accuracy())
    grid = Grid(
        "method", "mean", "weighted", "deviation\nover clients", "worst\nclient", "over seeds", "MB down", "MB up", "s a round"
    )
    for row in sorted(comparison.rows(), key=lambda r: -r.mean):
        grid.add_row(*_cells(row))
    out = _wide()
    out.print(f"Test accuracy in % of every client's own model, {clients} clients, {seeds} seed{'s' if seeds > 1 else ''}")
    out.print(grid)
    out.print(f"runs, table.csv and clients.csv: {comparison.folder}")


def _cells(row: Row) -> list[str]:
    over_seeds = "" if row.spread != row.spread else f"± {100 * row.spread:.2f}"
    accuracy = (row.mean, row.weighted, row.deviation, row.worst)
    return [
        row.method,
        *(f"{100 * a:.2f}" for a in accuracy),
        over_seeds,
        f"{row.bytes_down / 1e6:.2f}",
        f"{row.bytes_up / 1e6:.2f}",
        f"{row.seconds:.3f}",
    ]
