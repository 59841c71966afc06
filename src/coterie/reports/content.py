"""All that a page shows, as plain JSON values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from coterie.analysis.answer import Answer
from coterie.analysis.tiles import summarize_answer
from coterie.core.task import find_task
from coterie.core.version import __version__
from coterie.experiment.config import PYTHON
from coterie.reports.accuracy_figures import build_accuracy_figures
from coterie.reports.clients import build_clients_data
from coterie.reports.configurations import describe_setup, split_configurations
from coterie.reports.cost_figures import build_cost_figures
from coterie.reports.data_figures import build_data_figures
from coterie.reports.evidence import Evidence
from coterie.reports.explained_figures import build_explained_figures
from coterie.reports.fairness_figures import build_fairness_figures
from coterie.reports.figures import Figure
from coterie.reports.forest_figure import build_forest
from coterie.reports.logged_figures import build_logged_figures
from coterie.reports.method_tables import build_tables
from coterie.reports.newcomer_tables import build_newcomer_figures
from coterie.reports.report_table import ReportTable
from coterie.results.folder import CONFIG
from coterie.results.informed import find_informed

DIGITS, TABLE_DIGITS = 5, 6  # significant ones


def build_figures(evidence: Evidence) -> list[Figure]:
    """Every figure these runs allow, in the page's order."""
    found = [figure for figure in [build_forest(evidence)] if figure]
    found += [
        *build_accuracy_figures(evidence),
        *build_newcomer_figures(evidence),
        *build_fairness_figures(evidence),
        *build_cost_figures(evidence),
    ]
    found += [*build_explained_figures(evidence), *build_logged_figures(evidence)]
    return [*found, *build_data_figures(evidence)]


def build_page(evidence: Evidence, paths: Sequence[str | Path]) -> dict[str, Any]:
    """The whole page; `paths` are the folders it was asked for."""
    names = [os.fspath(path) if not Path(path).is_absolute() else Path(path).name for path in paths]
    found = evidence.comparison.answer
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    rest = {
        "title": _title(evidence),
        "made": {
            "coterie": __version__,
            "date": date,
            "command": " ".join(["coterie report", *names]),
        },
        "measure": evidence.first.measure,
        "setup": describe_setup(evidence),
        "answer": answer_lines(evidence),
        "summary": _summary(found) if found else None,
        "use": found.use if found else None,
        "diverged": evidence.diverged | evidence.comparison.partly_diverged,
        "references": [row._asdict() for row in evidence.comparison.references],
        "left_out": {row.method: row.left_out for row in evidence.rows},
        "warnings": evidence.warnings,
        "methods": evidence.methods,
        "figures": [_figure(figure) for figure in build_figures(evidence)],
        "clients": build_clients_data(evidence),
        **_runs(evidence),
    }
    return {
        **to_plain(rest, DIGITS),
        "tables": to_plain([_table(table) for table in build_tables(evidence)], TABLE_DIGITS),
    }


def _title(evidence: Evidence) -> str:
    settings = evidence.first.experiment
    count, seeds = len(evidence.methods), len(evidence.seeds)
    what = evidence.methods[0] if count == 1 else f"{count} methods"
    data = Path(str(settings.dataset.get("name", "data")).removeprefix(PYTHON)).name
    return (
        f"{what} on {data}: {len(evidence.names):,} clients, {seeds} seed{'s' if seeds > 1 else ''}"
    )


def answer_lines(evidence: Evidence) -> list[str]:
    """The answer, and what cannot be said of these runs and why."""
    found = evidence.comparison.answer
    said = [str(found)] if found else []
    lacking = [name for name in ("fedavg", "local") if name not in evidence.records]
    if not found and len(evidence.methods) > 1:
        rows = sorted(evidence.rows, key=lambda row: -evidence.judged.sign * row.mean)
        number = "{:.2f} %" if evidence.judged.share else "{:.4g}"
        ends = [
            f"{row.method} ({number.format(evidence.scale * row.mean)})"
            for row in (rows[0], rows[-1])
        ]
        said.append(
            f"Best mean {evidence.first.part} {evidence.judged.label} over the clients: "
            f"{ends[0]}; worst: {ends[1]}. Whether "
            "the differences are more than chance stands in the table of ranks."
        )
    if not find_task(evidence.first.task).scores:
        said.append(
            "These data have no classes: clients are judged by their loss, lower is better, "
            "and gains in accuracy are left out."
        )
    elif lacking:
        what = (
            "gains are measured over FedAvg alone"
            if lacking == ["local"]
            else "gains and how fairly they are shared are left out"
        )
        settings = " and ".join({"fedavg": "FedAvg", "local": "Local"}[name] for name in lacking)
        verb = "is" if len(lacking) == 1 else "are"
        said.append(
            f"{settings} {verb} not among these runs, so {what}: run {' and '.join(lacking)} on "
            "the same data and seeds too."
        )
    elif not found and len(evidence.methods) > 1:
        said.append("There are no validation rows to choose on, so no method is recommended.")
    if len(evidence.methods) == 1:
        said.append("There is one method, so nothing is compared.")
    informed = find_informed(evidence.comparison)
    if informed:
        listed = ", ".join(f"{name} {what}" for name, what in informed.items())
        said.append(f"Given what no federation knows of itself: {listed}.")
    return said if found else [*said, *evidence.comparison.remarks()]


def _summary(answer: Answer) -> dict[str, Any]:
    """The answer at a glance: a headline and tiles."""
    summary = summarize_answer(answer)
    return {**summary._asdict(), "tiles": [tile._asdict() for tile in summary.tiles]}


def _figure(figure: Figure) -> dict[str, Any]:
    heat = figure.heat._asdict() if figure.heat else None
    return {
        **figure._asdict(),
        "series": [series._asdict() for series in figure.series],
        "heat": heat,
    }


def _table(table: ReportTable) -> dict[str, Any]:
    return {**table._asdict(), "columns": [column._asdict() for column in table.columns]}


def _runs(evidence: Evidence) -> dict[str, Any]:
    """The options that all runs share, and every run with those of its own."""
    records = [(name, record) for name, found in evidence.records.items() for record in found]
    common, own = split_configurations([record.run.experiment.to_dict() for _, record in records])
    runs = [
        {
            "name": name,
            "folder": record.run.folder.name,
            "seed": record.run.experiment.seed,
            "method": name,
            "own": settings,
            "config": (record.run.folder / CONFIG).read_text(encoding="utf-8"),
            "versions": {
                "coterie": record.run.about["coterie"],
                **record.run.about.get("versions", {}),
            },
            "date": record.run.about.get("date", ""),
            "status": "finished"
            if record.finished
            else f"stopped or running, round {record.round:,}",
        }
        for (name, record), settings in zip(records, own, strict=True)
    ]
    return {"common": common, "runs": runs}


def to_plain(value: Any, digits: int) -> Any:
    """Python's own lists and numbers, rounded; None for NaN and infinities."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float | np.floating):
        return float(f"{value:.{digits}g}") if isfinite(value) else None
    if isinstance(value, dict):
        return {key: to_plain(item, digits) for key, item in value.items()}
    if isinstance(value, np.integer):
        return int(value)
    return [to_plain(item, digits) for item in value]
