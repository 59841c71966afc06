"""The tables of a report as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from coterie.analysis.fairness import gain_fairness, top_share_by_size, worst_share
from coterie.analysis.gains import Improvement, improvement, qoi_global
from coterie.analysis.numbers import LEVEL
from coterie.core.errors import BadInput
from coterie.reports.evidence import Evidence, means
from coterie.reports.fairness import SHARE
from coterie.reports.figures import gains
from coterie.results.costs import SYSTEMS, costs, simulated_time
from coterie.results.false_accepts import relative_false_accepts
from coterie.results.table import best_round

SHORT = 3  # letters of a view named by a formula, as u_i
SCORES = ("f1", "precision", "recall", "balanced_accuracy", "calibration_error")


class Column(NamedTuple):
    """A heading; `format` as in Python's format language."""

    name: str
    unit: str = ""
    better: str = ""  # "high", "low", or neither
    format: str = ""


class Table(NamedTuple):
    """A table and how to read it."""

    key: str
    title: str
    note: str
    columns: list[Column]
    rows: list[list[Any]]  # text and numbers, NaN where there is none


def tables(evidence: Evidence) -> list[Table]:
    """Every table these runs allow, the one of all methods first."""
    found = [methods(evidence), *gain_tables(evidence), *rank_tables(evidence), rounds(evidence)]
    found += [cost(evidence), views(evidence), scores(evidence), false_accepts(evidence)]
    return [table for table in found if table and table.rows]


def _of_measure(evidence: Evidence, name: str, better: bool = True) -> Column:
    best = ("high" if evidence.classed else "low") if better else ""
    return Column(name, evidence.unit, best, ".2f" if evidence.classed else ".4g")


def _points(evidence: Evidence, name: str, better: str = "", format: str = ".2f") -> Column:
    return Column(name, "points" if evidence.classed else "", better, format if evidence.classed else ".4g")


def methods(evidence: Evidence) -> Table:
    """How well every method serves the clients."""
    seeds, part, scale = len(evidence.seeds), evidence.first.part, evidence.scale
    columns = [Column("method"), _of_measure(evidence, "mean")]
    columns += [_of_measure(evidence, end, better=False) for end in ("low", "high")] if seeds > 1 else []
    columns += [
        _of_measure(evidence, "weighted by rows"),
        _points(evidence, "deviation over clients", "low"),
        _of_measure(evidence, "worst client"),
        _of_measure(evidence, "worst 10 %"),
        _of_measure(evidence, "largest 10 %"),
        _of_measure(evidence, "validation", better=False),
    ]
    sign, sizes = (1 if evidence.classed else -1), np.asarray(evidence.first.about["rows"]["train"])
    rows = []
    for row in sorted(evidence.rows, key=lambda row: -sign * row.mean):
        block = evidence.measured(row.method)
        top = 1.0 if evidence.classed else np.inf  # an accuracy has no interval beyond
        ends = np.clip([row.low, row.high], 0, top).tolist() if seeds > 1 else []
        low = np.mean([sign * worst_share(sign * a, SHARE) for a in block])
        large = np.mean([top_share_by_size(a, sizes, SHARE) for a in block])
        numbers = [row.mean, *ends, row.weighted, row.deviation, row.worst, low, large, row.validation]
        rows.append([row.method, *(scale * float(v) for v in numbers)])
    interval = f" Low and high: 95 % interval of the mean over {seeds} seeds (Student's t)." if seeds > 1 else ""
    note = (
        f"{part.capitalize()} {evidence.first.measure} of the clients' own models at the last round, {len(evidence.names):,} "
        f"clients. Worst 10 %: the clients served worst; largest 10 %: those with most training rows, weighted by them.{interval}"
    )
    return Table("methods", "Methods", note, columns, rows)


