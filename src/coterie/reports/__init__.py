"""Reports: what runs and comparisons say, as one page that opens offline, and as figures and tables for a paper."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from coterie.analysis.answer import sentences
from coterie.core.errors import BadInput
from coterie.core.files import write
from coterie.core.version import __version__
from coterie.experiment.config import PYTHON
from coterie.reports.evidence import Evidence
from coterie.reports.fairness import fairness_figures
from coterie.reports.figures import Figure, accuracy_figures
from coterie.reports.gather import gather
from coterie.reports.inside import collaboration, cost_figures, data_figures, notes, persfl, selffl
from coterie.reports.matrices import Mixing, mixing, peers
from coterie.reports.tables import Table, tables
from coterie.results.folder import CONFIG

__all__ = ["report_data", "report_html", "write_report"]
DIGITS, TABLE_DIGITS = 5, 6  # significant ones
PAGE = "report.html"
SIGN = '<meta name="generator" content="coterie'  # by which an older report is known
HEAD = 4096  # characters in which it stands
GRID = "grid_accuracy"  # notes that have a figure of their own


def report_data(paths: Sequence[str | Path]) -> dict[str, Any]:
    """All that a page shows of these folders, as plain JSON values."""
    return _data(*_gathered(paths), paths)


def report_html(paths: Sequence[str | Path]) -> str:
    """The report of these folders as one HTML page."""
    from coterie.reports.page import render

    return render(report_data(paths))


def write_report(paths: Sequence[str | Path], out: str | Path | None = None, files: str | Path | None = None) -> Path:
    """Write the page to `out` (default: report.html in a single folder, else here), and figures and tables into `files`."""
    return write_and_warn(paths, out, files)[0]


def write_and_warn(
    paths: Sequence[str | Path], out: str | Path | None = None, files: str | Path | None = None
) -> tuple[Path, list[str]]:
    """(the page, a line for each run that is left out or not whole): see `write_report`."""
    from coterie.reports.page import render

    target = Path(out) if out else default_page(paths)
    check_page(target)
    if files and Path(files).exists() and not Path(files).is_dir():
        raise BadInput(f"{files} is a file: give --files a folder")
    evidence, mixings = _gathered(paths)
    write(target, render(_data(evidence, mixings, paths)))
    if files:
        from coterie.reports.files import write_files  # matplotlib takes a second to load

        write_files(all_figures(evidence, mixings), tables(evidence), evidence.methods, Path(files))
    return target, evidence.warnings


def default_page(paths: Sequence[str | Path]) -> Path:
    """Inside a single folder, else in the working folder."""
    return Path(paths[0]) / PAGE if len(paths) == 1 and Path(paths[0]).is_dir() else Path(PAGE)


def check_page(target: Path) -> None:
    """Refuse to write where no page can be, or over a file that is no report."""
    if target.is_dir():
        raise BadInput(f"{target} is a folder: name the page, as in --out {target / PAGE}")
    if not target.parent.is_dir():
        raise BadInput(f"{target}: there is no folder {target.parent}; make it first, or give another --out")
    if target.exists():
        with target.open(encoding="utf-8", errors="replace") as file:
            if SIGN not in file.read(HEAD):
                raise BadInput(f"{target} exists and is no report of coterie: give another name with --out")


def _gathered(paths: Sequence[str | Path]) -> tuple[Evidence, dict[str, Mixing]]:
    evidence = gather(paths)
    found = {name: mixing(records[0].run.folder, len(evidence.names)) for name, records in evidence.records.items()}
    return evidence, {name: mix for name, mix in found.items() if mix}


def all_figures(evidence: Evidence, mixings: dict[str, Mixing]) -> list[Figure]:
    """Every figure these runs allow, in the page's order."""
    found = [*accuracy_figures(evidence), *fairness_figures(evidence), *cost_figures(evidence)]
    found += [*collaboration(evidence, mixings), *notes(evidence)]
    return [*found, *persfl(evidence), *selffl(evidence), *data_figures(evidence)]


def _data(evidence: Evidence, mixings: dict[str, Mixing], paths: Sequence[str | Path]) -> dict[str, Any]:
    names = [os.fspath(path) if not Path(path).is_absolute() else Path(path).name for path in paths]
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    rest = {
        "title": _title(evidence),
        "made": {"coterie": __version__, "date": date, "command": " ".join(["coterie report", *names])},
        "measure": evidence.first.measure,
        "answer": answer(evidence),
        "warnings": evidence.warnings,
        "methods": evidence.methods,
        "figures": [_figure(figure) for figure in all_figures(evidence, mixings)],
        "clients": _clients(evidence, mixings),
        "runs": _runs(evidence),
    }
    return {**plain(rest, DIGITS), "tables": plain([_table(table) for table in tables(evidence)], TABLE_DIGITS)}


