"""What the page of a client shows."""

from __future__ import annotations

from typing import Any

from coterie.analysis.numbers import there
from coterie.core.notes import Kind, Note
from coterie.reports.evidence import Evidence, Record
from coterie.reports.matrices import peers
from coterie.reports.note_words import label, scale_of
from coterie.reports.noted import Frame, declarations, latest, square_frames, written


def clients_data(evidence: Evidence) -> dict[str, Any]:
    """Rows, classes and accuracies of every client, its peers, and what was noted of it."""
    about, counted = evidence.first.about, evidence.counts()
    groups = about["groups"] if len(set(about["groups"])) > 1 else None
    return {
        "names": evidence.names,
        "rows": about["rows"],
        "groups": groups,
        "labels": counted[0] if counted else None,
        "counts": counted[1].tolist() if counted else None,
        "accuracy": {name: evidence.clientwise(name).tolist() for name in evidence.methods},
        "learned_from": learned_from(evidence),
        "notes": client_notes(evidence),
    }


def learned_from(evidence: Evidence) -> dict[str, list[list[tuple[int, float]]]]:
    """{method: whom every client learned most from}: of its matrix, else of its groups."""
    found = {}
    for method, records in evidence.records.items():
        known = declarations(records[0])
        for name, note in sorted(known.items(), key=lambda pair: pair[1].kind is not Kind.MATRIX):
            frames = _squares(records[0], name, note)
            if frames and method not in found:
                found[method] = peers(frames[-1][1])
    return found


def _squares(record: Record, name: str, note: Note) -> list[Frame]:
    return square_frames(record, name, note) if note.kind in (Kind.MATRIX, Kind.GROUPS) else []


def client_notes(evidence: Evidence) -> dict[str, list[tuple[str, list[float]]]]:
    """{method: (label, latest value of every client) of every note that has one per client}."""
    found = {}
    for method, records in evidence.records.items():
        mine = [
            (label(name, note), (scale_of(note) * values).tolist())
            for name, note in written(records[0]).items()
            if note.kind is not Kind.GRID
            if len(there(values := latest(records[0], name)))
        ]
        if mine:
            found[method] = mine
    return found
