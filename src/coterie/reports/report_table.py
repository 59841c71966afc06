"""What a table is, as plain data, and the columns that most tables share."""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.reports.evidence import Evidence


class TableColumn(NamedTuple):
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
    columns: list[TableColumn]
    rows: list[list[Any]]  # text and numbers, NaN where there is none


def measure_column(evidence: Evidence, name: str, better: bool = True) -> TableColumn:
    best = ("high" if evidence.judged.higher else "low") if better else ""
    return TableColumn(name, evidence.unit, best, ".2f" if evidence.judged.share else ".4g")


def points_column(
    evidence: Evidence, name: str, better: str = "", format: str = ".2f"
) -> TableColumn:
    share = evidence.judged.share
    return TableColumn(name, "points" if share else "", better, format if share else ".4g")
