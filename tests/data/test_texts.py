"""Laws of text columns: words of the training rows, a number each, and the same ever after."""

import builtins
import json

import numpy as np
import polars as pl
import pytest

from coterie.core.errors import BadInput
from coterie.data.inspection import find_problems, summarize_columns
from coterie.data.messages import DataWarning
from coterie.data.pipeline import build_federation
from coterie.data.prepare.inputs import InputBuilder
from coterie.data.prepare.preparation import preparation_from_dict, prepare_frame
from coterie.data.read.tokenizer import guess_text
from coterie.data.read.user_data import from_frame, read_user_data
from coterie.experiment.build import models_of
from coterie.experiment.config import Experiment, change_options

ROWS = 120
WORDS = {"client": "client", "label": "mood"}


def messages():
    """Short texts of six people, glad and sad ones."""
    rng = np.random.default_rng(0)
    moods = rng.choice(["glad", "sad"], ROWS)
    said = {"glad": ["sun", "joy", "cake"], "sad": ["rain", "loss", "cold"]}
    texts = [
        f"The {rng.choice(['day', 'bus', 'dog'])} no. {k} brought {rng.choice(said[mood])}!"
        for k, mood in enumerate(moods)
    ]
    owners = [f"p{k % 6}" for k in range(ROWS)]
    return pl.DataFrame({"client": owners, "message": texts, "mood": moods})


def vocabulary(federation):
    """{word: number} of a federation's texts."""
    return json.loads(federation.preparation.text.tokenizer)["model"]["vocab"]


def test_a_text_becomes_the_numbers_of_its_words_cut_and_filled_to_a_length():
    whole = from_frame(messages(), text="message", tokens=4, **WORDS)
    federation = build_federation(whole)
    known = vocabulary(federation)
    assert federation.x.shape == (ROWS, 4)
    assert federation.x.dtype.is_signed
    assert not federation.x.is_floating_point()
    assert federation.words == len(known)
    row = prepare_frame(
        federation.preparation, pl.DataFrame({"message": ["Joy! unheardof", None]}), "later"
    )
    assert row.tolist() == [[known["joy"], known["!"], 1, 0], [0, 0, 0, 0]]
    assert "17" not in known  # a word of one row is none
    assert set(known.values()) == set(range(federation.words))


def test_a_vocabulary_holds_the_most_frequent_words():
    federation = build_federation(from_frame(messages(), text="message", vocabulary=12, **WORDS))
    known = vocabulary(federation)
    assert len(known) == 12
    assert {"the", "brought", "no", "!"} <= set(known)


def test_garbage_in_held_out_texts_changes_no_word_and_no_training_input():
    frame = messages()
    clean = build_federation(from_frame(frame, text="message", **WORDS))
    held = np.concatenate([r for p in ("validation", "select", "test") for r in getattr(clean, p)])
    texts = frame["message"].to_numpy().copy()
    spoil = clean.rows[held]  # what was a copy of another row stays one
    texts[spoil] = [" ".join(f"zz{word}" for word in text.split()) for text in texts[spoil]]
    spoilt = build_federation(
        from_frame(frame.with_columns(message=texts), text="message", **WORDS)
    )
    assert vocabulary(spoilt) == vocabulary(clean)
    assert not any(word.startswith("zz") for word in vocabulary(spoilt))
    train = np.concatenate(clean.train)
    assert (spoilt.x[train] == clean.x[train]).all()
    assert not (spoilt.x[held] == clean.x[held]).all()


def test_a_preparation_that_was_written_makes_the_same_numbers():
    frame = messages()
    federation = build_federation(from_frame(frame, text="message", **WORDS))
    again = preparation_from_dict(json.loads(json.dumps(federation.preparation.to_dict())))
    assert again == federation.preparation
    x = InputBuilder(again, federation.input_shape).inputs(frame.drop("client", "mood"))
    assert (x[federation.rows] == federation.x.numpy()).all()
    assert InputBuilder(again, federation.input_shape).inputs(frame.head(0)).dtype == np.int64


def test_the_only_useful_column_is_read_as_text_and_told(tmp_path):
    frame = messages().with_columns(id=pl.int_range(ROWS), source=pl.lit("app"))
    assert guess_text(frame.drop("client", "mood")) == "message"
    assert guess_text(frame.drop("client")) == ""  # the mood is of use
    frame.write_csv(tmp_path / "texts.csv")
    with pytest.warns(DataWarning, match="'message' is the only column of use, and free text"):
        federation = build_federation(tmp_path / "texts.csv", data_options=WORDS)
    assert federation.words
    [model] = models_of(Experiment(), federation)
    assert model.name == "bag"
    named = read_user_data(tmp_path / "texts.csv", categories="message", **WORDS)
    assert not named.is_text


def test_a_text_beside_other_columns_is_a_name_unless_it_is_said_to_be_text():
    frame = messages().with_columns(age=pl.Series(np.arange(ROWS) % 7 + 0.5))
    whole = from_frame(frame, **WORDS)
    assert not whole.is_text
    assert any("free text" in line and "'message'" in line for line in find_problems(whole))
    said = from_frame(frame, text="message", **WORDS)
    [column] = summarize_columns(said, build_federation(said).preparation)
    assert (column.kind, column.holds) == ("text", f"{ROWS} texts")
    assert column.becomes.startswith("64 of ")
    assert not find_problems(said)


def test_words_without_effect_beside_a_text_are_refused():
    frame = messages().with_columns(age=1.5)
    with pytest.raises(BadInput, match="reads that column alone: leave out features = age"):
        from_frame(frame, text="message", features="age", **WORDS)
    with pytest.raises(BadInput, match="scale = 'robust' is for numbers"):
        build_federation(from_frame(frame, text="message", **WORDS), scale="robust")
    with pytest.raises(BadInput, match=r"no column 'massage'; did you mean .*named in text="):
        from_frame(frame, text="massage", **WORDS)


def test_a_network_of_numbers_is_refused_for_texts_and_the_other_way_round():
    federation = build_federation(from_frame(messages(), text="message", **WORDS))
    with pytest.raises(BadInput, match="net 'dnn' takes numbers, but 'frame' has texts: use bag"):
        models_of(change_options(Experiment(), {"model": "dnn"}), federation)
    with pytest.raises(BadInput, match="net 'bag' reads texts, but 'digits' has none"):
        models_of(change_options(Experiment(), {"model": "bag"}), build_federation("digits"))


def test_without_the_library_one_line_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=r"pip install 'coterie\[text\]'"):
        build_federation(from_frame(messages(), text="message", **WORDS))


def test_texts_without_a_word_in_common_are_refused():
    frame = messages().with_columns(message=pl.Series([f"x{k}" for k in range(ROWS)]))
    with pytest.raises(BadInput, match="no word is twice in the training rows"):
        build_federation(from_frame(frame, text="message", **WORDS))
