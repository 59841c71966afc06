"""`coterie report`: a page, and figures and tables as files."""

from __future__ import annotations

from pathlib import Path

import click

from coterie.cli.printing import print_line
from coterie.reports.report import write_and_warn


@click.command(short_help="Write what runs and comparisons say as one page.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="HTML file; default report.html in a single RUN, else here.",
)
@click.option(
    "--files",
    type=click.Path(path_type=Path),
    help="Folder for every figure as PNG and SVG, every table as CSV and LaTeX.",
)
def report(runs: tuple[Path, ...], out: Path | None, files: Path | None) -> None:
    """Write a report of the folders RUN of runs and comparisons.

    Runs of one method with several seeds are put together. The page opens offline in a browser.
    """
    page, warnings = write_and_warn(runs, out, files)
    for line in warnings:
        click.echo(f"coterie: {line}", err=True)
    print_line(f"report: {page}")
    if files:
        print_line(f"figures and tables: {files}")
