"""Several experiments over the same sites: submitted, agreed to by operators or policy, played."""

import time

import pytest
from click.testing import CliRunner

from coterie.analysis.privacy_accounting import epsilon_of
from coterie.cli.main import cli
from coterie.core.errors import BadInput
from coterie.deploy.audit import AUDIT, AuditLog, read_audit
from coterie.deploy.config_files import (
    Policy,
    Privacy,
    SiteConfig,
    SiteSettings,
    agree_to,
    read_site,
    write_site,
)
from coterie.deploy.consent import Consent, digest_of
from coterie.deploy.current_model import MODEL, OLD
from coterie.deploy.policy import find_objection
from coterie.deploy.processes import find_free_port
from coterie.deploy.queue import describe_offers
from coterie.deploy.rehearsal import Rehearsal, write_digits
from coterie.deploy.replay import largest_difference, replay
from coterie.results.folder import read_status

NAMES = ("east", "north", "south")
COVERED = ("east", "north")  # sites with a policy
WORDS = {
    "method": "fedavg",
    "data": {"classes": 2, "features": 3},
    "public": "",
    "privacy": [1.0, 2.0],
    "stages": [{"name": "train", "rounds": 20, "messages": 1}],
}


def call(*settings):
    found = CliRunner().invoke(cli, ["federation", *map(str, settings)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def make(folder):
    write_digits(folder / "rows", NAMES, rows=60)
    place = folder / "all"
    settings = ["--sites", ",".join(NAMES), "--address", f"localhost:{find_free_port()}"]
    settings += ["--classes", 10, "--features", 64, "--model", "mlr", "--rounds", 2]
    call("init", place, *settings)
    for name in COVERED:
        site = read_site(place / "sites" / name)
        policy = Policy(methods=("fedavg", "ditto"), rounds=5, rows=30)
        write_site(place / "sites" / name, site._replace(policy=policy))
    return place


def submit(place, name, *settings):
    said = call("submit", place, name, "--model", "mlr", *settings)
    return said.split()[-1]


def until_listed(folder, *settings):
    """What `list` says of a site, once it says this."""
    end = time.monotonic() + 600
    while not all(option in (said := call("list", folder)) for option in settings):
        assert time.monotonic() < end, said
        time.sleep(0.5)
    return said


def test_a_queue_is_played_as_far_as_operators_and_policies_agree(tmp_path):
    """Processes: the policies of two sites cover the second experiment and not the third."""
    place = make(tmp_path)
    second = submit(place, "second", "--method", "ditto", "--rounds", 2)
    third = submit(place, "third", "--method", "fedavg", "--rounds", 6)
    assert call("list", place).count(": waiting, ") == 3
    with pytest.raises(BadInput, match="001-second already"):
        submit(place, "second", "--rounds", 2)
    with Rehearsal(place, tmp_path / "rows") as rehearsal:
        server = rehearsal.server()
        for name in NAMES:
            rehearsal.site(name)
        south = place / "sites" / "south"
        until_listed(south, f"{second}: waits for you", f"{third}: waits for you", '"ditto"')
        rehearsal.until("server", "002-third waits: ", 600)
        assert "policy.rounds = 5" in until_listed(place, "002-third: waiting", "001-second: wait")
        call("approve", south, second)
        rehearsal.until("north", "this site's policy agreed to the experiment", 600)
        for name in NAMES:
            call("approve", place / "sites" / name, third)
        assert server.wait() == 0, rehearsal.lines
        assert call("list", place).count(": finished, ") == 3
        runs = [place / "server" / "run", *sorted((place / "server" / "runs").iterdir())]
        assert rehearsal.difference(runs[2]) == 0.0
        for k, run in enumerate(runs[:2]):  # models of runs that others followed
            files = {i: old_model(place, name, k) for i, name in enumerate(NAMES)}
            assert largest_difference(replay(run, rehearsal.simulate()), files) == 0.0
    agreed = {
        name: [(e["experiment"], e["by"]) for e in audit_of(place, name) if e["event"] == "agreed"]
        for name in NAMES
    }
    assert (second, "policy") in agreed["north"]
    assert (second, "operator") in agreed["south"]
    assert all((third, "operator") in found for found in agreed.values())
    assert "lines are whole" in call("audit", place)
    with pytest.raises(BadInput, match="is no digest"):
        call("approve", south, "yes")


def audit_of(place, name):
    return read_audit(place / "sites" / name / AUDIT)


def old_model(place, name, k):
    runs = [e["run"] for e in audit_of(place, name) if e["event"] == "run"]
    assert (place / "sites" / name / MODEL).exists()
    return place / "sites" / name / OLD / f"{runs[k]}.safetensors"


def test_an_experiment_that_cannot_run_is_not_submitted(tmp_path):
    place = make(tmp_path)
    with pytest.raises(BadInput, match="public"):
        submit(place, "odd", "--method", "ktpfl")
    assert not list((place / "server" / "queue").iterdir())
    assert read_status(place / "server" / "run") == ""


# A policy


MADE_UP_FOR = [{"rounds": 1000, "messages": 1}, {"rounds": -990, "messages": 1}]


def site_of(**policy):
    return SiteConfig(SiteSettings("north"), Privacy(), policy=Policy(("fedavg",), **policy))


def event(settings, by="operator", **more):
    from coterie.deploy.policy import digest_data

    return {"event": "agreed", "by": by, "data": digest_data(settings), **more}


@pytest.mark.parametrize(
    ("change", "policy", "why"),
    [
        ({}, {}, ""),
        ({"method": "ditto"}, {}, "policy.methods has fedavg"),
        ({"data": {"classes": 2, "features": 3, "seed": 1}}, {}, "over these columns and parts"),
        ({"public": "other rows"}, {}, "over these columns and parts"),
        ({}, {"rounds": 19}, "policy.rounds = 19"),
        ({"stages": "many"}, {}, "does not say how many rounds"),
        ({"stages": MADE_UP_FOR}, {}, "does not say how many rounds"),
        ({}, {"rows": 61}, "policy.rows = 61"),
        ({}, {"epsilon": 0.99}, "policy.epsilon"),
        ({}, {"epsilon": 1.01}, ""),
        ({"privacy": []}, {"epsilon": 100.0}, "policy.epsilon"),
        ({"privacy": [0, 0, 1e-5, None, False, True]}, {}, "models that leave"),
        ({}, {"runs": 1}, "policy.runs = 1"),
    ],
)
def test_a_policy_covers_methods_rounds_rows_epsilon_and_so_many_runs(change, policy, why):
    if "epsilon" in policy:  # in units of what the run tells
        policy = {"epsilon": policy["epsilon"] * epsilon_of(1.0, 20, 1e-5)}
    events = [event(WORDS), event(WORDS, "policy", run="aa")]
    found = find_objection(site_of(**policy), WORDS | change, "bb", events, lambda: 60)
    assert (why in found) if why else found == ""
    assert find_objection(site_of(**policy), WORDS | change, "bb", [], lambda: 60)


def test_runs_by_policy_are_counted_over_restarts_and_a_change_of_mind_counts_at_once(tmp_path):
    """Otherwise a server that begins run after run asks the same rows for ever."""
    write_site(tmp_path, site_of(runs=2))
    log = AuditLog(tmp_path / AUDIT)

    def agrees(settings, run):
        try:
            Consent(tmp_path, lambda line: None)(settings, run, log, lambda: 60)
        except BadInput as refused:
            return str(refused)
        if run and not any(e["event"] == "run" and e["run"] == run for e in log.events):
            log.add("run", run=run, experiment=digest_of(settings))
        return ""

    assert "agreed to no experiment over these columns" in agrees(WORDS, "")
    agree_to(tmp_path, digest_of(WORDS))
    assert agrees(WORDS, "aa") == ""
    others = [WORDS | {"seed": k} for k in range(3)]
    assert [agrees(settings, f"b{k}") for k, settings in enumerate(others)][:2] == ["", ""]
    assert "policy.runs = 2" in agrees(others[2], "b2")
    assert agrees(others[1], "b1") == ""  # it goes on
    site = read_site(tmp_path)
    write_site(tmp_path, site._replace(policy=Policy()))
    assert "policy: none" in agrees(others[1], "b1")
    assert agrees(WORDS, "aa") == ""
    write_site(tmp_path, site._replace(site=SiteSettings("north"), policy=Policy()))
    assert "has agreed to none" in agrees(WORDS, "aa")


def test_an_operator_is_asked_once_about_an_experiment(tmp_path):
    write_site(tmp_path, SiteConfig(SiteSettings("north"), Privacy()))
    asked = []
    consent = Consent(tmp_path, lambda line: None, ask=asked.append)
    log = AuditLog(tmp_path / AUDIT)
    for settings in (WORDS, WORDS | {"seed": 1}, WORDS, WORDS | {"seed": 1}):
        with pytest.raises(BadInput, match="has agreed to none yet"):
            consent(settings, "", log)
    assert asked == [digest_of(WORDS), digest_of(WORDS | {"seed": 1})]
    assert [e["event"] for e in read_audit(tmp_path / AUDIT)] == ["offered", "offered"]


def test_an_operator_is_shown_the_whole_experiment(tmp_path):
    """What is agreed to by its digest is not hidden behind a long list."""
    write_site(tmp_path, SiteConfig(SiteSettings("north"), Privacy()))
    lines, log = [], AuditLog(tmp_path / AUDIT)
    columns = [f"column{k}: number" for k in range(200)]
    settings = WORDS | {"data": {"table": columns, "test": 0.2, "last": "seen"}}
    with pytest.raises(BadInput):
        Consent(tmp_path, lines.append, ask=lambda digest: False)(settings, "", log)
    assert any(line.endswith('"last": "seen"}') for line in lines)
    assert 'privacy: {"clip": 1.0, "noise": 2.0}' in lines
    assert '"last": "seen"}' in "".join(describe_offers(tmp_path))
    endless = settings | {"options": {"a": "x" * 2_000_000}}
    with pytest.raises(BadInput, match="which nobody can look at"):
        Consent(tmp_path, lines.append, accept=True)(endless, "", log)
    long = settings | {"options": {"a": "x" * 30_000}}
    with pytest.raises(BadInput):
        Consent(tmp_path, lines.append)(long, "", log)
    assert "more characters: start the site in a terminal" in "".join(describe_offers(tmp_path))


def test_a_policy_with_a_method_that_does_not_exist_is_refused(tmp_path):
    write_site(tmp_path, SiteConfig(SiteSettings("north"), Privacy(), policy=Policy(("fedavgg",))))
    with pytest.raises(BadInput, match=r"policy\.methods names 'fedavgg'"):
        Consent(tmp_path, print)
