"""Laws of exported models: without coterie, or without its run, they say what the model says."""

import json

import numpy as np
import onnxruntime
import polars as pl
import pytest
import torch

import coterie
from coterie.core.errors import BadInput
from coterie.data.messages import DataWarning
from coterie.serving.model_files import (
    export_model,
    load_model_files,
    write_safetensors,
    write_torch,
)
from coterie.serving.onnx_files import OnnxWriter, build_feeds, synthesize_rows
from coterie.serving.pyfunc import write_pyfunc
from helpers.runs import IMAGES
from helpers.serving import people_run, write_people


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    return people_run(folder, method="local", scale="client"), folder


def test_weights_with_their_card_are_the_model(people, tmp_path):
    run, _ = people
    model = run.model(1)
    again = load_model_files(export_model(model, tmp_path / "one", write_safetensors))
    rows = synthesize_rows(model.intake)
    assert np.array_equal(again.predict_proba(rows), model.predict_proba(rows))
    assert again.card | {"weights": ""} == model.card | {"weights": ""}
    with pytest.raises(BadInput, match="exists already and is not overwritten"):
        export_model(model, tmp_path / "one", write_safetensors)
    held = tmp_path / "one" / "model.safetensors"
    held.write_bytes(held.read_bytes()[:-1] + b"x")
    with pytest.raises(BadInput, match="damaged"):
        load_model_files(tmp_path / "one")


def test_an_onnx_graph_takes_raw_columns_and_says_row_by_row_what_the_model_says(people, tmp_path):
    run, folder = people
    frame = pl.read_csv(folder / "people.csv")
    writer = OnnxWriter()
    for client in ("site-0", "site-2"):  # the second takes the first one's graph
        model = run.model(client)
        where = export_model(model, tmp_path / client, writer)
        session = onnxruntime.InferenceSession(where / "model.onnx")
        assert {i.name for i in session.get_inputs()} == {"age", "income", "job", "when", "smokes"}
        shares, labels = session.run(["probabilities", "label"], build_feeds(model.intake, frame))
        assert np.allclose(shares, model.predict_proba(frame), atol=1e-6)
        assert (labels == model.predict(frame)).all()
        strange = frame[:8].with_columns(job=pl.lit("astronaut"), income=pl.lit(None))
        shares = session.run(["probabilities"], build_feeds(model.intake, strange))[0]
        assert np.allclose(shares, model.predict_proba(strange), atol=1e-6)


def test_missing_dates_and_large_numbers_are_exported(tmp_path):
    """Three dates with a time of day and gaps, and a label of millions."""
    rng, rows = np.random.default_rng(0), 80
    dates = {}
    for name in ("born", "came", "left"):
        seconds = rng.integers(1_500_000_000, 1_700_000_000, rows).tolist()
        kept = [None if k % 7 == 0 else second for k, second in enumerate(seconds)]
        dates[name] = pl.from_epoch(pl.Series(kept, dtype=pl.Int64)).dt.to_string("%F %T")
    people = ["a", "b"] * (rows // 2)
    table = {"who": people, **dates, "x": rng.normal(size=rows), "y": 1e6 * rng.normal(size=rows)}
    pl.DataFrame(table).write_csv(tmp_path / "dates.csv")
    with pytest.warns(DataWarning, match="3 with dates, 3 with missing cells"):
        run = coterie.run(
            "local",
            dataset=str(tmp_path / "dates.csv"),
            client="who",
            label="y",
            task="regression",
            rounds=2,
            out=tmp_path / "run",
        )
    where = export_model(run.model("a"), tmp_path / "onnx", OnnxWriter())
    assert (where / "model.onnx").is_file()


def test_an_onnx_graph_of_images_has_their_scale_inside(tmp_path):
    run = coterie.run("local", out=tmp_path / "run", scale="pixel", **IMAGES)
    model = run.model(1)
    where = export_model(model, tmp_path / "one", OnnxWriter())
    session = onnxruntime.InferenceSession(where / "model.onnx")
    raw = np.random.default_rng(0).integers(0, 17, (9, 1, 8, 8)).astype(np.float32)
    shares = session.run(["probabilities"], {"cells": raw})[0]
    assert np.allclose(shares, model.predict_proba(raw), atol=1e-6)


def test_a_torch_program_takes_cells_and_prepares_them_itself(people, tmp_path):
    run, folder = people
    model, frame = run.model(0), pl.read_csv(folder / "people.csv")
    where = export_model(model, tmp_path / "one", write_torch)
    program = torch.export.load(where / "model.pt2").module()
    held = build_feeds(model.intake, frame)
    columns = json.loads((where / "model.json").read_text())["preparation"]["columns"]
    cells = []
    for column in columns:
        values = held[column["name"]]
        if column["kind"] == "category":
            known = column["categories"]
            places = {**{v: k for k, v in enumerate(known)}, "": float("nan")}
            values = np.array([places.get(v, len(known)) for v in values], float)
        cells.append(values)
    with torch.no_grad():
        shares = program(torch.from_numpy(np.stack(cells, 1))).numpy()
    assert np.allclose(shares, model.predict_proba(frame), atol=1e-6)


def test_mlflow_loads_a_model_and_predicts_pandas_rows(people, tmp_path):
    from mlflow import pyfunc

    run, folder = people
    model, frame = run.model(0), pl.read_csv(folder / "people.csv")[:6]
    where = export_model(model, tmp_path / "one", write_pyfunc)
    found = pyfunc.load_model(str(where)).predict(frame.to_pandas())
    assert found["prediction"].to_list() == model.predict(frame).tolist()
    assert list(found.columns) == ["prediction", "probability of sick", "probability of well"]


def test_texts_that_were_hashed_are_refused_in_one_line(tmp_path):
    write_people(tmp_path / "people.csv")
    run = people_run(tmp_path, **{"one-hot": 1, "rounds": 1})
    with pytest.raises(BadInput, match="'job' has too many texts for ONNX"):
        export_model(run.model(0), tmp_path / "one", OnnxWriter())
    assert not list(tmp_path.glob("one*"))


def test_cards_say_the_same_in_both_forms_and_run_no_markup(people, tmp_path):
    run, _ = people
    model = run.model("site-0")
    model.card["client"] = "<b>|x"
    where = export_model(model, tmp_path / "one", write_safetensors)
    text, page = ((where / name).read_text() for name in ("README.md", "card.html"))
    for said in ("test accuracy", "95 % interval", "category: clerk, cook, nurse"):
        assert said in text
        assert said in page
    assert "<b>" not in text + page
