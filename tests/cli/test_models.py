"""The commands of models in use: what they write, and what they refuse in one line."""

import polars as pl
import pytest

from helpers.serving import numbers_run


@pytest.fixture
def coterie(call, tmp_path, monkeypatch, capsys):
    """Runs a command in the folder of a small run; gives (exit code, output, errors)."""
    numbers_run(tmp_path, rounds=1)
    capsys.readouterr()  # what the run said
    monkeypatch.chdir(tmp_path)
    return call


def test_predict_and_export_write_what_they_say_and_overwrite_nothing(coterie, tmp_path):
    words = ("predict", "run", "--client-column", "site", "--data", "numbers.csv", "--out", "p.csv")
    assert coterie(*words) == (0, "120 rows predicted: p.csv\n", "")
    assert pl.read_csv("p.csv").height == 120
    code, out, errors = coterie(*words)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert coterie(*words, "--replace")[0] == 0
    to = ("export", "run", "--to", "safetensors", "--client", "site-1", "--out", "models")
    assert coterie(*to)[0] == 0
    assert {p.name for p in (tmp_path / "models" / "site-1").iterdir()} == {
        "README.md",
        "card.html",
        "model.json",
        "model.safetensors",
    }
    for words, says in (
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
        code, out, errors = coterie(*words)
        assert (code, out) == (2, "")
        assert says in errors
        assert errors.count("\n") == 1
