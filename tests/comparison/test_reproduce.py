"""Laws of reproduction: finished cells stay, figures are the runs' own, the page needs no runs."""

import json
import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest

from coterie.analysis.density import density
from coterie.core.errors import BadInput
from coterie.experiment.recipes import find_config
from coterie.lab.papers import durations, result_files
from coterie.lab.papers import judge as judging
from coterie.lab.papers import reproduction as again
from coterie.lab.papers import traffic as arithmetic
from coterie.lab.papers.judge import judge
from coterie.lab.papers.measures import measure, measure_course
from coterie.lab.papers.paper_tables import PaperColumn, PaperRow, PaperTable
from coterie.lab.papers.reproduction import outcome_of, place_of, scale_of, table_of
from coterie.lab.papers.reproduction_page import (
    compute_verdicts,
    count,
    outcomes,
    pages,
    write_pages,
)
from coterie.lab.papers.result_files import merge_results
from coterie.results.costs import accuracy_against, cumulative_costs_of, simulated_time
from coterie.results.folder import read_status
from coterie.results.metric_table import best_round, curve_of, values_of
from coterie.results.run import load_run

RECIPE = """
methods = ["local", "fedavg", "ditto"]
seeds = [0, 1]

[dataset]
num_clients = 4
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
    spread_over="runs",
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
        return own if own.exists() else find_config(name)

    with pytest.MonkeyPatch.context() as patch:
        for module in (again, result_files, judging, arithmetic, durations):
            patch.setattr(module, "find_config", place)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A small table, run."""
    folder = tmp_path_factory.mktemp("reproduction")
    (folder / "small.toml").write_text(RECIPE)
    with recipes_in(folder):
        again.run_table(TABLE, folder)
        again.run_table(TABLE, folder, scale=0.5)
        yield folder


def test_a_cell_is_the_mean_of_its_runs(out):
    found = outcome_of(TABLE, out)
    runs = [load_run(out / "small" / f"ditto-seed{seed}") for seed in (0, 1)]
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
    assert load_run(out / "small@0.5" / "fedavg-seed0").experiment.schedule.rounds == 2
    only = replace_recipe(column, "other")
    assert place_of(out, only) is None


def replace_recipe(column, recipe):
    return column._replace(recipe=recipe)


def test_gains_are_over_fedavg_of_the_same_seed(out):
    run, base = (load_run(out / "small" / f"{m}-seed0") for m in ("ditto", "fedavg"))
    gains = 100 * (run.accuracy() - base.accuracy())
    assert measure(run, "gain_over_fedavg", "personal", base) == pytest.approx(gains.mean())
    assert np.isnan(measure(run, "gain_over_fedavg", "personal", None))
    assert np.isnan(measure(run, "mean", "no such view"))


def written(tables, out, docs):
    """The page of the tables' paper, written from runs."""
    return (write_pages(tables, out, docs).parent / "small.md").read_text()


def page(tables, place):
    """The same from results files."""
    return pages(tables, place)["small.md"]


def test_the_pages_are_written_again_from_the_results_files_alone(out, tmp_path):
    text = written([TABLE], out, tmp_path)
    for name, again_text in pages([TABLE], tmp_path / "results").items():
        assert (tmp_path / "reproduction" / name).read_text() == again_text
    file = json.loads((tmp_path / "results" / "small-1.json").read_text())
    clients = file["columns"][0]["methods"]["ditto"][0]["clients"]
    assert {view: len(some) for view, some in clients.items()} == {"personal": 4, "global": 4}
    assert "| Ditto | 60 ± 0.1 |" in text
    assert "ditto above fedavg" in text


def test_a_column_none_of_whose_methods_is_finished_is_not_on_the_page(out, tmp_path):
    column = TABLE.columns[0]._replace(name="later", rows=(), above=(("ditto@late", "local@late"),))
    both = TABLE._replace(columns=(*TABLE.columns, column))
    text = written([both], out, tmp_path)
    assert "**digits**" in text
    assert "**later**" not in text
    assert "(in part)" in text
    alone = TABLE._replace(id="small-2", columns=(column,))
    assert "small-2 (Table 1)" in written([alone], out, tmp_path / "alone")


