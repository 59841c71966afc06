"""Comparisons: the same data and seeds for all, tuning by validation alone, one table, going on
after a stop.
"""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import coterie
from coterie.analysis.tiles import summarize_answer
from coterie.cli.show import show_comparison
from coterie.comparison.execute import compare, resume_comparison
from coterie.comparison.plan import plan_experiments, plan_of, read_plan
from coterie.core.errors import BadInput
from coterie.experiment.config import Experiment, change_options
from coterie.results.folder import read_status
from coterie.results.metric_table import curve_of, values_of
from coterie.results.models import read_checksums
from coterie.results.run import load_run
from helpers.federations import tiny
from helpers.runs import IMAGES, Stopped, arrays, results, settings_written

WORDS = IMAGES | {"rounds": 2, "eval_every": 1}
FAST = {"path": "vectorized", "width": 20, "compile": "no", "threads": 1}


def base(**settings) -> Experiment:
    return change_options(Experiment(method=""), WORDS | settings)


def runs_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if (p / "run.json").exists())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Three methods, two seeds, one option of a method's own and one grid."""
    folder = tmp_path_factory.mktemp("comparison") / "one"
    grids = {"ditto": {"lam": [0.01, 1.0], "lr": [0.05]}}
    planned = plan_experiments(
        ["local", "fedavg", "ditto"], base(), {"fedavg": {"beta": 0.5, "lr": 0.2}}, grids
    )
    return compare(planned, [3, 5], folder, grids=grids)


def test_all_methods_of_a_seed_have_the_same_data_and_budget(finished):
    for k, seed in enumerate((3, 5)):
        runs = [runs[k] for runs in finished.runs.values()]
        assert len({run.about["data"] for run in runs}) == 1
        assert len({str(run.about["rows"]) for run in runs}) == 1
        assert {run.experiment.seed for run in runs} == {seed}
        assert len({run.experiment.schedule for run in runs}) == 1
    assert finished.runs["local"][0].about["data"] != finished.runs["local"][1].about["data"]


def test_data_of_one_seed_are_the_same_for_all_seeds_if_they_have_a_seed_of_their_own(tmp_path):
    planned = plan_experiments(["local"], base(**{"dataset.seed": 7, "rounds": 1, "models": False}))
    found = compare(planned, [0, 1], tmp_path / "c")
    first, second = found.runs["local"]
    assert first.about["data"] == second.about["data"]
    assert not np.array_equal(first.accuracy("train"), second.accuracy("train"))


def write_clinics(path: Path) -> Path:
    """A table of four clinics that differ, so that every client is who the data say."""
    rng = np.random.default_rng(0)
    x, clinic = rng.normal(size=(240, 2)), np.arange(240) % 4
    y = (x[:, 0] * (1 - 2 * (clinic % 2)) > 0).astype(int)
    lines = [f"{a:.6f},{b:.6f},c{k},{t}" for (a, b), k, t in zip(x, clinic, y, strict=True)]
    path.write_text("\n".join(["age,dose,clinic,outcome", *lines]) + "\n")
    return path


def test_clients_that_the_data_name_are_the_same_in_every_seed_and_counted_once(tmp_path):
    """Each seed tests other rows of them; so a client is the mean of its seeds."""
    table = write_clinics(tmp_path / "clinics.csv")
    own = {"dataset": str(table), "client": "clinic", "label": "outcome"}
    settings = change_options(Experiment(method=""), own | FAST | {"rounds": 2})
    found = compare(plan_experiments(["local", "fedavg"], settings), [0, 1], tmp_path / "c")
    first, second = found.runs["local"]
    assert first.about["data"] != second.about["data"]
    assert found.fixed_partition
    assert found.difference("local", "fedavg").population == "clients"
    assert found.difference("local", "fedavg").n == 4
    answer = found.answer
    claim = answer.claim
    assert (claim.of, claim.difference.n, answer.choice.population) == (4, 4, "clients")
    assert found.ranks().n == 4
    assert "partition" not in str(answer)


