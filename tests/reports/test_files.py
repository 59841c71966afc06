"""Tables as files."""

import csv
import io
import re

from coterie.reports.figure_files import escape_latex, to_csv, to_latex
from coterie.reports.gather import gather_evidence
from coterie.reports.method_tables import build_tables
from coterie.reports.report_table import ReportTable, TableColumn


def test_a_table_survives_as_csv_and_latex(folder):
    for found in build_tables(gather_evidence([folder])):
        lines = list(csv.reader(io.StringIO(to_csv(found))))
        assert [line[0] for line in lines[1:]] == [row[0] for row in found.rows]
        for line, row in zip(lines[1:], found.rows, strict=True):
            assert all(
                float(a) == b
                for a, b in zip(line, row, strict=True)
                if a and not isinstance(b, str)
            )
        body = [
            line
            for line in to_latex(found).splitlines()
            if line.endswith(r"\\") or r"\hline" in line[1:]
        ]
        assert all(len(re.findall(r"(?<!\\)&", line)) == len(found.columns) - 1 for line in body)
    assert escape_latex(r"50 % of a_b & #1 \x") == r"50 \% of a\_b \& \#1 \textbackslash{}x"
    one = ReportTable(
        "k",
        "t",
        "",
        [TableColumn("a", "%"), TableColumn("b", format=".1f")],
        [["x_y", float("nan")], ["z", 1.25]],
    )
    assert to_latex(one).splitlines()[1:] == [
        r"\begin{tabular}{lr}", r"\hline", r"a (\%) & b \\ "
            r"\hline", r"x\_y &  \\", r"z & 1.2 \\", r"\hline", r"\end{tabular}"
    ]  # fmt: skip
