"""Figures on the data: which client holds how many rows, and of which classes."""

from __future__ import annotations

import numpy as np

from coterie.reports.evidence import Evidence
from coterie.reports.figures import MAX_NAMED, Figure, Heat, build_client_dots
from coterie.reports.matrices import MAX_GROUPS


def build_data_figures(evidence: Evidence) -> list[Figure]:
    """Which client holds how many rows, and of which classes."""
    rows = {
        part: np.asarray(rows, dtype=float) for part, rows in evidence.first.about["rows"].items()
    }
    rows = {part: held for part, held in rows.items() if held.any()}
    series, title = build_client_dots(evidence, rows, largest_first=True)
    seed = "" if evidence.fixed_partition else f" Seed {evidence.seeds[0]}."
    note = f"Rows that each client holds, the largest first.{seed}"
    made = [Figure("sizes", "Rows of the clients", note, "dots", title, "rows", series)]
    counted = evidence.counts()
    if counted:
        labels, counts = counted
        names, cells, note = evidence.names, counts.astype(float), "Rows of all parts together."
        if len(names) > MAX_NAMED:
            order = np.lexsort((np.arange(len(names)), counts.argmax(1)))
            parts = np.array_split(order, MAX_GROUPS)
            names = [f"{len(part)} clients from {names[part[0]]}" for part in parts]
            cells = np.stack([counts[part].mean(0) for part in parts])
            note = (
                "Mean rows per client; clients by their most frequent class, neighbours put "
                f"together in {MAX_GROUPS} groups."
            )
        drawn = Heat(names, [str(k) for k in labels], [("rows", cells.tolist())])
        made.append(
            Figure(
                "split",
                "Classes of the clients",
                note + seed,
                "heat",
                "class",
                "client",
                heat=drawn,
            )
        )
    return [figure._replace(section="data") for figure in made]
