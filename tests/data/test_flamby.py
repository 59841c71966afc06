"""FLamby's federations: rows, inputs and the published split, exactly."""

import hashlib
import os

import numpy as np
import polars as pl
import pytest
import torch

import coterie
from coterie.comparison.defaults import find_runnable
from coterie.comparison.plan import read_plan
from coterie.core.errors import BadInput
from coterie.data.pipeline import build_federation
from coterie.data.read.catalog import load_dataset
from coterie.data.read.sources.fed_heart_disease import FOLDER
from coterie.experiment.recipes import find_config

HEART = {  # train and test rows as FLamby counts them
    "Cleveland": (199, 104),
    "Hungarian": (172, 89),
    "Switzerland": (30, 16),
    "Long Beach V.A.": (85, 45),
}
TCGA = {
    "Northeast": (248, 63),
    "South": (156, 40),
    "West": (164, 42),
    "Midwest": (129, 33),
    "Europe": (129, 33),
    "Canada": (40, 11),
}
MD5 = {  # as FLamby states them
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}
HAS_TCGA = os.path.isdir(os.path.join(os.environ.get("COTERIE_DATA", ""), "fed-tcga-brca"))


def counts(federation):
    pairs = zip(federation.sizes.tolist(), map(len, federation.test), strict=True)
    return dict(zip(federation.names, pairs, strict=True))


def test_the_shipped_files_are_ucis_with_their_licence_beside_them():
    for name, wanted in MD5.items():
        data = (FOLDER / f"processed.{name}.data").read_bytes()
        assert hashlib.md5(data).hexdigest() == wanted
    assert "CC BY 4.0" in (FOLDER / "NOTICE.md").read_text()


def test_hearts_need_no_folder_and_have_the_published_parts(tmp_path):
    federation = build_federation("fed-heart", folder=tmp_path, validation=0)
    assert counts(federation) == HEART
    assert federation.input_shape == (13,)
    assert federation.classes == 2


def test_the_split_of_hearts_is_scikit_learns_of_seed_43():
    base = load_dataset("fed-heart")
    assert len(base.y) == 740
    assert np.bincount(base.users).tolist() == [303, 261, 46, 130]
    assert np.bincount(base.y, weights=base.users == 2).tolist() == [1, 45]  # not stratified
    tested = np.flatnonzero(base.parts == 2)
    assert tested[:8].tolist() == [5, 13, 16, 24, 26, 34, 40, 42]
    assert int(tested.sum()) == 95392


def test_inputs_of_hearts_are_numbers_and_levels_without_the_first():
    base = load_dataset("fed-heart")
    first = ["63.0", "1.0", "1.0", "145.0", "233.0", "1.0", "2.0", "150.0", "0.0", "2.3"]
    numbers = [float(v) for k, v in enumerate(first) if k not in (2, 6)]
    # chest pain 1 of 1 to 4, electrocardiogram 2 of 0 to 2
    assert base.x[0].tolist() == pytest.approx([*numbers, 0, 0, 0, 0, 1])
    assert set(np.unique(base.x[:, 8:])) == {0, 1}


def test_every_hospital_is_standardised_by_its_own_training_rows():
    federation = build_federation("fed-heart", validation=0)
    base = load_dataset("fed-heart")
    for rows, tested in zip(federation.train, federation.test, strict=True):
        own = base.x[federation.rows[rows]].astype(np.float64)
        there = own.std(0) > 0  # all cholesterol is 0 in Switzerland
        assert torch.allclose(
            federation.x[tested][:, there],
            torch.tensor(
                (base.x[federation.rows[tested]] - own.mean(0))
                / np.where(there, own.std(0, ddof=1), 1)
            ).float()[:, there],
            atol=1e-5,
        )
        assert bool((federation.x[rows][:, ~there] == 0).all())


def test_validation_rows_of_hearts_come_from_training_rows():
    whole, cut = build_federation("fed-heart", validation=0), build_federation("fed-heart")
    for i in range(4):
        assert set(cut.rows[cut.test[i]]) == set(whole.rows[whole.test[i]])
        held = [cut.rows[part[i]] for part in (cut.train, cut.validation, cut.select)]
        assert set(np.concatenate(held)) == set(whole.rows[whole.train[i]])


@pytest.mark.parametrize("recipe", ["", "-local", "-personal"])
def test_every_method_of_the_recipes_runs_on_hearts(recipe):
    experiments = read_plan(find_config(f"flamby-heart{recipe}")).experiments
    assert find_runnable(experiments) == (list(experiments), {})


def small_tcga(folder, n=1088):
    """A table in the form of FLamby's, with its counts."""
    rng = np.random.default_rng(0)
    folds = [
        f"{part}_{k}"
        for k, both in enumerate(TCGA.values())
        for part, c in zip(("train", "test"), both, strict=True)
        for _ in range(c)
    ]
    ids = [f"p{i}" for i in range(n)]
    inputs = {f"i{k}": rng.integers(0, 2, n) for k in range(39)}
    frame = pl.DataFrame(
        {"pid": ids, **inputs, "E": (rng.random(n) < 0.5) * 1.0, "T": rng.integers(0, 900, n) * 1.0}
    )
    split = pl.DataFrame({"pid": ids, "fold": [f[:-2] for f in folds], "fold2": folds})
    place = folder / "fed-tcga-brca"
    place.mkdir()
    pl.concat([frame, frame[:3].with_columns(pid=pl.lit("nobody"))]).write_csv(place / "brca.csv")
    split.sample(fraction=1.0, shuffle=True, seed=1).write_csv(place / "train_test_split.csv")
    return frame


def test_tcga_is_read_with_regions_parts_and_signed_times(tmp_path):
    frame = small_tcga(tmp_path)
    federation = build_federation("fed-tcga-brca", folder=tmp_path, validation=0)
    assert counts(federation) == TCGA
    assert federation.target.task == "survival"
    base = load_dataset("fed-tcga-brca", tmp_path)
    assert (base.y > 0).tolist() == (frame["E"] > 0).to_list()
    np.testing.assert_allclose(np.abs(base.y), frame["T"].to_numpy(), atol=1e-30)
    np.testing.assert_array_equal(base.x, frame[:, 1:40].to_numpy())


def test_tcga_learns_survival_at_once(tmp_path):
    small_tcga(tmp_path)
    run = coterie.run(
        "fedavg",
        dataset="fed-tcga-brca",
        data_dir=str(tmp_path),
        rounds=1,
        local_steps=2,
        out=tmp_path / "r",
    )
    assert run.measure == "concordance"
    assert run.experiment.model["name"] == "mlr"


def test_a_damaged_table_of_tcga_is_named(tmp_path):
    small_tcga(tmp_path)
    place = tmp_path / "fed-tcga-brca"
    (place / "train_test_split.csv").write_text("pid,fold\np1,train\n")
    with pytest.raises(BadInput, match="no column fold2"):
        load_dataset("fed-tcga-brca", tmp_path)
    text = pl.read_csv(place / "brca.csv")[:20].write_csv()
    (place / "brca.csv").write_text(text)
    (place / "train_test_split.csv").write_text("pid,fold,fold2\np1,train,train_0\n")
    with pytest.raises(BadInput, match="1 rows, expected 1,088"):
        load_dataset("fed-tcga-brca", tmp_path)


@pytest.mark.skipif(not HAS_TCGA, reason="needs FLamby's files")
def test_real_tcga():
    federation = build_federation("fed-tcga-brca", validation=0)
    assert counts(federation) == TCGA
    assert federation.input_shape == (39,)
    assert int((federation.y > 0).sum()) == 151
