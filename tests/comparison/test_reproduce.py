"""Laws of reproduction: finished cells stay, figures are the runs' own, the page needs no runs."""

import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest

from coterie.comparison import reproduce as again
from coterie.comparison.reproduce import measure, outcome, place_of, scale_of, table_of
from coterie.core.errors import BadInput
from coterie.experiment.papers import PaperColumn, PaperRow, PaperTable
from coterie.experiment.recipes import config_path
from coterie.reports import paper_results
from coterie.reports.paper_results import merged
from coterie.reports.reproduction import page, verdicts, write_pages
from coterie.results.costs import accuracy_against, simulated_time, spent
from coterie.results.folder import status
from coterie.results.run import load
from coterie.results.table import curve, values

RECIPE = """
methods = ["local", "fedavg", "ditto"]
seeds = [0, 1]

[data]
clients = 4
rows = 160

[model]
name = "mlr"

[schedule]
rounds = 4

[engine]
path = "vectorized"
width = 20
compile = "no"
threads = 1
"""
TABLE = PaperTable(
    id="small-1",
    paper="Small",
    place="Table 1",
    claim="Ditto is above FedAvg.",
    metric="weighted",
    columns=(
        PaperColumn(
            name="digits",
            recipe="small",
            metric="weighted",
            rows=(
                PaperRow("FedAvg", "fedavg", value=50.0, spread=0.1),
                PaperRow("Ditto, global", "ditto", view="global", value=50.0),
                PaperRow("Ditto", "ditto", value=60.0, spread=0.1),
            ),
            above=(("ditto", "fedavg"),),
        ),
    ),
)


