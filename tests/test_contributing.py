"""The additions that CONTRIBUTING.md shows are whole: made in a copy of the source, each runs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMALL = ["--rounds", "2", "--num-clients", "3", "--threads", "1", "--quiet"]
# the line of a file after which its new entries stand
REGISTERS = {
    "methods/registry.py": "METHODS: dict[str, Builder] = {",
    "analysis/scores.py": 'Score("accuracy", "accuracy", lambda g: g.right.mean()),',
    "data/read/catalog.py": "DATASETS: dict[str, Source] = {",
    "core/task.py": "    for task in (",
    "engines/registry.py": "ENGINES: dict[str, Callable[..., Engine]] = {",
}
WORDS = {
    "A method": ["halfway", "--share", "0.3"],
    "A metric": ["fedavg"],
    "A data set": ["fedavg", "--dataset", "wine"],
    "An engine": ["fedavg", "--engine", "sequential"],
    "A task": ["fedavg", "--dataset", "numbers.csv", "--label", "price", "--task", "absolute"],
}


def additions():
    """{what is added: {file: lines}}, as the page shows them."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.findall(r"^(A[^\n,(]*)[^\n]*:\n\n```diff\n(.*?)```", text, re.M | re.S)
    return {
        what.strip(): {
            path: [line[1:] for line in lines.splitlines() if line.startswith("+")]
            for path, lines in re.findall(r"^# (\S+)\n((?:\+.*\n)+)", diff, re.M)
        }
        for what, diff in found
    }


def add(source: Path, path: str, lines: list[str]) -> None:
    """Make an addition: a new file, or imports and entries of one that is there."""
    file = source / path.removeprefix("src/")
    if not file.exists():
        file.write_text("\n".join(lines) + "\n")
        return
    register = REGISTERS[path.removeprefix("src/coterie/")]
    entries = "\n".join(line for line in lines if line.startswith(" "))
    imports = "".join(f"{line}\n" for line in lines if not line.startswith(" "))
    text = file.read_text()
    assert text.count(register) == 1
    text = text.replace(register, f"{register}\n{entries}")
    file.write_text(text.replace("\nfrom coterie.", f"\n{imports}from coterie.", 1))


@pytest.mark.parametrize("what", WORDS)
def test_an_addition_of_the_page_runs(what, tmp_path):
    made = additions()
    assert list(made) == list(WORDS)
    shutil.copytree(ROOT / "src" / "coterie", tmp_path / "coterie")
    for path, lines in made[what].items():
        add(tmp_path, path, lines)
    rows = [f"{k % 3},{k % 7},{100 + 3 * (k % 7) + k % 2}" for k in range(60)]
    (tmp_path / "numbers.csv").write_text("\n".join(["client,age,price", *rows]))
    code = "from coterie.cli.main import main; main()"
    settings = ["run", *WORDS[what], *SMALL, "--out", str(tmp_path / "out")]
    ended = subprocess.run(
        [sys.executable, "-c", code, *settings],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ("sure rows" in ended.stdout) == (what == "A metric")
