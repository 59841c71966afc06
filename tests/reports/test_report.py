"""The page and the files beside it."""

import json
import re

import pytest
from click.testing import CliRunner

from coterie.cli.report import report
from coterie.core.errors import BadInput
from coterie.reports.report import report_data, report_html, write_report


def test_the_page_holds_the_data_and_only_a_report_is_overwritten(folder, tmp_path):
    page = tmp_path / "page.html"
    assert write_report([folder / "fedavg-seed0", folder / "local-seed0"], page) == page
    first = page.read_text()
    inside = json.loads(re.search(r'id="report-data">(.*?)</script>', first, re.DOTALL)[1])
    assert inside["methods"] == ["fedavg", "local"]
    assert str(folder) not in first
    write_report([folder / "fedavg-seed0"], page)
    mine = tmp_path / "mine.html"
    mine.write_text("<html>my own</html>")
    with pytest.raises(BadInput, match="is no report of coterie: give another name with --out"):
        write_report([folder / "fedavg-seed0"], mine)
    assert mine.read_text() == "<html>my own</html>"
    with pytest.raises(BadInput, match="there is no folder"):
        write_report([folder], tmp_path / "none" / "page.html")
    with pytest.raises(BadInput, match="is a folder"):
        write_report([folder], tmp_path)


def test_the_command_writes_page_figures_and_tables(copy):
    run = copy / "fedavg-seed0"
    (copy / "local-seed0" / "run.json").write_text("{")
    said = CliRunner().invoke(report, [str(run), "--files", str(copy / "files")])
    assert said.exit_code == 0, said.output
    assert said.output == f"report: {run / 'report.html'}\nfigures and tables: {copy / 'files'}\n"
    data = report_data([run])
    names = {f"{f['key']}.{end}" for f in data["figures"] for end in ("png", "svg")}
    names |= {f"{t['key']}.{end}" for t in data["tables"] for end in ("csv", "tex")}
    assert {p.name for p in (copy / "files").iterdir()} == names
    assert all(p.stat().st_size for p in (copy / "files").iterdir())
    said = CliRunner().invoke(
        report, [str(run), str(copy / "local-seed0"), "--out", str(copy / "two.html")]
    )
    assert "coterie: local-seed0 is left out" in said.output


def test_the_page_is_one_text(folder):
    assert report_html([folder / "local-seed0"]).lstrip().startswith("<!doctype html>")
