"""The tables of a report."""

from __future__ import annotations

import numpy as np

from coterie.analysis.fairness import top_share_by_size, worst_share
from coterie.analysis.nan_math import mean_of
from coterie.analysis.scores import find_score
from coterie.core.errors import BadInput
from coterie.core.quantities import QuantityKind
from coterie.reports.evidence import Evidence, RunRecord
from coterie.reports.fairness_figures import SHARE
from coterie.reports.gain_tables import build_gain_tables
from coterie.reports.newcomer_tables import build_newcomer_table
from coterie.reports.rank_tables import build_rank_tables
from coterie.reports.report_table import ReportTable, TableColumn, measure_column, points_column
from coterie.reports.tuning_tables import build_tuning_tables
from coterie.results.costs import SYSTEMS, costs_of, simulated_time
from coterie.results.false_accepts import SCORES, relative_false_accepts
from coterie.results.metric_table import best_round

VIEWS = {"personal": "the client's own model", "global": "the model that all clients share"}


def build_tables(evidence: Evidence) -> list[ReportTable]:
    """Every table these runs allow, the one of all methods first."""
    found = [
        build_methods_table(evidence),
        build_references_table(evidence),
        *build_gain_tables(evidence),
        *build_rank_tables(evidence),
        build_rounds_table(evidence),
    ]
    found += [
        build_cost_table(evidence),
        build_views_table(evidence),
        build_scores_table(evidence),
        build_accepts_table(evidence),
    ]
    found += [build_newcomer_table(evidence), *build_tuning_tables(evidence)]
    return [table for table in found if table and table.rows]


def build_methods_table(evidence: Evidence) -> ReportTable:
    """How well every method serves the clients."""
    seeds, part, scale = len(evidence.seeds), evidence.first.part, evidence.scale
    columns = [TableColumn("method"), measure_column(evidence, "mean")]
    columns += (
        [measure_column(evidence, end, better=False) for end in ("low", "high")]
        if seeds > 1
        else []
    )
    columns += [
        measure_column(evidence, "weighted by rows"),
        points_column(evidence, "deviation over clients", "low"),
        measure_column(evidence, "worst client"),
        measure_column(evidence, "worst 10 %"),
        measure_column(evidence, "largest 10 %"),
        measure_column(evidence, "select rows", better=False),
    ]
    sign, sizes = evidence.judged.sign, np.asarray(evidence.first.about["rows"]["train"])
    rows = []
    for row in sorted(evidence.rows, key=lambda row: -sign * row.mean):
        block = evidence.client_values(row.method)
        ends = np.clip([row.low, row.high], *evidence.judged.bounds).tolist() if seeds > 1 else []
        low = np.mean([sign * worst_share(sign * a, SHARE) for a in block])
        large = np.mean([top_share_by_size(a, sizes, SHARE) for a in block])
        numbers = [
            row.mean,
            *ends,
            row.weighted,
            row.deviation,
            row.worst,
            low,
            large,
            row.select,
        ]
        rows.append([row.method, *(scale * float(v) for v in numbers)])
    interval = (
        f" Low and high: 95 % interval of the mean over {seeds} seeds (Student's t)."
        if seeds > 1
        else ""
    )
    note = (
        f"{part.capitalize()} {evidence.judged.label} of the clients' own models at the last "
        f"round, {len(evidence.names):,} "
        "clients. Worst 10 %: the clients served worst; largest 10 %: those with most "
        f"training rows, weighted by them.{interval}"
    )
    return ReportTable("methods", "Methods", note, columns, rows)


def build_references_table(evidence: Evidence) -> ReportTable:
    """What scikit-learn reaches on the same rows, where it was measured."""
    columns = [
        TableColumn("rows"),
        measure_column(evidence, "mean", better=False),
        measure_column(evidence, "worst client", better=False),
        TableColumn("model of most clients"),
        TableColumn("clients", "", "", ",d"),
    ]
    rows = [
        [one.name, evidence.scale * one.mean, evidence.scale * one.worst, one.model, one.clients]
        for one in evidence.comparison.references
    ]
    note = (
        "What scikit-learn reaches on the same rows: alone, with a model for each client, and "
        "pooled, with one for all rows together. Validation rows choose the model."
    )
    return ReportTable("references", "Without federated learning", note, columns, rows)


def build_rounds_table(evidence: Evidence) -> ReportTable | None:
    """The last round beside the one that validation data prefer."""
    rows = []
    for row in evidence.rows:
        records = evidence.records[row.method]
        best = [best_round(r.slim.table, evidence.first.measure) for r in records]
        if None in best:
            return None
        last = float(np.mean([r.round for r in records]))
        gap = evidence.scale * (row.at_best - row.mean)
        rows.append(
            [
                row.method,
                last,
                evidence.scale * row.mean,
                row.best_round,
                evidence.scale * row.at_best,
                gap,
            ]
        )
    number = ".0f" if len(evidence.seeds) == 1 else ".1f"
    part = evidence.first.part
    columns = [
        TableColumn("method"),
        TableColumn("last round", "", "", number),
        measure_column(evidence, f"{part} at the last round"),
        TableColumn("best round", "", "", number),
        measure_column(evidence, f"{part} at the best round"),
        points_column(evidence, "difference", "", "+.2f"),
    ]
    seeds = (
        ""
        if len(evidence.seeds) == 1
        else f" Means over {len(evidence.seeds)} seeds, each with its own best round."
    )
    note = (
        f"The best round is the one of best mean {evidence.judged.label} on validation rows; "
        f"test rows choose nothing.{seeds}"
    )
    return ReportTable("rounds", "Last round and best round", note, columns, rows)