def test_clients_that_a_seed_makes_are_not_those_of_another_seed(finished):
    assert not finished.fixed_partition
    assert finished.difference("local", "fedavg").population == "seeds"
    assert finished.answer.claim.of == 2 * len(finished.first.rows)
    tiles = {tile.label: tile.note for tile in summarize_answer(finished.answer).tiles}
    assert tiles["clients"].startswith(f"of {finished.answer.claim.of} clients of 2 partitions")
    assert tiles["gain over fedavg"].startswith("95 %, 2 seeds: [")


def test_tuning_measures_no_test_part_and_takes_the_best_of_validation(finished):
    folder = finished.folder / "tuning" / "ditto"
    tried = runs_of(folder)
    assert [p.name for p in tried] == ["try1-seed3", "try1-seed5", "try2-seed3", "try2-seed5"]
    scores = {}
    for path in tried:
        run = load_run(path)
        assert set(run.table["part"].to_pylist()) == {"", "validation"}  # "": costs and notes
        assert not (path / "models").exists()
        scores.setdefault(run.experiment.options["lam"], []).append(
            np.mean(run.accuracy("validation"))
        )
    report = json.loads((folder / "tuning.json").read_text())
    assert [t["options"] for t in report["tried"]] == [
        {"lam": 0.01, "lr": 0.05},
        {"lam": 1.0, "lr": 0.05},
    ]
    assert [t["validation"] for t in report["tried"]] == [scores[0.01], scores[1.0]]
    best = max(scores, key=lambda lam: np.mean(scores[lam]))
    assert report["best"] == {"lam": best, "lr": 0.05}
    for run in finished.runs["ditto"]:
        assert run.experiment.options["lam"] == best
        assert run.experiment.train.lr == 0.05
        assert "test" in run.table["part"].to_pylist()


def test_garbage_in_the_test_part_does_not_change_what_tuning_chooses(tmp_path):
    good = tiny(validation=8)
    y = good.y.clone()
    for rows in good.test:
        y[rows] = (y[rows] + 1) % 3
    for name, data in (("good", good), ("bad", good._replace(y=y))):
        settings = FAST | {"rounds": 2, "batch_size": 4}
        tune = {"ditto": {"lam": [0.0, 3.0]}}
        coterie.compare(
            ["ditto"],
            dataset=data,
            model=lambda: nn.Linear(6, 3),
            tune=tune,
            out=tmp_path / name,
            **settings,
        )
    files = [
        (tmp_path / name / "tuning" / "ditto" / "tuning.json").read_text()
        for name in ("good", "bad")
    ]
    assert files[0] == files[1]
    results_ = [load_run(tmp_path / name / "ditto-seed0").accuracy() for name in ("good", "bad")]
    assert not np.array_equal(*results_)


def test_the_table_is_computed_from_the_runs(finished):
    rows = {row.method: row for row in finished.rows()}
    assert list(rows) == ["local", "fedavg", "ditto"]
    runs = finished.runs["ditto"]
    means = [run.accuracy().mean() for run in runs]
    assert rows["ditto"].mean == pytest.approx(np.mean(means))
    assert rows["ditto"].spread == pytest.approx(np.std(means, ddof=1))
    assert rows["ditto"].worst == pytest.approx(np.mean([run.accuracy().min() for run in runs]))
    weighted = [(run.accuracy() * run.rows).sum() / run.rows.sum() for run in runs]
    assert rows["ditto"].weighted == pytest.approx(np.mean(weighted))
    assert rows["ditto"].select == pytest.approx(
        np.mean([run.accuracy("select").mean() for run in runs])
    )
    assert rows["local"].bytes_up == 0
    half = 12.7062 * np.std(means, ddof=1) / np.sqrt(2)  # t(.975, 1)
    assert (rows["ditto"].low, rows["ditto"].high) == pytest.approx(
        (np.mean(means) - half, np.mean(means) + half), abs=1e-5
    )
    assert rows["fedavg"].bytes_broadcast == rows["fedavg"].bytes_up / 4
    size = 64 * 6 + 6 + 60 + 10
    assert (
        rows["fedavg"].bytes_up == rows["fedavg"].bytes_down == 2 * 4 * 4 * size
    )  # rounds, clients, bytes
    assert finished.accuracy("local").shape == (2, 4)


