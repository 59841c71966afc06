"""Reports: the numbers are those of the runs, what is damaged is said and left out, and a thousand clients fit on a page."""

import csv
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from coterie import __version__
from coterie.analysis.density import density
from coterie.analysis.gains import improvement, qoi
from coterie.analysis.significance import spread
from coterie.cli.report import report
from coterie.comparison.execute import compare
from coterie.comparison.plan import plan
from coterie.core.errors import BadInput
from coterie.core.notes import Kind, Note, to_words
from coterie.experiment.config import Experiment, change
from coterie.reports.draw import draw
from coterie.reports.evidence import Evidence
from coterie.reports.figures import Figure, Series
from coterie.reports.files import latex, to_csv, to_latex
from coterie.reports.gather import gather
from coterie.reports.matrices import GROUPS, PEERS, between, heat, peers
from coterie.reports.noted import FRAMES, server_frames, together
from coterie.reports.report import report_data, report_html, write_report
from coterie.reports.table import Column
from coterie.reports.table import Table as ReportTable
from coterie.reports.tables import tables
from coterie.results.false_accepts import relative_false_accepts
from coterie.results.folder import write_config
from coterie.results.run import load
from coterie.results.table import Table
from coterie.running.execute import execute

METHODS = ["local", "fedavg", "persfl", "ktpfl", "ucfl", "selffl", "apfl", "cfl"]
WORDS = {"data": "digits", "clients": 4, "rounds": 3, "evaluate": 1, "public": "held-out", "public_rows": 40, "batch": 64}
FAST = {"path": "vectorized", "width": 8, "compile": "no", "threads": 1}
OWN = {"persfl": {"distil_epochs": 1}, "ktpfl": {"draw": 20}}
KINDS = {"lines", "dots", "bars", "density", "points", "heat"}
SECTIONS = {"accuracy", "fairness", "cost", "collaboration", "inside", "data"}