def test_a_remark_stands_in_its_section_and_what_is_long_is_folded(out, tmp_path):
    write_pages([TABLE], out, tmp_path)
    remarks = tmp_path / "results" / "remarks.toml"
    remarks.write_text(
        '[summary]\nsmall = "It holds."\n\n[small-1]\nshort = "A reading explains it."\n'
        'more = "At length."\n'
    )
    text = page([TABLE], tmp_path / "results")
    assert "A reading explains it." in text
    assert "<summary>More</summary>\n\nAt length.\n\n</details>" in text
    assert "**[Small](small.md)**: It holds." in pages([TABLE], tmp_path / "results")["index.md"]
    remarks.write_text(f"[small-1]\nshort = '{'word ' * 61}'")
    with pytest.raises(BadInput, match="more than 60 words"):
        page([TABLE], tmp_path / "results")


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
        found = again.run_table(table, tmp_path)
        text = (write_pages([table], tmp_path, tmp_path / "docs").parent / "grid.md").read_text()
    run = load_run(tmp_path / "grid" / "persfl-seed0")
    ours = [cell.figure.ours.mean for cell in found.columns[0].cells]
    own = [measure(run, f"note:grid_accuracy[{point}]", "personal") for point in points]
    assert ours == pytest.approx(own, abs=1e-4)
    assert not np.isnan(ours).any()
    assert all(f"| {p} |  | {our:.4g} |" in text for p, our in zip(points, ours, strict=True))


def test_unknown_tables_and_scales_are_refused(out):
    with pytest.raises(BadInput, match="there is no table 'pfml-11'; did you mean"):
        table_of("pfml-11")
    with pytest.raises(BadInput, match="scale = 0: give a share"):
        again.run_table(TABLE, out, scale=0)
    with pytest.raises(BadInput, match="'small-1' has no recipe"):
        again.run_table(replace_columns(TABLE), out)


def replace_columns(table):
    return table._replace(columns=(table.columns[0]._replace(recipe=""),), note="none")


def test_only_some_methods_are_run_and_the_others_later(tmp_path):
    (tmp_path / "small.toml").write_text(RECIPE.replace("[0, 1]", "[0]"))
    with recipes_in(tmp_path):
        first = again.run_table(TABLE, tmp_path, only=["fedavg"])
        assert (first.columns[0].done, first.columns[0].wanted) == (1, 3)
        assert not (tmp_path / "small" / "ditto-seed0").exists()
        began = (tmp_path / "small" / "fedavg-seed0" / "run.json").read_bytes()
        with pytest.raises(BadInput, match="'dito' is no method of small-1; did you mean 'ditto'"):
            again.run_table(TABLE, tmp_path, only=["dito"])
        other = TABLE.columns[0]._replace(name="other", recipe="other")
        (tmp_path / "other.toml").write_text(RECIPE.replace('"ditto"', '"fedprox"'))
        both = TABLE._replace(columns=(other, TABLE.columns[0]))
        again.run_table(both, tmp_path, only=["ditto"])  # which one of the recipes has
        again.run_table(both, tmp_path, some=["small"], only=["ditto"])
        assert not (tmp_path / "other").exists()
        assert again.run_table(TABLE, tmp_path).state == "finished"
    assert read_status(tmp_path / "small" / "ditto-seed0") == "finished"
    assert (tmp_path / "small" / "fedavg-seed0" / "run.json").read_bytes() == began


def test_traffic_and_rounds_are_the_runs_own(out):
    run = load_run(out / "small" / "ditto-seed0")
    assert measure(run, "bytes", "personal") == pytest.approx(
        cumulative_costs_of(run, "bytes")[1][-1] / 1e6
    )
    rounds, means = curve_of(run.table, "accuracy", "test", "personal")
    needed = measure(run, "rounds", "personal")
    assert means[rounds == needed][0] >= means.max() - 0.01
    assert (means[rounds < needed] < means.max() - 0.01).all()


def test_a_loss_is_the_mean_over_all_rows(out):
    run = load_run(out / "small" / "ditto-seed0")
    for view in ("personal", "global"):
        losses = values_of(run.table, "loss", "train", view)[1]
        wanted = np.average(losses, weights=run.about["rows"]["train"])
        assert measure(run, "loss.train", view) == pytest.approx(wanted)
    unmeasured = run.table.filter(pc.field("part") == "test")
    assert np.isnan(measure(replace(run, table=unmeasured), "loss.train", "personal"))