def test_csv_files_hold_the_table_and_every_client(finished):
    with (finished.folder / "table.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["method"] for row in table] == ["local", "fedavg", "ditto"]
    assert float(table[2]["mean"]) == finished.rows()[2].mean
    with (finished.folder / "clients.csv").open() as file:
        clients = list(csv.DictReader(file))
    assert len(clients) == 3 * 2 * 4
    assert {(row["method"], row["seed"], row["client"]) for row in clients} >= {
        ("ditto", "5", "3"),
        ("local", "3", "0"),
    }
    found = [
        float(row["test_accuracy"])
        for row in clients
        if (row["method"], row["seed"]) == ("ditto", "5")
    ]
    assert found == pytest.approx(finished.accuracy("ditto")[1], abs=1e-6)


def test_models_of_every_run_are_kept(finished):
    for name, runs in finished.runs.items():
        for run in runs:
            files = list((run.folder / "models").glob("*.safetensors"))
            assert len(files) == (1 if name == "fedavg" else 4)
            assert len(read_checksums(run.folder)) == 4
    assert isinstance(finished.runs["ditto"][1].model(2).module, nn.Module)


def test_a_comparison_is_read_from_its_folder(finished):
    again = coterie.load(finished.folder)
    assert list(again.runs) == ["local", "fedavg", "ditto"]
    assert [row[:-1] for row in again.rows()] == [
        row[:-1] for row in finished.rows()
    ]  # all but the seconds are exact


def test_a_run_of_a_comparison_equals_the_run_alone(finished, tmp_path):
    alone = coterie.run("fedavg", seed=5, beta=0.5, **WORDS | {"lr": 0.2}, out=tmp_path / "alone")
    assert results(alone.folder) == results(finished.folder / "fedavg-seed5")


def test_the_plan_on_disk_is_the_plan_that_ran(finished):
    experiments, seeds, grids, _ = read_plan(finished.folder / "comparison.toml")
    assert seeds == [3, 5]
    assert grids == {"ditto": {"lam": [0.01, 1.0], "lr": [0.05]}}
    assert experiments["fedavg"].options == {"beta": 0.5}
    assert experiments["fedavg"].train.lr == 0.2
    assert experiments["local"].train.lr == experiments["ditto"].train.lr == 0.1


def test_a_network_of_one_method_alone_survives_the_plan(tmp_path):
    own = {
        "local": {"model": "mlr"},
        "fml": {"alpha": 0.25, "schedule.rounds": 1, "model.hidden": 5},
    }
    common = change_options(
        Experiment(method=""), {k: v for k, v in WORDS.items() if k != "classes-each"}
    )
    planned = plan_experiments(
        ["local", "fml", "fedavg"],
        change_options(common, {"partition": "dirichlet", "alpha": 2.0}),
        own,
    )
    compare(planned, [0], tmp_path / "c")
    again, *_ = read_plan(tmp_path / "c" / "comparison.toml")
    assert again == planned
    assert again["local"].model == {"name": "mlr"}
    assert again["fedavg"].model["hidden"] == 6
    assert again["fml"].options == {"alpha": 0.25}
    assert again["fml"].partition["alpha"] == 2.0


# What was found


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    """Six rounds at a rate that overshoots, one split for both seeds, so that the last round is not
    the best of all.
    """
    settings = {"rounds": 6, "lr": 1.5, "dataset.seed": 7, "models": False, "checkpoint": 0}
    return compare(
        plan_experiments(["local", "fedavg", "ditto"], base(**settings)),
        [0, 1],
        tmp_path_factory.mktemp("longer") / "c",
    )


def test_the_best_round_is_chosen_on_select_rows_and_read_on_test(longer):
    early = 0
    for row in longer.rows():
        rounds, found = [], []
        for run in longer.runs[row.method]:
            means = [
                values_of(run.table, "accuracy", "select", round=r)[1].mean() for r in range(1, 7)
            ]
            rounds.append(1 + int(np.argmax(means)))
            found.append(values_of(run.table, "accuracy", "test", round=rounds[-1])[1])
        assert row.best_round == np.mean(rounds)
        assert row.at_best == pytest.approx(np.mean(found))
        assert longer.client_values(row.method, best=True) == pytest.approx(np.stack(found))
        early += sum(r < 6 for r in rounds)
    assert early  # else this test says nothing


def test_without_validation_data_there_is_no_best_round(tmp_path):
    found = compare(
        plan_experiments(["local"], base(validation=0, rounds=1, models=False)), [0], tmp_path / "c"
    )
    assert np.isnan([found.rows()[0].at_best, found.rows()[0].best_round]).all()
    with pytest.raises(
        BadInput,
        match="local has no best round, as there are no select rows: raise --validation",
    ):
        found.client_values("local", best=True)


def test_the_global_model_of_a_method_is_compared_too(longer):
    assert longer.views("ditto") == ["personal", "global"]
    assert longer.views("local") == ["personal"]
    common = longer.accuracy("ditto", view="global")
    assert common.shape == (2, 4)
    assert np.array_equal(common, longer.accuracy("fedavg"))  # Ditto's global model is FedAvg's
    assert not np.array_equal(common, longer.accuracy("ditto"))
    assert np.array_equal(longer.client_values("ditto", "global"), common)
    with pytest.raises(BadInput, match="local has no view 'global': it has personal"):
        longer.accuracy("local", view="global")
    with pytest.raises(BadInput, match="did you mean 'ditto'"):
        longer.accuracy("dito")


def test_rounds_to_a_target_are_of_the_mean_over_clients_and_seeds(longer):
    means = np.mean(
        [curve_of(run.table, "accuracy", "test")[1] for run in longer.runs["local"]], axis=0
    )
    target = float(np.sort(means)[3])
    assert longer.rounds_to(target)["local"] == 1 + int(np.flatnonzero(means >= target)[0])
    assert longer.rounds_to(0.0) == {"local": 1, "fedavg": 1, "ditto": 1}
    assert longer.rounds_to(1.0) == {"local": None, "fedavg": None, "ditto": None}
    with pytest.raises(BadInput, match="target = 80: give an accuracy from 0 to 1"):
        longer.rounds_to(80)


def test_ranks_are_of_clients_where_the_split_is_fixed(longer, finished):
    found = longer.ranks()
    assert (found.population, found.n) == ("clients", 4)
    assert sorted(found.methods) == ["ditto", "fedavg", "local"]
    assert finished.ranks().population == "seeds"
    assert longer.difference("local", "fedavg").n == 4
    assert longer.difference("local", "fedavg").mean == pytest.approx(
        -longer.difference("fedavg", "local").mean
    )


def printed(capsys, comparison, target=None, wide=True) -> str:
    show_comparison(comparison, target, wide)
    return capsys.readouterr().out


def test_what_is_printed_holds_the_last_and_the_best_round_and_whom_each_method_beats(
    capsys, longer
):
    out = printed(capsys, longer)
    row = next(row for row in longer.rows() if row.method == "local")
    line = next(line for line in out.splitlines() if line.startswith(("│ local", "│ > local")))
    cells = [cell.strip() for cell in line.split("│")[1:-1]]
    assert cells[1:3] == [f"{100 * row.mean:.2f}", f"± {100 * (row.high - row.mean):.2f}"]
    assert f"{100 * row.at_best:.2f} ({row.best_round:.0f})" in cells
    assert "at best round: of the one (in brackets) whose accuracy on select rows is best" in out
    assert "bootstrap over 4 clients, seeds averaged" in out
    assert "significantly better than" in out
    assert "not reached" not in out
    assert max(map(len, out.splitlines())) < 130
    few = printed(capsys, longer, wide=False)
    assert max(len(line) for line in few.splitlines() if str(longer.folder) not in line) <= 80
    assert "at best" not in few
    marked = [line.split()[1] for line in few.splitlines() if line.startswith(" > ")]
    assert marked == [longer.answer.use]
    headline = " ".join(few.split("\n\n")[0].split())
    assert headline == summarize_answer(longer.answer).headline
    assert str(longer.answer).startswith(headline)
    assert out.endswith(f"runs, table.csv and clients.csv: {longer.folder}\n")


def test_what_reaching_a_target_costs_is_printed_if_asked(capsys, longer):
    out = printed(capsys, longer, 0.0)
    lines = out[
        out.index("First measured round with a mean test accuracy of 0.00 %") :
    ].splitlines()
    rows = {
        cells[0]: cells[1:]
        for cells in ([c.strip() for c in line.split("│")[1:-1]] for line in lines)
        if cells
    }
    assert rows["fedavg"] == [
        "1",
        "0.01",
        "20",
        "10",
        "6",
    ]  # 1 + 1 + 25/12 + 16, 1 + 1 + 8 and 1 + 1 + 4 downlinks
    assert "not reached" in printed(capsys, longer, 1.0)


def test_columns_that_say_nothing_are_left_out(capsys, tmp_path):
    out = printed(
        capsys,
        compare(
            plan_experiments(["local"], base(validation=0, rounds=1, models=False)),
            [0],
            tmp_path / "c",
        ),
    )
    assert "at best" not in out
    assert "over seeds" not in out
    assert "95 %" not in out
    assert "mean rank" not in out


def test_few_seeds_are_said_to_be_few_even_without_an_answer(capsys, tmp_path):
    out = printed(
        capsys,
        compare(
            plan_experiments(["local", "ditto"], base(rounds=1, models=False)),
            [0, 1],
            tmp_path / "c",
        ),
    )
    assert "2 seeds cannot show a difference between 2 methods" in out
    assert "it takes 6 seeds." in out


# Going on


def test_a_stopped_comparison_goes_on_and_skips_what_is_finished(finished, tmp_path):
    folder = tmp_path / "stopped"
    experiments, seeds, grids, _ = read_plan(finished.folder / "comparison.toml")
    seen = []

    def stop(method, seed, report):
        seen.append((method, seed, report.round))
        if (method, seed, report.round) == ("fedavg", 5, 1):
            raise Stopped

    with pytest.raises(Stopped):
        compare(experiments, seeds, folder, stop, grids)
    assert read_status(folder / "local-seed5") == "finished"
    assert read_status(folder / "fedavg-seed5") == "running"
    assert not (folder / "ditto-seed5").exists()
    (folder / "ditto-seed5").mkdir()  # as if it had been stopped before its first word
    (folder / "ditto-seed5" / "config.toml.part").write_text("meth")
    before = {p: p.stat().st_mtime_ns for p in (folder / "local-seed5").rglob("*")}
    seen.clear()
    again = resume_comparison(folder, lambda *what: seen.append((*what[:2], what[2].round)))
    assert seen == [("fedavg", 5, 2), ("ditto", 5, 1), ("ditto", 5, 2)]
    assert {p: p.stat().st_mtime_ns for p in (folder / "local-seed5").rglob("*")} == before
    for name in ("local", "fedavg", "ditto"):
        for seed in seeds:
            assert results(folder / f"{name}-seed{seed}") == results(
                finished.folder / f"{name}-seed{seed}"
            )
    assert again.rows()[2].mean == finished.rows()[2].mean
    assert (folder / "clients.csv").read_text() == (finished.folder / "clients.csv").read_text()


def test_a_finished_comparison_is_resumed_without_work(finished, monkeypatch):
    monkeypatch.setattr(
        "coterie.comparison.cache.load_federation", lambda *_: pytest.fail("no data are needed")
    )
    again = resume_comparison(finished.folder, lambda *_: pytest.fail("nothing is to be run"))
    assert [row.mean for row in again.rows()] == [row.mean for row in finished.rows()]


def older(folder: Path) -> Path:
    """A stopped comparison of a version whose Ditto had no lam: a tuned trial and a run are there,
    and a run is on its way.
    """
    grids = {"ditto": {"lr": [0.05, 0.1]}}
    planned = plan_experiments(["ditto"], base(), grids=grids)

    def stop(label, seed, report):
        if (label, report.round) == ("ditto", 1):
            raise Stopped

    with settings_written(lacks=("options.lam",)), pytest.raises(Stopped):
        compare(planned, [3], folder, stop, grids)
    assert read_status(folder / "tuning" / "ditto" / "try2-seed3") == "finished"
    assert read_status(folder / "ditto-seed3") == "running"
    return folder


def test_a_comparison_that_is_older_than_an_option_goes_on_with_its_default(tmp_path):
    folder = older(tmp_path / "older")
    seen = []
    again = resume_comparison(folder, lambda *what: seen.append((what[0], what[2].round)))
    assert seen == [("ditto", 2)]
    grids = {"ditto": {"lr": [0.05, 0.1]}}
    whole = compare(
        plan_experiments(["ditto"], base(), grids=grids), [3], tmp_path / "whole", grids=grids
    )
    assert results(folder / "ditto-seed3") == results(whole.folder / "ditto-seed3")
    assert again.rows()[0].mean == whole.rows()[0].mean


def test_a_comparison_refuses_another_value_of_a_younger_option_in_trials_and_runs(tmp_path):
    tuned, plain = older(tmp_path / "tuned"), tmp_path / "plain"
    with settings_written(lacks=("options.lam",)):
        compare(plan_experiments(["ditto"], base()), [3], plain)
    for folder, first in ((tuned, "try1-seed3"), (plain, "ditto-seed3")):
        path = folder / "comparison.toml"
        text = path.read_text()
        path.write_text(text.replace("[options.ditto]", "[options.ditto]\nlam = 2.0"))
        says = rf"options\.lam was its default 1\.0 when {first} began, comparison\.toml says 2\.0"
        with pytest.raises(BadInput, match=says):
            resume_comparison(folder)
        path.write_text(text)
        resume_comparison(folder)


def test_a_comparison_is_not_mixed_with_what_is_there(finished, tmp_path):
    planned = plan_experiments(["local"], base())
    with pytest.raises(BadInput, match=r"is not empty: give another --out, or `coterie resume "):
        compare(planned, [0], finished.folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"exists and is not empty: give another --out$"):
        compare(planned, [0], tmp_path / "other")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadInput, match="is a file: give another --out"):
        compare(planned, [0], tmp_path / "file")