@contextmanager
def recipes_in(folder):
    """Recipes are looked for in a folder first."""

    def place(name):
        own = folder / f"{name}.toml"
        return own if own.exists() else config_path(name)

    with pytest.MonkeyPatch.context() as patch:
        for module in (again, paper_results):
            patch.setattr(module, "config_path", place)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A small table, run."""
    folder = tmp_path_factory.mktemp("reproduction")
    (folder / "small.toml").write_text(RECIPE)
    with recipes_in(folder):
        again.reproduce(TABLE, folder)
        again.reproduce(TABLE, folder, scale=0.5)
        yield folder


def test_a_cell_is_the_mean_of_its_runs(out):
    found = outcome(TABLE, out)
    runs = [load(out / "small" / f"ditto-seed{seed}") for seed in (0, 1)]
    ours = [100 * run.summary().weighted for run in runs]
    assert found.columns[0].cells[2].figure.ours.mean == pytest.approx(np.mean(ours))
    assert found.columns[0].cells[1].figure.ours.mean == pytest.approx(
        np.mean([100 * run.summary(view="global").weighted for run in runs])
    )
    assert found.state == "finished"
    assert (found.columns[0].done, found.columns[0].wanted) == (6, 6)


def test_whole_runs_come_before_shortened_ones(out):
    column = TABLE.columns[0]
    assert scale_of(place_of(out, column)) == 1
    assert load(out / "small@0.5" / "fedavg-seed0").experiment.schedule.rounds == 2
    only = replace_recipe(column, "other")
    assert place_of(out, only) is None


def replace_recipe(column, recipe):
    return column._replace(recipe=recipe)


def test_gains_are_over_fedavg_of_the_same_seed(out):
    run, base = (load(out / "small" / f"{m}-seed0") for m in ("ditto", "fedavg"))
    gains = 100 * (run.accuracy() - base.accuracy())
    assert measure(run, "gain_over_fedavg", "personal", base) == pytest.approx(gains.mean())
    assert np.isnan(measure(run, "gain_over_fedavg", "personal", None))
    assert np.isnan(measure(run, "mean", "no such view"))


def test_the_page_is_written_again_from_the_results_files_alone(out, tmp_path):
    written = write_pages([TABLE], out, tmp_path)
    text = written.read_text()
    assert page([TABLE], tmp_path / "results") == text
    file = json.loads((tmp_path / "results" / "small-1.json").read_text())
    assert len(file["columns"][0]["methods"]["ditto"][0]["clients"]) == 4
    assert "| Ditto | 60 ± 0.1 |" in text
    assert "ditto above fedavg" in text


def test_a_column_none_of_whose_methods_is_finished_is_not_on_the_page(out, tmp_path):
    column = TABLE.columns[0]._replace(name="later", rows=(), above=(("ditto@late", "local@late"),))
    both = TABLE._replace(columns=(*TABLE.columns, column))
    text = write_pages([both], out, tmp_path).read_text()
    assert "**digits**" in text
    assert "**later**" not in text
    assert "(in part)" in text
    alone = TABLE._replace(id="small-2", columns=(column,))
    assert "small-2 (Table 1)" in write_pages([alone], out, tmp_path / "alone").read_text()


def test_a_remark_stands_in_its_section(out, tmp_path):
    write_pages([TABLE], out, tmp_path)
    (tmp_path / "results" / "remarks.toml").write_text('small-1 = "A reading explains it."')
    assert "A reading explains it." in page([TABLE], tmp_path / "results")


def test_a_row_of_a_note_with_points_has_the_figure_of_its_point(tmp_path):
    points = ("lambda=0,T=1", "lambda=1,T=5")
    rows = tuple(PaperRow(point, "persfl", point=point) for point in points)
    column = PaperColumn(
        name="grid",
        recipe="grid",
        metric="note:grid_accuracy",
        rows=rows,
        claims=(("never", "persfl", "lambda", "7"),),
    )
    table = TABLE._replace(id="grid-1", metric=column.metric, columns=(column,))
    (tmp_path / "grid.toml").write_text(
        RECIPE.replace('["local", "fedavg", "ditto"]', '["persfl"]').replace("[0, 1]", "[0]")
        + "\n[options.persfl]\nlambdas = [0.0, 1.0]\ntemperatures = [1.0, 5.0]\n"
    )
    with recipes_in(tmp_path):
        found = again.reproduce(table, tmp_path)
        text = write_pages([table], tmp_path, tmp_path / "docs").read_text()
    run = load(tmp_path / "grid" / "persfl-seed0")
    ours = [cell.figure.ours.mean for cell in found.columns[0].cells]
    assert ours == [measure(run, f"note:grid_accuracy[{point}]", "personal") for point in points]
    assert not np.isnan(ours).any()
    assert all(f"| {p} |  | {our:.4g} |" in text for p, our in zip(points, ours, strict=True))


def test_unknown_tables_and_scales_are_refused(out):
    with pytest.raises(BadInput, match="there is no table 'pfml-11'; did you mean"):
        table_of("pfml-11")
    with pytest.raises(BadInput, match="scale = 0: give a share"):
        again.reproduce(TABLE, out, scale=0)
    with pytest.raises(BadInput, match="'small-1' has no recipe"):
        again.reproduce(replace_columns(TABLE), out)


def replace_columns(table):
    return table._replace(columns=(table.columns[0]._replace(recipe=""),), note="none")


def test_only_some_methods_are_run_and_the_others_later(tmp_path):
    (tmp_path / "small.toml").write_text(RECIPE.replace("[0, 1]", "[0]"))
    with recipes_in(tmp_path):
        first = again.reproduce(TABLE, tmp_path, only=["fedavg"])
        assert (first.columns[0].done, first.columns[0].wanted) == (1, 3)
        assert not (tmp_path / "small" / "ditto-seed0").exists()
        began = (tmp_path / "small" / "fedavg-seed0" / "run.json").read_bytes()
        with pytest.raises(BadInput, match="'dito' is no method of small-1; did you mean 'ditto'"):
            again.reproduce(TABLE, tmp_path, only=["dito"])
        other = TABLE.columns[0]._replace(name="other", recipe="other")
        (tmp_path / "other.toml").write_text(RECIPE.replace('"ditto"', '"fedprox"'))
        both = TABLE._replace(columns=(other, TABLE.columns[0]))
        again.reproduce(both, tmp_path, only=["ditto"])  # which one of the recipes has
        again.reproduce(both, tmp_path, some=["small"], only=["ditto"])
        assert not (tmp_path / "other").exists()
        assert again.reproduce(TABLE, tmp_path).state == "finished"
    assert status(tmp_path / "small" / "ditto-seed0") == "finished"
    assert (tmp_path / "small" / "fedavg-seed0" / "run.json").read_bytes() == began


def test_traffic_and_rounds_are_the_runs_own(out):
    run = load(out / "small" / "ditto-seed0")
    assert measure(run, "bytes", "personal") == pytest.approx(spent(run, "bytes")[1][-1] / 1e6)
    rounds, means = curve(run.table, "accuracy", "test", "personal")
    needed = measure(run, "rounds", "personal")
    assert means[rounds == needed][0] >= means.max() - 0.01
    assert (means[rounds < needed] < means.max() - 0.01).all()


def test_a_loss_is_the_mean_over_all_rows(out):
    run = load(out / "small" / "ditto-seed0")
    for view in ("personal", "global"):
        losses = values(run.table, "loss", "train", view)[1]
        wanted = np.average(losses, weights=run.about["rows"]["train"])
        assert measure(run, "loss.train", view) == pytest.approx(wanted)
    unmeasured = run.table.filter(pc.field("part") == "test")
    assert np.isnan(measure(replace(run, table=unmeasured), "loss.train", "personal"))


def test_accuracy_over_time_is_taken_when_fedavg_is_done(out):
    run, base = (load(out / "small" / f"{m}-seed0") for m in ("ditto", "fedavg"))
    for system in ("slow uplink", "wired"):
        times, means = accuracy_against(run, "time", system=system)
        known = means[times <= simulated_time(base, system)[-1] + 1e-6][-1]
        assert measure(run, f"mean_at_time.{system}", "personal", base) == pytest.approx(
            100 * known
        )
    assert measure(base, "mean_at_time.wired", "personal", base) == measure(
        base, "mean", "personal"
    )
    assert np.isnan(measure(run, "mean_at_time.wired", "personal", None))


def test_a_table_without_a_verdict_is_not_on_the_page(out, tmp_path):
    rows = (PaperRow("FedAvg", "fedavg"),)
    drawn = TABLE._replace(columns=(TABLE.columns[0]._replace(rows=rows, above=()),))
    assert "small-1 (Table 1)." in write_pages([drawn], out, tmp_path).read_text()
    assert verdicts([drawn], tmp_path / "results") == {}


def test_other_readings_stand_below_their_column(out, tmp_path):
    row = TABLE.columns[0].rows[0]._replace(also=("local",))
    table = TABLE._replace(columns=(TABLE.columns[0]._replace(rows=(row,)),))
    text = write_pages([table], out, tmp_path).read_text()
    runs = [load(out / "small" / f"local-seed{seed}") for seed in (0, 1)]
    ours = np.mean([100 * run.summary().weighted for run in runs])
    assert f"Read otherwise:\n\n- FedAvg as `local`: {ours:.2f}" in text


# Results files outlive run folders


def test_what_was_stored_of_runs_that_are_gone_is_kept(out, tmp_path):
    write_pages([TABLE], out, tmp_path)
    path = tmp_path / "results" / "small-1.json"
    whole = json.loads(path.read_text())
    parts = [json.loads(path.read_text()) for _ in range(2)]
    del parts[0]["columns"][0]["methods"]["fedavg"]
    parts[1]["columns"][0]["methods"] = {"fedavg": whole["columns"][0]["methods"]["fedavg"]}
    parts[1]["columns"][0]["about"]["date"] = "2030-01-01"
    path.write_text(json.dumps(merged(TABLE, *parts)))
    found = json.loads(path.read_text())["columns"][0]
    ours = {m: [run["figures"] for run in runs] for m, runs in found["methods"].items()}
    all_of = whole["columns"][0]["methods"].items()
    assert ours == {m: [run["figures"] for run in runs] for m, runs in all_of}
    assert found["methods"]["ditto"][0]["about"] == parts[0]["columns"][0]["about"]
    assert "to 2030-01-01" in page([TABLE], tmp_path / "results")


def test_a_column_without_runs_here_stays_on_the_page(out, tmp_path):
    other = TABLE.columns[0]._replace(name="elsewhere", recipe="digits-classes")
    both = TABLE._replace(columns=(other, TABLE.columns[0]))
    write_pages([TABLE], out, tmp_path)
    path = tmp_path / "results" / "small-1.json"
    file = json.loads(path.read_text())
    file["columns"].append(
        {**file["columns"][0], "column": "elsewhere", "recipe": "digits-classes"}
    )
    path.write_text(json.dumps(file))
    write_pages([both], out, tmp_path)
    assert [c["column"] for c in json.loads(path.read_text())["columns"]] == ["elsewhere", "digits"]


def test_whole_runs_replace_shortened_ones_and_not_the_other_way(out, tmp_path):
    write_pages([TABLE], out, tmp_path)
    whole = json.loads((tmp_path / "results" / "small-1.json").read_text())
    short = json.loads(json.dumps(whole))
    short["columns"][0]["scale"] = 0.5
    assert merged(TABLE, short, whole) == whole
    assert merged(TABLE, whole, short) == whole


@pytest.mark.parametrize(("section", "word"), [("data", "clients"), ("train", "batch")])
def test_runs_of_a_recipe_that_has_changed_do_not_stand_together(out, tmp_path, section, word):
    write_pages([TABLE], out, tmp_path)
    before = json.loads((tmp_path / "results" / "small-1.json").read_text())
    now = json.loads(json.dumps(before))
    del now["columns"][0]["methods"]["fedavg"]
    assert "fedavg" in merged(TABLE, before, now)["columns"][0]["methods"]
    for run in (run for runs in now["columns"][0]["methods"].values() for run in runs):
        run["words"][section][word] += 1
    assert merged(TABLE, before, now) == now


def test_another_reading_of_the_set_up_is_shown_and_not_counted(out, tmp_path):
    (pair,) = TABLE.columns[0].above
    turned = {"rows": (), "above": (pair[::-1],)}
    other = TABLE.columns[0]._replace(name="otherwise", otherwise=True, **turned)
    counted = other._replace(name="counted", otherwise=False)
    ours = outcome(TABLE, out).verdict
    for column, word in ((other, ours), (counted, "not reproduced")):
        table = TABLE._replace(columns=(*TABLE.columns, column))
        text = write_pages([table], out, tmp_path).read_text()
        assert outcome(table, out).verdict == word
        assert verdicts([table], tmp_path / "results") == {"small-1": word}
        assert ("read otherwise and not counted above" in text) == column.otherwise


def test_shortened_runs_are_marked(out, tmp_path):
    write_pages([TABLE], out, tmp_path)
    path = tmp_path / "results" / "small-1.json"
    file = json.loads(path.read_text())
    file["columns"][0]["scale"] = 0.5
    path.write_text(json.dumps(file))
    (word,) = verdicts([TABLE], tmp_path / "results").values()
    assert "too short" in word or "shortened" in word
    assert "not reproduced" not in word
    assert "0.5 of the rounds" in page([TABLE], tmp_path / "results")


def test_tables_that_nobody_can_run_say_why(tmp_path):
    (tmp_path / "results").mkdir()
    closed = replace_columns(TABLE)._replace(note="Private data.")
    text = page([closed, TABLE._replace(id="small-2")], tmp_path / "results")
    assert "## Cannot be run\n\n- small-1 (Small, Table 1): Private data." in text
    assert "## Not run yet\n\nsmall-2 (Table 1)." in text


# Going on with what is there


@pytest.fixture
def begun(tmp_path):
    """A table of one method and one seed, run."""
    (tmp_path / "small.toml").write_text(RECIPE)
    with recipes_in(tmp_path):
        again.reproduce(TABLE, tmp_path, seeds=[0], only=["local"])
        yield tmp_path


def test_seeds_that_are_new_are_added(begun):
    found = again.reproduce(TABLE, begun, seeds=[0, 1], only=["local"])
    assert [status(begun / "small" / f"local-seed{seed}") for seed in (0, 1)] == ["finished"] * 2
    assert (found.columns[0].done, found.columns[0].wanted) == (2, 6)


def test_seeds_are_not_added_to_options_that_were_chosen_without_them(begun):
    (begun / "small.toml").write_text(f"{RECIPE}\n[tune.ditto]\nlam = [0.1, 1.0]\n")
    again.reproduce(TABLE, begun, seeds=[0], only=["local"])
    with pytest.raises(BadInput, match=r"chosen options with seeds 0, and --seeds asks for 0,1"):
        again.reproduce(TABLE, begun, seeds=[0, 1])


def test_a_method_that_a_recipe_got_later_is_run(begun):
    more = RECIPE.replace('"ditto"]', '"ditto", "finetune"]')
    (begun / "small.toml").write_text(more)
    again.reproduce(TABLE, begun, only=["finetune"])
    assert status(begun / "small" / "finetune-seed0") == "finished"


def test_runs_of_another_recipe_are_not_gone_on_with(begun):
    (begun / "small.toml").write_text(RECIPE.replace("rows = 160", "rows = 200"))
    with pytest.raises(BadInput, match=r"data.rows was 160 when .*small began, small says 200"):
        again.reproduce(TABLE, begun)


def test_the_page_marks_runs_of_an_older_recipe_and_missing_seeds_and_methods(begun, tmp_path):
    def marks():
        write_pages([TABLE], begun, tmp_path / "docs")
        return verdicts([TABLE], tmp_path / "docs" / "results")["small-1"]

    again.reproduce(TABLE, begun, only=["fedavg", "ditto"])
    assert marks().endswith("(1 of 2 seeds)")
    again.reproduce(TABLE, begun, seeds=[0, 1])
    assert "(" not in marks()
    (begun / "small.toml").write_text(RECIPE.replace('"ditto"]', '"ditto", "finetune"]'))
    assert marks().endswith("(in part)")
    (begun / "small.toml").write_text(RECIPE.replace("rows = 160", "rows = 200"))
    assert marks().endswith("(older recipe)")
    assert "before the recipe changed" in (tmp_path / "docs" / "reproduction.md").read_text()


def test_what_was_asked_for_is_shown_whatever_else_is_there(out):
    assert outcome(TABLE, out).columns[0].scale == 1
    assert outcome(TABLE, out, scale=0.5).columns[0].scale == 0.5
    assert outcome(TABLE, out, scale=0.25).columns[0].done == 0


def test_a_table_of_a_script_says_how_it_is_run():
    with pytest.raises(BadInput, match=r"run `python examples/\S+ --write docs/results`"):
        again.check_runs(table_of("selffl-figure-4"))
