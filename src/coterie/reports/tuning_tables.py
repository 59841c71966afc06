"""Tables of how each method was tuned: every trial, whether it won or not."""

from __future__ import annotations

from collections.abc import Iterable

from coterie.comparison.trials import FOLDER, Record, Trial, read_record
from coterie.core.errors import BadInput
from coterie.reports.evidence import Evidence
from coterie.reports.report_table import ReportTable, TableColumn, measure_column

STATES = {
    "finished": "played to the end",
    "stopped": "stopped: not among the best third half way",
    "out of time": "stopped: out of time",
    "diverged": "diverged",
    "refused": "refused: its options do not go together",
    "repeated": "tried before",
}


def build_tuning_tables(evidence: Evidence) -> list[ReportTable]:
    """One table per method that was tuned."""
    found = {name: _read_trials(evidence, name) for name in evidence.methods}
    records = {name: record for name, record in found.items() if record and record.tried}
    counts = sorted({len(record.tried) for record in records.values()})
    alike = (
        f"Every tuned method had {counts[0]} trial{'s' if counts[0] > 1 else ''}"
        if len(counts) == 1
        else f"The tuned methods had {counts[0]} to {counts[-1]} trials{_reason(records.values())}"
        if counts
        else ""
    )
    return [_table(evidence, name, record, alike) for name, record in records.items()]


def _reason(records: Iterable[Record]) -> str:
    """Why methods had different numbers of trials."""
    timed = all(trial.seconds is not None for record in records for trial in record.tried)
    return " in equal shares of the time" if timed else ", as many as led to something better"


def _read_trials(evidence: Evidence, name: str) -> Record | None:
    """The trials beside the runs of a method; None where it was not tuned."""
    folder = evidence.records[name][0].run.folder
    try:
        return read_record(folder.parent / FOLDER / folder.name.rpartition("-seed")[0])
    except (BadInput, OSError):
        return None  # the runs stand without it


def _table(evidence: Evidence, name: str, record: Record, alike: str) -> ReportTable:
    space = "; ".join(f"{option} {_values(values)}" for option, values in record.space.items())
    note = (
        f"Searched: {space}. {alike}, with the same seeds. Scores are means over the clients on "
        "validation data, where a trial ended; test data were not looked at."
    )
    columns = [
        TableColumn("trial"),
        TableColumn("options"),
        measure_column(evidence, f"validation {evidence.judged.label}"),
        TableColumn("rounds", "", "", ".0f"),
        TableColumn("state"),
    ]
    rows = [[str(k), *_row(evidence, trial, record)] for k, trial in enumerate(record.tried, 1)]
    return ReportTable(f"tuning-{name}", f"Tuning of {name}", note, columns, rows)


def _row(evidence: Evidence, trial: Trial, record: Record) -> list[str | float]:
    options = ", ".join(f"{option} {value}" for option, value in trial.options.items())
    state = STATES[trial.state]
    if trial.state == "finished" and trial.options == record.best:
        state = "chosen"
    score = float("nan") if trial.score is None else evidence.scale * trial.score
    return [options, score, float(trial.rounds), state]


def _values(values: object) -> str:
    return ", ".join(map(str, values)) if isinstance(values, list) else str(values)