def test_a_method_may_be_compared_with_itself(tmp_path):
    own = {"ditto@weak": {"lam": 0.01, "lr": 0.05}, "ditto": {"lam": 2}}
    planned = plan_experiments(["ditto", "ditto@weak"], base(rounds=1, models=False), own)
    found = compare(planned, [0], tmp_path / "c", grids={"ditto@weak": {"lam": [0.02]}})
    assert [row.method for row in found.rows()] == ["ditto", "ditto@weak"]
    assert [runs[0].experiment.options["lam"] for runs in found.runs.values()] == [2.0, 0.02]
    assert read_plan(tmp_path / "c" / "comparison.toml").experiments == planned
    with pytest.raises(BadInput, match="write letters, digits"):
        plan_experiments(["ditto@a/b"], base())
    with pytest.raises(BadInput, match="did you mean 'ditto'"):
        plan_experiments(["dito@a"], base())


# What is refused


@pytest.mark.parametrize(
    ("methods", "own", "grids", "message"),
    [
        (
            ["local"],
            {"ditto": {"lam": 1}},
            {},
            "options are given for 'ditto', which is not among the methods local",
        ),
        (["local"], {}, {"ditto": {"lam": [1]}}, "options are given for 'ditto'"),
        (["fedvag"], {}, {}, "did you mean 'fedavg'"),
        (["ditto"], {"ditto": {"lamb": 1}}, {}, "did you mean 'lam'"),
        (["ditto"], {"ditto": {"lam": "x"}}, {}, "ditto.lam = 'x': give a number"),
        (
            ["ditto"],
            {"ditto": {"num_clients": 5}},
            {},
            "num_clients for ditto alone: the methods of a comparison share data, partition and "
            "seeds",
        ),
        (["ditto"], {"ditto": {"partition": "iid"}}, {}, "partition for ditto alone"),
        (["ditto"], {"ditto": {"seed": 5}}, {}, "seed for ditto alone"),
        (["ditto"], {"ditto": {"method": "local"}}, {}, "method for ditto alone"),
        (["ditto"], {}, {"ditto": {"lam": [1, "x"]}}, "ditto.lam = 'x': give a number"),
        (["ditto"], {}, {"ditto": {"lam": 3}}, "ditto.lam = 3 is no list of values to try"),
        (["ditto"], {}, {"ditto": {"lam": []}}, "is no list of values to try"),
        (["ditto"], {}, {"ditto": {"validation": [0.1]}}, "validation for ditto alone"),
    ],
)
def test_bad_plans_are_refused(methods, own, grids, message):
    with pytest.raises(BadInput, match=message):
        plan_experiments(methods, base(), own, grids)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "name the methods to compare"),
        ({"methods": "local"}, "name the methods to compare"),
        ({"methods": []}, "name the methods to compare"),
        ({"methods": ["local"], "seeds": 3}, "seeds = 3: give different whole numbers"),
        ({"methods": ["local"], "seeds": [1, 1]}, "give different whole numbers"),
        ({"methods": ["local"], "seeds": ["a"]}, "give different whole numbers"),
        ({"methods": ["local"], "seeds": [True]}, "give different whole numbers"),
        (
            {"methods": ["ditto"], "options": {"lam": 1}},
            r"\[options\] lam = 1: a comparison has one table per method, as in \[options.ditto\]",
        ),
        ({"methods": ["ditto"], "options": {"dito": {"lam": 1}}}, "did you mean 'ditto'"),
        ({"methods": ["local"], "schedul": {"rounds": 1}}, "unknown section 'schedul'"),
        ({"methods": ["local"], "lam": 1}, "for one method write METHOD.lam"),
    ],
)
def test_bad_comparison_files_are_refused(settings, message):
    with pytest.raises(BadInput, match=message):
        plan_of(settings)


