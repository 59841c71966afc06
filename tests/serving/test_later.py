"""Laws of models that a run gets after training: of clients that came, and of newer rows."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import coterie
from coterie.analysis.drift import loss_drift, share_drift
from coterie.core.checkpoint import load_checkpoint
from coterie.core.errors import BadInput
from coterie.core.tree import load_tree
from coterie.data.messages import DataWarning, silence
from coterie.results.folder import read_experiment
from coterie.results.models import find_free_file, load_model
from coterie.results.personal_models import Models
from coterie.serving import updating
from coterie.serving.batching import ServedRun
from coterie.serving.cards import render_markdown
from coterie.serving.labelled_rows import (
    _read_classes,
    load_labelled_rows,
    load_trained_rows,
    own_rows_of,
)
from coterie.serving.personalizing import personalize
from coterie.serving.request_rows import CSV
from coterie.serving.updating import update
from helpers.serving import held_rows, people_run, write_people


def rows_of(folder, site, seed=7, rows=80):
    """New rows of a site, as a frame of texts."""
    path = write_people(folder / f"more-{seed}.csv", sites=site + 1, rows=rows, seed=seed)
    frame = pl.read_csv(path, infer_schema=False)
    return frame.filter(pl.col("site") == f"site-{site}").drop("site")


def files_of(folder):
    """{file of the models: digest of its bytes}"""
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in (folder / "models").glob("*.safetensors")
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return people_run(tmp_path_factory.mktemp("later"), method="ditto", rounds=6, lr=0.3)


def test_a_personalized_client_is_loaded_predicted_and_served_like_any_other(run, tmp_path):
    rows, before = rows_of(tmp_path, 3), files_of(run.folder)
    found = coterie.personalize(run, rows, "north")
    assert [way.way for way in found.ways] == ["rule", "finetune", "local"]
    assert sum(found.rows.values()) == len(rows)
    model = coterie.load(run.folder, "north")
    assert (model.predict(rows) == run.predict(rows, ["north"] * len(rows))).all()
    number = Models(run.folder).number("north")
    assert number == 3
    served = ServedRun(run.folder, 8)
    body = served.reader.read(CSV, rows.write_csv().encode(), "north", 1000)
    (answer,) = served.answer([number], [body])
    assert (answer.predictions == model.predict(rows)).all()
    card = model.card
    assert (card["version"], card["rows"]["test"]) == (1, found.rows["test"])
    assert card["measured"][0]["value"] == pytest.approx(found.ways[0].value)
    assert "came after training" in render_markdown(card)
    assert {k: v for k, v in files_of(run.folder).items() if k in before} == before
    plain = load_model(run.folder, "north").state_dict()
    assert all(torch.equal(a, model.state_dict()[k]) for k, a in plain.items())


def test_a_list_of_later_models_that_was_changed_is_damaged(run, tmp_path):
    rows = rows_of(tmp_path, 3, seed=9)
    coterie.personalize(run, rows, "east")
    folder = Path(shutil.copytree(run.folder, tmp_path / "copy"))
    path = folder / "models" / "later.json"
    text = path.read_text()
    path.write_text(text.replace('"east"', '"west"'))
    with pytest.raises(BadInput, match=r"later\.json is damaged \(it is not as it was written\)"):
        coterie.load(folder, "west")
    path.write_text(json.dumps(json.loads(text)["models"]))  # as earlier versions wrote it
    model = coterie.load(folder, "east")
    assert (model.predict(rows) == coterie.load(run.folder, "east").predict(rows)).all()


def test_no_client_is_ever_written_over(run, tmp_path):
    rows = rows_of(tmp_path, 3)
    for name in ("site-0", "site-1"):
        with pytest.raises(BadInput, match="already: give another --client, or `coterie update"):
            personalize(run.folder, rows, name)


def test_an_update_is_a_new_version_beside_the_old_one(run, tmp_path):
    rows, before = rows_of(tmp_path, 1), files_of(run.folder)
    old = coterie.load(run.folder, "site-1")
    first = update(run.folder, rows, "site-1")
    second = coterie.update(run.folder, rows_of(tmp_path, 1, seed=9), "site-1")
    assert (first.version, second.version) == (2, 3)
    new = coterie.load(run.folder, "site-1")
    assert new.card["version"] == 3
    assert [v["version"] for v in new.card["history"]] == [1, 2, 3]
    assert any(not torch.equal(a, old.state_dict()[k]) for k, a in new.state_dict().items())
    after = files_of(run.folder)
    assert {k: v for k, v in after.items() if k in before} == before
    assert len(after) == len(before) + 2


def params_of(folder, client):
    return coterie.load(folder, client).state_dict()


def test_an_update_goes_on_with_the_state_and_the_rule_of_the_method(tmp_path, monkeypatch):
    """Ditto's v is pulled to w, as in training: without the pull it is plain training, with it the
    model stays nearer to w; a second update goes on with the v of the first.
    """
    for lam in (0.0, 2.0):
        place = tmp_path / str(lam)
        place.mkdir()
        made = people_run(place, method="ditto", rounds=3, lr=0.3, lam=lam, batch_size=1000)
        w = load_checkpoint(sorted(made.folder.glob("checkpoint-*"))[-1])["server"].w.params
        copy = shutil.copytree(made.folder, place / "copy")
        own = update(made.folder, rows_of(tmp_path, 1), "site-1", force=True)
        assert own.how == "as ditto does: it trains its v beside the received w"
        with monkeypatch.context() as patch:
            patch.setattr(updating, "state_of", lambda run, client: None)
            plain = update(copy, rows_of(tmp_path, 1), "site-1", force=True)
        assert plain.how == "plainly: the client took part in no round"
        one, two = (params_of(folder, "site-1") for folder in (made.folder, copy))
        if lam == 0:
            assert all(torch.allclose(one[k], two[k], atol=1e-5) for k in w)
        else:
            gaps = [sum(float((x[k] - w[k]).square().sum()) for k in w) for x in (one, two)]
            assert gaps[0] < 0.8 * gaps[1]
    again = update(made.folder, rows_of(tmp_path, 1, seed=9), "site-1", force=True)
    assert (again.version, again.how) == (3, own.how)
    stored = load_tree(made.folder / "models" / "states", "later-00001")
    now = params_of(made.folder, "site-1")
    assert all(torch.equal(stored.params[k], v) for k, v in now.items())


def test_an_update_trains_what_is_the_client_s_own_and_leaves_what_all_share(tmp_path):
    made = people_run(tmp_path, method="fedper", rounds=2, model="dnn", hidden=8)
    before = params_of(made.folder, "site-1")
    found = update(made.folder, rows_of(tmp_path, 1), "site-1", force=True)
    after = params_of(made.folder, "site-1")
    assert found.how == "as fedper does: it trains its own layers, the common ones held"
    same = {k.split(".")[0]: torch.equal(v, after[k]) for k, v in before.items()}
    assert same == {"dense1": True, "head": False}


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("fedavg", "fedavg has no rule for a client by itself"),
        ("finetune", "finetune makes a client's model anew from what it is sent"),
    ],
)
def test_an_update_says_why_it_trains_plainly(method, why, tmp_path):
    made = people_run(tmp_path, method=method, rounds=2)
    before = params_of(made.folder, "site-1")
    found = update(made.folder, rows_of(tmp_path, 1), "site-1", force=True)
    assert found.how == f"plainly: {why}"
    after = params_of(made.folder, "site-1")
    assert any(not torch.equal(v, after[k]) for k, v in before.items())
    card = render_markdown(coterie.load(made.folder, "site-1").card)
    assert why in card


def test_scores_of_old_and_new_test_rows_are_those_of_the_models(run, tmp_path):
    """As the versions themselves predict the rows of the table, and those that were given."""
    rows = rows_of(tmp_path, 1, seed=21)
    model = coterie.load(run.folder, "site-1")
    found = update(run.folder, rows, "site-1", force=True)
    table = pl.read_csv(run.folder.parent / "people.csv", infer_schema=False)
    test = table[held_rows(run, Models(run.folder).number("site-1")).tolist()]
    for one, way in (
        (model, found.old_before),
        (coterie.load(run.folder, "site-1"), found.old_after),
    ):
        right = one.predict(test.drop("verdict")) == test["verdict"].to_numpy()
        assert way.value == pytest.approx(right.mean())
    assert found.old_rows == len(test)
    assert found.unmeasured == ""


def test_a_version_that_is_worse_on_old_rows_and_new_is_refused(run, tmp_path, monkeypatch):
    rows, before = rows_of(tmp_path, 1, seed=23), files_of(run.folder)
    true = updating.evaluate_way
    seen = []

    def falling(way, measured, *more):  # the models are measured before, after, before, after
        seen.append(way)
        return true(way, measured, *more)._replace(value=[0.8, 0.7, 0.9, last][len(seen) - 1])

    monkeypatch.setattr(updating, "evaluate_way", falling)
    last = 0.85
    with pytest.raises(BadInput, match=r"worse, and is not saved: .* old .* new .*--force"):
        update(run.folder, rows, "site-1")
    assert files_of(run.folder) == before
    seen.clear()
    last = 0.95  # better on old rows
    update(run.folder, rows, "site-1")
    seen.clear()
    last = 0.85
    update(run.folder, rows, "site-1", force=True)
    assert len(files_of(run.folder)) == len(before) + 2


def test_without_the_data_of_training_old_rows_are_not_measured_and_why_is_told(tmp_path):
    made = people_run(tmp_path, rounds=1)
    rows = rows_of(tmp_path, 1)
    (tmp_path / "people.csv").unlink()
    found = update(made.folder, rows, "site-1", force=True)
    assert found.old_before is None
    assert "there is no file or folder" in found.unmeasured


def test_rows_of_the_run_are_no_new_ones_and_copies_stay_in_one_part(run, tmp_path):
    """A file of all rows until today: else the model would train on its old test rows, and be
    tested on rows that it has trained on.
    """
    folder = Path(shutil.copytree(run.folder, tmp_path / "copy"))
    whole = pl.read_csv(run.folder.parent / "people.csv", infer_schema=False)
    old = whole.filter(pl.col("site") == "site-1").drop("site")
    new = rows_of(tmp_path, 1, seed=11)
    models, experiment = Models(folder), read_experiment(folder)
    with silence():
        known = own_rows_of(load_trained_rows(folder, experiment), 1)
    with pytest.warns(DataWarning, match="40 of 120 rows are rows of the run already: left out"):
        found = load_labelled_rows(models, experiment, pl.concat([old, new]), "site-1", known)
    alone = load_labelled_rows(models, experiment, new, "site-1")
    assert (found.x == alone.x).all()
    assert found.counts == alone.counts
    with pytest.raises(BadInput, match="the run has all its rows already; give new ones"):
        update(folder, old, "site-1")
    twice = load_labelled_rows(models, experiment, pl.concat([new, new.head(30)]), "site-1", known)
    places = {}
    for part, rows in twice.parts.items():
        for row in rows.tolist():
            places.setdefault(row % len(new), set()).add(part)
    assert len(places) == len(new)
    assert all(len(parts) == 1 for parts in places.values())


def test_a_file_that_a_stopped_process_left_is_in_nobodys_way(run, tmp_path):
    left = run.folder / "models" / find_free_file(run.folder)
    left.write_bytes(b"left behind")
    update(run.folder, rows_of(tmp_path, 0), "site-0")
    assert left.read_bytes() == b"left behind"
    assert coterie.load(run.folder, "site-0").card["version"] == 2


def test_rows_like_those_of_training_have_not_drifted_and_turned_labels_have(run, tmp_path):
    rows = rows_of(tmp_path, 2)
    same = update(run.folder, rows, "site-2")
    assert same.verdict.startswith("No drift shown")
    turned = rows.with_columns(
        pl.when(pl.col("verdict") == "sick")
        .then(pl.lit("well"))
        .otherwise(pl.lit("sick"))
        .alias("verdict")
    )
    drifted = update(run.folder, turned, "site-2")
    assert drifted.verdict.startswith("Drift: the model does worse")
    assert drifted.after.loss < drifted.before.loss
    card = coterie.load(run.folder, "site-2").card
    assert card["history"][-1]["drift"] == drifted.verdict


def test_drift_is_rarely_told_of_rows_that_are_alike():
    rng = np.random.default_rng(0)
    shares = [
        share_drift(np.mean(rng.random(50) < 0.8), 50, rng.random(60) < 0.8) for _ in range(200)
    ]
    losses = [
        loss_drift(float(rng.normal(1, 1, 50).mean()), 50, rng.normal(1, 1, 60)) for _ in range(200)
    ]
    assert np.mean([d.worse for d in shares]) < 0.06
    assert np.mean([d.worse for d in losses]) < 0.06
    assert share_drift(0.9, 50, np.arange(60) < 20).worse
    assert loss_drift(1.0, 50, rng.normal(3, 1, 60)).worse
    assert not share_drift(0.5, 50, np.ones(60, bool)).worse


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda f: f.drop("verdict"), "there is no column 'verdict', the label in training"),
        (lambda f: f.drop("age"), "there is no column 'age'"),
        (lambda f: f.head(2), "2 rows are too few"),
        (
            lambda f: f.with_columns(verdict=pl.lit("maybe")),
            "'verdict' is 'maybe' in row 1, a class that training did not have",
        ),
        (lambda f: f.with_columns(verdict=pl.lit(None, pl.String)), "is empty in row 1"),
    ],
)
def test_rows_that_nothing_can_be_learnt_from_are_refused(run, tmp_path, change, why):
    with pytest.raises(BadInput, match=why):
        personalize(run.folder, change(rows_of(tmp_path, 3)), "south")
    assert "south" not in Models(run.folder).names


@pytest.mark.parametrize("method", ["fedavg", "ifca", "fedper", "selffl", "local", "ucfl"])
def test_methods_of_every_kind_take_newcomers_from_a_folder(tmp_path, method):
    made = people_run(tmp_path, method=method, scale="client", rounds=2)
    (tmp_path / "people.csv").unlink()  # the training data are not needed
    rows = rows_of(tmp_path, 3)
    found = personalize(made.folder, rows, "north")
    assert all(np.isfinite(way.loss) for way in found.ways)
    model = coterie.load(made.folder, "north")
    scale = Models(made.folder).preparation.clients["north"]
    ages = rows["age"].cast(pl.Float64).to_numpy()
    assert abs(scale[0][0] - ages.mean()) < 3 * ages.std()
    assert len(model.predict(rows)) == len(rows)


def test_classes_are_found_as_training_spelled_them_or_without_blanks():
    cells = pl.Series("verdict", ["Ill ", " well", "well"])
    assert _read_classes(cells, ["Ill ", "well"], "new.csv").tolist() == [0, 1, 1]
