"""The words of figures of notes, from what a method declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.core.notes import Kind, Note
from coterie.reports.evidence import Record
from coterie.reports.figures import slug

Runs = Mapping[str, Sequence[Record]]  # by method, one run per seed


def label(name: str, note: Note) -> str:
    when = f", {name.rpartition('_')[2]}" if note.kind is Kind.PAIR else ""
    return f"{note.label}{when}" + (f" ({note.unit})" if note.unit else "")


def axis_of(note: Note) -> str:
    unit = f" ({note.unit})" if note.unit else ""
    return f"log10 of {note.label}{unit}" if note.log else f"{note.label}{unit}"


def title_of(note: Note) -> str:
    return note.label[:1].upper() + note.label[1:]


def caption_of(*sentences: str) -> str:
    return " ".join(s for s in sentences if s)


def key_of(name: str, runs: Runs) -> str:
    """Unique, as a method declares a name once."""
    return f"{slug(name)}-{slug(next(iter(runs)))}"


def scale_of(note: Note) -> float:
    return 100.0 if note.unit == "%" else 1.0
