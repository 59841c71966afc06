"""Sites learn any task as a simulation does, and predict with what they have learnt meanwhile."""

import csv
import json
import warnings

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open

from coterie.cli.deployment import federation as commands
from coterie.cli.main import main
from coterie.core.errors import BadInput
from coterie.data.messages import DataWarning
from coterie.deploy.config_files import (
    Limits,
    Privacy,
    check_server,
    read_server,
    read_site,
    write_site,
)
from coterie.deploy.current_model import MODEL
from coterie.deploy.replay import gather_sites, largest_difference, replay
from coterie.deploy.scales import parse_scales
from coterie.experiment.config import Experiment, change_options
from coterie.results.metric_table import values_of
from coterie.results.personal_models import SingleModel
from coterie.running.divergence import find_unmeasurable
from coterie.running.execute import execute
from helpers.sites import NAMES, open_sites
from helpers.town import EXACT

# isort: split
from coterie.deploy import server_app

COLUMNS = ["a", "b"]
TARGETS = {
    "regression": lambda x, rng: {"y": (1e3 + 50 * x[:, 0] + rng.normal(size=len(x))).round(3)},
    "counts": lambda x, rng: {"y": rng.poisson(np.exp(1 + 0.5 * x[:, 0]))},
    "binary": lambda x, rng: {"y": np.where(x[:, 0] > 0, "ill", "well")},
    "ordinal": lambda x, rng: {"y": 1 + (x[:, :1] > (-0.5, 0.5)).sum(1)},
    "survival": lambda x, rng: {
        "y": rng.exponential(np.exp(-x[:, 0])).round(3),
        "z": rng.integers(0, 2, len(x)),
    },
    "multilabel": lambda x, rng: {"y": (x[:, 0] > 0) * 1, "z": (x[:, 1] > 1e3) * 1},
}
WORDS = {"method": "ditto", "model": "dnn", "hidden": 4, "rounds": 3, "batch_size": 8, "lr": 0.05}


