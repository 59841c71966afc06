"""No table explodes at the default learning rate, whatever the method; what diverges all the same
is said in one line, in the answer, in the table and in the exit code.
"""

import csv
import warnings
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from click.testing import CliRunner

import coterie
from coterie.cli.main import cli
from coterie.core.errors import BadInput
from coterie.core.method import Batch
from coterie.core.model import Model
from coterie.experiment.config import Experiment, change_options
from coterie.methods.registry import METHODS
from coterie.running.assembly import assemble, bounded_rate_of, load_federation, open_loop
from coterie.running.divergence import EXPLODED
from helpers.federations import tiny

WORDS = {"dataset.client": "who", "dataset.label": "y", "rounds": 5, "engine.compile": "no"}
SITES = "python:federation"  # what real sites call their data
COLUMNS = {"client": "who", "label": "y"}


def write_table(path, tails, unit=1.0, rows=24):
    """Twelve columns that are nearly one, with far outliers; the last client has few rows."""
    rng, found = np.random.default_rng(0), []
    for client in range(5):
        n = 8 if client == 4 else rows
        common = tails(rng, (n, 1))
        x = common * rng.normal(1, 0.1, (1, 12)) + 0.05 * rng.normal(size=(n, 12))
        y = unit * (x[:, 0] / 2 + rng.normal(0, 1, n) + client)
        found += [(f"c{client}", *row, value) for row, value in zip(x, y, strict=True)]
    names = ["who", *(f"m{k}" for k in range(12)), "y"]
    pl.DataFrame(found, schema=names, orient="row").write_csv(path)
    return path


def cauchy(rng, shape):
    return rng.standard_cauchy(shape)


def lognormal(rng, shape):
    return np.exp(rng.normal(0, 1, shape))


@pytest.fixture(scope="module")
def heavy(tmp_path_factory):
    """A regression with heavy tails, read once."""
    path = write_table(tmp_path_factory.mktemp("tables") / "heavy.csv", cauchy)
    experiment = change_options(Experiment(), {"dataset.name": str(path), **WORDS})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return experiment, load_federation(experiment)


def play(heavy, method, **settings):
    experiment, federation = heavy
    loop = open_loop(
        assemble(change_options(experiment, {"method": method} | settings), federation)
    )
    said = []
    loop.go(lambda _, report: said.extend(report.said))
    return loop.latest.measured["personal", "train", "loss"], said


@pytest.mark.parametrize("method", sorted(METHODS))
def test_no_method_explodes(heavy, method):
    try:
        loss, said = play(heavy, method)
    except BadInput:  # it learns classes alone, or needs more than a table
        return
    assert not [line for line in said if "(said once)" in line]  # UCFL may remark on its weights
    assert (loss < EXPLODED).all()


def test_without_the_bound_the_same_table_explodes(heavy):
    loss, said = play(heavy, "local", bound_steps="no")
    assert not (loss < EXPLODED).all()
    assert len(said) == 1
    assert said[0].endswith("lower --lr (said once)")


def test_a_step_is_at_most_polyaks():
    federation = tiny()
    rows = federation.x[:4].float()
    batch = Batch(rows, federation.y[:4] % 3, torch.ones(4), torch.arange(4), torch.tensor(0))
    width = rows[0].numel()
    model = Model(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(width, 3)))
    w = model.start(0)
    g, loss = model.grad_and_loss(w, batch)
    most = 2 * float(loss) / float(g.squared())
    assert torch.equal(
        model.with_bound(0.9 * most).grad(w, batch).params["1.weight"], g.params["1.weight"]
    )
    bounded = model.with_bound(100 * most).grad(w, batch)
    assert torch.allclose(100 * bounded.params["1.weight"], g.params["1.weight"], rtol=1e-4)


@pytest.mark.parametrize("unit", [1e6, 1e-6])
def test_units_of_the_label_change_nothing_but_the_unit(unit, tmp_path):
    found = []
    for scale in (1.0, unit):
        path = write_table(tmp_path / f"{scale}.csv", lognormal, scale)
        run = coterie.run(
            "local",
            dataset=str(path),
            task="regression",
            rounds=3,
            out=tmp_path / str(scale),
            **COLUMNS,
        )
        found.append(run.client_values())
    assert np.allclose(found[1], unit * found[0], rtol=1e-3)


def test_real_sites_are_bounded_and_registered_data_sets_are_not(heavy):
    experiment, federation = heavy
    named = {name: replace(experiment, dataset={"name": name}) for name in (SITES, "uci-har")}
    assert bounded_rate_of(named[SITES], federation) == experiment.train.lr
    assert bounded_rate_of(named["uci-har"], federation) == 0
    momentum = change_options(experiment, {"momentum": 0.9})
    assert bounded_rate_of(momentum, federation) == pytest.approx(10 * experiment.train.lr)


def test_what_cannot_be_bounded_is_refused(heavy):
    with pytest.raises(BadInput, match="optimizer = adam"):
        play(heavy, "local", bound_steps="yes", optimizer="adam", lr=0.01)


def test_divergence_is_in_answer_table_report_and_exit_code(tmp_path):
    path = write_table(tmp_path / "heavy.csv", cauchy)
    settings = [
        "--client",
        "who",
        "--label",
        "y",
        "--task",
        "regression",
        "--rounds",
        "3",
        "--out",
        str(tmp_path / "out"),
    ]
    wild = ["--local.bound-steps", "no", "--local.lr", "1"]
    said = CliRunner().invoke(
        cli,
        ["compare", str(path), "--methods", "local,fedavg", *wild, "--quiet", *settings],
    )
    assert said.exit_code == 3
    assert "local diverged for 3 of 5" in " ".join(said.output.split())
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "diverged" in page
    table = (tmp_path / "out" / "table.csv").read_text(encoding="utf-8")
    rows = {r["method"]: r for r in csv.DictReader(table.splitlines())}
    assert rows["local"]["diverged"]
    assert not rows["fedavg"]["diverged"]
