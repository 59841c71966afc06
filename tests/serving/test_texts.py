"""Laws of models that read texts: their tokenizer goes wherever they go."""

import json

import numpy as np
import onnxruntime
import polars as pl
import pytest
import tokenizers
import torch

import coterie
from coterie.core.errors import BadInput
from coterie.data.prepare.inputs import InputBuilder
from coterie.serving.cards import render_markdown
from coterie.serving.model_files import (
    export_model,
    load_model_files,
    write_safetensors,
    write_torch,
)
from coterie.serving.onnx_files import OnnxWriter
from coterie.serving.request_rows import JSON, RowReader

LATER = pl.DataFrame({"message": ["sun and joy again", "rain, rain: loss", "unheard words", None]})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A client's model of texts."""
    rng = np.random.default_rng(0)
    moods = rng.choice(["glad", "sad"], 80)
    said = {"glad": ["sun", "joy", "cake"], "sad": ["rain", "loss", "cold"]}
    texts = [f"the day brought {' '.join(rng.choice(said[mood], 2))} again" for mood in moods]
    frame = pl.DataFrame({"person": ["ann", "bob"] * 40, "message": texts, "mood": moods})
    settings = {"client": "person", "label": "mood", "text": "message", "tokens": 8}
    out = tmp_path_factory.mktemp("texts") / "run"
    run = coterie.run("local", dataset=frame, rounds=8, out=out, **settings)
    return coterie.load(run.folder).model("bob")


def test_later_texts_are_answered_from_the_folder_alone(model):
    assert model.predict(LATER)[:2].tolist() == ["glad", "sad"]
    assert model.predict_proba(LATER).shape == (4, 2)


def test_exported_weights_carry_the_tokenizer(model, tmp_path):
    folder = export_model(model, tmp_path / "one", write_safetensors)
    again = load_model_files(folder)
    assert np.array_equal(again.predict_proba(LATER), model.predict_proba(LATER))
    assert "its first 8 words" in render_markdown(model.card)


@pytest.mark.parametrize("way", ["torch", "onnx"])
def test_an_exported_program_and_its_tokenizer_say_what_the_model_says(model, way, tmp_path):
    folder = export_model(model, tmp_path / way, write_torch if way == "torch" else OnnxWriter())
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [text or "" for text in LATER["message"]]
    rows = np.array([one.ids for one in tokenizer.encode_batch(texts)], np.int64)
    if way == "torch":
        program = torch.export.load(folder / "model.pt2").module()
        found = program(torch.from_numpy(rows)).detach().numpy()
    else:
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        [cells] = session.get_inputs()
        found = session.run(["probabilities"], {cells.name: rows})[0]
    assert np.allclose(found, model.predict_proba(LATER), atol=1e-6)


def test_a_request_holds_texts_and_nothing_else(model):
    reader = RowReader(InputBuilder(model.intake.preparation, model.intake.shape, "bob"))
    body = {"rows": [{"message": text} for text in LATER["message"]]}
    rows = reader.read(JSON, json.dumps(body).encode(), "bob", 10)
    assert np.array_equal(rows.x, model.intake.inputs(LATER))
    with pytest.raises(BadInput, match="column 'message' is 7 in row 1, not a text"):
        reader.read(JSON, b'{"rows": [{"message": 7}]}', "bob", 10)