def gain_tables(evidence: Evidence) -> list[Table]:
    """Who gains over FedAvg and Local, how much, and how evenly; and over FedAvg alone."""
    found, over = gains(evidence)
    if not found:
        return []
    made = [_gains("gains", over, {name: [improvement(q) for q in block] for name, block in found.items()})]
    if over != "FedAvg":  # what is often printed, as a paper without local accuracies must
        base = evidence.measured("fedavg")
        names = [name for name in evidence.methods if name != "fedavg"]
        alone = {name: [improvement(q) for q in qoi_global(evidence.measured(name), base)] for name in names}
        made.append(_gains("gains-fedavg", "FedAvg", alone))
    fields = ("jain", "cosine", "evenness", "entropy", "variance", "n")
    columns = [Column("method")]
    for side in ("gains", "losses"):
        columns += [Column(f"{f} of {side}", "", "high", ".3f") for f in ("Jain", "cosine", "evenness", "entropy")]
        columns += [
            Column(f"variance of {side}", "points²", "low", ".2f"),
            Column("clients that " + side[:-1].replace("losse", "lose"), "", "", ".1f"),
        ]
    rows = []
    for name, block in found.items():
        sides = [gain_fairness(q) for q in block]
        rows.append([name, *(_mean([getattr(pair[k], f) for pair in sides]) for k in (0, 1) for f in fields)])
    note = (
        f"How evenly the gains over {over} are shared by the clients that gain, and the losses by those that lose. Entropy "
        "grows with the number of clients and is divided by its largest value in evenness; Jain's index is the cosine squared."
    )
    return [*made, Table("fairness", "Fairness of gains and losses", note, columns, rows)]


def _gains(key: str, over: str, found: dict[str, list[Improvement]]) -> Table:
    heads = {
        "pui": ("PUI", "high"),
        "pud": ("PUD", "low"),
        "mpi": ("MPI", "high"),
        "api": ("API", "high"),
        "mpd": ("MPD", "high"),
        "apd": ("APD", "high"),
    }
    columns = [
        Column("method"),
        *(
            Column(word, "%" if k < 2 else "points", better, ".1f" if k < 2 else ".2f")
            for k, (word, better) in enumerate(heads.values())
        ),
    ]
    rows = [[name, *(_mean([getattr(each, f) for each in seeds]) for f in heads)] for name, seeds in found.items()]
    note = (
        f"Gain of a client: its own model's accuracy less that of {over}. PUI, PUD: share of clients that gain and lose. "
        "MPI, API: median and mean gain of those that gain; MPD, APD: median and mean loss of those that lose. Means over seeds."
    )
    return Table(key, f"Gains over {over}", note, columns, rows)


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(means(np.asarray(values, dtype=float), 0))


def rank_tables(evidence: Evidence) -> list[Table]:
    """Mean ranks, whom a method beats, all corrected p, and differences to FedAvg and Local."""
    if len(evidence.methods) < 2:
        return []
    found = evidence.comparison.ranks()
    sign = 1 if evidence.classed else -1
    test = f"Wilcoxon signed-rank over {found.n} {found.population}, two-sided, Holm-corrected over all pairs, {100 * LEVEL:g} %."
    said = f" {found.note[:1].upper()}{found.note[1:]}." if found.note else ""
    columns = [
        Column("method"),
        Column("mean rank", "", "low", ".2f"),
        _of_measure(evidence, "mean"),
        Column("significantly better than"),
    ]
    rows = []
    for k, name in enumerate(found.methods):
        beaten = [other for other in found.methods if found.beats(name, other)]
        words = "every other method" if len(beaten) == len(found.methods) - 1 else ", ".join(beaten) or "none"
        rows.append([name, float(found.rank[k]), evidence.scale * sign * float(found.mean[k]), words])
    made = [Table("ranks", "Ranks", f"Rank 1 is best, averaged over {found.population}. {test}{said}", columns, rows)]
    heads = [Column("method"), *(Column(f"against {name}", "p", "", ".3g") for name in found.methods)]
    cells = [
        [name, *(float("nan") if i == j else float(found.p[i, j]) for j in range(len(found.methods)))]
        for i, name in enumerate(found.methods)
    ]
    made.append(Table("p-values", "p of every pair", test + said, heads, cells))
    return [*made, *_differences(evidence)]


def _differences(evidence: Evidence) -> list[Table]:
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
        Column("method"),
        Column("against"),
        *(_points(evidence, w, "", "+.2f") for w in ("difference", "low", "high")),
        Column("so it is"),
    ]
    how = "seeds averaged for each client" if population == "clients" else "each seed deals the data anew"
    note = (
        f"How much better a client is served, client by client; low and high: 95 % interval, bootstrap over {population} ({how})."
    )
    return [Table("differences", "Against FedAvg and Local", note, columns, rows)]


