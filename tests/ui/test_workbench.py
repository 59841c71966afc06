"""The pages as a workbench, in a real browser: verdicts, bands, filters, labels, downloads, and a
run that is started, stopped and resumed from the form.
"""

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.analysis.tiles import summarize_answer
from coterie.comparison.execute import compare, load_comparison
from coterie.comparison.plan import plan_experiments
from coterie.core.files import digest
from coterie.experiment.config import Experiment, change_options
from coterie.running.execute import execute
from coterie.ui.flat_config import find_differing, flatten_config, group_of
from helpers.ui import FAST, TOKEN, WORDS, client, served, until


@pytest.fixture(scope="module")
def seeds(tmp_path_factory) -> Path:
    """A comparison of two methods with three seeds each, and a run with another rate."""
    root = tmp_path_factory.mktemp("seeds")
    settings = change_options(Experiment(method=""), WORDS | FAST | {"dataset.seed": 0})
    compare(plan_experiments(["fedavg", "local"], settings), [0, 1, 2], root / "three")
    execute(change_options(replace(settings, method="ditto"), {"lr": 0.05}), root / "slow")
    return root


@pytest.fixture
def bench(seeds, tmp_path) -> Path:
    return Path(shutil.copytree(seeds, tmp_path / "runs"))


@pytest.fixture
def opened(bench, browser):
    """A function that opens a page of the bench with the token; what went wrong is checked."""
    wrong: list[str] = []
    with served(bench, TOKEN) as port:
        base = f"http://127.0.0.1:{port}"
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request",
            lambda r: None if r.url.startswith((base, "blob:", "data:")) else wrong.append(r.url),
        )
        page.goto(f"{base}/?token={TOKEN}")

        def go(path: str):
            page.goto(base + path)
            return page

        yield go
        page.goto("about:blank")
    assert wrong == []


def rows_of(page, act) -> list[list[str]]:
    """The lines of the CSV file that an act downloads."""
    with page.expect_download() as waited:
        act()
    return list(csv.reader(io.StringIO(Path(waited.value.path()).read_text())))


def test_the_verdict_in_the_list_is_the_answer(bench, opened):
    answer = load_comparison(bench / "three").answer
    told, short = str(answer), summarize_answer(answer)
    page = opened("/")
    page.locator("tr.verdict").get_by_text(short.headline, exact=True).wait_for()
    shown = page.locator("tr.verdict .figure strong").all_inner_texts()
    assert shown == [tile.value for tile in short.tiles]
    assert page.locator("tr.told td.result").inner_text() == (shown or [""])[0]
    assert page.locator("tr.told td.rounds").inner_text() == "6 × 4"
    page = opened("/compare?run=three")
    page.locator("#verdict").get_by_text(told, exact=True).wait_for()


def test_a_verdict_is_read_again_only_when_runs_change(bench, monkeypatch):
    loaded = []
    monkeypatch.setattr(
        "coterie.ui.verdict_cache.load_comparison",
        lambda folder: loaded.append(folder) or load_comparison(folder),
    )
    asker = client(bench)
    first = asker.get("/api/verdict", params={"id": "three"}).json()["verdict"]
    assert asker.get("/api/verdict", params={"id": "three"}).json()["verdict"] == first
    assert len(loaded) == 1
    assert asker.get("/api/verdict", params={"id": "slow"}).json()["verdict"] == ""
    assert asker.get("/api/verdict", params={"id": "nowhere"}).status_code == 404


def test_a_comparison_with_a_link_out_of_the_folder_has_no_verdict(bench, tmp_path):
    away = shutil.move(bench / "three" / "local-seed0", tmp_path / "away")
    (bench / "three" / "local-seed0").symlink_to(away)
    (bench / "three" / "more").symlink_to(away)
    said = client(bench).get("/api/verdict", params={"id": "three"})
    assert said.status_code == 422
    assert "is a link out of the folder" in said.json()["problem"]


