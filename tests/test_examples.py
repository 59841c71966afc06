"""The examples run as they stand."""

import polars as pl
import pytest

import coterie
from coterie.data.messages import DataWarning
from coterie.methods.registry import METHODS


def test_own_method(tmp_path, capsys, monkeypatch):
    import own_method

    monkeypatch.delitem(
        METHODS, "halfway", raising=False
    )  # it registers itself; other tests must not see it after
    own_method.main(rounds=2, out=str(tmp_path / "out"))
    del METHODS["halfway"]
    assert "halfway" in capsys.readouterr().out


def test_lora_text(tmp_path, capsys):
    import lora_text

    lora_text.main(tmp_path, rounds=2)
    printed = capsys.readouterr().out
    full, adapters = (
        int(line.split()[k].replace(",", ""))
        for line, k in zip(printed.splitlines(), (2, 1), strict=False)
    )
    assert full > 5 * adapters
    assert "PeftModelForSequenceClassification of person 0 is ready to use" in printed


def test_speakers_are_better_served_by_adapters_of_their_own(tmp_path):
    import speakers

    speakers.main(tmp_path, speakers=6, each=40, steps=100)
    settings = {"client": "speaker", "text": "text", "task": "causal_lm", "tokens": 8}
    settings |= {"model": f"hf:{tmp_path / 'model'}", "optimizer": "adam", "lr": 0.02, "rounds": 10}
    settings |= {
        "path": "vectorized",
        "width": 6,
        "compile": "no",
        "batch_size": 8,
        "eval_every": 5,
    }
    found = {
        name: coterie.run(
            name, dataset=tmp_path / "speakers.csv", out=tmp_path / name, **settings
        ).summary()
        for name in ("local", "fedavg")
    }
    assert found["local"].mean < found["fedavg"].mean - 0.5  # perplexity


def test_own_data(tmp_path, capsys):
    import own_data

    own_data.main(tmp_path, rounds=3)
    printed = capsys.readouterr().out
    assert "ditto" in printed
    assert "BatchNorm1d" in printed


def test_the_tutorials_table_and_one_clients_model_on_new_rows(tmp_path):
    import clinics_table

    clinics_table.write_table(tmp_path / "my.csv")
    settings = {"dataset": tmp_path / "my.csv", "client": "clinic", "label": "outcome"}
    with pytest.warns(DataWarning, match="1 with missing cells"):
        run = coterie.run(
            "local", rounds=12, out=tmp_path / "run", watch=lambda _: None, **settings
        )
    rows = pl.read_csv(tmp_path / "my.csv").filter(pl.col("clinic") == "south")
    said = run.model("south").predict(rows.drop("outcome"))
    right = (said == rows["outcome"].to_numpy()).mean()
    # most of them are its training rows; labels in the wrong order would be right in few
    assert right > 0.8


def test_personal_models(tmp_path, capsys):
    import personal_models

    personal_models.main(tmp_path, rounds=2)
    printed = capsys.readouterr().out
    assert "# Model of clinic-1" in printed
    assert "the same elsewhere: True" in printed


def test_school_table(tmp_path, capsys):
    import school_table

    school_table.main(str(tmp_path / "schools.csv"))
    assert "6,001 pupils of 60 schools" in capsys.readouterr().out
    table = pl.read_csv(tmp_path / "schools.csv")
    assert table["school"].n_unique() == school_table.SCHOOLS
    assert set(school_table.LABELS) <= set(table.columns)
    assert 0.02 < table["dropout"].mean() < 0.04
    assert table.null_count().sum_horizontal()[0] > 1000
    assert table.equals(pl.read_csv(school_table.school_table().write_csv().encode()))