def _title(evidence: Evidence) -> str:
    words = evidence.first.experiment
    count, seeds = len(evidence.methods), len(evidence.seeds)
    what = evidence.methods[0] if count == 1 else f"{count} methods"
    data = Path(str(words.data.get("name", "data")).removeprefix(PYTHON)).name
    return f"{what} on {data}: {len(evidence.names):,} clients, {seeds} seed{'s' if seeds > 1 else ''}"


def answer(evidence: Evidence) -> list[str]:
    """The answer, and what cannot be said of these runs and why."""
    found = evidence.comparison.answer()
    said = [sentences(found)] if found else []
    lacking = [name for name in ("fedavg", "local") if name not in evidence.records]
    if not found and len(evidence.methods) > 1:
        rows = sorted(evidence.rows, key=lambda row: (-1 if evidence.classed else 1) * row.mean)
        number = "{:.2f} %" if evidence.classed else "{:.4g}"
        ends = [f"{row.method} ({number.format(evidence.scale * row.mean)})" for row in (rows[0], rows[-1])]
        said.append(
            f"Best mean {evidence.first.part} {evidence.first.measure} over the clients: {ends[0]}; worst: {ends[1]}. Whether "
            "the differences are more than chance stands in the table of ranks."
        )
    if not evidence.classed:
        said.append(
            "These data have no classes: clients are judged by their loss, lower is better, and gains in accuracy are left out."
        )
    elif lacking:
        what = (
            "gains are measured over FedAvg alone"
            if lacking == ["local"]
            else "gains and how fairly they are shared are left out"
        )
        words = " and ".join({"fedavg": "FedAvg", "local": "Local"}[name] for name in lacking)
        verb = "is" if len(lacking) == 1 else "are"
        said.append(
            f"{words} {verb} not among these runs, so {what}: run {' and '.join(lacking)} on the same data and seeds too."
        )
    elif not found and len(evidence.methods) > 1:
        said.append("There are no validation rows to choose on, so no method is recommended.")
    if len(evidence.methods) == 1:
        said.append("There is one method, so nothing is compared.")
    return said


def _figure(figure: Figure) -> dict[str, Any]:
    heat = figure.heat._asdict() if figure.heat else None
    return {**figure._asdict(), "series": [series._asdict() for series in figure.series], "heat": heat}


def _table(table: Table) -> dict[str, Any]:
    return {**table._asdict(), "columns": [column._asdict() for column in table.columns]}


def _clients(evidence: Evidence, mixings: dict[str, Mixing]) -> dict[str, Any]:
    facts, counted = evidence.first.about, evidence.counts()
    groups = facts["groups"] if len(set(facts["groups"])) > 1 else None
    noted = {
        name: {note: records[0].last(note).tolist() for note in records[0].notes if not note.startswith(GRID)}
        for name, records in evidence.records.items()
        if records[0].notes
    }
    return {
        "names": evidence.names,
        "rows": facts["rows"],
        "groups": groups,
        "labels": counted[0] if counted else None,
        "counts": counted[1].tolist() if counted else None,
        "accuracy": {name: evidence.clientwise(name).tolist() for name in evidence.methods},
        "learned_from": {name: peers(mix.frames[-1]) for name, mix in mixings.items()},
        "notes": noted,
    }


def _runs(evidence: Evidence) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "folder": record.run.folder.name,
            "seed": record.run.experiment.seed,
            "method": name,
            "config": (record.run.folder / CONFIG).read_text(encoding="utf-8"),
            "versions": {"coterie": record.run.about["coterie"], **record.run.about.get("versions", {})},
            "date": record.run.about.get("date", ""),
            "status": "finished" if record.finished else f"stopped or running, round {record.round:,}",
        }
        for name, records in evidence.records.items()
        for record in records
    ]


def plain(value: Any, digits: int) -> Any:
    """Python's own lists and numbers, rounded; None for what is no number."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float | np.floating):
        return float(f"{value:.{digits}g}") if isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(item, digits) for key, item in value.items()}
    if isinstance(value, np.integer):
        return int(value)
    return [plain(item, digits) for item in value]
