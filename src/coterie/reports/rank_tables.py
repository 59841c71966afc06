"""Tables on which differences between methods are more than chance."""

from __future__ import annotations

from coterie.analysis.nan_math import LEVEL
from coterie.reports.evidence import Evidence
from coterie.reports.report_table import ReportTable, TableColumn, measure_column, points_column


def build_rank_tables(evidence: Evidence) -> list[ReportTable]:
    """Mean ranks, whom a method beats, all corrected p, and differences to FedAvg and Local."""
    if len(evidence.methods) < 2:
        return []
    found = evidence.comparison.ranks()
    sign = evidence.judged.sign
    test = (
        f"Wilcoxon signed-rank over {found.n} {found.population}, two-sided, Holm-corrected "
        f"over all pairs, {100 * LEVEL:g} %."
    )
    said = f" {found.note[:1].upper()}{found.note[1:]}." if found.note else ""
    columns = [
        TableColumn("method"),
        TableColumn("mean rank", "", "low", ".2f"),
        measure_column(evidence, "mean"),
        TableColumn("significantly better than"),
    ]
    rows = []
    for k, name in enumerate(found.methods):
        beaten = [other for other in found.methods if found.beats(name, other)]
        settings = (
            "every other method"
            if len(beaten) == len(found.methods) - 1
            else ", ".join(beaten) or "none"
        )
        rows.append(
            [name, float(found.rank[k]), evidence.scale * sign * float(found.mean[k]), settings]
        )
    made = [
        ReportTable(
            "ranks",
            "Ranks",
            f"Rank 1 is best, averaged over {found.population}. {test}{said}",
            columns,
            rows,
        )
    ]
    heads = [
        TableColumn("method"),
        *(TableColumn(f"against {name}", "p", "", ".3g") for name in found.methods),
    ]
    cells = [
        [
            name,
            *(float("nan") if i == j else float(found.p[i, j]) for j in range(len(found.methods))),
        ]
        for i, name in enumerate(found.methods)
    ]
    made.append(ReportTable("p-values", "p of every pair", test + said, heads, cells))
    return [*made, *_difference_tables(evidence)]


def _difference_tables(evidence: Evidence) -> list[ReportTable]:
    others = [name for name in ("fedavg", "local") if name in evidence.records]
    rows = []
    for name in evidence.methods:
        for other in (o for o in others if o != name):
            gap = evidence.comparison.difference(name, other)
            verdict = {1: "better", -1: "worse", 0: "no difference shown"}[gap.sign]
            rows.append([name, other, *(evidence.scale * v for v in gap[:3]), verdict])
            population = gap.population
    if not rows:
        return []
    columns = [
        TableColumn("method"),
        TableColumn("against"),
        *(points_column(evidence, w, "", "+.2f") for w in ("difference", "low", "high")),
        TableColumn("so it is"),
    ]
    how = (
        "seeds averaged for each client"
        if population == "clients"
        else "each seed partitions the data anew"
    )
    note = (
        "How much better a client is served, client by client; low and high: 95 % interval, "
        f"bootstrap over {population} ({how})."
    )
    return [ReportTable("differences", "Against FedAvg and Local", note, columns, rows)]
