"""The command line: every refusal is one line and exit code 2 with nothing left behind; what is
shown, and where.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import torch

from coterie import __version__
from coterie.cli.options import parse_arguments
from coterie.comparison.plan import plan_of
from coterie.data.read.archives import data_folder
from coterie.experiment.config import read_experiment_file, read_toml
from coterie.experiment.recipes import find_config, list_recipes
from coterie.methods.registry import METHODS
from helpers.runs import IMAGES, results, write_csv

WORDS = [f"--{k}={v}" for k, v in (IMAGES | {"rounds": 2}).items()]
FAST = ["--path", "vectorized", "--width", "20", "--compile", "no", "--threads", "1"]


# Bad input


def bad(*arguments: str, says: str) -> object:
    return pytest.param(arguments, says, id=" ".join(arguments)[:60])


REFUSED = [
    bad("run", says="name a method, as in `coterie run ditto`: local, fedavg"),
    bad("runn", says="unknown command 'runn'; did you mean 'run'?"),
    bad("demo", "perfsl", says="there is no demo 'perfsl'; did you mean 'persfl'?"),
    bad(
        "run",
        "ktpfl",
        "--config",
        "demo",
        says="with ktpfl: `coterie compare --config demo --methods local,fedavg,ktpfl`",
    ),
    bad("run", "fedvag", says="unknown method 'fedvag'; did you mean 'fedavg'?"),
    bad(
        "run",
        "fedavg",
        "--dataset",
        "digts",
        says="unknown data set 'digts'; did you mean 'digits'?",
    ),
    bad(
        "run",
        "fedavg",
        "--partition",
        "dirichle",
        says="unknown partition 'dirichle'; did you mean 'dirichlet'?",
    ),
    bad("run", "fedavg", "--model", "dnm", says="unknown model 'dnm'; did you mean 'dnn'?"),
    bad("run", "fedavg", "--roundz", "3", says="unknown option 'roundz'; did you mean 'rounds'?"),
    bad("run", "fedavg", "--lam", "3", says="it belongs to method ditto"),
    bad(
        "run",
        "fedavg",
        "--ditto.lam",
        "3",
        says="is for method 'ditto', but the method is 'fedavg'",
    ),
    bad(
        "run",
        "fedavg",
        "extra",
        says="'extra' stands alone: write METHOD once, and options as --name value",
    ),
    bad("run", "fedavg", "-r", "3", says="'-r' stands alone"),
    bad(
        "run",
        "fedavg",
        "--rounds",
        "many",
        says="rounds = 'many': give a whole number from 1 to 1,000,000, such as 50",
    ),
    bad(
        "run",
        "fedavg",
        "--rounds",
        "--seed",
        "1",
        says="rounds has no value: give a whole number from 1 to 1,000,000, such as 50",
    ),
    bad(
        "run",
        "fedavg",
        "--lr",
        "fast",
        says="lr = 'fast': give a number above 0, up to 1e+30, such as 0.1",
    ),
    bad("run", "fedavg", "--models", "maybe", says="models = 'maybe': give yes or no"),
    bad(
        "run", "fedavg", "--path", "fast", says="path = 'fast': give auto, vectorized or sequential"
    ),
    bad(
        "run",
        "fml",
        "--partition",
        "dirichlet",
        "--alpha",
        "1",
        says="'alpha' may mean partition.alpha or fml.alpha: write one of these",
    ),
    bad(
        "run",
        "fedavg",
        "--num-clients",
        "5000",
        says="num_clients = 5,000, but 'digits' has 1,797 rows to partition: at most 179 clients",
    ),
    bad("run", "fedavg", "--num-clients", "0", says="num-clients = 0"),
    bad(
        "run",
        "fedavg",
        "--partition",
        "iid",
        "--num-clients",
        "900",
        says="client 0 ('0') has 2 rows, none of them in its validation part",
    ),
    bad(
        "run",
        "fedavg",
        "--partition",
        "dirichlet",
        "--alpha",
        "0",
        says="alpha = 0: give a number above 0, up to 1,000,000, such as 0.4",
    ),
    bad(
        "run",
        "fedavg",
        "--partition",
        "dirichlet",
        "--alpha=-1",
        says="alpha = -1: give a number above 0, up to 1,000,000, such as 0.4",
    ),
    bad(
        "run", "fedavg", "--rounds", "0", says="rounds = 0: give a whole number from 1 to 1,000,000"
    ),
    bad("run", "fedavg", "--lr", "-0.1", says="lr = -0.1: give a number above 0"),
    bad("run", "fedavg", "--lr", "nan", says="lr = 'nan': give a number"),
    bad("run", "fedavg", "--lr", "inf", says="lr = 'inf': give a number above 0"),
    bad(
        "run",
        "fedavg",
        "--batch-size",
        "0",
        says="batch-size = 0: give a whole number from 1 to 1,000,000",
    ),
    bad("run", "fedavg", "--momentum", "1", says="momentum = 1: give a number from 0 to below 1"),
    bad("run", "fedavg", "--weighting", "some", says="weighting = 'some': give size or equal"),
    bad(
        "run",
        "fedavg",
        "--participation",
        "0",
        says="participation = 0: give a share in (0, 1] or a count up to the 20 clients",
    ),
    bad("run", "fedavg", "--participation", "21", says="participation = 21: give a share"),
    bad(
        "run",
        "fedavg",
        "--participation",
        "-0.5",
        says="participation = -0.5: give a number from 0",
    ),
    bad(
        "run",
        "fedavg",
        "--dropout-clients",
        "1",
        says="dropout-clients = 1: give a number from 0 to below 1",
    ),
    bad(
        "run",
        "fedavg",
        "--parts",
        "test,tests",
        says="parts = 'test,tests': give train, validation or test, or several of them",
    ),
    bad(
        "run",
        "fedavg",
        "--checkpoint",
        "-1",
        says="checkpoint = -1: give a whole number from 0 to 1,000,000",
    ),
    bad(
        "run",
        "fedavg",
        "--seed",
        "-1",
        says="seed = -1: give a whole number from 0 to 4,294,967,295",
    ),
    bad(
        "run",
        "fedavg",
        "--dataset.seed",
        "4294967296",
        says="seed = 4294967296: give a whole number from 0 to 4,294,967,295",
    ),
    bad("run", "fedavg", "--threads", "-1", says="threads = -1"),
    bad("run", "fedavg", "--dataset", "absent.csv", says="there is no file or folder "),
    bad(
        "run",
        "fedavg",
        "--dataset",
        "taken",
        says="no .csv, .parquet, .npz, .tsv, .csv.gz, .tsv.gz, .arrow, .xlsx file in this folder",
    ),
    bad(
        "run",
        "fedavg",
        "--dataset",
        "mnist",
        "--data-dir",
        "file.txt",
        says="data_dir = 'file.txt': this is a file, give the folder",
    ),
    bad(
        "run",
        "fedavg",
        "--model",
        "cifarnet",
        says="takes images of at least 16x16, but the input is 1x8x8",
    ),
    bad(
        "run",
        "persfl",
        "--validation",
        "0",
        says="persfl chooses on validation data, and validation = 0 leaves none: raise "
        "--validation",
    ),
    bad("run", "ktpfl", says="ktpfl needs a public data set: give --public"),
    bad("run", "oracle", says="oracle needs true groups: give --rotate or --permute"),
    bad(
        "run",
        "fedavg",
        "--config",
        "absent.toml",
        says="there is no file 'absent.toml' and no recipe of that name",
    ),
    bad(
        "compare",
        "--config",
        "deno",
        says="there is no file 'deno' and no recipe of that name; did you mean 'demo'?",
    ),
    bad("run", "--config", "broken.toml", says="broken.toml is no TOML file: "),
    bad(
        "run",
        "--config",
        "section.toml",
        says="section.toml: unknown section 'schedul'; did you mean 'schedule'?",
    ),
    bad("run", "--config", "demo", says="type `coterie compare --config demo`"),
    bad("run", "--config", "methods.toml", says="compares methods: type `coterie compare"),
    bad(
        "run", "fedavg", "--out", "taken", says="taken exists and is not empty: give another --out"
    ),
    bad("run", "fedavg", "--out", "file.txt", says="file.txt is a file: give another --out"),
    bad("compare", says="name the methods to compare, as in --methods local,fedavg,ditto"),
    bad(
        "compare",
        "--methods",
        "local,fedvag",
        says="unknown method 'fedvag'; did you mean 'fedavg'?",
    ),
    bad(
        "compare", "--methods", "local,ditto", "--lam", "1", says="for one method write METHOD.lam"
    ),
    bad(
        "compare",
        "--methods",
        "local",
        "--ditto.lam",
        "1",
        says="options are given for 'ditto', which is not among the methods local",
    ),
    bad(
        "compare",
        "--methods",
        "local",
        "--seeds",
        "0",
        says="seeds = 0: give a whole number from 1 to 10,000",
    ),
    bad(
        "compare",
        "--methods",
        "local",
        "--seeds",
        "a",
        says="seeds = 'a': give how many, or a list such as 3,5,8",
    ),
    bad(
        "compare",
        "--methods",
        "local",
        "--seed",
        "3",
        says="a comparison has no single seed: use --seeds",
    ),
    bad("compare", "--budget", says="requires an argument"),
    bad("compare", "--budget", "--quiet", says="budget = '--quiet': give a time such as 90s, 15m"),
    bad("compare", "--budget", "0m", says="budget = '0m': give a time such as 90s, 15m or 1h30m"),
    bad("compare", "--budget=-5m", says="budget = '-5m': give a time such as 90s, 15m or 1h30m"),
    bad("compare", "--trials", "0", says="trials = 0: give a whole number from 1 to 10,000"),
    bad("compare", "--trials", "some", says="trials = 'some': give a whole number"),
    bad("compare", "nothing.csv", says="there is no file or folder"),
    bad(
        *("compare", "--methods", "ditto", "--tune", "ditto.lam=0.1..1"),
        says="is a range: add --trials or --budget to search it",
    ),
    bad("compare", "--methods", "ditto", "--tune", "lam=1,2", says="write METHOD.OPTION=V1,V2"),
    bad(
        "compare",
        "--methods",
        "ditto",
        "--tune",
        "ditto.lam=1,x",
        says="ditto.lam = 'x': give a number from 0 to 1,000,000",
    ),
    bad(
        "compare",
        "--methods",
        "all",
        "--rounds",
        "0",
        says="rounds = 0: give a whole number from 1 to 1,000,000",
    ),
    bad("compare", "--methods", "local", "--out", "taken", says="taken exists and is not empty"),
    bad("resume", "absent", says="there is no folder absent"),
    bad("resume", "taken", says="taken is not the folder of a run: it has no config.toml"),
    bad("resume", says="Missing argument 'FOLDER'"),
    bad("methods", "persfll", says="unknown method 'persfll'; did you mean 'persfl'?"),
    bad("data", "digts", says="unknown data set 'digts'; did you mean 'digits'?"),
    bad("data", "--picture", "a.jpg", says="a.jpg is no picture: end it in .png or .svg"),
    bad(
        "data", "--picture", "absent/a.png", says="absent/a.png is in no folder: make absent first"
    ),
    bad(
        "run",
        "fedavg",
        "--validation",
        "0",
        "--parts",
        "validation",
        says="parts = validation, but no client has such rows",
    ),
    bad("data", "--picture", "picture.png", says="picture.png exists already: give another name"),
    bad(
        "run",
        "fedavg",
        "--local-steps",
        "2147483648",
        says="local-steps = 2147483648: give a whole number",
    ),
    bad("run", "persfl", "--distil-epochs", "4294967296", says="4294967296: give a whole number"),
    bad("run", "fedavg", "--hidden", "4294967296", says="hidden = 4294967296: give a whole number"),
    bad("run", "fedavg", "--rounds", "9" * 5000, says="from 1 to 1,000,000"),
    bad(
        "run",
        "fedavg",
        "--local-epochs",
        "1e400",
        says="local-epochs = '1e400': give a whole number",
    ),
    bad("run", "fedavg", "--dataset", "x" * 300, says="unknown data set 'xxx"),
    bad("run", "fedavg", "--dataset", "x" * 300 + ".csv", says="there is no file or folder"),
    bad("run", "fedavg", "--dataset", "~nobody-here/x", says="there is no such user"),
    bad("run", "fedavg", "--out", "x" * 300, says="cannot be made: File name too long"),
    bad("run", "fedavg", "--config", "x" * 300, says="and no recipe of that name"),
    bad("run", "fedavg", "--dataset", "pipe.csv", says="pipe.csv is a pipe"),
    bad("run", "--config", "pipe.toml", says="pipe.toml is a pipe"),
    bad("run", "--config", "deep.toml", says="nested too deep"),
    bad("resume", "pipes", says="config.toml is a pipe"),
    bad("report", "pipes", says="is a pipe"),
    bad("export", "pipes", "--to", "tensorboard", says="is a pipe"),
    bad("compare", "--methods", "local", "--seeds", "4294967296", says="from 1 to 10,000"),
    bad("compare", "--methods", "local@" + "x" * 300, says="at most 60"),
    bad("methods", "x" * 5000, says="unknown method 'xxx"),
]


@pytest.mark.parametrize(("arguments", "says"), REFUSED)
def test_bad_input_is_one_line_exit_2_and_nothing_on_disk(arguments, says, coterie, tmp_path):
    (tmp_path / "taken").mkdir()
    for name, text in (
        ("taken/mine.txt", "mine"),
        ("file.txt", "mine"),
        ("picture.png", "mine"),
        ("broken.toml", "rounds = "),
        ("section.toml", "[schedul]\nrounds = 3"),
        ("methods.toml", "methods = 1.5"),
    ):
        (tmp_path / name).write_text(text)
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    (tmp_path / "pipes").mkdir()
    for name in ("pipe.csv", "pipe.toml", "pipes/config.toml", "pipes/run.json"):
        os.mkfifo(tmp_path / name)
    before = {p: p.read_bytes() if p.is_file() else None for p in tmp_path.rglob("*")}
    code, out, errors = coterie(*arguments)
    assert (code, out) == (2, "")
    assert errors.startswith("coterie: ")
    assert errors.count("\n") == 1
    assert says in errors
    assert {p: p.read_bytes() if p.is_file() else None for p in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("cell", ["nan", "", "inf", "abc"])
def test_own_data_with_a_bad_cell_are_refused_with_its_place(cell, coterie, tmp_path):
    path = write_csv(tmp_path / "own.csv", cell=cell or " ")
    settings = ["--dataset", str(path), "--missing", "refuse"]
    code, _, errors = coterie("run", "fedavg", *settings, "--out", "run")
    assert code == 2
    assert re.search(r"own\.csv: column 'a' .* in row 8", errors)
    assert not (tmp_path / "run").exists()


def test_labels_with_a_fraction_are_no_classes(coterie, tmp_path):
    (tmp_path / "own.csv").write_text(
        "client,a,label\n" + "".join(f"c{i % 2},{i},{i / 2}\n" for i in range(20))
    )
    settings = ["--dataset", "own.csv", "--task", "classes"]
    code, _, errors = coterie("run", "fedavg", *settings, "--out", "run")
    assert code == 2
    assert "a class is whole or text" in errors
    assert not (tmp_path / "run").exists()


def test_labels_with_a_fraction_are_read_as_regression_and_it_is_said(coterie, tmp_path):
    (tmp_path / "own.csv").write_text(
        "client,a,label\n" + "".join(f"c{i % 2},{i},{i / 2}\n" for i in range(40))
    )
    settings = ["--dataset", "own.csv", "--rounds", "2"]
    code, shown, errors = coterie("run", "fedavg", *settings, "--out", "run")
    assert code == 0, errors
    assert (
        "own.csv: label has numbers with a fraction in training rows: read as regression" in errors
    )
    assert "test absolute error of 2 clients" in shown
    assert "accuracy" not in shown


def test_a_folder_that_cannot_be_made_is_one_line(coterie, tmp_path):
    (tmp_path / "file").write_text("mine")
    code, _, errors = coterie("run", "fedavg", *WORDS, "--out", "file/run")
    assert code == 2
    assert errors.count("\n") == 1
    assert "Not a directory" in errors


def test_the_environment_names_the_data_folder(coterie, tmp_path):
    assert data_folder() != tmp_path
    (tmp_path / "no-data").write_text("a file")
    code, _, errors = coterie("run", "fedavg", "--dataset", "mnist")
    assert code == 2
    assert str(tmp_path / "no-data") in errors


# Words


def test_words_may_stand_in_any_order_and_form():
    found = parse_arguments(
        ["--rounds", "3", "ditto", "--lr=-0.5", "--models", "--data-dir=", "--participation", "-1"],
        "METHOD",
    )
    assert found == (
        "ditto",
        {"rounds": "3", "lr": "-0.5", "models": True, "data-dir": "", "participation": "-1"},
    )


def test_a_run_from_a_file_with_words_beside_it_and_again_from_what_it_wrote(coterie, tmp_path):
    text = (
        'method = "ditto"\n[dataset]\nnum_clients = 4\nrows = 160\n[partition]\nclasses_each = 4\n'
    )
    text += "[schedule]\nrounds = 9\n[options]\nlam = 2\n"
    (tmp_path / "mine.toml").write_text(text)
    assert (
        coterie(
            "run", "--config", "mine.toml", "--rounds", "2", "--lam", "0.5", *FAST, "--out", "one"
        )[0]
        == 0
    )
    written = (tmp_path / "one" / "config.toml").read_text()
    assert "rounds = 2\n" in written
    assert "lam = 0.5\n" in written
    assert coterie("run", "--config", "one/config.toml", "--out", "two")[0] == 0
    assert results(tmp_path / "one") == results(tmp_path / "two")
    assert (tmp_path / "two" / "config.toml").read_text() == written
    assert (
        coterie("run", "local", "--config", "one/config.toml", "--out", "three")[0] == 0
    )  # another method, its own options
    assert 'method = "local"' in (tmp_path / "three" / "config.toml").read_text()


def test_every_recipe_can_be_read(coterie, tmp_path):
    assert "demo" in list_recipes()
    for name in list_recipes():
        path = find_config(name)
        settings = read_toml(path)
        assert (
            plan_of(settings).experiments if "methods" in settings else read_experiment_file(path)
        )
    (tmp_path / "demo").mkdir()
    assert find_config("demo").suffix == ".toml"  # a folder of that name is no file


# What is shown


def test_a_run_prints_its_table_and_folder_and_no_progress_in_a_pipe(coterie):
    code, out, errors = coterie("run", "ditto", *WORDS, "--out", "run")
    assert (code, errors) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "ditto: test accuracy in % of 4 clients"
    assert lines[-1] == "run: run"
    assert [line.split()[1] for line in lines if line.startswith("│")] == ["personal", "global"]
    assert "\x1b" not in out


def test_resume_of_a_finished_run_prints_the_same_table(coterie):
    first = coterie("run", "ditto", *WORDS, "--out", "run")
    assert coterie("resume", "run") == first


def table_rows(out: str) -> list[list[str]]:
    """The cells of the first table that was printed."""
    first = out[: out.index("└")]
    return [line.split("│")[1:-1] for line in first.splitlines() if line.startswith("│")]


def test_a_comparison_prints_one_table_best_first(coterie, tmp_path):
    arguments = [
        "compare",
        "--methods",
        "fedavg, local",
        "--seeds",
        "2",
        *WORDS,
        "--fedavg.beta",
        "0.5",
        "--out",
        "c",
    ]
    code, out, errors = coterie(*arguments)
    assert code == 0
    told = [line.partition(":")[0] for line in errors.splitlines()]
    runs = [f"run {k} of 4" for k in (1, 2, 3, 4)]  # a line per finished run
    assert told == ["--seeds 2", *runs]  # after what a single number means
    title = "Test accuracy in % of every client's own model: 4 clients"
    answer, table = out.split(title)
    assert table.startswith(" (4 classes each), 2")  # how clients differ
    assert answer.startswith("Use ")  # the answer stands above the table
    use = answer.split()[1].rstrip(":.")
    lines = [line.split() for line in table.splitlines() if line.strip()]
    marked = [line for line in lines if line[0] == ">" and "to" not in line]
    assert [line[1] for line in marked] == [use]
    assert {"fedavg", "local"} <= {option for line in lines for option in line[:2]}
    assert max(map(len, out.splitlines())) <= 80
    assert "beta = 0.5" in (tmp_path / "c" / "fedavg-seed1" / "config.toml").read_text()
    assert coterie("resume", "c")[1] == out
    wide = coterie("resume", "c", "--wide")[1].split(title)[1]
    rows = table_rows(wide.split("Difference in points")[0])
    means = [float(row[1]) for row in rows]
    assert means == sorted(means, reverse=True)
    assert {row[0].strip().removeprefix("> ") for row in rows} == {"fedavg", "local"}


def names_of(out: str) -> list[str]:
    """The first words of the lines after the answer, marks left out."""
    lines = [line.replace("> ", "").split() for line in out.split("\n\n", 1)[1].splitlines()]
    return [line[0] for line in lines if line]


@pytest.fixture
def few_methods():
    every = dict(METHODS)
    METHODS.clear()
    METHODS.update({name: every[name] for name in ("local", "fedavg", "ktpfl", "oracle")})
    yield
    METHODS.clear()
    METHODS.update(every)


def test_all_means_every_method_that_the_data_allow(coterie, few_methods):
    code, out, errors = coterie("compare", "--methods", "all", *WORDS, "--out", "c")
    assert code == 0
    assert {"local", "fedavg"} == set(names_of(out)) & set(METHODS)
    assert [line.split(":")[1] for line in errors.splitlines() if "without" in line] == [
        " without ktpfl",
        " without oracle",
    ]
    public = ["--public", "held-out", "--public-rows", "40", "--ktpfl.draw", "20", "--rotate", "4"]
    code, out, errors = coterie("compare", "--methods", "all", *WORDS, *public, "--out", "d")
    assert (code, "without" in errors) == (0, False)
    assert len(set(names_of(out)) & set(METHODS)) == 4


def test_tables_in_a_pipe_are_as_wide_as_columns_says_but_no_word_is_cut(
    coterie, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "40")
    names = [f"a-rather-long-name-of-a-site-{'x' * 60}-{i}" for i in range(3)]
    (tmp_path / "own.csv").write_text(
        "client,a,label\n" + "".join(f"{names[i % 3]},{i},{i % 2}\n" for i in range(60))
    )
    code, out, _ = coterie("data", "own.csv", "--picture", "p.png")
    assert code == 0
    assert all(name in out for name in names)
    monkeypatch.setenv("COLUMNS", "80")
    out = coterie("run", "ditto", *WORDS, "--out", "run")[1]
    assert max(map(len, out.splitlines())) <= 80
    monkeypatch.delenv("COLUMNS")
    assert coterie("run", "ditto", *WORDS, "--out", "more")[1].count("deviation over clients") == 1


def test_data_tells_of_every_column_and_of_what_looks_wrong_in_80_characters(coterie, tmp_path):
    lines = ["client;dose;town;same;leak;label"]
    for i in range(60):
        town = ["Ulm", "Bonn", "a-town-with-a-name-that-does-not-end"][i % 3]
        lines.append(f"site{i % 3};{i * 7919 % 101},5;{town};7;{'yn'[i % 2]};{'ab'[i % 2]}")
    (tmp_path / "own.csv").write_text("\n".join([*lines, "tiny;1,5;Ulm;7;y;a"]) + "\n")
    code, out, errors = coterie("data", "own.csv", "--picture", "p.png")
    assert code == 0
    assert "1 of 4 clients are left out" in errors
    for settings in (
        "own.csv: columns are separated by ';'",
        "own.csv: decimal commas in dose",
        "61 rows, 4 columns, 9 inputs of the model",
        "dose            number           0.5 to 100.5           standardised",
        "town            category         3 texts                one-hot, 4",
        "look at: constant columns, without use: 'same'",
        "give the label away (known before it?): 'leak'",
    ):
        assert settings in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_data_of_a_regression_have_a_mean_and_a_spread_per_client_and_no_classes(coterie, tmp_path):
    rows = [f"site{i % 3};{i};{10 * (i % 3) + i // 3 % 2},5" for i in range(60)]
    (tmp_path / "own.csv").write_text("\n".join(["client;a;label", *rows]) + "\n")
    code, out, _ = coterie("data", "own.csv")
    assert code == 0
    assert "own.csv: decimal commas in label" in out
    head = next(line for line in out.splitlines() if "validation" in line)
    assert "classes" not in head
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    at = [c.strip() for c in head.split("┃")[1:-1]].index("mean")
    assert [float(row[at]) for row in cells] == [1, 11, 21]
    assert [float(row[at + 1]) for row in cells] == [0.5, 0.5, 0.5]


def test_what_is_no_run_and_no_data_is_told_in_a_true_line(coterie, tmp_path):
    table = "client,a,label\n" + "".join(f"c{i % 2},{i},{i % 2}\n" for i in range(40))
    (tmp_path / "my.csv").write_text(table)
    (tmp_path / "empty" / "other").mkdir(parents=True)
    assert coterie("compare", *WORDS, "--methods", "local,fedavg", "--out", "both")[0] == 0
    for settings, line in (
        (["resume", "my.csv"], "my.csv is a file: give the folder of a run"),
        (["report", "my.csv"], "my.csv is a file: give the folder of a run or comparison"),
        (["run", "local", "--dataset", "empty/"], "empty: no .csv"),
        (
            ["predict", "both", "--client", "0", "--data", "my.csv"],
            "both holds several runs: give one, both/fedavg-seed0, both/local-seed0",
        ),
        (["run", "xylophone"], "unknown method 'xylophone'; choose from apfl"),
        (["run", "dito"], "unknown method 'dito'; did you mean 'ditto'?"),
    ):
        code, _, errors = coterie(*settings)
        assert code == 2
        assert line in errors
        assert errors.count("\n") == 1
    assert "--dp client needs --weighting equal" in " ".join(coterie("run", "--help")[1].split())


def test_a_client_column_is_guessed_beside_a_label_that_was_named(coterie, tmp_path):
    table = "user,a,y\n" + "".join(f"c{i % 2},{i},{i % 2}\n" for i in range(40))
    (tmp_path / "my.csv").write_text(table)
    settings = ["--label", "y", "--rounds", "1", "--methods", "local,fedavg", "--out", "both"]
    code, _, errors = coterie("compare", "my.csv", *settings)
    assert code == 0
    assert "takes column 'user' as the client" in errors


def test_names_are_printed_as_they_are(coterie, tmp_path):
    names = ["[red]site[/red]", ":smile:", "[/]"]
    (tmp_path / "own.csv").write_text(
        "client,a,label\n" + "".join(f"{names[i % 3]},{i},{i % 2}\n" for i in range(60))
    )
    code, out, _ = coterie("data", "own.csv", "--picture", "p.png")
    assert code == 0
    assert all(name in out for name in names)
    assert coterie(
        "run", "local", "--dataset", "own.csv", *FAST, "--rounds", "1", "--out", "[bold]run"
    )[1].endswith("run: [bold]run\n")


def test_methods_are_listed_and_one_is_told_in_full(coterie):
    code, out, _ = coterie("methods")
    assert code == 0
    for name in METHODS:
        assert f"\n{name} " in out
    assert max(map(len, out.splitlines())) <= 80
    assert "validation rows" in out
    assert "AISTATS 2017" in coterie("methods", "--wide")[1]
    code, out, _ = coterie("methods", "persfl")
    assert code == 0
    assert out.startswith(
        "PersFL. Divi: Unifying Distillation with Personalization in Federated Learning."
    )
    assert "distil_epochs" in out
    assert "Set one as in `coterie run persfl --distil_epochs 50`." in out
    assert "numbers separated by commas, each from 0 to 1" in out
    assert "kl_ts, kl_st or ce" in out
    refused = coterie("methods", "pfedme")[1]
    assert "Of [train], pfedme does not use" in refused
    assert "momentum, weight_decay" in refused
    assert "local has no options." in coterie("methods", "local")[1]


def test_help_names_every_section_and_word(coterie):
    for arguments in ([], ["--help"], ["-h"]):
        code, out, _ = coterie(*arguments)
        assert code == 0
        assert all(
            f"  {command} " in out for command in ("compare", "data", "methods", "resume", "run")
        )
    code, out, _ = coterie("run", "--help")
    assert code == 0
    for option in (
        "--rounds",
        "--lr",
        "--num-clients",
        "--alpha",
        "--dataset NAME      digits, mnist,",
        "--config",
        "--out",
    ):
        assert option in out
    assert max(map(len, out.splitlines())) <= 80
    assert coterie("--version")[1] == f"coterie, version {__version__}\n"


def test_data_prints_the_split_and_draws_it_without_overwriting(coterie, tmp_path):
    code, out, _ = coterie("data", "--num-clients", "5")
    assert code == 0
    assert "digits: 5 clients" in out
    assert out.endswith("picture: digits-classes.png\n")
    first = (tmp_path / "digits-classes.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    assert coterie("data", "digits", "--num-clients", "6")[1].endswith(
        "picture: digits-classes-2.png\n"
    )
    assert (tmp_path / "digits-classes.png").read_bytes() == first
    assert (
        coterie("data", "--partition", "dirichlet", "--alpha", "0.5", "--picture", "mine.svg")[0]
        == 0
    )
    assert b"<svg" in (tmp_path / "mine.svg").read_bytes()
    code, out, _ = coterie("data", "gaussian", "--num-clients", "60")
    assert code == 0
    assert "... and 10 more clients" in out
    assert "picture" not in out  # no classes to draw


def test_quiet_is_quiet_in_a_terminal_too(coterie, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _, out, errors = coterie("run", "ditto", *WORDS, "--quiet", "--out", "run")
    assert "clients/s" not in out + errors


def test_who_stops_a_run_is_told_how_to_go_on(coterie, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("coterie.running.execute.save_models", interrupt)
        code, out, errors = coterie("run", "ditto", *WORDS, "--out", "run")
    assert (code, out) == (130, "")
    assert errors.strip() == "coterie: stopped; `coterie resume run` goes on"
    assert coterie("resume", "run")[0] == 0


# Real processes

CODE = "from coterie.cli.main import main; main()"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "TERM": "xterm"}


def in_terminal(arguments: list[str], folder: Path) -> tuple[int, str]:
    """The exit code and all that a terminal of 120 columns shows."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    environment = {k: v for k, v in ENVIRONMENT.items() if k != "COLUMNS"}
    child = subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        stdout=there,
        stderr=there,
        cwd=folder,
        env=environment,
    )
    os.close(there)
    shown, deadline = b"", time.monotonic() + 600
    while time.monotonic() < deadline:
        if select.select([here], [], [], 0.1)[0]:
            try:
                shown += os.read(here, 65536)
            except OSError:  # the other end is closed
                break
        elif child.poll() is not None:
            break
    os.close(here)
    return child.wait(timeout=300), shown.decode()


