"""What a table is, as plain data, and the columns that most tables share."""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.reports.evidence import Evidence


class Column(NamedTuple):
    """A heading; `format` as in Python's format language."""

    name: str
    unit: str = ""
    better: str = ""  # "high", "low", or neither
    format: str = ""


class ReportTable(NamedTuple):
    """A table and how to read it."""

    key: str
    title: str
    note: str
    columns: list[Column]
    rows: list[list[Any]]  # text and numbers, NaN where there is none


def of_measure(evidence: Evidence, name: str, better: bool = True) -> Column:
    best = ("high" if evidence.judged.higher else "low") if better else ""
    return Column(name, evidence.unit, best, ".2f" if evidence.judged.share else ".4g")


def points_of(evidence: Evidence, name: str, better: str = "", format: str = ".2f") -> Column:
    share = evidence.judged.share
    return Column(name, "points" if share else "", better, format if share else ".4g")
