"""The commands of models in use: what they write, and what they refuse in one line."""

import polars as pl
import pytest

from helpers.serving import numbers_run, write_numbers


@pytest.fixture
def coterie(call, tmp_path, monkeypatch, capsys):
    """Runs a command in the folder of a small run; gives (exit code, output, errors)."""
    numbers_run(tmp_path, rounds=1)
    capsys.readouterr()  # what the run said
    monkeypatch.chdir(tmp_path)
    return call


def test_predict_and_export_write_what_they_say_and_overwrite_nothing(coterie, tmp_path):
    settings = (
        "predict",
        "run",
        "--client-column",
        "site",
        "--data",
        "numbers.csv",
        "--out",
        "p.csv",
    )
    assert coterie(*settings) == (0, "120 rows predicted: p.csv\n", "")
    plain = ("predict", "run", "numbers.csv", "--out", "q.csv")  # the run knows its client column
    assert coterie(*plain) == (0, "120 rows predicted: q.csv\n", "")
    assert pl.read_csv("q.csv").equals(pl.read_csv("p.csv"))
    assert "name one file of rows" in coterie("predict", "run", "--out", "r.csv")[2]
    assert pl.read_csv("p.csv").height == 120
    code, out, errors = coterie(*settings)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert coterie(*settings, "--replace")[0] == 0
    to = ("export", "run", "--to", "safetensors", "--client", "site-1", "--out", "models")
    assert coterie(*to)[0] == 0
    assert {p.name for p in (tmp_path / "models" / "site-1").iterdir()} == {
        "README.md",
        "card.html",
        "model.json",
        "model.safetensors",
    }
    for settings, says in (
        (to, "exists already and is not overwritten"),
        (("export", "run", "--to", "tensorboard", "--client", "a"), "--client is for models"),
        (("export", "run", "run", "--to", "torch"), "takes the models of one run"),
        (
            ("export", "run", "--to", "torch", "--experiment", "x"),
            "--experiment is for --to mlflow",
        ),
        (("serve", "nowhere"), "there is no folder nowhere"),
        (("serve", "run", "--no-tokens", "--tokens", "t"), "leaves no use for --tokens"),
        (("serve", "run", "--no-tokens", "--host", "0.0.0.0"), "would open every model"),
    ):
        code, out, errors = coterie(*settings)
        assert (code, out) == (2, "")
        assert says in errors
        assert errors.count("\n") == 1


def test_a_new_client_and_new_rows_are_taken_and_nothing_is_overwritten(coterie, tmp_path):
    write_numbers(tmp_path / "more.csv", sites=1, rows=60, seed=5)
    take = ("personalize", "run", "--data", "more.csv", "--client", "north")
    code, out, errors = coterie(*take)
    assert (code, errors) == (0, "")
    assert all(way in out for way in ("own rule", "global, fine-tuned", "trained alone"))
    code, out, errors = coterie(*take)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert "has a client 'north' already" in errors
    code, out, errors = coterie("update", "run", "--client", "site-0", "--data", "more.csv")
    assert (code, errors) == (0, "")
    assert "rift" in out
    assert "saved as version 2 of 'site-0'" in out
    assert max(map(len, out.splitlines())) <= 80
    settings = ("predict", "run", "--client", "north", "--data", "more.csv", "--out", "n.csv")
    assert coterie(*settings)[0] == 0
