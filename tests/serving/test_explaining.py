"""Laws of `coterie explain`: what it fits, and that nothing of it comes from test rows."""

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

import coterie
from coterie.cli.main import cli
from coterie.core.errors import BadInput
from coterie.reports.explained_figures import build_explained_figures
from coterie.reports.gather import gather_evidence
from coterie.results.sureness import SURENESS
from coterie.serving.app import build_app
from coterie.serving.explaining import describe_sureness, explain_columns
from coterie.serving.model_files import export_model
from coterie.serving.onnx_files import OnnxWriter, build_feeds, synthesize_rows
from coterie.serving.request_rows import CSV
from coterie.serving.service import Service, ServiceLimits
from helpers.serving import asking

CLIENTS, ROWS = 4, 120


def write_table(path, kind="classes", seed=0, garbage=None):
    """Clients whose label is decided by `used`; `same` is constant. garbage: rows whose labels are
    turned or moved.
    """
    rng = np.random.default_rng(seed)
    used, spare = rng.normal(size=(2, CLIENTS * ROWS))
    noisy = 2 * used + 0.5 * rng.normal(size=len(used))
    label = np.where(noisy > 0, "yes", "no") if kind == "classes" else noisy.round(5)
    if garbage is not None and kind == "classes":
        label[garbage] = np.where(label[garbage] == "yes", "no", "yes")
    elif garbage is not None:
        label[garbage] += 100
    site = [f"site-{k % CLIENTS}" for k in range(len(used))]
    columns = {"site": site, "used": used, "spare": spare, "same": 1.0, "label": label}
    pl.DataFrame(columns).write_csv(path)
    return path


def trained(folder, table, **more):
    return coterie.run(
        "finetune",
        dataset=str(table),
        client="site",
        label="label",
        rounds=4,
        threads=1,
        compile="no",
        checkpoint=0,
        out=folder,
        **more,
    )


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    return trained(folder / "run", write_table(folder / "t.csv"))


def test_the_column_that_decides_matters_and_a_constant_one_does_not(classes):
    found = coterie.explain(classes)
    for one in found.clients:
        assert one.importance["same"] == 0
        assert one.importance["used"] > 0.2 > one.importance["spare"]
    (one,) = coterie.explain(classes, "site-1").clients
    used = next(d for d in one.dependence if d.column == "used")
    assert used.answers[-1, 1] - used.answers[0, 1] > 0.5


def test_sets_hold_the_truth_about_as_often_as_asked_and_the_model_knows_them(classes):
    found = coterie.explain(classes, confidence=0.9)
    sure = [one.sureness for one in found.clients]
    assert sum(s.covered for s in sure) / sum(s.tested for s in sure) > 0.8
    assert all(s.rows == 24 and s.is_own for s in sure)  # 20 % of the rows
    model = coterie.load(classes.folder, "site-2")
    rows = {"used": [-3.0, 0.0, 3.0], "spare": [0.0] * 3, "same": [1.0] * 3}
    assert model.predict_set(rows)[0] == ["no"]
    assert model.predict_set(rows)[2] == ["yes"]
    calibrated = model.predict_calibrated(rows)
    assert (calibrated.argmax(1) == model.predict_proba(rows).argmax(1)).all()


def test_nothing_that_is_fitted_comes_from_test_rows(tmp_path):
    """Other labels of test rows: the same temperatures and quantiles, and no row is covered."""
    before = trained(tmp_path / "a", write_table(tmp_path / "a.csv", "numbers"), task="regression")
    listed = pl.read_parquet(before.folder / "rows.parquet")
    test = listed.filter(pl.col("part") == "test")["row"].to_numpy()
    table = write_table(tmp_path / "b.csv", "numbers", garbage=test)
    after = trained(tmp_path / "b", table, task="regression")
    first, second = (
        [one.sureness for one in coterie.explain(run).clients] for run in (before, after)
    )
    assert [s.quantile for s in first] == [s.quantile for s in second]
    assert sum(s.covered for s in first) > 0.75 * sum(s.tested for s in first)
    assert sum(s.covered for s in second) == 0
    low, high = coterie.load(before.folder, 0).predict_interval(
        {"used": [1.0], "spare": [0.0], "same": [1.0]}
    )[0]
    assert high - low == pytest.approx(2 * first[0].quantile, rel=1e-4)


def test_one_changed_digit_of_what_was_fitted_is_refused(classes):
    path, rows = classes.folder / SURENESS, {"used": [0.0], "spare": [0.0], "same": [1.0]}
    coterie.explain(classes)
    whole = path.read_text()
    for key in ("temperature", "quantile", "version"):
        at = whole.index(f'"{key}": ') + len(key) + 4
        at += whole[at] == "0" and 2  # the digit behind "0."
        path.write_text(whole[:at] + str((int(whole[at]) + 1) % 10) + whole[at + 1 :])
        with pytest.raises(BadInput, match="not as it was written"):
            coterie.load(classes.folder, 0).predict_set(rows)
    path.write_text(whole)
    coterie.load(classes.folder, 0).predict_set(rows)