def test_accuracy_over_time_is_taken_when_fedavg_is_done(out):
    run, base = (load_run(out / "small" / f"{m}-seed0") for m in ("ditto", "fedavg"))
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
    assert "small-1 (Table 1)." in written([drawn], out, tmp_path)
    assert compute_verdicts([drawn], tmp_path / "results") == {}


def test_other_readings_stand_below_their_column(out, tmp_path):
    row = TABLE.columns[0].rows[0]._replace(also=("local",))
    table = TABLE._replace(columns=(TABLE.columns[0]._replace(rows=(row,)),))
    text = written([table], out, tmp_path)
    runs = [load_run(out / "small" / f"local-seed{seed}") for seed in (0, 1)]
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
    path.write_text(json.dumps(merge_results(TABLE, *parts)))
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
    assert merge_results(TABLE, short, whole) == whole
    assert merge_results(TABLE, whole, short) == whole


def test_longer_runs_of_a_few_methods_do_not_replace_those_of_most(out, tmp_path):
    write_pages([TABLE], out, tmp_path)
    few = json.loads((tmp_path / "results" / "small-1.json").read_text())
    most = json.loads(json.dumps(few))
    most["columns"][0]["scale"] = 0.5
    few["columns"][0]["finished"] = few["columns"][0]["finished"][:1]
    assert merge_results(TABLE, most, few) == most
    assert merge_results(TABLE, few, most) == most


@pytest.mark.parametrize(
    ("section", "option"), [("dataset", "num_clients"), ("train", "batch_size")]
)
def test_runs_of_a_recipe_that_has_changed_do_not_stand_together(out, tmp_path, section, option):
    write_pages([TABLE], out, tmp_path)
    before = json.loads((tmp_path / "results" / "small-1.json").read_text())
    now = json.loads(json.dumps(before))
    del now["columns"][0]["methods"]["fedavg"]
    assert "fedavg" in merge_results(TABLE, before, now)["columns"][0]["methods"]
    for run in (run for runs in now["columns"][0]["methods"].values() for run in runs):
        run["options"][section][option] += 1
    assert merge_results(TABLE, before, now) == now


def test_another_reading_of_the_set_up_is_shown_and_not_counted(out, tmp_path):
    (pair,) = TABLE.columns[0].above
    turned = {"rows": (), "above": (pair[::-1], ("local", "fedavg"), ("fedavg", "local"))}
    other = TABLE.columns[0]._replace(name="otherwise", otherwise=True, **turned)
    counted = other._replace(name="counted", otherwise=False)
    ours = outcome_of(TABLE, out).verdict
    for column, option in ((other, ours), (counted, "not reproduced")):
        table = TABLE._replace(columns=(*TABLE.columns, column))
        text = written([table], out, tmp_path)
        assert outcome_of(table, out).verdict == option
        assert compute_verdicts([table], tmp_path / "results") == {"small-1": option}
        assert ("read otherwise and not counted above" in text) == column.otherwise


def test_shortened_runs_are_marked(out, tmp_path):
    write_pages([TABLE], out, tmp_path)
    path = tmp_path / "results" / "small-1.json"
    file = json.loads(path.read_text())
    file["columns"][0]["scale"] = 0.5
    path.write_text(json.dumps(file))
    (option,) = compute_verdicts([TABLE], tmp_path / "results").values()
    assert "too small" in option or "shortened" in option
    assert "not reproduced" not in option
    assert "smaller: 50 % of the rounds" in page([TABLE], tmp_path / "results")


def test_tables_that_nobody_can_run_say_why(tmp_path):
    (tmp_path / "results").mkdir()
    closed = replace_columns(TABLE)._replace(note="Private data.")
    tables = [closed, TABLE._replace(id="small-2", columns=())]
    text = pages(tables, tmp_path / "results")["index.md"]
    assert "## Cannot be run\n\n- small-1 (Small, Table 1): Private data." in text
    open_table = TABLE._replace(id="small-2", script="examples/x.py", columns=())
    found = pages([closed, open_table], tmp_path / "results")
    assert "## Not run yet\n\nsmall-2 (Table 1)." in found["small.md"]
    assert "| small-2 | Small, Table 1 | not run: time not measured |" in found["index.md"]


