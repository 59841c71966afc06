"""What the page of a client shows."""

from __future__ import annotations

from typing import Any

from coterie.analysis.nan_math import drop_nan
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.reports.evidence import Evidence, RunRecord
from coterie.reports.logged_labels import format_label, scale_of
from coterie.reports.logged_values import (
    Frame,
    find_declared,
    find_logged,
    latest_values,
    read_square_frames,
)
from coterie.reports.matrices import find_peers


def build_clients_data(evidence: Evidence) -> dict[str, Any]:
    """Rows, classes and accuracies of every client, its peers, and what was logged of it."""
    about, counted = evidence.first.about, evidence.counts()
    groups = about["groups"] if len(set(about["groups"])) > 1 else None
    return {
        "names": evidence.names,
        "rows": about["rows"],
        "groups": groups,
        "labels": counted[0] if counted else None,
        "counts": counted[1].tolist() if counted else None,
        "accuracy": {name: evidence.clientwise(name).tolist() for name in evidence.methods},
        "learned_from": find_top_peers(evidence),
        "notes": collect_logged(evidence),
    }


def find_top_peers(evidence: Evidence) -> dict[str, list[list[tuple[int, float]]]]:
    """{method: whom every client learned most from}: of its matrix, else of its groups."""
    found = {}
    for method, records in evidence.records.items():
        known = find_declared(records[0])
        for name, note in sorted(
            known.items(), key=lambda pair: pair[1].kind is not QuantityKind.MATRIX
        ):
            frames = _square_frames(records[0], name, note)
            if frames and method not in found:
                found[method] = find_peers(frames[-1][1])
    return found


def _square_frames(record: RunRecord, name: str, note: LoggedQuantity) -> list[Frame]:
    return (
        read_square_frames(record, name, note)
        if note.kind in (QuantityKind.MATRIX, QuantityKind.GROUPS)
        else []
    )


def collect_logged(evidence: Evidence) -> dict[str, list[tuple[str, list[float]]]]:
    """{method: (label, latest value of every client) of every quantity that has one per client}."""
    found = {}
    for method, records in evidence.records.items():
        mine = [
            (format_label(name, note), (scale_of(note) * values).tolist())
            for name, note in find_logged(records[0]).items()
            if note.kind is not QuantityKind.GRID
            if len(drop_nan(values := latest_values(records[0], name)))
        ]
        if mine:
            found[method] = mine
    return found
