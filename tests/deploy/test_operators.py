"""What operators meet: sites that go away, come late, or run another version; logs that tell."""

import json
import time

import pytest
from click.testing import CliRunner

from coterie.cli.deployment import federation
from coterie.core.errors import BadInput
from coterie.deploy.audit import AUDIT, AuditLog, read_audit
from coterie.deploy.replay import read_exchanges
from coterie.experiment.schedule import Schedule
from helpers.federations import float64, tiny
from helpers.town import RULES, Message, pack_frame, town, unpack_frame

# isort: split
from coterie.deploy import roster

NODE = 100  # the node of site 0; site i has 100 + i


def test_a_site_that_goes_away_in_mid_exchange_does_not_cost_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(roster, "LOOK_SECONDS", 0.1)
    with float64(), town(tmp_path, "fedavg", tiny(3)) as here:

        def lost(node, question, reply):
            if node != NODE + 1 or question.metadata.message_type != "train":
                return reply
            here.grid.offline.add(node)
            return None

        here.grid.spoil = lost
        begin = time.monotonic()
        loop = here.loop(Schedule(rounds=2, eval_every=1000), rules=RULES._replace(deadline=3600.0))
        loop.go()
        assert time.monotonic() - begin < 1800
        assert here.lines.has("1 went away while it worked")
        assert [line["answered"] for line in read_exchanges(tmp_path)] == [[0, 2], [0, 2]]


def test_versions_are_compared_when_a_site_is_greeted_and_a_refusal_is_told_once(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(roster, "REGREET_SECONDS", 0.0)
    with town(tmp_path, "fedavg", tiny(3)) as here:

        def older(node, question, reply):
            frame = unpack_frame(reply.content)
            head = json.loads(frame.head) | ({"version": "0.0.1"} if node == NODE + 1 else {})
            return Message(pack_frame(frame._replace(head=json.dumps(head))), reply_to=question)

        here.grid.spoil = older
        roll = here.loop(Schedule(rounds=1)).engine.roll
        for _ in range(5):
            assert roll.look() == [0, 2]
        told = [line for line in here.lines if "a site was refused" in line]
        assert len(told) == 1
        assert "runs coterie 0.0.1" in told[0]
        assert "install the same version" in told[0]


# The audit log


def write_some(path):
    log = AuditLog(path)
    for k in range(4):
        log.add("sent", run="abcdef01", bytes=10 * k, epsilon=0.5 * k)
    return log


def test_a_log_that_was_changed_anywhere_is_noticed(tmp_path):
    path = tmp_path / AUDIT
    write_some(path)
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    assert len(read_audit(path)) == 4
    changes = {
        "a number": text.replace('"bytes": 20', '"bytes": 2'),
        "a line taken out": "".join(lines[:1] + lines[2:]),
        "a line put in": "".join([*lines[:2], lines[1], *lines[2:]]),
        "two lines swapped": "".join([lines[1], lines[0], *lines[2:]]),
        "no JSON": text.replace("{", "", 1),
    }
    for what, changed in changes.items():
        path.write_text(changed)
        with pytest.raises(BadInput, match="was changed, or lines before it are missing"):
            read_audit(path)
        assert changed != text, what


def test_a_line_that_was_being_written_when_the_machine_went_dark_does_not_count(tmp_path):
    path = tmp_path / AUDIT
    write_some(path)
    path.write_bytes(path.read_bytes() + b'{"time": 1, "ev')
    log = AuditLog(path)
    log.add("sent", bytes=1)
    assert [event["bytes"] for event in read_audit(path)] == [0, 10, 20, 30, 1]


def test_the_command_verifies_both_ends_and_sees_a_cut_off_end(tmp_path):
    for place in (tmp_path / "server", tmp_path / "sites" / "north"):
        place.mkdir(parents=True)
        last = write_some(place / AUDIT).events[-1]["hash"]

    def call(*more):
        return CliRunner().invoke(
            federation, ["audit", str(tmp_path), *more], catch_exceptions=False
        )

    said = call("--expect", last).output
    assert said.count("4 lines are whole (4 sent), 60 bytes, epsilon 1.5") == 2
    assert last in said
    path = tmp_path / "sites" / "north" / AUDIT
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(BadInput, match="lines at the end are missing"):
        call("--expect", last)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="has no audit"):
        CliRunner().invoke(federation, ["audit", str(tmp_path / "empty")], catch_exceptions=False)