def test_seeds_are_averaged_with_a_band_from_the_lowest_to_the_highest(bench, opened):
    told = {}
    for k in range(3):
        lines = (bench / "three" / f"local-seed{k}" / "progress.jsonl").read_text().splitlines()
        told[k] = [json.loads(line)["accuracy"] for line in lines]
    page = opened("/compare?run=three")
    until(page, "document.getElementById('accuracy').data?.length === 6")
    curves = page.evaluate("document.getElementById('accuracy').data.map((t) => [t.name, t.y])")
    at = next(k for k, (name, _) in enumerate(curves) if name == "local (3 seeds)")
    columns = list(zip(*told.values(), strict=True))
    assert curves[at][1] == pytest.approx([sum(c) / 3 for c in columns])
    assert curves[at - 2][1] == pytest.approx([min(c) for c in columns])
    assert curves[at - 1][1] == pytest.approx([max(c) for c in columns])
    page.get_by_label("Seeds").select_option("each by itself")
    until(page, "document.getElementById('accuracy').data.length === 6")
    assert page.locator("#band-told").is_hidden()


def test_metric_log_axis_and_smoothing_are_chosen(opened):
    page = opened("/compare?run=three")
    until(page, "document.getElementById('loss').data?.length === 6")
    chart = "document.getElementById('loss')"
    page.get_by_label("Log scale").check()
    until(page, f"{chart}.layout.yaxis.type === 'log'")
    before = page.evaluate(f"{chart}.data[2].y")
    page.get_by_label("Smoothing").fill("0.5")
    smooth = page.evaluate(f"{chart}.data[2].y")
    assert smooth[1] == pytest.approx((0.5 * before[0] + before[1]) / 1.5)
    page.get_by_label("Smoothing").fill("0")
    page.locator("#metric-loss").select_option("accuracy · test · personal")
    until(page, f"{chart}.data.length === 6 && {chart}.data[2].y[0] <= 1")
    rows = rows_of(page, page.get_by_label("The chart loss as CSV").click)
    assert rows[0] == ["series", "round", "value", "lowest seed", "highest seed"]
    assert len(rows) == 1 + 2 * 4
    assert [float(v) for v in rows[1][2:]] == [
        pytest.approx(v) for v in page.evaluate(f"[2, 0, 1].map((k) => {chart}.data[k].y[0])")
    ]


def test_columns_and_filters_come_from_the_configuration(opened):
    page = opened("/")
    names = page.locator("tbody td.name a")
    names.first.wait_for()
    page.locator("#which option[value='train.lr']").wait_for(state="attached")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("checkbox", name="train.lr").check()
    page.get_by_role("button", name="train.lr").wait_for()
    assert page.locator("tbody td.own").first.inner_text() in ("", "0.05")
    page.get_by_label("Where").select_option("train.lr")
    page.locator("#value").select_option("0.05")
    assert page.get_by_label("Filter the runs").input_value() == "train.lr=0.05"
    assert names.all_inner_texts() == ["slow"]
    rows = rows_of(page, page.get_by_role("button", name="CSV").click)
    assert [row[0] for row in rows] == ["name", "slow"]
    assert rows[1][rows[0].index("train.lr")] == "0.05"
    page.get_by_label("Filter the runs").fill("train.lr>0.06 seed=1")
    assert sorted(names.all_inner_texts()) == ["fedavg-seed1", "local-seed1", "three"]


def test_configurations_are_told_apart(opened):
    page = opened("/compare?run=slow&run=three%2Flocal-seed0")
    page.locator("#diff tbody tr").first.wait_for()
    found = {
        r.split("\t")[0]: r.split("\t")[1:] for r in page.locator("#diff tr").all_inner_texts()
    }
    assert found["train.lr"] == ["0.05", "0.1"]
    assert found["method"] == ["ditto", "local"]
    assert "schedule.rounds" not in found


def test_words_that_differ_and_seeds_that_do_not():
    one = {"method": "a", "seed": 0, "train": {"rate": 0.1, "nesterov": True}, "engine": {"x": 1}}
    other = {"method": "a", "seed": 1, "train": {"rate": 0.1, "nesterov": 1}, "engine": {"x": 2}}
    settings = flatten_config(one), flatten_config(other)
    assert find_differing(list(settings)) == ["engine.x", "seed", "train.nesterov"]
    assert group_of(settings[0]) != group_of(settings[1])
    same = flatten_config(other | {"train": one["train"]})
    assert group_of(settings[0]) == group_of(same)


