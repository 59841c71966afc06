"""What tests of the command line share."""

import sys

import pytest

from coterie.cli import main as cli


@pytest.fixture
def call(monkeypatch, capsys):
    """Runs a command; gives (exit code, output, errors)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coterie", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        out, errors = capsys.readouterr()
        return code, out, errors

    return call


@pytest.fixture
def coterie(call, tmp_path, monkeypatch):
    """Runs a command in an empty folder; gives (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "no-data"))
    return call