def build_cost_table(evidence: Evidence) -> ReportTable:
    """What a whole run of every method costs."""
    rows = []
    for name, records in evidence.records.items():
        spent = [costs_of(r.slim).sum() for r in records]
        totals = [
            mean_of([float(getattr(s, field)[-1]) for s in spent])
            for field in ("down", "broadcast", "up", "steps", "gradients")
        ]
        seconds = mean_of([float(s.seconds[-1]) / len(s.round) for s in spent])
        times = [
            mean_of([float(simulated_time(r.slim, system)[-1]) for r in records])
            for system in SYSTEMS
        ]
        rows.append([name, *(v / 1e6 for v in totals[:3]), *totals[3:], seconds, *times])
    columns = [TableColumn("method")]
    columns += [
        TableColumn(option, "MB", "low", ".4g")
        for option in ("down", "down, shared payloads once", "up")
    ]
    columns += [TableColumn(option, "", "low", ",.0f") for option in ("client-steps", "gradients")]
    columns += [TableColumn("a round here", "s", "low", ".3f")]
    columns += [
        TableColumn(f"simulated: {system}", "downloads", "low", ",.0f") for system in SYSTEMS
    ]
    note = (
        "A whole run, all clients. A client-step is one step of one client on a mini-batch, "
        "gradients are the evaluations in "
        "all steps. Simulated time is in downloads of one model, with uploads one after another."
    )
    return ReportTable("cost", "Cost", note, columns, rows)


def build_views_table(evidence: Evidence) -> ReportTable | None:
    """Every model of a client that was measured, where a method has more than its own."""
    rows = []
    for name, records in evidence.records.items():
        known, settings = records[0].views, VIEWS | _view_labels(records[0])
        for view in known if len(known) > 1 else ():
            found = mean_of([mean_of(a) for a in evidence.client_values(name, view=view)])
            rows.append([name, view, evidence.scale * found, settings.get(view, "")])
    mean = measure_column(evidence, "mean")
    columns = [TableColumn("method"), TableColumn("model"), mean, TableColumn("what it is")]
    note = "What else a method's clients could use beside their own models."
    return (
        ReportTable("other-views", "Other models of the methods", note, columns, rows)
        if rows
        else None
    )


def _view_labels(record: RunRecord) -> dict[str, str]:
    """What a method says of its views."""
    return {n: note.label for n, note in record.describes.items() if note.kind is QuantityKind.VIEW}


def build_scores_table(evidence: Evidence) -> ReportTable | None:
    """Every score beside accuracy, means over clients; none where the runs did not measure them."""
    found = evidence.comparison.scores()
    known = [find_score(name) for name in next(iter(found.values()))]
    rows = [
        [name, *(100 * v if find_score(n).share else v for n, v in values.items())]
        for name, values in found.items()
    ]
    nothing = evidence.first.trivial
    if known and evidence.first.part == "test" and nothing:
        values = [nothing.get(s.name, np.nan) * (100 if s.share else 1) for s in known]
        rows.append(["(knows training labels only)", *values])
    columns = [TableColumn("method")]
    columns += [
        TableColumn(
            s.label,
            "%" if s.share else "",
            "high" if s.higher else "low",
            ".2f" if s.share else ".4g",
        )
        for s in known
    ]
    meanings = "; ".join(f"{s.label}: {s.meaning}" for s in known if s.meaning)
    part = evidence.first.part
    note = f"Means over clients on their {part} rows at the last round. {meanings}."
    return ReportTable("scores", "More measures", note, columns, rows) if known else None


def build_accepts_table(evidence: Evidence) -> ReportTable | None:
    """False accepts beside FedAvg's where there are two classes; None without FedAvg."""
    rows = []
    for name in (n for n in evidence.methods if n != "fedavg" and "fedavg" in evidence.records):
        try:
            pairs = list(zip(evidence.records[name], evidence.records["fedavg"], strict=True))
            if any(SCORES in record.damage for pair in pairs for record in pair):
                return None  # a warning says so
            found = [relative_false_accepts(mine.run, base.run) for mine, base in pairs]
        except BadInput:  # no scores, or of one class alone: there is nothing to show
            return None
        rows.append([name, *(mean_of([f[k] for f in found]) for k in (0, 1))])
    columns = [
        TableColumn("method"),
        TableColumn("relative false accepts", "", "low", ".3f"),
        TableColumn("relative false rejects", "", "", ".3f"),
    ]
    note = (
        "Over FedAvg's, test rows of all clients together, at the threshold whose false "
        "rejects are closest to FedAvg's at 0.5."
    )
    return ReportTable("scores-accepts", "False accepts", note, columns, rows) if rows else None
