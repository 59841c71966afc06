"""A task is one record: a new one is learnt, reported, predicted and served, and nothing else knows
of it.
"""

import csv
import json

import numpy as np
import pytest

from coterie.core.task import NUMBER, OF_NUMBERS, TASKS, Goal, Task, regression
from coterie.deploy.config_files import DataShape, check_shape
from coterie.results.run import load_run
from coterie.serving.app import build_app
from coterie.serving.service import Service, ServiceLimits
from helpers.serving import asking

CLIENTS, ROWS = ("north", "south", "east"), 60
RUN = ("--model", "mlr", "--rounds", "30", "--lr", "0.05", "--threads", "1", "--quiet")


def absolute(centre: float, spread: float) -> Goal:
    """The absolute error of a standardised number, whose best constant is the median."""
    return regression(centre, spread)._replace(
        name="absolute", losses=lambda out, y: (out.squeeze(-1) - y).abs()
    )


RECORD = Task(
    name="absolute",
    form=NUMBER,
    goal=lambda centre, spread, weights: absolute(centre, spread),
    scores=OF_NUMBERS,
    probe="r2",
    is_standardised=True,
)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table of numbers, one row in ten of them far off, and the task in the registry."""
    monkeypatch.setitem(TASKS, "absolute", RECORD)
    rng = np.random.default_rng(0)
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "a", "price"])
        for k in range(len(CLIENTS) * ROWS):
            a = rng.normal()
            far = 5000 * (k % 10 == 0)
            writer.writerow(
                [CLIENTS[k % len(CLIENTS)], f"{a:.4f}", f"{1e3 + 50 * a + far + rng.normal():.2f}"]
            )
    return path


def settings(path, task="absolute"):
    return ("--dataset", str(path), "--client", "client", "--label", "price", "--task", task, *RUN)


def test_a_task_of_one_record_is_run_predicted_and_served(table, coterie, tmp_path):
    code, out, errors = coterie("run", "fedavg", *settings(table), "--out", "run")
    assert code == 0, errors
    assert "test absolute error of 3 clients" in out
    run = load_run(tmp_path / "run")
    assert (run.task, run.measure) == ("absolute", "mae")
    assert set(run.scores()) == {"rmse", "r2", "pinball"}
    assert run.knows_nothing == "always guessing the median of a client's training rows"

    new = tmp_path / "new.csv"
    new.write_text("client,a\nnorth,0\nsouth,1\n")
    code, _, errors = coterie(
        "predict", "run", "--data", str(new), "--client-column", "client", "--out", "said.csv"
    )
    assert code == 0, errors
    rows = csv.DictReader((tmp_path / "said.csv").read_text().splitlines())
    said = [float(row["prediction"]) for row in rows]
    assert said == pytest.approx([1000, 1050], abs=150)  # as a median; the mean is 1500

    service = Service(tmp_path / "run", None, ServiceLimits())
    items = service.openapi["components"]["schemas"]["Answer"]["properties"]["predictions"]["items"]
    assert items == {"type": "number"}
    with asking(build_app(service)) as client:
        answer = client.post("/clients/north/predict", json={"rows": [{"a": 0}]})
        card = client.get("/clients/north/card").json()
    assert answer.json() == {"client": "north", "predictions": [pytest.approx(said[0])]}
    assert card["task"] == "absolute"


def test_a_task_of_one_record_is_compared_and_reported(table, coterie, tmp_path):
    code, out, errors = coterie(
        "compare", "--methods", "local,fedavg,fml", *settings(table), "--wide", "--out", "all"
    )
    assert code == 0, errors
    assert "(guessing)" in out
    code, _, errors = coterie("report", "all", "--out", "page.html", "--files", "files")
    assert code == 0, errors
    assert "absolute error" in (tmp_path / "page.html").read_text(encoding="utf-8")
    kept = json.loads(next((tmp_path / "all").rglob("run.json")).read_text(encoding="utf-8"))
    assert set(kept["trivial"]) == set(OF_NUMBERS)


def test_options_and_refusals_know_a_task_of_one_record(table, coterie):
    code, _, errors = coterie("run", "local", *settings(table, "nonsense"), "--out", "no")
    assert code == 2
    assert (
        "give classes, binary, regression, huber, quantile, counts, ordinal, multilabel, " in errors
    )
    assert "survival, causal_lm or absolute" in errors
    code, _, errors = coterie("run", "ktpfl", *settings(table), "--out", "no")
    assert "ktpfl mixes class probabilities, but the task of mlr is 'absolute'" in errors
    head, *rows = table.read_text().splitlines()
    table.write_text("\n".join([f"{head},where", *(f"{row},shop" for row in rows)]))
    code, _, errors = coterie("run", "local", *settings(table), "--label", "where", "--out", "no")
    assert "'where' holds text, so it is no absolute; use --task classes" in errors
    shape = DataShape(classes=0, features=1, task="absolute")
    check_shape(shape)
    assert shape.sums == 1  # sites tell mean and deviation of the label