# Going on with what is there


@pytest.fixture
def begun(tmp_path):
    """A table of one method and one seed, run."""
    (tmp_path / "small.toml").write_text(RECIPE)
    with recipes_in(tmp_path):
        again.run_table(TABLE, tmp_path, seeds=[0], only=["local"])
        yield tmp_path


def test_seeds_that_are_new_are_added(begun):
    found = again.run_table(TABLE, begun, seeds=[0, 1], only=["local"])
    assert [read_status(begun / "small" / f"local-seed{seed}") for seed in (0, 1)] == [
        "finished"
    ] * 2
    assert (found.columns[0].done, found.columns[0].wanted) == (2, 6)


def test_seeds_are_not_added_to_options_that_were_chosen_without_them(begun):
    (begun / "small.toml").write_text(f"{RECIPE}\n[tune.ditto]\nlam = [0.1, 1.0]\n")
    again.run_table(TABLE, begun, seeds=[0], only=["local"])
    with pytest.raises(BadInput, match=r"chosen options with seeds 0, and --seeds asks for 0,1"):
        again.run_table(TABLE, begun, seeds=[0, 1])


def test_a_method_that_a_recipe_got_later_is_run(begun):
    more = RECIPE.replace('"ditto"]', '"ditto", "finetune"]')
    (begun / "small.toml").write_text(more)
    again.run_table(TABLE, begun, only=["finetune"])
    assert read_status(begun / "small" / "finetune-seed0") == "finished"


def test_runs_of_another_recipe_are_not_gone_on_with(begun):
    (begun / "small.toml").write_text(RECIPE.replace("rows = 160", "rows = 200"))
    with pytest.raises(BadInput, match=r"dataset.rows was 160 when .*small began, small says 200"):
        again.run_table(TABLE, begun)


def test_the_page_marks_runs_of_an_older_recipe_and_missing_seeds_and_methods(begun, tmp_path):
    def marks():
        write_pages([TABLE], begun, tmp_path / "docs")
        return compute_verdicts([TABLE], tmp_path / "docs" / "results")["small-1"]

    again.run_table(TABLE, begun, only=["fedavg", "ditto"])
    assert marks().endswith("(1 of 2 seeds)")
    again.run_table(TABLE, begun, seeds=[0, 1])
    assert "(" not in marks()
    (begun / "small.toml").write_text(RECIPE.replace('"ditto"]', '"ditto", "finetune"]'))
    assert marks().endswith("(in part)")
    (begun / "small.toml").write_text(RECIPE.replace("rows = 160", "rows = 200"))
    assert marks().endswith("(older recipe)")
    page_now = (tmp_path / "docs" / "reproduction" / "small.md").read_text()
    assert "before the recipe changed" in page_now


def test_what_was_asked_for_is_shown_whatever_else_is_there(out):
    assert outcome_of(TABLE, out).columns[0].scale == 1
    assert outcome_of(TABLE, out, scale=0.5).columns[0].scale == 0.5
    assert outcome_of(TABLE, out, scale=0.25).columns[0].done == 0


def test_a_table_of_a_script_says_how_it_is_run():
    with pytest.raises(BadInput, match=r"run `python examples/\S+ --write docs/results`"):
        again.check_has_recipe(table_of("selffl-figure-4"))


# Rules of the verdict


def judged(out, **changes):
    """The small table's only column, with some of it changed, beside the runs."""
    column = TABLE.columns[0]._replace(**changes)
    return outcome_of(TABLE._replace(columns=(column,)), out).columns[0]


def test_pairs_are_held_to_their_standard_error(out):
    (pair,) = judged(out).pairs
    runs = {
        m: [load_run(out / "small" / f"{m}-seed{s}") for s in (0, 1)] for m in ("ditto", "fedavg")
    }
    gaps = np.subtract(*([measure(r, "weighted", "personal") for r in runs[m]] for m in runs))
    assert pair.difference.value == pytest.approx(gaps.mean(), abs=1e-3)
    assert pair.difference.error == pytest.approx(gaps.std(ddof=1) / np.sqrt(2), abs=1e-3)


