"""Laws of a personal model: from the run's folder alone, it says what the evaluation said."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import coterie
from coterie.core.errors import BadInput
from coterie.data.read.sources.digits import digits
from coterie.data.read.user_data import from_arrays
from helpers.runs import FAST, IMAGES
from helpers.serving import held_rows, numbers_run, people_run, write_people


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    return people_run(folder), pl.read_csv(folder / "people.csv", try_parse_dates=False)


@pytest.mark.parametrize("scale", ["standard", "robust", "client", "none"])
def test_raw_rows_give_exactly_the_accuracy_of_the_evaluation(scale, tmp_path):
    run = people_run(tmp_path, scale=scale)
    frame = pl.read_csv(tmp_path / "people.csv")
    (tmp_path / "people.csv").unlink()  # nothing but the folder of the run is needed
    for client, accuracy in enumerate(run.accuracy()):
        rows = frame[held_rows(run, client)]
        model = coterie.load(run.folder, run.about["clients"][client])
        right = model.predict(rows.drop("verdict")) == rows["verdict"].to_numpy()
        assert right.mean() == pytest.approx(accuracy, abs=1e-9)
        assert set(model.classes_) == {"sick", "well"}


@pytest.mark.parametrize("settings", [{}, {"scale": "pixel"}, {"scale": "channel"}])
def test_raw_images_of_a_built_in_data_set_give_exactly_the_accuracy(settings, tmp_path):
    run = coterie.run("ditto", out=tmp_path / "run", **IMAGES, **settings)
    whole = digits(tmp_path)
    for client, accuracy in enumerate(run.accuracy()):
        rows = held_rows(run, client)
        model = run.model(client)
        assert (model.predict(whole.x[rows]) == whole.y[rows]).mean() == pytest.approx(accuracy)
        flat = whole.x[rows].reshape(len(rows), -1).tolist()
        assert np.array_equal(model.predict(flat), model.predict(whole.x[rows]))


def test_raw_arrays_with_clients_of_their_own_scale(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.normal(5, 3, size=(120, 2, 3)).astype(np.float32)
    y, owner = (x[:, 0, 0] > 5).astype(int), np.arange(120) % 4
    data = from_arrays(x, y, owner)
    run = coterie.run("local", dataset=data, scale="client", rounds=3, out=tmp_path / "run", **FAST)
    for client, accuracy in enumerate(run.accuracy()):
        rows = held_rows(run, client)
        found = run.model(client).predict(x[rows])
        assert found.dtype.kind == "i"
        assert (found == y[rows]).mean() == pytest.approx(accuracy)


def test_rows_of_every_kind_get_the_same_answer(people):
    run, frame = people
    rows, model = frame[:20].drop("verdict", "site"), run.model("site-1")
    want = model.predict_proba(rows)
    assert want.shape == (20, 2)
    assert np.allclose(want.sum(1), 1)
    records = rows.to_dicts()
    for form in (
        rows.to_pandas(),
        rows.lazy(),
        rows.to_arrow(),
        rows.to_dict(as_series=False),
        records,
        frame[:20].to_pandas().sample(frac=1, axis=1, random_state=0),  # in another order
    ):
        assert np.array_equal(model.predict_proba(form), want)
    one_by_one = [model.predict_proba([record])[0] for record in records]
    assert np.allclose(one_by_one, want, atol=1e-6)


def test_an_unseen_text_is_another_and_a_missing_column_is_refused(people):
    run, frame = people
    model, row = run.model(0), frame[:1].drop("verdict").to_dicts()[0]
    strange, other = ({**row, "job": job} for job in ("astronaut", "priest"))
    assert np.array_equal(model.predict_proba([strange]), model.predict_proba([other]))
    with pytest.raises(BadInput, match="there is no column 'age' as in training"):
        model.predict([{k: v for k, v in row.items() if k != "age"}])
    with pytest.raises(BadInput, match=r"'when' is '31\.12\.2024' in row 1, not a date"):
        model.predict([{**row, "when": "31.12.2024"}])
    with pytest.raises(BadInput, match="shape"):
        model.predict(np.zeros((3, 2)))


def test_a_date_is_read_in_the_form_of_training_however_few_the_rows(people):
    run, _ = people
    kept = {c.name: c for c in run.models().preparation.columns}
    assert kept["when"].form == "%m/%d/%Y"
    row = {"age": 40.0, "income": 3.0, "job": "cook", "smokes": True}
    inputs = run.model(0).intake.inputs
    march = inputs([{**row, "when": "03/04/2024"}])
    assert np.array_equal(march, inputs([{**row, "when": pd.Timestamp("2024-03-04")}]))


def test_blanks_and_empty_words_are_read_as_in_training(people):
    run, _ = people
    inputs = run.model(0).intake.inputs
    row = {"age": 40.0, "income": 3.0, "smokes": True, "when": "03/04/2024"}
    nurse, blank, gone, null = (
        inputs([{**row, "job": job}]) for job in ("nurse", "  nurse ", "NA", None)
    )
    assert np.array_equal(nurse, blank)
    assert np.array_equal(gone, null)
    assert not np.array_equal(nurse, gone)


def test_a_run_predicts_every_row_by_its_own_client(people):
    run, frame = people
    mixed = frame.sample(fraction=1, shuffle=True, seed=3)
    found = run.predict(mixed.drop("verdict"), clients="site")
    for client in run.about["clients"]:
        at = (mixed["site"] == client).to_numpy()
        assert np.array_equal(found[at], run.model(client).predict(mixed.filter(site=client)))
    assert np.array_equal(found, run.predict(mixed.drop("site"), clients=mixed["site"].to_list()))
    with pytest.raises(BadInput, match="no client 'site-9'"):
        run.predict(mixed[:1].drop("site"), clients=["site-9"])


def test_the_card_says_what_the_model_is(people):
    run, _ = people
    card = run.model("site-2").card
    assert json.loads(json.dumps(card)) == card
    assert card["classes"] == ["sick", "well"]
    assert card["method"] == run.experiment.method
    assert card["data"] == run.about["data"]
    measured = {(m["part"], m["metric"]): m for m in card["measured"]}
    test = measured["test", "accuracy"]
    assert test["value"] == run.accuracy()[2]
    assert 0 <= test["low"] < test["value"] <= test["high"] <= 1
    assert card["preparation"]["clients"] == {}


def test_a_card_holds_no_scale_of_another_client(tmp_path):
    run = people_run(tmp_path, scale="client")
    assert set(run.model("site-2").card["preparation"]["clients"]) == {"site-2"}


def test_numbers_that_are_names_are_the_same_names_whatever_their_type(tmp_path):
    path = write_people(tmp_path / "p.csv")
    frame = pl.read_csv(path).with_columns(age=pl.col("age").cast(pl.Int64) // 10)
    settings = FAST | {"rounds": 1, "client": "site", "label": "verdict", "categories": "age"}
    run = coterie.run("local", dataset=frame, out=tmp_path / "run", **settings)
    rows, inputs = frame[:5], run.model(0).intake.inputs
    for kind in (pl.Float64, pl.String, pl.Int8):
        assert np.array_equal(inputs(rows.with_columns(pl.col("age").cast(kind))), inputs(rows))


def test_a_model_still_is_its_network(people):
    run, frame = people
    model = run.model(0)
    x = torch.from_numpy(model.intake.inputs(frame[:4]))
    assert torch.equal(model(x), model.module(x))
    assert list(model.state_dict()) == list(coterie.load_model(run.folder, 0).state_dict())


def test_a_regression_predicts_numbers_in_the_units_of_the_data(tmp_path):
    run = numbers_run(tmp_path, label="b")
    frame = pl.read_csv(tmp_path / "numbers.csv")
    for client, error in enumerate(run.client_values()):
        rows, model = frame[held_rows(run, client)], run.model(client)
        found = np.abs(model.predict(rows) - rows["b"].to_numpy()).mean()
        assert run.measure == "mae"
        assert found == pytest.approx(error, rel=1e-5)
        assert {m["metric"] for m in model.card["measured"]} == {"mae", "loss"}
    with pytest.raises(BadInput, match="predicts numbers, not classes"):
        model.predict_proba(rows)
