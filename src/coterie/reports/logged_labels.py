"""The words of figures of logged quantities, from what a method declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.reports.evidence import RunRecord
from coterie.reports.figures import slugify

Runs = Mapping[str, Sequence[RunRecord]]  # by method, one run per seed


def format_label(name: str, note: LoggedQuantity) -> str:
    when = f", {name.rpartition('_')[2]}" if note.kind is QuantityKind.PAIR else ""
    return f"{note.label}{when}" + (f" ({note.unit})" if note.unit else "")


def axis_of(note: LoggedQuantity) -> str:
    unit = f" ({note.unit})" if note.unit else ""
    return f"log10 of {note.label}{unit}" if note.log else f"{note.label}{unit}"


def title_of(note: LoggedQuantity) -> str:
    return note.label[:1].upper() + note.label[1:]


def caption_of(*sentences: str) -> str:
    return " ".join(s for s in sentences if s)


def key_of(name: str, runs: Runs) -> str:
    """Unique, as a method declares a name once."""
    return f"{slugify(name)}-{slugify(next(iter(runs)))}"


def scale_of(note: LoggedQuantity) -> float:
    return 100.0 if note.unit == "%" else 1.0
