"""The report of runs and comparisons: its data, its page, and its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput
from coterie.core.files import write
from coterie.reports.content import all_figures, page_data
from coterie.reports.gather import gather
from coterie.reports.page import render
from coterie.reports.tables import tables

PAGE = "report.html"
SIGN = '<meta name="generator" content="coterie'  # by which an older report is known
HEAD = 4096  # characters in which it stands


def report_data(paths: Sequence[str | Path]) -> dict[str, Any]:
    """All that a page shows of these folders, as plain JSON values."""
    return page_data(gather(paths), paths)


def report_html(paths: Sequence[str | Path]) -> str:
    """The report of these folders as one HTML page."""
    return render(report_data(paths))


def write_report(
    paths: Sequence[str | Path], out: str | Path | None = None, files: str | Path | None = None
) -> Path:
    """Write the page to `out`, and figures and tables into `files`.

    Without `out` it is report.html in a single folder, else in the working folder.
    """
    return write_and_warn(paths, out, files)[0]


def write_and_warn(
    paths: Sequence[str | Path], out: str | Path | None = None, files: str | Path | None = None
) -> tuple[Path, list[str]]:
    """(the page, a line for each run that is left out or not whole): see `write_report`."""
    target = Path(out) if out else default_page(paths)
    check_page(target)
    if files and Path(files).exists() and not Path(files).is_dir():
        raise BadInput(f"{files} is a file: give --files a folder")
    evidence = gather(paths)
    write(target, render(page_data(evidence, paths)))
    if files:
        from coterie.reports.files import write_files  # matplotlib takes a second to load

        write_files(all_figures(evidence), tables(evidence), evidence.methods, Path(files))
    return target, evidence.warnings


def default_page(paths: Sequence[str | Path]) -> Path:
    """Inside a single folder, else in the working folder."""
    return Path(paths[0]) / PAGE if len(paths) == 1 and Path(paths[0]).is_dir() else Path(PAGE)


def check_page(target: Path) -> None:
    """Refuse to write where no page can be, or over a file that is not a report."""
    if target.is_dir():
        raise BadInput(f"{target} is a folder: name the page, as in --out {target / PAGE}")
    if not target.parent.is_dir():
        raise BadInput(
            f"{target}: there is no folder {target.parent}; make it first, or give another --out"
        )
    if target.exists():
        with target.open(encoding="utf-8", errors="replace") as file:
            if SIGN not in file.read(HEAD):
                raise BadInput(
                    f"{target} exists and is no report of coterie: give another name with --out"
                )