def test_everything_is_checked_before_anything_runs(tmp_path):
    def never(*_):
        pytest.fail("nothing may run")

    for methods, settings, grids, message in (
        (["local", "persfl"], {"validation": 0}, {}, "persfl chooses on validation data"),
        (["local", "ktpfl"], {}, {}, "ktpfl needs a public data set"),
        (["local", "oracle"], {}, {}, "oracle needs true groups"),
        (
            ["local", "ditto"],
            {"validation": 0},
            {"ditto": {"lam": [1, 2]}},
            "tuning chooses on validation data, and there are none",
        ),
        (["local", "persfl"], {}, {"persfl": {"lambdas": ["0.5", "7"]}}, "lambdas = 7"),
        (
            ["local", "pfedme"],
            {"momentum": 0.9},
            {},
            r"^pfedme does not use momentum = 0.9: leave out --momentum, or ",
        ),
        (["fedavg", "local"], {"weighting": "equal"}, {}, "^local does not use weighting = equal"),
        (
            ["pfedme"],
            {},
            {"pfedme": {"weight_decay": [0.0, 0.1]}},
            "^pfedme does not use weight_decay = 0.1",
        ),
        (["local"], {"num_clients": 5000}, {}, "num_clients = 5,000, but 'digits' has 160 rows"),
    ):
        with pytest.raises(BadInput, match=message):
            compare(
                plan_experiments(methods, base(**settings), {}, grids),
                [0, 1],
                tmp_path / "c",
                never,
                grids,
            )
    assert not (tmp_path / "c").exists()