def rounds(evidence: Evidence) -> Table | None:
    """The last round beside the one that validation data prefer."""
    rows = []
    for row in evidence.rows:
        records = evidence.records[row.method]
        best = [best_round(r.slim.table, evidence.first.measure) for r in records]
        if None in best:
            return None
        last = float(np.mean([r.round for r in records]))
        gap = evidence.scale * (row.at_best - row.mean)
        rows.append([row.method, last, evidence.scale * row.mean, row.best_round, evidence.scale * row.at_best, gap])
    number = ".0f" if len(evidence.seeds) == 1 else ".1f"
    part = evidence.first.part
    columns = [
        Column("method"),
        Column("last round", "", "", number),
        _of_measure(evidence, f"{part} at the last round"),
        Column("best round", "", "", number),
        _of_measure(evidence, f"{part} at the best round"),
        _points(evidence, "difference", "", "+.2f"),
    ]
    seeds = "" if len(evidence.seeds) == 1 else f" Means over {len(evidence.seeds)} seeds, each with its own best round."
    note = f"The best round is the one of best mean {evidence.first.measure} on validation rows; test rows choose nothing.{seeds}"
    return Table("rounds", "Last round and best round", note, columns, rows)


def cost(evidence: Evidence) -> Table:
    """What a whole run of every method costs."""
    rows = []
    for name, records in evidence.records.items():
        spent = [costs(r.slim).summed() for r in records]
        totals = [
            _mean([float(getattr(s, field)[-1]) for s in spent]) for field in ("down", "broadcast", "up", "steps", "gradients")
        ]
        seconds = _mean([float(s.seconds[-1]) / len(s.round) for s in spent])
        times = [_mean([float(simulated_time(r.slim, system)[-1]) for r in records]) for system in SYSTEMS]
        rows.append([name, *(v / 1e6 for v in totals[:3]), *totals[3:], seconds, *times])
    columns = [Column("method")]
    columns += [Column(word, "MB", "low", ".4g") for word in ("down", "down, shared payloads once", "up")]
    columns += [Column(word, "", "low", ",.0f") for word in ("client-steps", "gradients")]
    columns += [Column("a round here", "s", "low", ".3f")]
    columns += [Column(f"simulated: {system}", "downloads", "low", ",.0f") for system in SYSTEMS]
    note = (
        "A whole run, all clients. A client-step is one step of one client on a mini-batch, gradients are the evaluations in "
        "all steps. Simulated time is in downloads of one model, with uploads one after another."
    )
    return Table("cost", "Cost", note, columns, rows)


def views(evidence: Evidence) -> Table | None:
    """Every model of a client that was measured, where a method has more than its own."""
    rows = []
    for name, records in evidence.records.items():
        known = records[0].views
        for view in known if len(known) > 1 else ():
            rows.append(
                [
                    name,
                    view if len(view) <= SHORT else view.replace("_", " "),
                    evidence.scale * _mean([_mean(a) for a in evidence.measured(name, view=view)]),
                ]
            )
    columns = [Column("method"), Column("model"), _of_measure(evidence, "mean")]
    note = "What else a method's clients could use: its global model, a model before distillation, a mixture before training."
    return Table("other-views", "Other models of the methods", note, columns, rows) if rows else None


def scores(evidence: Evidence) -> Table | None:
    """F1 and its kin, means over clients; none where the runs did not measure them."""
    part = evidence.first.part
    found = {
        name: [_mean(np.concatenate([r.last(score, part, "personal") for r in records])) for score in SCORES]
        for name, records in evidence.records.items()
    }
    rows = [[name, *(100 * v for v in numbers)] for name, numbers in found.items() if not np.isnan(numbers).all()]
    columns = [
        Column("method"),
        *(Column(s.replace("_", " ").replace("f1", "F1"), "%", "low" if s.endswith("error") else "high", ".2f") for s in SCORES),
    ]
    note = (
        f"Means over clients on their {part} rows at the last round. F1, precision and recall are averaged over the classes "
        "a client holds; the calibration error is the mean gap between confidence and accuracy."
    )
    return Table("scores", "More measures", note, columns, rows) if rows else None


def false_accepts(evidence: Evidence) -> Table | None:
    """False accepts beside FedAvg's where there are two classes; none without FedAvg or without scores."""
    rows = []
    for name in (n for n in evidence.methods if n != "fedavg" and "fedavg" in evidence.records):
        try:
            pairs = zip(evidence.records[name], evidence.records["fedavg"], strict=True)
            found = [relative_false_accepts(mine.run, base.run) for mine, base in pairs]
        except BadInput:  # no scores, or of one class alone: there is nothing to show
            return None
        rows.append([name, *(_mean([f[k] for f in found]) for k in (0, 1))])
    columns = [
        Column("method"),
        Column("relative false accepts", "", "low", ".3f"),
        Column("relative false rejects", "", "", ".3f"),
    ]
    note = (
        "Over FedAvg's, test rows of all clients together, at the threshold whose false rejects are closest to FedAvg's at 0.5."
    )
    return Table("scores-accepts", "False accepts", note, columns, rows) if rows else None
