"""The command line: thin commands over the same options as Python.

A command's module is loaded when the command is called: help needs no tensors.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NamedTuple

import click

from coterie.core.errors import BadInput, Diverged, Interrupted, format_value, suggest_name
from coterie.core.version import __version__
from coterie.data.messages import LOGGER, DataWarning


def main() -> None:
    """Entry point: what a user can mend is one line and exit code 2, training that diverged one
    line and exit code 3.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without é or ± still shows the rest
    warnings.simplefilter("always", DataWarning)
    warnings.showwarning = _wrap_showwarning(warnings.showwarning)
    LOGGER.setLevel(logging.INFO)
    LOGGER.handlers = [PrintOnce()]
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


class PrintOnce(logging.Handler):
    """Prints what was read as what, every line once."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line not in self.said:
            self.said.add(line)
            click.echo(f"coterie: {line}", err=True)


def _wrap_showwarning(usual: Callable[..., None]) -> Callable[..., None]:
    """Print what the data have to say as a line of its own, once; leave other warnings alone."""
    said: set[str] = set()

    def show_line(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if not issubclass(category, DataWarning):
            usual(message, category, *rest, **more)
        elif str(message) not in said:
            said.add(str(message))
            click.echo(f"coterie: {message}", err=True)

    return show_line


def _fail(line: str, code: int = 2) -> None:
    print(f"coterie: {' '.join(line.split())}", file=sys.stderr)
    sys.exit(code)


class CommandPlace(NamedTuple):
    """Where a command is, and what it says of itself in a line."""

    module: str
    help: str


COMMANDS = {  # in the order of the help page
    "demo": CommandPlace(
        "coterie.lab.commands.demo", "One idea per paper in two minutes, with a picture."
    ),
    "run": CommandPlace("coterie.cli.train", "Train one method."),
    "compare": CommandPlace(
        "coterie.cli.train", "Train several methods alike and compare them client by client."
    ),
    "resume": CommandPlace("coterie.cli.train", "Go on with a run or comparison that was stopped."),
    "methods": CommandPlace("coterie.cli.methods", "List the methods, or describe one."),
    "data": CommandPlace("coterie.cli.data", "Show how a data set is partitioned over clients."),
    "doctor": CommandPlace(
        "coterie.cli.doctor", "Say what this machine has for runs, and what is slow and why."
    ),
    "report": CommandPlace(
        "coterie.cli.report", "Write what runs and comparisons say as one page."
    ),
    "reproduce": CommandPlace(
        "coterie.lab.commands.reproduce", "Run the papers' tables again, with verdicts."
    ),
    "arena": CommandPlace(
        "coterie.lab.commands.arena", "All methods on the same federations, tuned alike."
    ),
    "advise": CommandPlace(
        "coterie.lab.commands.advise", "Say which methods to try first on some data."
    ),
    "ui": CommandPlace("coterie.cli.ui", "Watch runs live in the browser."),
    "export": CommandPlace("coterie.cli.export", "Give runs or models to other tools."),
    "predict": CommandPlace("coterie.cli.predict", "Predict new rows with a client's own model."),
    "explain": CommandPlace(
        "coterie.cli.explain", "What clients' models look at, and how sure they are."
    ),
    "personalize": CommandPlace(
        "coterie.cli.personalize", "Give a client that was not there a model of a run."
    ),
    "update": CommandPlace(
        "coterie.cli.personalize", "Go on training a client's model with its new rows."
    ),
    "serve": CommandPlace("coterie.cli.serve", "Serve the clients' own models over HTTP."),
    "federation": CommandPlace(
        "coterie.cli.deployment", "Make and mend the files of a deployment."
    ),
    "server": CommandPlace("coterie.cli.deployment", "Host a deployment's run."),
    "site": CommandPlace(
        "coterie.cli.deployment", "Take part in a deployment with the data of this site."
    ),
}


class _Commands(click.Group):
    """Loads the command that is called; offers the nearest one for a mistyped name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        gc.disable()  # what modules define is no garbage, and a fifth of the start went in search
        try:
            found: click.Command = getattr(import_module(COMMANDS[cmd_name].module), cmd_name)
        finally:
            gc.enable()
        gc.freeze()  # and is not searched later
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        shortened = [
            (name, click.Command(name, short_help=place.help).get_short_help_str(limit))
            for name, place in COMMANDS.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(shortened)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise BadInput(
                f"unknown command {format_value(args[0])}{suggest_name(args[0], COMMANDS)}"
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Personalized federated learning: train and compare methods that give every client its "
    "own model.",
    epilog="Begin with `coterie demo`, or `coterie compare --config demo`.",
)
@click.version_option(__version__, prog_name="coterie")
@click.pass_context
def cli(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