def test_one_seed_is_held_to_its_clients_of_the_view_and_weighed_by_rows(begun):
    again.run_table(TABLE, begun, seeds=[0], only=["fedavg", "ditto"])
    above = (("ditto", "fedavg"), ("ditto:global", "fedavg"))
    own, common = judged(begun, above=above).pairs
    assert own.difference.over == common.difference.over == "4 clients"
    run, base = (load_run(begun / "small" / f"{m}-seed0") for m in ("ditto", "fedavg"))
    for pair, view in ((own, "personal"), (common, "global")):
        gaps = 100 * (run.accuracy(view=view) - base.accuracy())
        weights = run.rows / run.rows.sum()
        off = weights * (gaps - weights @ gaps)
        assert pair.difference.error == pytest.approx(np.sqrt(4 / 3 * (off**2).sum()), abs=1e-2)
    (worst,) = judged(begun, metric="worst", rows=(), above=(("ditto", "fedavg"),)).pairs
    assert worst.difference.over == "one seed"  # the worst client is no mean
    assert worst.difference.answer in ("in order", "out of order", "level")


def test_a_claim_about_the_course_is_judged_over_the_evaluated_rounds(out, tmp_path):
    column = judged(out, over="course")
    run = load_run(out / "small" / "ditto-seed0")
    means = [
        np.average(
            run.table.to_pandas()
            .query("round == @r and part == 'test' and view == 'personal' and metric == 'accuracy'")
            .sort_values("client")["value"],
            weights=run.rows,
        )
        for r in sorted({*curve_of(run.table, "accuracy")[0]})
    ]
    assert len(means) > 1
    ours = column.cells[2].figure.samples[0].figure
    assert ours == pytest.approx(100 * np.mean(means), abs=1e-3)
    assert ours == pytest.approx(measure_course(run, "weighted", "personal").figure, abs=1e-3)
    assert ours != pytest.approx(judged(out).cells[2].figure.samples[0].figure, abs=1e-3)
    assert not column.end_only


def test_results_files_without_a_course_are_judged_at_the_end_and_say_so(out, tmp_path):
    write_pages([TABLE], out, tmp_path)
    late = TABLE._replace(columns=(TABLE.columns[0]._replace(over="course"),))
    (found,) = outcomes([late], tmp_path / "results")
    assert found.columns[0].end_only
    assert found.verdict == outcome_of(TABLE, out).verdict
    assert "at the end only" in page([late], tmp_path / "results")


def test_a_view_that_a_method_does_not_have_before_distillation_is_its_own(out):
    column = judged(out, view="before_distillation", above=(("ditto", "fedavg"),))
    assert column.pairs[0].a == pytest.approx(judged(out).pairs[0].a)


def test_another_view_is_shown_beside(out, tmp_path):
    rows = (PaperRow("Ditto", "ditto", view="global"),)
    column = TABLE.columns[0]._replace(rows=rows, beside="personal")
    text = written([TABLE._replace(columns=(column,))], out, tmp_path)
    mean = judged(out).cells[2].figure.ours.mean
    assert f"- Ditto as `ditto:personal`: {mean:.2f}" in text


def test_claims_that_hold_by_construction_are_shown_and_not_counted(out, tmp_path):
    trivial = (("close", "ditto", "ditto"),)
    alone = TABLE.columns[0]._replace(rows=(PaperRow("Ditto", "ditto"),), above=(), trivial=trivial)
    table = TABLE._replace(columns=(alone,))
    text = written([table], out, tmp_path)
    assert outcome_of(table, out).verdict == "trivial"
    assert "yes (trivial, not counted)" in text
    assert "0 reproduced" in text
    assert "; 1 trivial, not counted" in text
    whole = table._replace(columns=(alone._replace(claims=trivial, trivial=()),))
    assert outcome_of(whole, out).verdict == "reproduced"
    assert outcome_of(whole._replace(trivial="It is an identity."), out).verdict == "trivial"
    refuted = whole._replace(columns=(alone._replace(above=(("fedavg", "ditto"),)),), trivial="So.")
    assert outcome_of(refuted, out).verdict == "not reproduced"