def tables(folder, task):
    """One file per site with columns on different scales."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    for k, name in enumerate(NAMES):
        x = rng.normal(size=(40 + 10 * k, 2)) + k / 4
        targets = TARGETS[task](x := np.column_stack([x[:, 0], 1e3 + 7 * x[:, 1]]).round(4), rng)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*COLUMNS, *targets])
            writer.writerows(np.column_stack([x.astype(str), *targets.values()]).tolist())
    return ",".join(targets)


def made(folder, task, *more, limits=EXACT):
    """The folders of a deployment, by the command of its operators."""
    label = tables(folder / "rows", task)
    like = str(folder / "rows" / "east.csv")
    settings = [
        "init",
        str(folder / "all"),
        "--sites",
        ",".join(NAMES),
        "--address",
        "localhost:8443",
    ]
    settings += ["--like", like, "--label", label, "--task", task, *more]
    settings += [part for option, v in WORDS.items() for part in (f"--{option}", str(v))]
    found = CliRunner().invoke(commands, settings, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    for name in NAMES:
        place = folder / "all" / "sites" / name
        site = read_site(place)
        data = str(folder / "rows" / f"{name}.csv")
        write_site(place, site._replace(site=site.site._replace(data=data), limits=limits))
    return folder / "all", label


def simulated(folder, task, label):
    """The same rows and words in a simulation."""
    settings = WORDS | {"dataset": str(folder / "rows"), "label": label, "task": task, "threads": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # the label is made of column a
        return execute(change_options(Experiment(), settings), folder / "simulated")


@pytest.mark.parametrize("task", list(TARGETS))
def test_sites_learn_any_task_as_a_simulation_does(task, tmp_path):
    place, label = made(tmp_path, task)
    with open_sites(place) as (grid, _):
        run = server_app.play(grid, place / "server", lambda line: None)
    whole = simulated(tmp_path, task, label)
    assert run.about["task"] == whole.about["task"] == task
    metric = "mae" if task in ("regression", "counts") else "accuracy"
    for part in ("test", "validation"):
        mine, theirs = (values_of(r.table, metric, part)[1] for r in (run, whole))
        np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    rows = gather_sites(tmp_path / "rows", read_server(place / "server"), label)
    again = replay(place / "server" / "run", rows)
    files = {i: place / "sites" / name / MODEL for i, name in enumerate(NAMES)}
    assert largest_difference(again, files) == 0


@pytest.mark.parametrize("privacy", [Privacy(), Privacy(measures=False)])
def test_a_site_that_keeps_its_scores_is_not_said_to_diverge(privacy, tmp_path):
    """Parts of fewer than 10 rows are not told of, and with measures = false none is."""
    place, _ = made(tmp_path, "regression", limits=Limits())
    east = place / "sites" / "east"
    write_site(east, read_site(east)._replace(privacy=privacy))
    lines = []
    with open_sites(place) as (grid, _):
        run = server_app.play(grid, place / "server", lines.append)
    assert run.diverged_clients == []
    assert not any("not finite" in line for line in lines)
    lost = {("personal", "test", "loss"): np.full(3, np.nan)}
    rows = gather_sites(tmp_path / "rows", read_server(place / "server"), "y")
    assert find_unmeasurable(lost, rows, lambda part: {1}) == {"test": [0, 2]}


def test_a_site_predicts_what_its_model_says_of_rows_as_they_are(tmp_path, monkeypatch):
    place, _ = made(tmp_path, "regression")
    seen = []

    def look(line):
        """In the middle of the run, as another process would."""
        if "round 2 of" in line:
            seen.append(SingleModel(place / "sites" / "north" / MODEL).model("north"))

    with open_sites(place) as (grid, _):
        server_app.play(grid, place / "server", look)
    (during,) = seen
    assert "after round" in during.card["when"]
    new = tmp_path / "new.csv"
    new.write_text("b,a\n1000,0\n1010,2\n,1\n")  # another order, and a cell that is missing
    out = tmp_path / "out.csv"
    settings = ["predict", str(place / "sites" / "north"), "--data", str(new), "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["coterie", *settings])
    main()
    said = [float(row["prediction"]) for row in csv.DictReader(out.read_text().splitlines())]
    model = SingleModel(place / "sites" / "north" / MODEL).model("north")
    centre, spread, target, _ = json.loads((place / "server" / "run" / "scales.json").read_text())
    cells = torch.tensor([[0.0, 1000.0], [2.0, 1010.0]], dtype=torch.float64)
    inputs = (cells - torch.tensor(centre)) / torch.tensor(spread)
    with torch.no_grad():
        mine = model(inputs.float()).double()[:, 0] * target[1] + target[0]
    np.testing.assert_allclose(said[:2], mine.numpy(), rtol=1e-5)
    assert 900 < said[2] < 1200
    value = {m["part"]: m["value"] for m in model.card["measured"] if m["metric"] == "mae"}
    run = server_app.load_run(place / "server" / "run")
    assert value["test"] == pytest.approx(
        values_of(run.table, "mae", "test")[1][NAMES.index("north")]
    )


def test_the_file_of_a_site_says_nothing_of_the_other_sites(tmp_path):
    place, _ = made(tmp_path, "binary")
    with open_sites(place) as (grid, _):
        server_app.play(grid, place / "server", lambda line: None)
    with safe_open(place / "sites" / "north" / MODEL, "pt") as file:
        text = file.metadata()["coterie"]
    assert "north" in text
    assert "south" not in text
    assert SingleModel(place / "sites" / "north" / MODEL).model("north").classes_.tolist() == [
        "ill",
        "well",
    ]
    with pytest.raises(BadInput, match="the model of 'north', not of 'east'"):
        SingleModel(place / "sites" / "north" / MODEL).model("east")


@pytest.mark.parametrize(
    ("task", "change", "line"),
    [
        ("regression", {"classes": 3}, "task = regression has none"),
        ("regression", {"labels": ("a",)}, "task = regression has none"),
        ("binary", {"classes": 3, "labels": ()}, "from 2 to 2"),
        ("ordinal", {"classes": 2, "labels": ()}, "from 3 to"),
        ("multilabel", {"labels": ("y",)}, "must name the columns"),
        ("multilabel", {"labels": ("y", "y")}, "each once"),
    ],
)
def test_a_shape_that_the_task_cannot_have_is_refused(task, change, line, tmp_path):
    server = read_server(made(tmp_path, task)[0] / "server")
    with pytest.raises(BadInput, match=line):
        check_server(server._replace(data=server.data._replace(**change)))


def test_noise_does_not_cover_the_mean_of_a_label(tmp_path):
    server = read_server(made(tmp_path, "counts", "--scale", "none")[0] / "server")
    with pytest.raises(BadInput, match="mean and deviation of the label"):
        check_server(server._replace(privacy=Privacy(1.0, 1.0)))


@pytest.mark.parametrize(
    ("task", "cell", "line"),
    [
        ("counts", "-1", "which is no count"),
        ("regression", "much", "so it is no regression"),
        ("ordinal", "9", "which this deployment does not know"),
        ("multilabel", "2", "0 or 1 each"),
    ],
)
def test_a_site_with_a_label_of_another_task_is_refused_by_name(task, cell, line, tmp_path):
    place, label = made(tmp_path, task)
    rows = (tmp_path / "rows" / "south.csv").read_text().splitlines()
    cells = rows[1].split(",")
    cells[2] = cell
    (tmp_path / "rows" / "south.csv").write_text("\n".join([rows[0], ",".join(cells), *rows[2:]]))
    with pytest.raises(BadInput, match=line):
        gather_sites(tmp_path / "rows", read_server(place / "server"), label)


@pytest.mark.parametrize(
    "given", [[[], [], [1.0]], [[], [], [1.0, 0.0]], [[], [], [1.0, -1.0]], [[]] * 5]
)
def test_a_scale_of_the_label_that_makes_no_sense_is_refused(given):
    with pytest.raises(BadInput, match="the scale of the columns"):
        parse_scales(given)