def test_a_terminal_shows_the_progress_line(tmp_path):
    code, shown = in_terminal(["run", "ditto", *WORDS, "--out", "run"], tmp_path)
    assert code == 0
    assert re.search(r"ditto seed 0.*2/2.*loss \d+\.\d{3}.*\d:\d\d.* s left", shown)
    assert "run: run" in shown


def test_a_real_process_refuses_and_stops_cleanly(tmp_path):
    command = [sys.executable, "-c", CODE, "run", "fedvag", "--out", "run"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "coterie: unknown method 'fedvag'; did you mean 'fedavg'?\n"
    pipe = f'"{sys.executable}" -c "{CODE}" methods | head -1'
    piped = subprocess.run(
        ["bash", "-c", pipe],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert piped.stderr == ""
    assert not list(tmp_path.iterdir())


def test_threads_are_given_back(coterie):
    before = torch.get_num_threads()
    assert coterie("run", "local", *WORDS, "--threads", "2", "--out", "run")[0] == 0
    assert torch.get_num_threads() == before


def test_methods_of_other_packages_are_known_and_a_broken_one_is_no_harm(tmp_path):
    (tmp_path / "theirs.py").write_text("from coterie.methods.fedavg import fedavg as quiet\n")
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[coterie.methods]\nquiet = theirs:quiet\nbroken = theirs:absent\n"
    )
    code = "from coterie import method_names as f; print('quiet' in f(), 'broken' in f())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True False\n", done.stderr
    assert "the method 'broken' (theirs:absent) cannot be loaded" in done.stderr


def test_a_table_alone_is_compared_by_the_usual_methods_with_columns_told_by_their_names(
    coterie, tmp_path
):
    path = write_csv(tmp_path / "people.csv")
    path.write_text(path.read_text().replace("client,a,b,label", "Person ID;a;b;Target", 1))
    path.write_text(path.read_text().replace(",", ";"))
    settings = ("--trials", "1", "--rounds", "1", "--hidden", "4", "--out", "c", *FAST)
    code, out, errors = coterie("compare", "people.csv", *settings)
    assert code == 0, errors
    assert "takes column 'Person ID' as the client and 'Target' as the label" in errors
    assert "methods: local, fedavg, finetune, ditto, fedper, ucfl" in out
    assert "search on validation data: 1 trial for each method" in out
    assert "ditto: lr 0.01..1, local_epochs 1..5, lam 0.01..10" in out
    assert "Tuned options" in out
    assert (tmp_path / "c" / "report.html").exists()