def test_a_smaller_recipe_confirms_and_does_not_refute(begun, tmp_path):
    again.run_table(TABLE, begun, seeds=[0], only=["fedavg", "ditto"])
    refuted = {"rows": (PaperRow("FedAvg", "fedavg", value=0.0),), "above": ()}
    assert judged(begun, **refuted).verdict == "not reproduced"
    (begun / "small.toml").write_text(f"{RECIPE}\n[smaller]\nwidth = [1, 8]\nrows = 0.35\n")
    found = judged(begun, **refuted)
    assert found.verdict == "too small"
    assert found.smaller == ("networks 1/8 as wide", "35 % of the rows of a client")
    again.run_table(TABLE, begun, seeds=[0], only=["fedavg"])  # the table changes no run


def test_a_share_of_a_recipe_s_rounds_counts_in_those_of_its_paper(begun):
    again.run_table(TABLE, begun, seeds=[0], only=["fedavg"], scale=0.5)
    (begun / "small.toml").write_text(f"{RECIPE}\n[smaller]\nrounds = [4, 40]\n")
    column = again.outcome_of(TABLE, begun, 0.5).columns[0]
    assert column.smaller == ("2 of 40 rounds",)


def test_the_headline_counts_whole_and_in_part_apart(out, tmp_path):
    column = TABLE.columns[0]._replace(rows=(PaperRow("FedAvg", "fedavg", value=0.0),), above=())
    whole = TABLE._replace(columns=(column,))
    part = whole._replace(id="small-2", columns=(column, column._replace(name="x", recipe="other")))
    write_pages([whole], out, tmp_path)
    file = json.loads((tmp_path / "results" / "small-1.json").read_text())
    shown = [whole, part]
    (out / "other.toml").write_text(RECIPE)
    found = [judge(table, file["columns"]) for table in shown]
    assert [one.in_part for one in found] == [False, True]
    assert "2 not reproduced (1 of them in part)" in count(shown, found)


def test_pairs_may_name_methods_of_other_columns_of_the_same_runs(out):
    first = TABLE.columns[0]._replace(
        rows=(PaperRow("FedAvg", "fedavg"),), above=(("ditto", "fedavg"),)
    )
    second = TABLE.columns[0]._replace(name="more", rows=(PaperRow("Ditto", "ditto"),), above=())
    table = TABLE._replace(columns=(first, second))
    stored = again.stored_columns(table, out)
    del stored[0]["methods"]["ditto"]
    assert judge(table, stored).columns[0].pairs[0].difference.answer != "not run"


def test_results_files_of_before_are_read(out):
    stored = json.loads(json.dumps(again.stored_columns(TABLE, out)))
    now = judge(TABLE, stored).columns[0]
    stored[0]["claims"] = [[True, "a claim of before, without its words"]]
    for run in (run for some in stored[0]["methods"].values() for run in some):
        run["clients"] = run["clients"]["personal"]
        del run["rows"]
    found = judge(TABLE, stored).columns[0]
    assert (found.verdict, found.claims) == (now.verdict, ())
    del stored[0]["methods"]["ditto"][1]
    assert judge(TABLE, stored).columns[0].pairs[0].difference.over == "4 clients"


# Arithmetic


SOFT = """
methods = ["ktpfl", "feddf"]
seeds = [0]

[dataset]
num_clients = 4
rows = 160
public = "held-out"
public_rows = 40

[model]
name = "mlr"

[schedule]
rounds = 2

[options.ktpfl]
draw = 8

[options.feddf]
draw = 8

[engine]
threads = 1
"""


def test_traffic_by_arithmetic_is_what_the_engine_counts(tmp_path):
    (tmp_path / "soft.toml").write_text(SOFT)
    column = PaperColumn(
        name="bytes",
        recipe="soft",
        metric="bytes",
        rows=(PaperRow("KT-pFL", "ktpfl"), PaperRow("FedDF", "feddf")),
        above=(("feddf", "ktpfl"),),
        claims=(("far_less", "ktpfl", "feddf"),),
    )
    table = TABLE._replace(columns=(column,), metric="bytes")
    counted = table._replace(columns=(column._replace(arithmetic=True),))
    with recipes_in(tmp_path):
        trained = again.run_table(table, tmp_path / "trained").columns[0]
        computed = again.run_table(counted, tmp_path / "computed").columns[0]
        ours, theirs = ([c.figure.ours.mean for c in one.cells] for one in (computed, trained))
        assert ours == pytest.approx(theirs)
        assert not (tmp_path / "computed" / "soft").exists()
        assert computed.pairs[0].difference.answer == "yes"
        text = written([counted], tmp_path / "computed", tmp_path / "docs")
    assert "arithmetic, nothing was trained" in text