def base(**words) -> Experiment:
    return change(Experiment(method=""), WORDS | FAST | words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A comparison of methods that note all kinds of things."""
    place = tmp_path_factory.mktemp("reports") / "all"
    compare(plan(METHODS, base(), OWN), [0, 1], place)
    return place


@pytest.fixture(scope="module")
def data(folder) -> dict:
    return report_data([folder])


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def facts(run: Path, **words) -> None:
    """Change words of run.json."""
    known = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(known | words))


def table(data: dict, key: str) -> dict[str, dict]:
    """{method: {column: cell}} of a table."""
    found = next(t for t in data["tables"] if t["key"] == key)
    names = [c["name"] for c in found["columns"]]
    return {row[0]: dict(zip(names, row, strict=True)) for row in found["rows"]}


def figure(data: dict, key: str) -> dict:
    return next(f for f in data["figures"] if f["key"] == key)


# What is said is what the runs hold


def test_every_figure_is_whole(data):
    assert {f["section"] for f in data["figures"]} == SECTIONS
    keys = [f["key"] for f in data["figures"]] + [t["key"] for t in data["tables"]]
    assert len(set(keys)) == len(keys)
    for f in data["figures"]:
        assert f["kind"] in KINDS
        assert f["title"]
        assert f["note"].endswith(".")
        assert f["y"]
        for s in f["series"]:
            assert len(s["x"]) == len(s["y"]) > 0
            assert len(s["low"]) == len(s["high"]) in (0, len(s["y"]))
            assert len(s["text"]) in (0, len(s["y"]))
        if f["kind"] == "heat":
            for _, z in f["heat"]["frames"]:
                assert np.shape(z) == (len(f["heat"]["rows"]), len(f["heat"]["columns"]))
    json.dumps(data, allow_nan=False)


def test_the_method_table_is_that_of_the_runs(data, folder):
    found = table(data, "methods")
    assert set(found) == set(METHODS) == set(data["methods"])
    for name in METHODS:
        runs = [load(folder / f"{name}-seed{seed}") for seed in (0, 1)]
        assert found[name]["mean"] == pytest.approx(100 * np.mean([r.accuracy().mean() for r in runs]), rel=1e-5)
        assert found[name]["worst client"] == pytest.approx(100 * np.mean([r.accuracy().min() for r in runs]), rel=1e-5)
    means = [row["mean"] for row in found.values()]
    assert means == sorted(means, reverse=True)


def test_gains_are_over_the_better_of_fedavg_and_local(data, folder):
    def accuracy(name: str) -> list[np.ndarray]:
        return [load(folder / f"{name}-seed{seed}").accuracy() for seed in (0, 1)]

    pui = [improvement(qoi(p, g, a)).pui for p, g, a in zip(*map(accuracy, ("persfl", "fedavg", "local")), strict=True)]
    assert table(data, "gains")["persfl"]["PUI"] == pytest.approx(np.mean(pui))
    assert not {"fedavg", "local"} & set(table(data, "gains"))


def test_clients_are_those_of_the_first_seed_where_splits_differ(data, folder):
    run = load(folder / "apfl-seed0")
    assert data["clients"]["accuracy"]["apfl"] == pytest.approx(run.accuracy(), rel=1e-4)
    assert data["clients"]["rows"] == run.about["rows"]
    assert np.sum(data["clients"]["counts"]) == sum(map(sum, run.about["rows"].values()))
    assert "Seed 0 alone" in figure(data, "clients")["note"]
    assert len(dict(data["clients"]["notes"]["persfl"])["round of the teacher"]) == 4


def test_clients_are_means_over_seeds_where_the_split_is_one(tmp_path):
    for seed in (1, 2):
        execute(base(method="local", seed=seed, **{"data.seed": 0}), tmp_path / f"s{seed}")
    data = report_data([tmp_path / "s1", tmp_path / "s2"])
    mean = np.mean([load(tmp_path / f"s{seed}").accuracy() for seed in (1, 2)], axis=0)
    assert data["clients"]["accuracy"]["local"] == pytest.approx(mean, rel=1e-4)
    assert [r["seed"] for r in data["runs"]] == [1, 2]


def test_the_answer_is_that_of_the_comparison(data):
    assert "Recommended" in data["answer"][0]
    assert data["warnings"] == []


def test_the_last_curve_point_is_the_method_tables_mean(data):
    for s in figure(data, "curves")["series"]:
        assert s["y"][-1] == pytest.approx(table(data, "methods")[s["name"]]["mean"], rel=1e-3)


def test_mixing_is_noted_for_methods_that_mix(data):
    assert set(data["clients"]["learned_from"]) == {"ktpfl", "ucfl", "cfl"}
    grid = figure(data, "grid_accuracy-persfl")["heat"]
    assert grid["rows"] == sorted(grid["rows"], key=float)


# What cannot be used


def test_what_is_damaged_is_said_and_the_rest_is_shown(copy):
    (copy / "ucfl-seed0" / "metrics.parquet").write_bytes(b"PAR1 torn")
    (copy / "cfl-seed0" / "run.json").write_text("{")
    shutil.rmtree(copy / "apfl-seed0")
    facts(copy / "ktpfl-seed0", data="other")
    facts(copy / "selffl-seed0", clients=["a"], rows={"train": [1], "validation": [1], "test": [1]}, groups=[0])
    facts(copy / "persfl-seed1", coterie="0.0.1")
    data = report_data([copy])
    assert sorted(data["methods"]) == sorted(METHODS)
    assert {run["seed"] for run in data["runs"]} == {1}  # of which every method has a run
    said = "\n".join(data["warnings"])
    for words in (
        "copy: 1 of 16 runs have not begun: apfl-seed0",
        "ucfl-seed0 is left out: ucfl-seed0/metrics.parquet cannot be read",
        "cfl-seed0 is left out: cfl-seed0/run.json is damaged",
        "ktpfl-seed0 is left out: its data or split are not those",
        "selffl-seed0 is left out",
        "persfl, persfl-seed1, was made by coterie 0.0.1",
        "seed 0 is left out: ktpfl, ucfl, selffl and 2 more have no run with it",
    ):
        assert words in said
    assert str(copy) not in said


def test_a_method_without_the_usual_seed_is_left_out(folder):
    paths = [folder / name for name in ("local-seed0", "fedavg-seed0", "apfl-seed1")]
    data = report_data(paths)
    assert data["methods"] == ["local", "fedavg"]
    assert data["warnings"] == ["apfl is left out: it has seed 1, the others seed 0; run it with that seed too"]


def test_a_seed_that_a_method_lacks_counts_for_none(copy):
    shutil.rmtree(copy / "ucfl-seed1")
    data = report_data([copy])
    assert {run["seed"] for run in data["runs"]} == {0}
    assert "seed 1 is left out: ucfl has no run with it" in data["warnings"]


def test_a_damaged_plan_leaves_the_runs(copy):
    (copy / "comparison.toml").write_text("methods = 3")
    data = report_data([copy])
    assert sorted(data["methods"]) == sorted(METHODS)
    assert "comparison.toml" in data["warnings"][0]


def test_nothing_readable_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no run can be read: there is no folder"):
        report_data([tmp_path / "none"])
    with pytest.raises(BadInput, match=r"neither run\.json nor"):
        report_data([tmp_path])
    with pytest.raises(BadInput, match="name at least one folder"):
        report_data([])


def test_a_folder_of_runs_names_one_of_them(folder):
    with pytest.raises(BadInput, match=f"such as {folder.parent}/all"):
        report_data([folder.parent])


def test_a_stopped_run_is_shown_as_it_stood(tmp_path):
    class Stop(Exception):
        pass

    def watch(report):
        if report.round == 2:
            raise Stop

    with pytest.raises(Stop):
        execute(base(method="fedavg", checkpoint=1), tmp_path / "run", watch)
    data = report_data([tmp_path / "run"])
    assert data["warnings"] == ["fedavg, run, is not finished: shown as it stood at round 2 of 3"]
    assert figure(data, "curves")["series"][0]["x"] == [1, 2]
    assert "round 2" in data["runs"][0]["status"]


def test_runs_that_differ_in_more_than_the_seed_are_told_apart(tmp_path):
    for name, words in {"a": {}, "b": {"seed": 1}, "c": {"rate": 0.01}, "d": {"rate": 0.01, "seed": 1}}.items():
        execute(base(method="local", **words), tmp_path / name)
    assert set(gather([tmp_path / n for n in "abcd"]).records) == {"local", "local (c)"}
    evidence = gather([tmp_path / n for n in "aabb"])
    assert evidence.seeds == [0, 1]
    data = report_data([tmp_path / "a"])
    assert "gains and how fairly they are shared are left out" in data["answer"][0]
    assert "one method" in data["answer"][1]


def test_without_local_a_gain_is_over_fedavg(folder):
    data = report_data([folder / "fedavg-seed0", folder / "apfl-seed0"])
    assert "over FedAvg" in figure(data, "qoi")["title"]
    assert "gains are measured over FedAvg alone" in data["answer"][1]


def test_a_loss_is_lower_is_better(tmp_path):
    for name in ("fedavg", "local"):
        execute(change(Experiment(method=name), {"data": "gaussian", "rounds": 2, **FAST}), tmp_path / name)
    data = report_data([tmp_path / "fedavg", tmp_path / "local"])
    assert data["measure"] == "loss"
    means = [row["mean"] for row in table(data, "methods").values()]
    assert means == sorted(means)
    worst = table(data, "methods")["local"]["worst client"]
    assert worst == pytest.approx(load(tmp_path / "local").measured().max(), rel=1e-4)
    assert "no classes" in " ".join(data["answer"])
    assert not [f for f in data["figures"] if f["key"] in ("qoi", "evenness", "split")]
    better = next(c for t in data["tables"] if t["key"] == "methods" for c in t["columns"] if c["name"] == "mean")
    assert better["better"] == "low"


def test_two_classes_have_false_accepts_over_fedavg(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    frame = {f"x{k}": x[:, k] for k in range(4)} | {"label": (x.sum(1) > 0).astype(int), "client": np.arange(120) % 3}
    pq.write_table(pa.table(frame), tmp_path / "own.parquet")
    words = {"data": str(tmp_path / "own.parquet"), "rounds": 2, **FAST}
    for name in ("fedavg", "local"):
        execute(change(Experiment(method=name), words), tmp_path / name)
    runs = [load(tmp_path / name) for name in ("local", "fedavg")]
    found = table(report_data([run.folder for run in runs]), "scores-accepts")
    assert found["local"]["relative false accepts"] == pytest.approx(relative_false_accepts(*runs).relative_fa, rel=1e-5)


# Matrices


def test_between_groups_is_the_mean_over_pairs():
    rng = np.random.default_rng(0)
    matrix, group = rng.normal(size=(7, 7)), np.array([0, 1, 1, 0, 2, 1, 0])
    found = between(matrix, group)
    for a in range(3):
        for b in range(3):
            pairs = [matrix[i, j] for i in range(7) for j in range(7) if i != j and group[i] == a and group[j] == b]
            assert found[a, b] == pytest.approx(np.mean(pairs)) if pairs else np.isnan(found[a, b])


def test_peers_are_the_largest_weights_on_others():
    matrix = np.random.default_rng(1).normal(size=(30, 30))
    for i, found in enumerate(peers(matrix)):
        others = sorted(((matrix[i, j], j) for j in range(30) if j != i and matrix[i, j] > 0), reverse=True)[:PEERS]
        assert [(j, w) for w, j in others] == found


def test_a_large_matrix_is_shown_in_groups():
    n = 150
    blocks = np.repeat(np.arange(3), 50)
    matrix = (blocks[:, None] == blocks[None]) / 50
    drawn, how = heat([(1, matrix)], [str(i) for i in range(n)], np.zeros(n, dtype=int))
    assert len(drawn.rows) == GROUPS
    assert "alike rows" in how
    drawn, how = heat([(1, matrix)], [str(i) for i in range(n)], blocks)
    assert drawn.rows[0] == "true group 1 (50 clients)"
    assert np.allclose(drawn.frames[0][1], np.eye(3) / 50)


def test_frames_are_few_and_the_last_is_among_them(tmp_path):
    (tmp_path / "notes").mkdir()
    for r in range(1, 51):
        notes = {"v": np.zeros((4, 4), np.float32), "xi": np.full((4, 4), r, np.float32)}
        save_file(notes, tmp_path / "notes" / f"round-{r:05d}.safetensors")
    found = server_frames(tmp_path, "xi")
    assert len(found) == FRAMES
    assert found[-1][0] == 50
    assert (found[-1][1] == 50).all()
    (tmp_path / "notes" / "round-00050.safetensors").write_bytes(b"torn")
    assert server_frames(tmp_path, "xi")[-1][0] < 50


def test_members_of_a_group_share_alike_and_who_is_in_none_shares_nothing():
    assert np.allclose(together(np.array([0, 1, 0])), [[0.5, 0, 0.5], [0, 1, 0], [0.5, 0, 0.5]])
    assert np.allclose(together(np.array([-1, -1])), 0)


# Figures


@pytest.mark.parametrize("values", [[3.0], [2.0, 2.0, 2.0], [1.0, 4.0], list(range(20)), [5.0, np.nan, 5.0]])
def test_a_density_is_one_in_all(values):
    grid = np.linspace(-100, 100, 20_001)
    assert np.trapezoid(density(np.array(values, dtype=float), grid), grid) == pytest.approx(1, abs=1e-6)


def test_a_spread_says_no_more_than_the_seeds_do():
    assert spread([1.0, 3.0]) == (2.0, 1.0, 3.0)
    assert np.isnan(spread([2.0])[1:]).all()
    assert spread([1.0, 2.0, 3.0])[1] == pytest.approx(2 - 4.302652730 / np.sqrt(3))


@pytest.mark.parametrize("kind", sorted(KINDS - {"heat"}))
def test_hostile_names_are_drawn_as_they_are(kind, tmp_path):
    names = ["$x_1", "<b>&", "_a", "ä" * 80]
    x = names if kind in ("dots", "bars") else [1.0, 2.0, 3.0, 4.0]
    series = tuple(Series(name, x, [1.0, float("nan"), 2.0, 3.0], [0.5] * 4, [4.0] * 4) for name in names)
    drawn = draw(Figure("key", "$title_{", "note $", kind, "$x", "$y", series), names[:2])
    drawn.savefig(tmp_path / "it.png")
    assert {t.get_text().replace("\\$", "$") for t in drawn.legends[0].get_texts()} >= {"$x_1", "<b>&"}


# Files


def test_the_page_holds_the_data_and_only_a_report_is_overwritten(folder, tmp_path):
    page = tmp_path / "page.html"
    assert write_report([folder / "fedavg-seed0", folder / "local-seed0"], page) == page
    first = page.read_text()
    inside = json.loads(re.search(r'id="report-data">(.*?)</script>', first, re.DOTALL)[1])
    assert inside["methods"] == ["fedavg", "local"]
    assert str(folder) not in first
    write_report([folder / "fedavg-seed0"], page)
    mine = tmp_path / "mine.html"
    mine.write_text("<html>my own</html>")
    with pytest.raises(BadInput, match="is no report of coterie: give another name with --out"):
        write_report([folder / "fedavg-seed0"], mine)
    assert mine.read_text() == "<html>my own</html>"
    with pytest.raises(BadInput, match="there is no folder"):
        write_report([folder], tmp_path / "none" / "page.html")
    with pytest.raises(BadInput, match="is a folder"):
        write_report([folder], tmp_path)


def test_the_command_writes_page_figures_and_tables(copy):
    run = copy / "fedavg-seed0"
    (copy / "local-seed0" / "run.json").write_text("{")
    said = CliRunner().invoke(report, [str(run), "--files", str(copy / "files")])
    assert said.exit_code == 0, said.output
    assert said.output == f"report: {run / 'report.html'}\nfigures and tables: {copy / 'files'}\n"
    data = report_data([run])
    names = {f"{f['key']}.{end}" for f in data["figures"] for end in ("png", "svg")}
    names |= {f"{t['key']}.{end}" for t in data["tables"] for end in ("csv", "tex")}
    assert {p.name for p in (copy / "files").iterdir()} == names
    assert all(p.stat().st_size for p in (copy / "files").iterdir())
    said = CliRunner().invoke(report, [str(run), str(copy / "local-seed0"), "--out", str(copy / "two.html")])
    assert "coterie: local-seed0 is left out" in said.output


def test_a_table_survives_as_csv_and_latex(folder):
    for found in tables(gather([folder])):
        lines = list(csv.reader(io.StringIO(to_csv(found))))
        assert [line[0] for line in lines[1:]] == [row[0] for row in found.rows]
        for line, row in zip(lines[1:], found.rows, strict=True):
            assert all(float(a) == b for a, b in zip(line, row, strict=True) if a and not isinstance(b, str))
        body = [line for line in to_latex(found).splitlines() if line.endswith(r"\\") or r"\hline" in line[1:]]
        assert all(len(re.findall(r"(?<!\\)&", line)) == len(found.columns) - 1 for line in body)
    assert latex(r"50 % of a_b & #1 \x") == r"50 \% of a\_b \& \#1 \textbackslash{}x"
    one = ReportTable("k", "t", "", [Column("a", "%"), Column("b", format=".1f")], [["x_y", float("nan")], ["z", 1.25]])
    assert to_latex(one).splitlines()[1:] == [
        r"\begin{tabular}{lr}", r"\hline", r"a (\%) & b \\ \hline", r"x\_y &  \\", r"z & 1.2 \\", r"\hline", r"\end{tabular}"
    ]  # fmt: skip


def test_the_page_is_one_text(folder):
    assert report_html([folder / "local-seed0"]).lstrip().startswith("<!doctype html>")


# A thousand clients


def pretend(place: Path, name: str, n: int, rounds: int) -> None:
    """The folder of a run of many clients that nobody had time to train."""
    rng = np.random.default_rng(len(name))
    place.mkdir(parents=True)
    whole = Experiment(method=name)
    write_config(place, replace(whole, schedule=whole.schedule._replace(rounds=rounds)))
    known = {
        "status": "finished",
        "coterie": __version__,
        "data": "d",
        "clients": [f"site {i:04d}" for i in range(n)],
        "classes": 10,
    }
    sizes = {part: rng.integers(5, 200, n).tolist() for part in ("train", "validation", "test")}
    network = {"models": [{"name": "dnn", "parameters": 2410}], "architecture": [0] * n}
    notes = to_words({"alpha": Note("alpha", Kind.COURSE), "W": Note("weights W", Kind.MATRIX)})
    facts = {**known, **network, "rows": sizes, "groups": [0] * n, "notes": notes}
    (place / "run.json").write_text(json.dumps(facts))
    found, everyone = Table(), np.arange(n)
    for r in range(1, rounds + 1):
        for metric in ("bytes_down", "bytes_broadcast", "bytes_up", "steps", "seconds", "clients"):
            found.add("train", r, np.array([-1]), "", "", metric, np.array([100.0 * n]))
        found.add("train", r, everyone, "", "", "alpha", rng.random(n))
        for view in ("personal", "global"):
            for part in ("train", "validation", "test"):
                found.add("train", r, everyone, view, part, "accuracy", rng.random(n))
    found.write(place / "metrics.parquet")
    (place / "notes").mkdir()
    for r in (1, rounds):
        save_file({"W": rng.random((n, n)).astype(np.float32)}, place / "notes" / f"round-{r:05d}.safetensors")
    client, label = np.divmod(np.arange(10 * n), 10)
    counts = pa.table({"client": client, "part": ["train"] * 10 * n, "label": label, "rows": rng.integers(0, 30, 10 * n)})
    pq.write_table(counts, place / "split.parquet")


def test_a_thousand_clients_fit_on_a_page(tmp_path):
    names = ["local", "fedavg", "apfl", "ucfl"]
    for name in names:
        pretend(tmp_path / name, name, 1000, 6)
    data = report_data([tmp_path / name for name in names])
    assert len(json.dumps(data)) < 4e6
    for f in data["figures"]:
        if f["kind"] == "heat":
            assert len(f["heat"]["rows"]) <= GROUPS
            assert len(f["heat"]["frames"]) <= FRAMES
    assert len(data["clients"]["names"]) == 1000
    assert all(len(found) == PEERS for found in data["clients"]["learned_from"]["ucfl"])


def test_many_clients_are_in_each_methods_own_order(tmp_path):
    for name in ("local", "fedavg"):
        pretend(tmp_path / name, name, 70, 2)
    data = report_data([tmp_path / "local", tmp_path / "fedavg"])
    for s in figure(data, "clients")["series"]:
        assert s["y"] == sorted(s["y"])
        assert s["x"] == list(range(1, 71))
    local = figure(data, "clients")["series"][0]
    client = int(local["text"][0].split()[2].rstrip(","))
    assert 100 * data["clients"]["accuracy"]["local"][client] == pytest.approx(local["y"][0], rel=1e-3)


def test_evidence_is_aligned_by_seed(folder):
    evidence = gather([folder])
    assert isinstance(evidence, Evidence)
    assert all([r.run.experiment.seed for r in runs] == evidence.seeds for runs in evidence.records.values())
