"""The report of runs and comparisons: its data, its page, and its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput
from coterie.core.files import write_text
from coterie.reports.content import build_figures, build_page
from coterie.reports.gather import gather_evidence
from coterie.reports.method_tables import build_tables
from coterie.reports.page import render

PAGE = "report.html"
GENERATOR_TAG = '<meta name="generator" content="coterie'  # by which an older report is known
HEAD_LENGTH = 4096  # characters in which it stands


def report_data(paths: Sequence[str | Path]) -> dict[str, Any]:
    """All that a page shows of these folders, as plain JSON values."""
    return build_page(gather_evidence(paths), paths)


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
    target = Path(out) if out else default_path(paths)
    check_target(target)
    if files and Path(files).exists() and not Path(files).is_dir():
        raise BadInput(f"{files} is a file: give --files a folder")
    evidence = gather_evidence(paths)
    write_text(target, render(build_page(evidence, paths)))
    if files:
        from coterie.reports.figure_files import write_files  # matplotlib takes a second to load

        write_files(build_figures(evidence), build_tables(evidence), evidence.methods, Path(files))
    return target, evidence.warnings


def default_path(paths: Sequence[str | Path]) -> Path:
    """Inside a single folder, else in the working folder."""
    return Path(paths[0]) / PAGE if len(paths) == 1 and Path(paths[0]).is_dir() else Path(PAGE)


def check_target(target: Path) -> None:
    """Refuse to write where no page can be, or over a file that is not a report."""
    if target.is_dir():
        raise BadInput(f"{target} is a folder: name the page, as in --out {target / PAGE}")
    if not target.parent.is_dir():
        raise BadInput(
            f"{target}: there is no folder {target.parent}; make it first, or give another --out"
        )
    if target.exists():
        with target.open(encoding="utf-8", errors="replace") as file:
            if GENERATOR_TAG not in file.read(HEAD_LENGTH):
                raise BadInput(
                    f"{target} exists and is no report of coterie: give another name with --out"
                )
