"""Tables on who gains and who loses, and how evenly."""

from __future__ import annotations

from coterie.analysis.fairness import gain_fairness
from coterie.analysis.gains import Improvement, improvement, qoi_global
from coterie.analysis.nan_math import mean_of
from coterie.analysis.scores import Score
from coterie.reports.evidence import Evidence
from coterie.reports.gain_figures import compute_gains
from coterie.reports.report_table import ReportTable, TableColumn


def build_gain_tables(evidence: Evidence) -> list[ReportTable]:
    """Who gains over FedAvg and Local, how much, and how evenly; and over FedAvg alone."""
    found, over = compute_gains(evidence)
    if not found:
        return []
    made = [
        _gain_table(
            "gains",
            over,
            {name: [improvement(q) for q in block] for name, block in found.items()},
            evidence,
        )
    ]
    if over != "FedAvg":  # what is often printed, as a paper without local accuracies must
        sign, share = evidence.judged.sign, evidence.judged.share
        base = sign * evidence.client_values("fedavg")
        names = [name for name in evidence.methods if name != "fedavg"]
        alone = {
            name: [
                improvement(q) for q in qoi_global(sign * evidence.client_values(name), base, share)
            ]
            for name in names
        }
        made.append(_gain_table("gains-fedavg", "FedAvg", alone, evidence))
    unit, form = ("points", ".2f") if evidence.judged.share else ("", ".4g")
    fields = ("jain", "cosine", "evenness", "entropy", "variance", "n")
    columns = [TableColumn("method")]
    for side in ("gains", "losses"):
        columns += [
            TableColumn(f"{f} of {side}", "", "high", ".3f")
            for f in ("Jain", "cosine", "evenness", "entropy")
        ]
        columns += [
            TableColumn(f"variance of {side}", f"{unit}²" if unit else "", "low", form),
            TableColumn("clients that " + side[:-1].replace("losse", "lose"), "", "", ".1f"),
        ]
    rows = []
    for name, block in found.items():
        sides = [gain_fairness(q) for q in block]
        rows.append(
            [
                name,
                *(mean_of([getattr(pair[k], f) for pair in sides]) for k in (0, 1) for f in fields),
            ]
        )
    note = (
        f"How evenly the gains over {over} are shared by the clients that gain, and the "
        "losses by those that lose. Entropy "
        "grows with the number of clients and is divided by its largest value in evenness; "
        "Jain's index is the cosine squared."
    )
    return [*made, ReportTable("fairness", "Fairness of gains and losses", note, columns, rows)]


def _gain_table(
    key: str, over: str, found: dict[str, list[Improvement]], evidence: Evidence
) -> ReportTable:
    judged = evidence.judged
    unit, form = ("points", ".2f") if judged.share else ("", ".4g")
    heads = {
        "pui": ("PUI", "high"),
        "pud": ("PUD", "low"),
        "mpi": ("MPI", "high"),
        "api": ("API", "high"),
        "mpd": ("MPD", "high"),
        "apd": ("APD", "high"),
    }
    columns = [
        TableColumn("method"),
        *(
            TableColumn(option, "%" if k < 2 else unit, better, ".1f" if k < 2 else form)
            for k, (option, better) in enumerate(heads.values())
        ),
    ]
    rows = [
        [name, *(mean_of([getattr(each, f) for each in seeds]) for f in heads)]
        for name, seeds in found.items()
    ]
    note = (
        f"Gain of a client: {_define_gain(judged, over)}. PUI, PUD: share of "
        "clients that gain and lose. "
        "MPI, API: median and mean gain of those that gain; MPD, APD: median and mean loss "
        "of those that lose. Means over seeds."
    )
    return ReportTable(key, f"Gains over {over}", note, columns, rows)


def _define_gain(judged: Score, over: str) -> str:
    """What a gain is, so that more of it is better."""
    if judged.higher:
        return f"its own model's {judged.label} less that of {over}"
    return f"the {judged.label} of {over} less that of its own model"