def test_a_word_of_train_may_be_given_to_the_methods_that_use_it():
    planned = plan_experiments(["pfedme", "fedavg"], base(), {"fedavg": {"momentum": 0.9}})
    assert [e.train.momentum for e in planned.values()] == [0.0, 0.9]
    planned = plan_experiments(
        ["pfedme", "fedavg"], base(momentum=0.9), {"pfedme": {"momentum": 0.0}}
    )
    assert [e.train.momentum for e in planned.values()] == [0.0, 0.9]


def test_a_file_of_one_run_serves_as_the_common_words_of_a_comparison():
    settings = change_options(
        Experiment(), WORDS | {"method": "ditto", "lam": 0.5, "seed": 4}
    ).to_dict()
    experiments, seeds, *_ = plan_of(
        settings, ["ditto", "local"], common={"rounds": "9"}, own={"local": {"lr": "0.2"}}
    )
    assert seeds == [4]
    assert experiments["ditto"].options == {"lam": 0.5}
    assert [e.schedule.rounds for e in experiments.values()] == [9, 9]
    assert [e.train.lr for e in experiments.values()] == [0.1, 0.2]


def test_options_in_the_file_for_methods_that_are_not_wanted_now_are_left_out():
    settings = {
        "methods": ["local", "ditto"],
        "options": {"ditto": {"lam": 2}},
        "tune": {"ditto": {"lam": [1]}},
    }
    experiments, _, grids, _ = plan_of(settings, ["local"])
    assert list(experiments) == ["local"]
    assert grids == {}
    assert plan_of(settings).experiments["ditto"].options == {"lam": 2.0}


