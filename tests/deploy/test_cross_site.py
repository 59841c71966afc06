"""Every site's own model at all sites: equal to the local engine, and only as agreed to."""

import csv
import json

import pytest
from click.testing import CliRunner

from coterie.cli.main import cli
from coterie.core.errors import BadInput
from coterie.core.point import pick, stack
from coterie.deploy.config_files import (
    Privacy,
    check_server,
    read_server,
    read_site,
    write_server,
    write_site,
)
from coterie.deploy.cross_site import FILE
from coterie.deploy.processes import find_free_port
from coterie.deploy.rehearsal import Rehearsal, write_digits
from coterie.deploy.replay import replay
from helpers.town import EXACT, Lines

# isort: split
from coterie.deploy import server_app, wire
from coterie.deploy.site import open_site

NAMES = ("east", "north", "south")
ROUNDS = 2


def make(folder, method="ditto", **privacy):
    write_digits(folder / "rows", NAMES, rows=60, public=folder / "shown.csv")
    place = folder / "all"
    settings = ["--sites", ",".join(NAMES), "--address", f"localhost:{find_free_port()}"]
    settings += ["--classes", "10", "--features", "64", "--rounds", str(ROUNDS), "--method", method]
    two = ["--model", "mlr,dnn", "--hidden", "8", "--draw", "50"]
    two += ["--public", str(folder / "shown.csv")]
    settings += two if method == "ktpfl" else ["--model", "mlr"]
    CliRunner().invoke(cli, ["federation", "init", str(place), *settings], catch_exceptions=False)
    for name in NAMES:
        site = read_site(place / "sites" / name)
        home = site.site._replace(data=str(folder / "rows" / f"{name}.csv"))
        write_site(place / "sites" / name, site._replace(site=home, limits=EXACT))
    server = read_server(place / "server")
    changed = server.privacy._replace(cross_site=True, **privacy)
    write_server(place / "server", server._replace(privacy=changed))
    return place


@pytest.mark.parametrize("method", ["ditto", "ktpfl"])
def test_models_are_measured_at_other_sites_as_on_the_local_engine(method, tmp_path):
    """Three processes; of KT-pFL with two networks."""
    place = make(tmp_path, method)
    with Rehearsal(place, tmp_path / "rows") as rehearsal:
        server = rehearsal.server()
        for name in NAMES:
            rehearsal.site(name)
        assert server.wait() == 0, rehearsal.lines
        assert any("at home and" in line for line in rehearsal.lines["server"])
    run = place / "server" / "run"
    found = list(csv.reader((run / FILE).read_text().splitlines()))[1:]
    told = {(owner, site, metric): float(value) for owner, site, metric, value in found}
    loop = replay(run, rehearsal.simulate())
    for a, chunk, views in loop.engine.points(range(3), loop.payload(), loop.when()):
        for k, owner in enumerate(chunk):
            for i in range(3):
                point = {"personal": stack([pick(views["personal"], k)])}
                here = loop.engine.measure_views(iter([(a, [i], point)]), [i], ["test"])
                value = here["personal", "test", "accuracy"][0]
                assert told[NAMES[owner], NAMES[i], "accuracy"] == pytest.approx(value)
    assert len({(owner, site) for owner, site, _ in told}) == 9


class Asked:
    """A site, and a server that asks it whatever it likes."""

    def __init__(self, place, **settings):
        self.plan = server_app.read_server_plan(place / "server")
        self.settings = self.plan.settings | settings
        self.site = open_site(place / "sites" / "east", Lines())
        self.rows = self.ask("hello")["rows"]
        self.model = self.plan.draft.models[0].start(0)

    def ask(self, kind, payload=(), **changes):
        head = {"kind": kind, "words": self.settings, "run": "abcdef01", "site": 0, "name": "east"}
        head |= {"stage": 0, "round": ROUNDS, "base": None, "exchange": 0, "keep": []}
        head |= {"rows": getattr(self, "rows", {})} | changes
        return json.loads(self.site.answer(wire.pack(head, payload)).head)


def test_no_more_models_are_measured_than_there_are_sites_and_each_once(tmp_path):
    """Otherwise crafted models read the rows out, one score after another."""
    server = Asked(make(tmp_path, "fedavg"))
    told = [server.ask("judge", server.plan.draft.models[0].start(k), of=k) for k in range(100)]
    assert sum(not head["error"] for head in told) == len(NAMES)
    assert "was agreed to" in told[-1]["error"]
    again = server.ask("judge", server.plan.draft.models[0].start(0), of=0)
    assert again["values"] == told[0]["values"]
    other = [server.ask("judge", server.plan.draft.models[0].start(k), of=0) for k in range(1, 9)]
    assert all("has measured another model" in head["error"] for head in other)
    assert "another structure" in server.ask("judge", (), of=1, run="abcdef02")["error"]


def test_a_model_leaves_its_site_at_the_end_of_a_run_that_says_so_only(tmp_path):
    server = Asked(make(tmp_path, "fedavg"))
    assert "when the run is over" in server.ask("model", server.model, round=1)["error"]
    assert server.ask("model", server.model)["error"] == ""
    bare = Asked(make(tmp_path / "bare", "fedavg"), privacy=list(Privacy()))
    assert "do not leave their sites" in bare.ask("model", bare.model)["error"]
    assert "do not leave their sites" in bare.ask("judge", bare.model, of=1)["error"]


def test_a_model_does_not_leave_a_site_whose_own_privacy_keeps_it(tmp_path):
    place = make(tmp_path, "fedavg")
    for own in (Privacy(1.0, 1.0), Privacy(measures=False)):
        site = read_site(place / "sites" / "east")
        write_site(place / "sites" / "east", site._replace(privacy=own))
        server = Asked(place)
        assert "lets no model" in server.ask("model", server.model)["error"]


def test_cross_site_is_refused_where_it_would_undo_noise_or_masks_or_hold_rows(tmp_path):
    place = make(tmp_path, "fedavg")
    server = read_server(place / "server")
    for change in ({"clip": 1.0, "noise": 1.0}, {"secure_sum": True}):
        odd = server._replace(
            privacy=server.privacy._replace(**change), rules=server.rules._replace(outlier=0.0)
        )
        with pytest.raises(BadInput, match="lets the sites' own models out"):
            check_server(odd)
    path = place / "server" / "experiment.toml"
    path.write_text(path.read_text().replace('"fedavg"', '"fedem"', 1))
    with pytest.raises(BadInput, match="the own model of fedem"):
        server_app.read_server_plan(place / "server")
    site = read_site(place / "sites" / "east")
    write_site(place / "sites" / "east", site._replace(privacy=Privacy(cross_site=True)))
    with pytest.raises(BadInput, match="has no effect at a site"):
        read_site(place / "sites" / "east")