def test_the_peak_of_gains_is_where_most_clients_are(out):
    run, base = (load_run(out / "small" / f"{m}-seed0") for m in ("ditto", "fedavg"))
    gains = 100 * (run.accuracy() - base.accuracy())
    peak = measure(run, "gain_over_fedavg.peak", "personal", base)
    assert gains.min() <= peak <= gains.max()
    places = np.linspace(gains.min(), gains.max(), 50)
    at = density(gains, np.array([peak, *places]))
    assert at[0] >= at[1:].max() - 1e-6


def test_longer_runs_go_on_from_shorter_ones_and_end_as_if_run_at_once(out, tmp_path):
    (tmp_path / "small.toml").write_text(RECIPE)
    with recipes_in(tmp_path):
        again.run_table(TABLE, tmp_path, seeds=[0], scale=0.5, only=["ditto"])
        short = (tmp_path / "small@0.5" / "ditto-seed0" / "run.json").read_bytes()
        played = []
        again.run_table(
            TABLE, tmp_path, lambda m, s, r: played.append(r.round), seeds=[0], only=["ditto"]
        )
    assert set(played) <= {2, 3, 4}  # 2 where it begins; the first two rounds are not run again
    assert (tmp_path / "small@0.5" / "ditto-seed0" / "run.json").read_bytes() == short
    ours, whole = (load_run(at / "small" / "ditto-seed0") for at in (tmp_path, out))
    np.testing.assert_allclose(ours.accuracy(), whole.accuracy(), atol=1e-6)


def test_the_best_round_is_that_of_the_test_rows_and_the_chosen_one_that_of_the_select_rows(out):
    run = load_run(out / "small" / "ditto-seed0")
    rounds = curve_of(run.table, "accuracy", "test")[0]
    rows = np.array(run.about["rows"]["test"], dtype=float)
    means = {
        int(r): 100 * np.average(values_of(run.table, "accuracy", "test", round=r)[1], weights=rows)
        for r in rounds
    }
    assert measure(run, "best", "personal") == pytest.approx(max(means.values()))
    chosen = best_round(run.table)
    assert measure(run, "chosen", "personal") == pytest.approx(means[chosen])


@pytest.fixture
def longer(out, tmp_path):
    """Whole runs of FedAvg alone beside shortened ones of all methods, for a best round."""
    shutil.copytree(out, tmp_path / "runs")
    for name in ("local", "ditto"):
        for seed in (0, 1):
            shutil.rmtree(tmp_path / "runs" / "small" / f"{name}-seed{seed}")
    best = TABLE.columns[0]._replace(metric="best", rows=TABLE.columns[0].rows[::2])
    with recipes_in(out):
        yield TABLE._replace(metric="best", columns=(best,)), tmp_path


def test_methods_are_compared_where_most_have_ended_and_longer_runs_are_said_beside(longer):
    table, folder = longer
    assert scale_of(place_of(folder / "runs", table.columns[0])) == 0.5
    text = written([table], folder / "runs", folder)
    run = load_run(folder / "runs" / "small" / "fedavg-seed0")
    best = measure(run, "best", "personal")
    assert f"The best round of longer runs: FedAvg {best:.2f} in 4 rounds." in text
    assert "(../pictures/small-1-digits.png)" in text
    assert (folder / "pictures" / "small-1-digits.png").stat().st_size > 1000


def test_the_longer_curve_of_a_method_is_kept(longer):
    table, folder = longer
    write_pages([table], folder / "runs", folder)
    path = folder / "results" / "small-1.json"
    before = json.loads(path.read_text())
    shutil.rmtree(folder / "runs" / "small")
    write_pages([table], folder / "runs", folder)
    kept, was = (file["columns"][0]["curves"] for file in (json.loads(path.read_text()), before))
    assert kept == was
    assert kept["fedavg"]["rounds"][-1] == 4
