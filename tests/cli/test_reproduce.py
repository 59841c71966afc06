"""`coterie reproduce`: what the list tells on a fresh machine, and words without effect."""

from pathlib import Path

import pytest

from coterie.cli.options import parse_seeds
from coterie.lab.commands.reproduce import show_outcome
from coterie.lab.papers.paper_tables import read_papers
from coterie.lab.papers.reproduction import outcome_of
from coterie.lab.papers.reproduction_page import read_published


def test_the_list_tells_every_table_with_what_is_published(coterie, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = coterie("reproduce")
    assert code == 0
    assert all(table in out for table in read_papers())
    (line,) = (line for line in out.splitlines() if " pfml-3 " in line)
    assert read_published()["pfml-3"] in line
    assert "cannot be run" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "Here:" not in out  # where nothing was run


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["--methods", "fedavg"], "--methods says how a table is run"),
        (["pfml-1", "--show", "--seeds", "2"], "--seeds says how a table is run"),
        (
            ["pfml-1", "--recipes", "pfml-mnist"],
            "'pfml-mnist' is no recipe of pfml-1; did you mean",
        ),
        (["--check", "--scale", "0.1"], "--scale says how a table is run"),
        (["--store"], "--store belongs to --check, --time or --write"),
        (["--check", "--show"], "--check and --show are different things to do"),
        (["pfml-1", "--write", "docs"], "--write speaks of all tables, and runs none"),
        (["pfml-3", "selffl-figure-4"], "'selffl-figure-4' has no recipe: run `python examples/"),
        (["no-such-table"], "there is no table 'no-such-table'"),
        (["pfml-1", "--methods", "pfmi"], "'pfmi' is no method of pfml-1; did you mean 'pfml'"),
    ],
)
def test_words_without_effect_are_refused_and_leave_nothing(coterie, tmp_path, settings, says):
    code, _, errors = coterie("reproduce", *settings)
    assert code == 2
    assert says in errors
    assert not list(tmp_path.iterdir())


def test_only_the_columns_of_the_named_recipes_are_printed(tmp_path, capsys):
    found = outcome_of(read_papers()["ucfl-1"], tmp_path)
    show_outcome(found)
    assert "S1, EMNIST" in (whole := capsys.readouterr().out)
    assert "S3, CIFAR-10" in whole
    show_outcome(found, ["ucfl-s1"])
    assert "S1, EMNIST" in (part := capsys.readouterr().out)
    assert "S3, CIFAR-10" not in part


def test_a_single_number_of_seeds_says_what_it_means_and_a_comma_names_one(coterie):
    assert parse_seeds("7") == list(range(7))
    assert parse_seeds("7,") == [7]
    assert parse_seeds("3,5") == [3, 5]
    asked = ("compare", "--methods", "local", "--rounds", "1", "--rows", "80", "--num-clients", "2")
    _, _, told = coterie(*asked, "--no-report", "--quiet", "--seeds", "2")
    assert told.startswith("--seeds 2: 2 seeds, 0 to 1; '2,' names the single seed 2\n")
    _, _, told = coterie(*asked, "--no-report", "--quiet", "--seeds", "2,", "--out", "one")
    assert "--seeds" not in told
    assert Path("one/local-seed2").is_dir()
