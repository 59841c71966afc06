"""What the page for newcomers names is there: commands, options, methods, and others' rows."""

import importlib
import re
import shlex
from functools import cache
from pathlib import Path

import click
import numpy as np
import pytest

from coterie.cli.main import COMMANDS
from coterie.cli.options import parse_arguments, parse_seeds, split_method_options
from coterie.data.pipeline import build_federation
from coterie.data.read.user_data import read_user_data
from coterie.experiment.config import REGISTRIES, Experiment, change_options, known_options_of
from coterie.experiment.reference import describe_named, describe_own_data
from coterie.methods.registry import METHODS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("coming-from", "training")
PAGE = DOCS / "coming-from.md"
OWN_FILES = {"pfllib.npz", "fedlab.npz", "parts"}  # what a reader has made before


def read_blocks(page: str, language: str) -> list[str]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def list_commands() -> list[str]:
    lines = [
        line for page in PAGES for block in read_blocks(page, "bash") for line in block.split("\n")
    ]
    return [line.partition("#")[0].strip() for line in lines if line.startswith("coterie ")]


def list_cells() -> list[str]:
    """Code in the cells of the tables that say what is ours: all but the first column."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [
        code
        for row in rows
        for cell in row.split(" | ")[1:]
        for code in re.findall("`([^`]+)`", cell)
    ]


@cache
def list_options() -> set[str]:
    """Every option of an experiment, whatever its names, and of the commands."""
    found = {name for names in known_options_of(Experiment()).values() for name in names}
    named = [describe_named(kind, name) for kind, names in REGISTRIES.items() for name in names]
    found |= {entry.name for entries in (*named, describe_own_data()) for entry in entries}
    commands = (
        getattr(importlib.import_module(COMMANDS[name].module), name) for name in ("run", "compare")
    )
    found |= {
        option.name
        for command in commands
        for option in command.params
        if isinstance(option, click.Option)
    }
    return found | {"dataset", "partition", "model", "engine"}


@pytest.mark.parametrize("line", list_commands())
def test_a_command_is_understood_with_all_its_options(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in OWN_FILES:
        Path(name).touch()
    _, command, *rest = shlex.split(line)
    assert command in COMMANDS
    alone, settings = parse_arguments(rest, "METHOD" if command == "run" else "DATA")
    if command == "compare":
        parse_seeds(settings.pop("seeds", "1"))
        common, own = split_method_options(settings)
        for name in common.pop("methods").split(","):
            change_options(Experiment(name), common | own.pop(name, {}))
        assert not own
    else:
        change_options(
            Experiment(alone) if command == "run" else Experiment(dataset={"name": alone}), settings
        )


def test_every_option_of_the_tables_is_there():
    flags = {flag for code in list_cells() for flag in re.findall(r"--([a-z][a-z0-9-]*)", code)}
    assert len(flags) > 40
    assert {flag for flag in flags if flag.replace("-", "_") not in list_options()} == set()


def test_options_beside_a_method_are_its_own():
    """In a cell such as `pfedme --beta`, `--lam` all are options of that method."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    seen = 0
    for cell in (cell for row in rows for cell in row.split(" | ")[1:]):
        for name, flag in re.findall(r"`([a-z]+) --([a-z-]+)", cell):
            if name != "coterie":
                assert flag.replace("-", "_") in {e.name for e in describe_named("method", name)}
                seen += 1
    assert seen > 10


def test_every_method_and_command_of_the_tables_is_there():
    cells = list_cells()
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if "`-algo`" in line)
    named = re.findall("`([a-z]+)`", row)
    assert len(named) > 20
    assert set(named) <= set(METHODS)
    commands = {code.split()[1] for code in cells if code.startswith("coterie ")}
    assert {"run", "compare", "resume", "server", "site"} - commands <= {"compare"}
    assert commands <= set(COMMANDS)


def test_the_page_s_lines_make_pfllib_s_files_a_data_set_with_its_very_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng, held = np.random.default_rng(0), {}
    for part, rows in (("train", 12), ("test", 4)):
        Path("dataset/MNIST", part).mkdir(parents=True)
        for client in range(3):
            x = rng.normal(size=(rows, 1, 2, 3)).astype(np.float32)
            held[str(client), part] = x
            row = {"x": x, "y": np.arange(rows) % 2}
            np.savez_compressed(Path("dataset/MNIST", part, f"{client}.npz"), data=row)
    exec(compile(read_blocks("coming-from", "python")[0], str(PAGE), "exec"), {})
    data = read_user_data(Path("pfllib.npz"), part_column="parts")
    made = build_federation(data, scale="none", validation=0.0)
    for i, name in enumerate(made.names):
        for part in ("train", "test"):
            found = made.x[getattr(made, part)[i]].reshape(-1, 6).tolist()
            assert sorted(found) == sorted(held[name, part].reshape(-1, 6).tolist())


def test_the_page_s_line_makes_fedlab_s_clients_an_index_file(tmp_path, monkeypatch):
    from coterie.data.read.catalog import load_dataset

    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).permutation(1797)[:90].reshape(3, 30)
    partitioner = type("Partitioner", (), {"client_dict": dict(enumerate(rows))})
    exec(read_blocks("coming-from", "python")[1], {"np": np, "partitioner": partitioner})
    made = build_federation(load_dataset("digits"), partition="fedlab.npz")
    held = [
        {*made.rows[[*a, *b, *c, *d]]}
        for a, b, c, d in zip(made.train, made.validation, made.select, made.test, strict=True)
    ]
    assert held == [{*some} for some in rows]
