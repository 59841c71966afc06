"""Laws of predicted files: row by row what the model says, however the file is cut or written."""

import gzip

import numpy as np
import polars as pl
import polars.testing
import pytest

import coterie
from coterie.core.errors import BadInput
from coterie.serving import chunks
from coterie.serving.predicting import PredictionRequest, predict_file
from helpers.runs import IMAGES
from helpers.serving import people_run, write_people


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    run = people_run(folder, method="local", scale="client")
    return run, write_people(folder / "new.csv", rows=50, seed=5)


def test_a_file_is_predicted_row_by_row_as_the_models_say(people, tmp_path):
    run, path = people
    frame = pl.read_csv(path)
    out = tmp_path / "out.csv"
    seen = []
    wanted = PredictionRequest(data=path, out=out, client_column="site", keep=["verdict", "age"])
    count = predict_file(run.models(), wanted, lambda done, rows: seen.append((done, rows)))
    found = pl.read_csv(out)
    assert count == found.height == 150
    assert seen[-1] == (1.0, 150)
    assert found.columns[:4] == ["row", "client", "verdict", "age"]
    assert found["client"].to_list() == frame["site"].to_list()
    assert found["prediction"].to_list() == run.predict(frame, "site").tolist()
    shares = found.select("probability of sick", "probability of well").to_numpy()
    own = [run.model(row["site"]).predict_proba([row])[0] for row in frame[::20].to_dicts()]
    assert np.allclose(shares[::20], own, atol=1e-6)


def test_small_pieces_and_other_kinds_of_files_give_the_same(people, tmp_path, monkeypatch):
    run, path = people
    whole = tmp_path / "whole.csv"
    predict_file(run.models(), PredictionRequest(data=path, out=whole, client="site-1"))
    monkeypatch.setattr(chunks, "BYTES_PER_CHUNK", 700)  # a few rows
    monkeypatch.setattr(chunks, "ROWS_PER_CHUNK", 7)
    frame = pl.read_csv(path)
    forms = {name: tmp_path / name for name in ("a.csv", "b.csv.gz", "c.csv", "d.parquet")}
    forms["a.csv"].write_bytes(path.read_bytes())
    forms["b.csv.gz"].write_bytes(gzip.compress(path.read_bytes()))
    forms["c.csv"].write_text(path.read_text().replace(",", ";"), encoding="utf-16")
    frame.write_parquet(forms["d.parquet"])
    for name, form in forms.items():
        out, seen = tmp_path / f"{name}.out.csv", []
        wanted = PredictionRequest(data=form, out=out, client="site-1")
        predict_file(run.models(), wanted, lambda done, rows: seen.append(rows))
        # the same rows; a product of fewer rows may round its last digit otherwise
        pl.testing.assert_frame_equal(pl.read_csv(out), pl.read_csv(whole), rel_tol=1e-6)
        assert len(seen) > 3 or name in ("b.csv.gz", "c.csv")


def test_a_wrong_row_is_named_by_its_number_in_the_whole_file(people, tmp_path, monkeypatch):
    run, path = people
    monkeypatch.setattr(chunks, "BYTES_PER_CHUNK", 700)
    lines = path.read_text().splitlines()
    spoilt = tmp_path / "spoilt.csv"
    for row, cells, message in (
        (90, "site-1,40,3,cook,31.12.2024,True,sick", "'when' is '31.12.2024' in row 90, not a da"),
        (77, "site-7,40,3,cook,12/31/2024,True,sick", "'site' is 'site-7' in row 77, and the run"),
        (66, ",40,3,cook,12/31/2024,True,sick", "'site' is empty in row 66"),
    ):
        spoilt.write_text("\n".join([*lines[:row], cells, *lines[row + 1 :]]))
        out = tmp_path / "out.csv"
        with pytest.raises(BadInput) as told:
            predict_file(
                run.models(), PredictionRequest(data=spoilt, out=out, client_column="site")
            )
        assert message in str(told.value)
        assert not list(tmp_path.glob("out*"))  # nothing half is left


def test_nothing_is_overwritten_unasked(people, tmp_path):
    run, path = people
    out = tmp_path / "out.csv"
    out.write_text("mine")
    wanted = PredictionRequest(data=path, out=out, client="site-1")
    with pytest.raises(BadInput, match="exists already: give another --out, or --replace"):
        predict_file(run.models(), wanted)
    assert out.read_text() == "mine"
    predict_file(run.models(), wanted._replace(replace=True))
    assert out.read_text().startswith('"row","client"')
    for bad, message in (
        (wanted._replace(client=""), "give --client NAME"),
        (wanted._replace(out=tmp_path / "x.txt"), "end it in .csv or .parquet"),
        (wanted._replace(data=tmp_path / "none.csv", out=tmp_path / "o.csv"), "there is no file"),
        (wanted._replace(client="site-8", out=tmp_path / "o.csv"), "no client 'site-8'"),
        (wanted._replace(keep=["x"], out=tmp_path / "o.csv"), "no column 'x'"),
        (wanted._replace(data=out, replace=True), "holds the rows to predict"),
    ):
        with pytest.raises(BadInput, match=message):
            predict_file(run.models(), bad)


def test_arrays_are_predicted_from_npz_and_from_tables_of_numbers(tmp_path):
    run = coterie.run("local", out=tmp_path / "run", **IMAGES)
    x = np.random.default_rng(0).integers(0, 17, (9, 1, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "new.npz", x=x)
    names = [f"p{k}" for k in range(64)]
    table = pl.DataFrame(x.reshape(9, 64), schema=names).with_columns(id=pl.lit("z"))
    table.write_csv(tmp_path / "new.csv")
    want = run.model(2).predict(x).tolist()
    for data, keep in (("new.npz", []), ("new.csv", ["id"])):
        out = tmp_path / f"{data}.parquet"
        predict_file(
            run.models(), PredictionRequest(data=tmp_path / data, out=out, client="2", keep=keep)
        )
        assert pl.read_parquet(out)["prediction"].to_list() == want


@pytest.mark.parametrize("written", ["3.0", "3"])
def test_clients_whose_numbers_gaps_made_fractional_are_found(tmp_path, written):
    path = tmp_path / "train.csv"
    rows = [f"{k % 2 + 3}.0,{k % 7},{'yes' if k % 7 > 3 else 'no'}" for k in range(60)]
    path.write_text("\n".join(["site,a,label", *rows]))
    run = coterie.run("local", dataset=path, client="site", rounds=1, out=tmp_path / "run")
    new = tmp_path / "new.csv"
    new.write_text(f"site,a\n{written},5\n")
    out = tmp_path / "out.csv"
    predict_file(run.models(), PredictionRequest(data=new, out=out, client_column="site"))
    assert pl.read_csv(out)["client"].to_list() == [3]
