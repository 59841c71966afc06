"""Figures and tables as files for a paper: PNG and SVG, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from coterie.core.files import write_text
from coterie.reports.draw import save_figure
from coterie.reports.figures import Figure
from coterie.reports.report_table import ReportTable, TableColumn

ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "²": "$^2$",
    "±": r"$\pm$",
    **{c: f"\\{c}" for c in "&%_#${}"},
}


def write_files(
    figures: Sequence[Figure], tables: Sequence[ReportTable], methods: Sequence[str], folder: Path
) -> None:
    """Every figure and table under its key."""
    folder.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        save_figure(figure, methods, folder)
    for table in tables:
        write_text(folder / f"{table.key}.csv", to_csv(table))
        write_text(folder / f"{table.key}.tex", to_latex(table))


def format_cell(value: Any, format: str) -> str:
    """A cell as a reader sees it."""
    if isinstance(value, str):
        return value
    return f"{value:{format}}" if value is not None and isfinite(value) else ""


def format_heading(column: TableColumn) -> str:
    return f"{column.name} ({column.unit})" if column.unit else column.name


def to_csv(table: ReportTable) -> str:
    """All digits, a line per row."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([format_heading(column) for column in table.columns])
    for row in table.rows:
        writer.writerow(
            ["" if isinstance(cell, float) and not isfinite(cell) else cell for cell in row]
        )
    return out.getvalue()


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(ESCAPES.get(character, character) for character in text)


def to_latex(table: ReportTable) -> str:
    """A plain tabular that needs no package."""
    numeric = [
        any(not isinstance(row[k], str) for row in table.rows) for k in range(len(table.columns))
    ]
    lines = [" & ".join(escape_latex(format_heading(column)) for column in table.columns)]
    lines += [
        " & ".join(
            escape_latex(format_cell(cell, c.format))
            for cell, c in zip(row, table.columns, strict=True)
        )
        for row in table.rows
    ]
    body = "\n".join([f"{lines[0]} \\\\ \\hline", *(f"{line} \\\\" for line in lines[1:])])
    letters = "".join("r" if n else "l" for n in numeric)
    head = f"% {table.title}\n\\begin{{tabular}}{{{letters}}}\n\\hline\n"
    return f"{head}{body}\n\\hline\n\\end{{tabular}}\n"
