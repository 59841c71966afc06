"""What a report says of newcomers: a table of how they were served, and a figure of how many rows
it takes.
"""

from __future__ import annotations

import numpy as np

from coterie.reports.evidence import Evidence
from coterie.reports.figures import Figure, Series, axis_title
from coterie.reports.report_table import ReportTable, TableColumn, measure_column, points_column
from coterie.results.newcomer_results import (
    ALONE,
    FINE_TUNED,
    RULE,
    WAYS,
    NewcomerResults,
    newcomer_rows,
)


def _newcomers_of(evidence: Evidence) -> dict[str, list[NewcomerResults]]:
    """The newcomers of every method that had any, seed by seed."""
    found = {name: [r.run.came for r in records] for name, records in evidence.records.items()}
    return {name: runs for name, runs in found.items() if all(run.names for run in runs)}


def build_newcomer_table(evidence: Evidence) -> ReportTable | None:
    """How clients that came after training were served, way by way."""
    came, scale = _newcomers_of(evidence), evidence.scale
    if not came:
        return None
    columns = [
        TableColumn("method"),
        TableColumn("model"),
        measure_column(evidence, "mean"),
        *(measure_column(evidence, end, better=False) for end in ("low", "high")),
        points_column(evidence, "own rule against it"),
        *(points_column(evidence, end) for end in ("from", "to")),
        TableColumn("newcomers", format=",.0f"),
        TableColumn("what the model is"),
    ]
    rows = []
    for name, runs in came.items():
        for row in newcomer_rows(runs):
            numbers = [row.mean, row.low, row.high, row.gain, row.gain_low, row.gain_high]
            shown = [scale * value for value in numbers]
            if row.way == RULE:
                shown[3:] = [float("nan")] * 3
            settings = f"a newcomer {runs[0].rule}" if row.way == RULE else MODEL_MEANINGS[row.way]
            rows.append([name, WAYS[row.way], *shown, row.n, settings])
    note = (
        "Clients that were kept out of training and came when it was over, on their test rows. "
        "Intervals (95 %, Student's t) are over newcomers; differences are newcomer by newcomer, "
        "above 0 the method's own rule is better."
    )
    return ReportTable("newcomers", "Newcomers", note, columns, rows)


MODEL_MEANINGS = {
    FINE_TUNED: "the method's global model (the mean of its clients' models where it has none), "
    "trained on the newcomer's rows",
    ALONE: "trained on the newcomer's rows alone, as many rounds as the run had",
}


def build_newcomer_figures(evidence: Evidence) -> list[Figure]:
    """All figures on newcomers."""
    return [figure for figure in [build_few_shot(evidence)] if figure]


def build_few_shot(evidence: Evidence) -> Figure | None:
    """How well newcomers are served by the number of their training rows."""
    came = {name: runs for name, runs in _newcomers_of(evidence).items() if _common_sizes(runs)}
    if not came:
        return None
    first = "fedavg" if "fedavg" in came else next(iter(came))
    if len(came) == 1:
        series = [
            _way_series(evidence, came[first], way, settings) for way, settings in WAYS.items()
        ]
    else:
        series = [_way_series(evidence, runs, RULE, name) for name, runs in came.items()]
        series.append(
            _way_series(evidence, came[first], FINE_TUNED, f"{first} (global, fine-tuned)")
        )
    runs = came[first]
    note = (
        f"Mean over {newcomer_rows(runs)[0].n:,} newcomers by their number of training rows, with "
        "its 95 % interval; the line of a method is its own rule. The last point is all that they "
        f"have, {_mean_rows(runs):,.0f} rows on average. Fewer rows are always among more, and "
        "test "
        "rows are the same."
    )
    return Figure(
        "few-shot",
        "Newcomers with few rows",
        note,
        "lines",
        "training rows of a newcomer",
        axis_title(evidence, "test"),
        tuple(series),
        section="accuracy",
    )


def _common_sizes(runs: list[NewcomerResults]) -> list[int]:
    """The sizes that every seed has."""
    return sorted(set.intersection(*(set(run.sizes) for run in runs)))


def _mean_rows(runs: list[NewcomerResults]) -> float:
    return float(np.mean([n for run in runs for n in run.rows]))


def _way_series(evidence: Evidence, runs: list[NewcomerResults], way: str, settings: str) -> Series:
    """One way of getting a model, by the number of rows."""
    k, scale = list(WAYS).index(way), evidence.scale
    sizes = _common_sizes(runs)
    found = [newcomer_rows(runs, size)[k] for size in [*sizes, None]]
    return Series(
        settings,
        [*sizes, round(_mean_rows(runs), 1)],
        [scale * row.mean for row in found],
        [scale * row.low for row in found],
        [scale * row.high for row in found],
    )