def test_http_says_what_predict_sure_says(classes, tmp_path):
    coterie.explain(classes)
    model, rows = coterie.load(classes.folder, "site-1"), [{"used": 0.4, "spare": 0.0, "same": 1.0}]
    service = Service(classes.folder, None, ServiceLimits())
    with asking(build_app(service)) as client:
        address = "/clients/site-1/predict"
        plain = client.post(address, json={"rows": rows}).json()
        sure = client.post(address, params={"sure": "true"}, json={"rows": rows}).json()
        table = client.post(
            address, params={"sure": "true"}, json={"rows": rows}, headers={"accept": CSV}
        )
        odd = client.post(address, params={"sure": "maybe"}, json={"rows": rows})
        schema = client.get("/openapi.json").json()["components"]["schemas"]["Answer"]
    assert set(sure) - set(plain) == {"confidence", "sets"}
    calibrated = np.array(sure["probabilities"])
    assert calibrated == pytest.approx(model.predict_calibrated(rows))
    assert calibrated != pytest.approx(np.array(plain["probabilities"]))
    assert sure["sets"] == model.predict_set(rows)
    assert table.text.splitlines()[0].endswith("set")
    assert odd.status_code == 422
    assert "sure is true or false" in odd.text
    assert set(sure) <= set(schema["properties"])
    assert set(plain) == set(schema["required"])


def test_http_refuses_what_was_not_fitted_without_naming_folders(tmp_path):
    run = trained(tmp_path / "run", write_table(tmp_path / "t.csv", "numbers"), task="regression")
    rows = [{"used": 0.4, "spare": 0.0, "same": 1.0}]
    with asking(build_app(Service(run.folder, None, ServiceLimits()))) as client:

        def ask():
            return client.post(
                "/clients/site-1/predict", params={"sure": "true"}, json={"rows": rows}
            )

        before = ask()
        assert before.status_code == 422
        assert "coterie explain" in before.text
        assert str(tmp_path) not in before.text
        coterie.explain(run)
        after = ask().json()
    ends = coterie.load(run.folder, "site-1").predict_interval(rows)
    assert after["intervals"] == [pytest.approx(pair) for pair in ends.tolist()]
    assert after["confidence"] == 0.9


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_an_onnx_graph_says_how_sure_it_is(kind, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    more = {} if kind == "classes" else {"task": "regression"}
    run = trained(tmp_path / "run", write_table(tmp_path / "t.csv", kind), **more)
    coterie.explain(run)
    model = coterie.load(run.folder, "site-1")
    where = export_model(model, tmp_path / "onnx", OnnxWriter())
    session = runtime.InferenceSession(where / "model.onnx")
    rows = synthesize_rows(model.intake)
    said = dict(
        zip(
            (o.name for o in session.get_outputs()),
            session.run(None, build_feeds(model.intake, rows)),
            strict=True,
        )
    )
    if kind == "classes":
        assert said["calibrated"] == pytest.approx(model.predict_calibrated(rows), abs=1e-5)
        edge = np.abs(1 - model.predict_proba(rows) - model.sureness.quantile) < 1e-5
        sets = [model.classes_[row].tolist() for row in said["in_set"]]
        clear = np.flatnonzero(~edge.any(1))
        assert [sets[k] for k in clear] == [model.predict_set(rows)[k] for k in clear]
    else:
        ends = np.stack([said["low"].ravel(), said["high"].ravel()], axis=1)
        assert ends == pytest.approx(model.predict_interval(rows), rel=1e-4, abs=1e-4)


def test_what_was_not_fitted_or_cannot_be_is_refused(classes, tmp_path):
    fresh = trained(tmp_path / "run", write_table(tmp_path / "t.csv"))
    with pytest.raises(BadInput, match="coterie explain"):
        coterie.load(fresh.folder, 0).predict_set({"used": [0.0], "spare": [0.0], "same": [1.0]})
    with pytest.raises(BadInput, match="confidence = 1"):
        coterie.explain(fresh, confidence=1.0)
    write_table(tmp_path / "t.csv", seed=1)
    pl.read_csv(tmp_path / "t.csv").head(400).write_csv(tmp_path / "t.csv")
    with pytest.raises(BadInput, match="changed"):
        coterie.explain(fresh)
    assert not (fresh.folder / SURENESS).exists()


def test_a_client_with_one_test_row_is_explained_without_numbers_that_are_none(tmp_path):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"site": [f"s{k % 6}" for k in range(30)], "x": rng.normal(size=30)})
    frame = frame.with_columns(label=pl.col("x") * 2 + 0.5)
    frame.write_csv(tmp_path / "t.csv")
    run = trained(tmp_path / "run", tmp_path / "t.csv", task="regression")
    said = CliRunner().invoke(cli, ["explain", str(run.folder), "--client", "s1"]).output
    assert "importance of columns: s1; 1 test row\n" in said
    assert "there is none" in said
    assert "nan" not in said


def test_a_report_says_calibration_and_coverage_once_they_are_measured(tmp_path):
    run = trained(tmp_path / "run", write_table(tmp_path / "t.csv"))
    explain_columns(run.folder)  # as a comparison does: nothing of it
    (figure,) = build_explained_figures(gather_evidence([run.folder]))
    assert "hold the truth" not in figure.note
    lines = describe_sureness(coterie.explain(run))
    assert lines[0].startswith("Calibration: the gap")
    (figure,) = build_explained_figures(gather_evidence([run.folder]))
    assert figure.note.endswith(" ".join(lines))