# Python


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))


def test_own_arrays_and_networks_are_compared_through_python(tmp_path):
    settings = FAST | {"rounds": 2, "checkpoint": 1}
    found = coterie.compare(
        ["local", "ditto"], dataset=arrays(False), model=net, seeds=2, num_clients=3,
        partition="iid", options={"ditto": {"lam": 0.5}},
        out=tmp_path / "c", **settings,
    )  # fmt: skip
    assert found.accuracy("ditto").shape == (2, 3)
    assert found.runs["ditto"][0].experiment.options == {"lam": 0.5}
    data = [run.about["data"] for runs in found.runs.values() for run in runs]
    assert data[0] == data[2] != data[1] == data[3]  # by seed, not by method
    shutil.rmtree(tmp_path / "c" / "ditto-seed1")
    again = coterie.resume(tmp_path / "c", data=arrays(False), model=net)
    assert np.array_equal(again.accuracy("ditto"), found.accuracy("ditto"))
    shutil.rmtree(tmp_path / "c" / "ditto-seed1")
    with pytest.raises(BadInput, match="were given as Python objects"):
        coterie.resume(tmp_path / "c")


def test_a_comparison_from_a_file_through_python(tmp_path):
    path = tmp_path / "plan.toml"
    tables = (
        "[dataset]\nnum_clients = 4\nrows = 160\n[partition]\nclasses_each = 4\n"
        "[options.ditto]\nlam = 3\n"
    )
    path.write_text(f'methods = ["local", "ditto"]\nseeds = [2]\n{tables}')
    found = coterie.compare(config=path, rounds=1, models=False, out=tmp_path / "c", **FAST)
    assert list(found.runs) == ["local", "ditto"]
    assert found.runs["ditto"][0].experiment.options == {"lam": 3.0}
    assert found.runs["ditto"][0].experiment.seed == 2