def test_a_run_is_named_tagged_noted_and_put_away(bench, opened):
    before = {p: digest(p) for p in bench.rglob("*") if p.is_file()}
    page = opened("/")
    page.get_by_label("Edit slow").click()
    page.get_by_label("Name, instead").fill("<b>Half</b> the rate")
    page.get_by_label("Tags").fill("keep, paper")
    page.get_by_label("Note").fill("as in section 3")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("link", name="<b>Half</b> the rate").wait_for()
    page.get_by_label("Filter the runs").fill("tag=paper")
    assert page.locator("tbody td.name a").all_inner_texts() == ["<b>Half</b> the rate"]
    page.get_by_label("Choose <b>Half</b> the rate").check()
    page.get_by_role("button", name="Archive").click()
    page.get_by_text("nothing matches the filter").wait_for()
    page.get_by_label("Show archived").check()
    page.get_by_role("link", name="<b>Half</b> the rate").click()
    page.get_by_role("heading", name="<b>Half</b> the rate").wait_for()
    page.get_by_text("as in section 3").wait_for()
    after = {p: digest(p) for p in bench.rglob("*") if p.is_file()}
    assert {p for p in after if after[p] != before.get(p)} == {bench / "ui-labels.json"}


def test_a_first_round_far_off_does_not_ruin_a_chart_and_is_told(bench, opened):
    path = bench / "slow" / "progress.jsonl"
    line = json.loads(path.read_text().splitlines()[0])
    losses = [1e6, 2.0, 1.5, 1.2, 1.1, 1.0, 0.9, 0.85]
    rows = [{**line, "round": k + 1, "rounds": 8, "loss": v} for k, v in enumerate(losses)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (bench / "slow" / "metrics.parquet").unlink()
    for kept in bench.glob("slow/checkpoint-*"):
        shutil.rmtree(kept)
    page = opened("/compare?run=slow")
    page.get_by_text("1 point is far off (1000000) and left out of the range.").wait_for()
    top = "document.getElementById('loss').layout.yaxis.range[1]"
    assert page.evaluate(top) < 3
    page.get_by_role("button", name="Show every point").click()
    until(page, f"{top} > 1e5")
    page.get_by_role("button", name="Leave far points out").click()
    until(page, f"{top} < 3")


def test_a_report_leads_back_to_the_list(opened):
    page = opened("/report?run=three")
    page.get_by_role("link", name="All runs").click()
    page.locator("tbody td.name a").first.wait_for()


def test_a_reader_without_the_token_sees_no_way_to_change(bench, browser):
    with served(bench, TOKEN) as port:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_text("open the address that coterie ui printed").wait_for()
        assert page.get_by_role("link", name="Start").count() == 0
        assert page.get_by_label("Edit slow").count() == 0
        page.goto("about:blank")


def test_a_run_is_started_from_the_form_stopped_and_resumed(bench, opened):
    page = opened("/start")
    page.locator("#groups input").first.wait_for()
    page.locator("#what").select_option("run")
    page.locator("#method").select_option("ditto")
    page.get_by_text("rows per mini-batch", exact=True).wait_for()  # what an option means
    page.get_by_label("lam").wait_for()
    page.locator("input[name='schedule.rounds']").fill("0")
    page.get_by_role("button", name="Start").click()
    page.get_by_text("schedule.rounds = 0: give a whole number from 1 to 1,000,000").wait_for()
    page.get_by_text("More options").click()
    settings = {
        "dataset.num_clients": 4,
        "dataset.rows": 160,
        "partition.classes_each": 4,
        "model.hidden": 6,
    }
    for option, value in (settings | {"schedule.rounds": 100_000, "keep.checkpoint": 5}).items():
        page.locator(f"input[name='{option}']").fill(str(value))
    for option, value in {"engine.path": "vectorized", "engine.compile": "no"}.items():
        page.locator(f"[name='{option}']").select_option(value)
    page.get_by_role("button", name="Start").click()
    page.get_by_text("round 3 of 100000").wait_for(timeout=300_000)
    page.get_by_role("button", name="Stop").click()
    page.locator("#log").get_by_text("goes on").wait_for(timeout=300_000)
    page.get_by_role("button", name="Resume").click(timeout=300_000)
    page.get_by_role("button", name="Stop").click(timeout=300_000)
    page.locator("#log").get_by_text("stopped (exit code 130)").wait_for(timeout=300_000)
    (made,) = [p for p in bench.glob("*-ditto-digits") if p.is_dir()]
    assert (made / "config.toml").exists()
