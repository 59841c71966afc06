"""Ordinary tables at real sites: prepared together, without a word on rare values."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from coterie.cli.deployment import build_experiment_file
from coterie.cli.deployment import federation as commands
from coterie.cli.main import cli
from coterie.core.errors import BadInput
from coterie.data.pipeline import build_federation
from coterie.data.prepare.moments import Moments
from coterie.data.prepare.preparation import DAY
from coterie.data.read.columns import Column
from coterie.deploy.config_files import (
    EXPERIMENT,
    Limits,
    Privacy,
    check_server,
    read_server,
    read_site,
    write_site,
)
from coterie.deploy.current_model import MODEL
from coterie.deploy.processes import find_free_port
from coterie.deploy.rehearsal import Rehearsal
from coterie.deploy.replay import gather_sites, largest_difference, replay
from coterie.deploy.scales import find_outliers, read_scales, scale_federation
from coterie.deploy.site_rows import SiteFile, attach_public, read_public, read_rows
from coterie.deploy.statistics import pool_facts, read_facts, summarize_columns
from coterie.deploy.table_columns import declare_column, join_books, parse_agreed, parse_declared
from helpers.clinics import RARE, write_clinics, write_public
from helpers.sites import NAMES, open_sites
from helpers.town import EXACT, Lines

# isort: split
from coterie.deploy import server_app
from coterie.deploy.site import open_site

METHODS = ("fedavg", "ditto", "persfl", "pfml", "ktpfl", "selffl", "ucfl")
WORDS = {"model": "dnn", "hidden": 4, "rounds": 2, "eval-every": 2, "batch-size": 8, "lr": 0.05}
MORE = {"ktpfl": {"draw": 20, "public_batch_size": 8}}
LIMITS = Limits()


def made(folder, *more, limits=None, address="localhost:8443"):
    """The folders of a deployment over clinics, by the command of its operators."""
    write_clinics(folder / "rows", NAMES)
    write_public(folder / "shown.csv")
    settings = ["init", str(folder / "all"), "--sites", ",".join(NAMES), "--address", address]
    settings += ["--like", str(folder / "rows" / "east.csv"), "--label", "outcome"]
    settings += ["--public", str(folder / "shown.csv")]
    settings += [part for option, v in WORDS.items() for part in (f"--{option}", str(v))]
    found = CliRunner().invoke(commands, [*settings, *more], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    for name in NAMES if limits else ():
        place = folder / "all" / "sites" / name
        site = read_site(place)
        home = site.site._replace(data=str(folder / "rows" / f"{name}.csv"))
        write_site(place, site._replace(site=home, limits=limits))
    return folder / "all"


def test_ordinary_tables_train_at_real_sites_as_on_the_local_engine(tmp_path):
    """Three processes with texts, blanks, dates and a label named outcome; seven methods."""
    place = made(tmp_path, address=f"localhost:{find_free_port()}")
    rows = tmp_path / "rows"
    shown = statistics_of(place, rows)
    assert any(line.startswith("age (number): ") and " missing; mean 5" in line for line in shown)
    assert any(line.startswith("visit (date): ") and "2023-" in line for line in shown)
    assert any(line.startswith("ward (category): ") and "Eye clinic" in line for line in shown)
    assert not any(RARE in line for line in shown)
    differences = {}
    for method in METHODS:
        settings = {option.replace("-", "_"): v for option, v in WORDS.items()} | MORE.get(
            method, {}
        )
        text = build_experiment_file(None, method, settings)
        (place / "server" / EXPERIMENT).write_text(text, encoding="utf-8")
        with Rehearsal(place, rows) as rehearsal:
            server = rehearsal.server()
            for name in NAMES:
                rehearsal.site(name)
            assert server.wait() == 0, rehearsal.lines
            differences[method] = rehearsal.difference(place / "server" / "run")
        if method == METHODS[0]:  # a run that is over keeps nobody from asking again
            assert statistics_of(place, rows)[-7:] == shown[-7:]  # sites come in any order
        (place / "server" / "run").rename(tmp_path / method)
    assert differences == dict.fromkeys(METHODS, 0.0)
    assert RARE not in (tmp_path / "fedavg" / "scales.json").read_text()


def statistics_of(place, rows):
    """What `coterie federation stats` prints, with the sites as processes."""
    with Rehearsal(place, rows) as rehearsal:
        child = rehearsal._start("server", "federation", "stats", str(place))
        for name in NAMES:
            rehearsal.site(name)
        assert child.wait() == 0, rehearsal.lines
        return list(rehearsal.lines["server"])


@pytest.mark.filterwarnings("ignore:rows/. of 6 columns")  # what they become, which is asked here
def test_sites_prepare_their_tables_as_a_simulation_does(tmp_path):
    """All that is told exactly: the same inputs, but for the median of blanks."""
    place = made(tmp_path, limits=EXACT)
    with open_sites(place) as (grid, _):
        server_app.play(grid, place / "server", Lines())
    rows = gather_sites(tmp_path / "rows", read_server(place / "server"), "outcome")
    mine = scale_federation(rows, read_scales(place / "server" / "run"))
    features = "age,sex,smoker,visit,ward,note"
    whole = build_federation(
        tmp_path / "rows", data_options={"label": "outcome", "features": features}
    )
    assert mine.preparation.outputs == whole.preparation.outputs
    blank = mine.preparation.outputs.index("age (missing)")
    for part in ("train", "validation", "test"):
        for i in range(3):
            a, b = mine.x[getattr(mine, part)[i]], whole.x[getattr(whole, part)[i]]
            a, b = (t[torch.from_numpy(np.lexsort(t[:, 1:].T.numpy()))] for t in (a, b))
            filled = a[:, blank] == 0
            torch.testing.assert_close(a[filled], b[filled], rtol=1e-5, atol=1e-5)
            assert (a[~filled, 0] - b[~filled, 0]).abs().max() < 0.2  # of a deviation
    again = replay(place / "server" / "run", attach(rows, place))
    files = {i: place / "sites" / name / MODEL for i, name in enumerate(NAMES)}
    assert largest_difference(again, files) == 0


def attach(rows, place):
    server = read_server(place / "server")
    return attach_public(rows, read_public(place / "server" / "public.csv", "", server.data))


def test_a_rare_value_never_leaves_its_site(tmp_path):
    place = made(tmp_path, limits=LIMITS)
    with open_sites(place) as (grid, lines):
        server_app.play(grid, place / "server", lines)
    assert any(b"Surgery" in message for message in grid.seen)
    assert not any(RARE.encode() in message for message in grid.seen)
    _, _, _, columns = read_scales(place / "server" / "run")
    ward = columns[4]
    assert ward.categories == ("Eye clinic", "Medicine", "Surgery")
    with open_sites(place) as (grid, lines):
        loosen(place, "north")
        grid.nodes[2] = answer_of(place, "north")
        (place / "server" / "run").rename(tmp_path / "old")
        server_app.play(grid, place / "server", lines)
    assert any(RARE.encode() in message for message in grid.seen), "the look above sees nothing"


def test_a_site_predicts_rows_that_are_spelled_as_in_training(tmp_path):
    place = made(tmp_path, limits=LIMITS)
    rows, out = tmp_path / "rows" / "north.csv", tmp_path / "out.csv"
    shape = read_server(place / "server").data
    assert [c.form for c in read_rows(rows, "outcome", "", shape).books if c.form] == ["%d/%m/%Y"]
    with open_sites(place) as (grid, lines):
        server_app.play(grid, place / "server", lines)
    settings = ["predict", str(place / "sites" / "north"), "--data", str(rows), "--out", str(out)]
    found = CliRunner().invoke(cli, [*settings, "--quiet"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    assert len(out.read_text().splitlines()) == 101


def loosen(place, name):
    """Let a site tell of single rows."""
    site = read_site(place / "sites" / name)
    write_site(place / "sites" / name, site._replace(limits=EXACT))


def answer_of(place, name):
    return open_site(place / "sites" / name, Lines()).answer


def column(kind, *values):
    return Column("it", kind, values)


def test_nothing_is_told_of_few_cells():
    rng = np.random.default_rng(0)
    cells = rng.normal(100, 5, (40, 3))
    cells[:5, 0] = np.nan  # five missing
    cells[5:, 1] = np.nan  # five filled
    cells[:15, 2] = np.nan
    columns = [column("number")] * 3
    moments, facts = summarize_columns(cells, columns, LIMITS)
    assert moments.count.tolist() == [40, 0, 25]
    assert [f.missing for f in facts] == [0, 35, 15]
    assert facts[1].quartiles == ()
    plain = Moments.of(cells)
    np.testing.assert_allclose(moments.standard()[0][0], plain.standard()[0][0])
    np.testing.assert_allclose(moments.standard()[1][0], plain.standard()[1][0])
    told = {round(q, 9) for f in facts for q in f.quartiles}
    assert not told & {round(v, 9) for v in cells.ravel()}, "a quartile is the cell of a row"
    assert read_facts(json.loads(json.dumps(facts)), columns, moments, 40) == facts


def test_categories_are_pooled_in_order_and_many_are_hashed():
    books = [column("category", "b", "rare", "z"), column("category", "a", "b")]
    cells = [np.array([[0.0]] * 12 + [[1.0]] * 3 + [[2.0]] * 11), np.array([[0.0]] * 10)]
    told = [summarize_columns(c, [b], LIMITS)[1] for c, b in zip(cells, books, strict=True)]
    (agreed,) = pool_facts([books[0]], told, np.ones((2, 1)))
    assert agreed.categories == ("a", "b", "z")
    assert agreed.buckets == 0
    many = column("category", *(f"v{k:02}" for k in range(30)))
    _, facts = summarize_columns(np.repeat(np.arange(30.0), 10)[:, None], [many], LIMITS)
    (agreed,) = pool_facts([many], [facts], np.ones((1, 1)))
    assert (agreed.buckets, agreed.categories) == (32, ())


def test_a_blank_becomes_the_median_and_a_truth_value_what_most_have():
    rng = np.random.default_rng(1)
    sites = [rng.normal(k, 1, (50, 1)) for k in (0.0, 4.0)]
    told = [summarize_columns(s, [column("number")], EXACT)[1] for s in sites]
    (agreed,) = pool_facts([column("number")], told, np.array([[50.0], [150.0]]))
    medians = [np.median(s) for s in sites]
    assert agreed.fill == pytest.approx(0.25 * medians[0] + 0.75 * medians[1])
    truths = np.array([[1.0]] * 30 + [[0.0]] * 20)
    _, facts = summarize_columns(truths, [column("boolean")], LIMITS)
    assert pool_facts([column("boolean")], [facts], np.ones((1, 1)))[0].fill == 1.0
    dates = (np.arange(40.0) * DAY)[:, None]
    _, facts = summarize_columns(dates, [column("date")], EXACT)
    (agreed,) = pool_facts([column("date")], [facts], np.ones((1, 1)))
    assert agreed.fill == pytest.approx(19.5 * DAY)
    assert not agreed.hours


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        [[1, False, [], [["a", 41]]]],
        [[0, False, [], [["a", 5], ["a", 5]]]],
        [[0, False, [], [["a" * 300, 20]]]],
        [[0, False, [], [["a", 1.5]]]],
        [[0, "yes", [], []]],
        [[0, False, [1.0, 2.0, 3.0], []]],
        [[0, False, [], [[f"v{k}", 0] for k in range(101)]]],
    ],
)
def test_what_so_many_rows_cannot_have_is_refused(given):
    with pytest.raises(BadInput, match="what 40 rows cannot have"):
        read_facts(given, [column("category")], Moments.none(1), 40)


def test_a_site_cannot_bend_the_median_beyond_its_mean_and_deviation():
    moments = Moments(np.array([40]), np.array([400.0]), np.array([160.0]))  # 10 and 2
    fine = [[0, False, [8.7, 10.0, 11.0], []]]
    assert read_facts(fine, [column("number")], moments, 40)
    for bent in ([8.0, 10.0, 1e9], [-1e9, 10.0, 11.0], [8.0, 13.0, 13.1], [11.0, 10.0, 9.0]):
        with pytest.raises(BadInput, match="what 40 rows cannot have"):
            read_facts([[0, False, bent, []]], [column("number")], moments, 40)


def test_a_column_that_is_empty_at_one_site_leaves_nobody_out():
    full = Moments(np.array([30]), np.array([30 * 1e3]), np.array([30.0]))
    assert find_outliers({0: full, 1: full, 2: full, 3: Moments.none(1)}, 10.0) == {}


def test_code_books_of_files_are_joined():
    books = [[column("category", "b", "c")], [column("category", "a", "c")]]
    tables = [np.array([[0.0], [1.0], [np.nan]]), np.array([[0.0], [1.0]])]
    cells, (joined,) = join_books(tables, books)
    assert joined.values == ("a", "b", "c")
    assert cells[0][:2, 0].tolist() == [1, 2]
    assert np.isnan(cells[0][2, 0])
    assert cells[1][:, 0].tolist() == [0, 2]


@pytest.mark.parametrize(
    "text", ["age: number", "a: b: date %d/%m/%Y %H:%M", "price: number ,", "sex: category"]
)
def test_a_declared_column_is_read_as_it_is_written(text):
    assert declare_column(parse_declared(text)) == text


@pytest.mark.parametrize("text", ["age", "age: numbers", ": number", "mood: text"])
def test_a_column_of_no_kind_is_refused(text):
    with pytest.raises(BadInput, match=r"data\.table has"):
        parse_declared(text)


@pytest.mark.parametrize(
    "given",
    [
        [[0.0]],
        [["x", False, False, [], 0]],
        [[float("nan"), False, False, [], 0]],
        [[0.0, False, False, ["a", "a"], 0]],
        [[0.0, False, False, [], 10**9]],
        [[0.0, False, False, [str(k) for k in range(99)], 0]],
        7,
    ],
)
def test_an_agreement_that_makes_no_sense_is_refused(given):
    with pytest.raises(BadInput, match="what the columns become"):
        parse_agreed(given)


def test_a_site_is_told_what_its_file_lacks_and_the_server_no_value(tmp_path):
    place = made(tmp_path, limits=LIMITS)
    shape = read_server(place / "server").data
    path = tmp_path / "rows" / "north.csv"
    text = path.read_text()
    path.write_text(text.replace("ward", "station", 1))
    with pytest.raises(BadInput, match="has no column 'ward', which this deployment") as found:
        read_rows(path, "outcome", "", shape)
    assert found.value.for_server == "its file has no column 'ward', which this deployment works on"
    path.write_text(text.replace("true", "maybe", 1))
    with pytest.raises(BadInput, match="'smoker' is 'maybe' in row"):
        read_rows(path, "outcome", "", shape)
    with open_sites(place) as (grid, lines):
        with pytest.raises(BadInput, match=r"features in site\.toml"):
            read_rows(tmp_path / "rows" / "east.csv", "outcome", "age,sex", shape)
        hello = server_app.wire.pack(
            {"kind": "hello", "words": server_app.read_server_plan(place / "server").settings}
        )
        reply = grid.nodes[2](hello)
    assert lines.has("'maybe'")
    assert "maybe" not in reply.head
    assert "its own log says why" in reply.head


def test_rows_that_change_under_a_site_are_noticed(tmp_path):
    place = made(tmp_path, limits=LIMITS)
    shape = read_server(place / "server").data
    file = SiteFile(tmp_path / "rows" / "north.csv", "outcome")
    assert len(file.rows(shape).y) == 100
    with (tmp_path / "rows" / "north.csv").open("a") as more:
        more.write("50.0,F,true,01/02/2023,Surgery,ill,\n")
    assert len(file.rows(shape).y) == 100, "what was read is kept"
    with pytest.raises(BadInput, match="was changed since this site was started"):
        file.rows(shape._replace(table=shape.table[:2]))
    assert SiteFile(tmp_path / "rows" / "north.csv", "outcome").digest != file.digest


def test_a_table_is_refused_where_noise_does_not_cover_it(tmp_path):
    server = read_server(made(tmp_path) / "server")
    data = server.data._replace(scale="none")
    with pytest.raises(BadInput, match=r"data\.table needs medians and categories"):
        check_server(server._replace(data=data, privacy=Privacy(1.0, 1.0)))
    with pytest.raises(BadInput, match="give one, as features"):
        check_server(server._replace(data=data._replace(features=3)))
    with pytest.raises(BadInput, match="'age' twice"):
        check_server(server._replace(data=data._replace(table=("age: number", "age: date"))))


def test_free_text_and_categories_without_an_example_are_refused(tmp_path):
    settings = ["init", str(tmp_path / "f"), "--sites", "a,b", "--address", "localhost:8443"]
    table = "label,story\n" + "".join(
        f"{k % 2},the patient number {k} came with a cough of {k} days and left\n"
        for k in range(40)
    )
    (tmp_path / "like.csv").write_text(table)
    found = CliRunner().invoke(commands, [*settings, "--like", str(tmp_path / "like.csv")])
    assert "free text" in str(found.exception)
    more = ["--classes", "2", "--features", "3", "--categories", "ward"]
    assert "has no effect without --like" in str(
        CliRunner().invoke(commands, [*settings, *more]).exception
    )


def test_numbers_that_are_names_are_categories_at_every_site(tmp_path):
    for name in ("like", "site"):
        rows = "".join(f"{k % 2},{k},00{1 + k % 3}\n" for k in range(60))
        (tmp_path / f"{name}.csv").write_text("label,a,zip\n" + rows)
    settings = ["init", str(tmp_path / "f"), "--sites", "a,b", "--address", "localhost:8443"]
    more = ["--like", str(tmp_path / "like.csv"), "--categories", "zip"]
    CliRunner().invoke(commands, [*settings, *more], catch_exceptions=False)
    shape = read_server(tmp_path / "f" / "server").data
    assert shape.table == ("a: number", "zip: category")
    assert read_rows(tmp_path / "site.csv", "label", "", shape).books[1].values == (
        "001",
        "002",
        "003",
    )