def test_losses_are_compared_where_there_are_no_classes(tmp_path):
    settings = FAST | {"dataset": "gaussian", "num_clients": 4, "rounds": 2}
    found = coterie.compare(
        ["fedavg"], tune={"fedavg": {"lr": [1e-6, 0.3]}}, out=tmp_path / "c", **settings
    )
    assert found.runs["fedavg"][0].experiment.train.lr == 0.3  # the smaller loss wins
    assert found.rows()[0].mean == pytest.approx(found.runs["fedavg"][0].client_values().mean())
    assert (
        (tmp_path / "c" / "clients.csv").read_text().startswith("method,seed,client,name,test_loss")
    )


def test_a_smaller_loss_is_better_everywhere(tmp_path, capsys):
    settings = FAST | {"dataset": "gaussian", "num_clients": 8, "rounds": 3, "eval_every": 1}
    found = coterie.compare(["fedavg", "local"], out=tmp_path / "c", **settings)
    losses = {row.method: row.mean for row in found.rows()}
    better, worse = sorted(losses, key=losses.__getitem__)
    assert found.difference(better, worse).mean == pytest.approx(losses[worse] - losses[better])
    ranks = found.ranks()
    firsts = (found.client_values(better) < found.client_values(worse)).mean()
    assert ranks.rank[ranks.methods.index(better)] == pytest.approx(2 - firsts)
    start = curve_of(found.runs[worse][0].table, "loss", "test")[1][0]
    assert found.rounds_to(start)[worse] == 1
    assert found.rounds_to(losses[better] / 2) == {"fedavg": None, "local": None}
    out = printed(capsys, found, start)
    plain = out.replace("│ > ", "│ ")  # the mark of the method to use
    assert plain.index(f"│ {better}") < plain.index(f"│ {worse}")
    assert "Difference in loss (above 0 is better)" in out
    assert " %" not in out.splitlines()[0]
