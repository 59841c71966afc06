"""A site with a valid key sends whatever it likes: it is left out by name, the others go on."""

import json
import math
import re

import numpy as np
import pytest

from coterie.deploy.config_files import DataShape
from coterie.deploy.replay import read_exchanges
from coterie.deploy.site_rows import server_federation
from coterie.experiment.schedule import Schedule
from helpers.federations import float64, tiny
from helpers.town import RULES, Error, Message, digest, pack_frame, town, unpack_frame

# isort: split
from coterie.deploy import replies, wire
from coterie.deploy.roster import Roster
from coterie.deploy.wire import pack

NODE = 100  # the node of site 0; site i has 100 + i
ROUNDS = Schedule(rounds=2, eval_every=1)


def spoil(here, site, kind, change):
    """Let a site answer messages of this kind with something else."""

    def spoilt(node, question, reply):
        if node != NODE + site or json.loads(unpack_frame(question.content).head)["kind"] != kind:
            return reply
        return Message(pack_frame(change(unpack_frame(reply.content))), reply_to=question)

    here.grid.spoil = spoilt


def says(**settings):
    """A reply whose head says something else."""
    return lambda frame: frame._replace(head=json.dumps(json.loads(frame.head) | settings))


def short_table(frame):
    head = json.loads(frame.head)
    *kept, (kind, shape) = head["table"]
    left = frame.body[: -math.prod(shape) * wire.DTYPES[kind].itemsize]
    head |= {"table": kept, "digest": digest(left)}
    return frame._replace(head=json.dumps(head), body=left)


def shape_of_infinity(frame):
    head = json.loads(frame.head)
    head["table"][0][1] = [math.inf]
    return frame._replace(head=json.dumps(head))


def unreferred(frame):
    """A large array that the tree does not refer to."""
    head, body = json.loads(frame.head), frame.body + bytes(150_000_000)
    head["table"].append(["uint8", [150_000_000]])
    return frame._replace(head=json.dumps(head | {"digest": digest(body)}), body=body)


def one_more(frame):
    """The same, so small that its size does not tell."""
    head = json.loads(frame.head)
    head["table"].append(["uint8", [0]])
    return frame._replace(head=json.dumps(head))


def deep(frame):
    return frame._replace(head='{"tree":' * 100_000 + "1" + "}" * 100_000)


HOSTILE = {
    "a table shorter than its tree": (short_table, "another|arrays"),
    "a shape of infinity": (shape_of_infinity, "side of inf"),
    "a large array that nobody refers to": (unreferred, "at most"),
    "an empty array that nobody refers to": (one_more, "arrays"),
    "a number of 400 digits": (says(seconds=10**400), "seconds"),
    "a number of 5,000 digits": (
        lambda frame: frame._replace(head=frame.head[:-1] + ', "seconds": 1' + "0" * 5000 + "}"),
        "cannot be read",
    ),
    "seconds that are no number": (says(seconds=math.nan), "seconds"),
    "negative seconds": (says(seconds=-1), "seconds"),
    "years of work": (says(seconds=1e9), "seconds"),
    "100,000 notes": (says(notes={f"n{k}": 1 for k in range(100_000)}), "bytes|notes"),
    "10,000 notes": (says(notes={f"n{k}": 1 for k in range(10_000)}), "10,000 notes"),
    "a note that the method has not": (says(notes={"\x1b[2Jowned": 1}), "note '.*' that"),
    "an infinite note": (says(notes={"loss": math.inf}), "no numbers"),
    "negative effort": (says(effort=[-1, 5]), "what its work took"),
    "effort of 400 digits": (says(effort=[10**400, 1]), "what its work took"),
    "effort of two truths": (says(effort=[True, True]), "what its work took"),
    "a word that no reply has": (says(shutdown=True), "field 'shutdown'"),
    "a name that is a list": (says(token=[1]), "not a short text"),
    "a head of endless depth": (deep, "cannot be read|bytes"),
    "a head that is a list": (lambda frame: frame._replace(head="[]"), "cannot be read"),
    "nothing at all": (lambda frame: frame._replace(head="", body=b""), "cannot be read"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_reply_leaves_out_its_site_by_name_and_no_other(what, tmp_path):
    change, why = HOSTILE[what]
    with float64(), town(tmp_path, "fedavg", tiny(3)) as here:
        spoil(here, 1, "train", change)
        loop = here.loop(ROUNDS)
        loop.go()
        assert loop.done == 2
        assert [line["answered"] for line in read_exchanges(tmp_path)] == [[0, 2], [0, 2]]
        assert_left_out(here, why)


def assert_left_out(here, why):
    told = [line for line in here.lines if re.search(r"round \d+: 1 ", line)]
    assert told
    assert all(re.search(why, line) for line in told), told
    assert not any(re.search(r"round \d+: [02] ", line) for line in here.lines), here.lines
    assert all(line.isprintable() and len(line) < 2000 for line in here.lines)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([["personal", "test", "accuracy", 500]], "500 as the accuracy"),
        ([["personal", "test", "accuracy", -0.1]], "-0.1 as the accuracy"),
        ([["personal", "test", "accuracy", math.nan]], "nan as the accuracy"),
        ([["personal", "test", "loss", math.inf]], "inf as the loss"),
        ([["personal", "test", "loss", 10**400]], "as the loss"),
        ([["personal", "test", "loss", "low"]], "low as the loss"),
        ([["global", "test", "loss", 1.0]], "nobody asked for"),
        ([["personal", "test", ["loss"], 1.0]], "nobody asked for"),
        ([["personal", "test", "loss", 1.0]] * 100_000, "bytes"),
        ([["personal", "test", "loss", 1.0]] * 1_000, "too long"),
        ({"personal": 1}, "no list"),
        (None, "no list"),
    ],
)
def test_hostile_measures_are_nobodys_numbers(values, why, tmp_path):
    with float64(), town(tmp_path, "fedavg", tiny(3)) as here:
        spoil(here, 1, "evaluate", says(values=values))
        loop = here.loop(ROUNDS)
        loop.go()
        accuracy = loop.evaluate()["personal", "test", "accuracy"]
        assert np.isnan(accuracy).tolist() == [False, True, False]
        assert_left_out(here, why)


@pytest.mark.parametrize(
    "settings",
    [
        {"rows": {"train": 10**12, "validation": 1, "select": 1, "test": 1}},
        {"rows": {"train": -1, "validation": 1, "select": 1, "test": 1}},
        {"rows": {"train": 1.5, "validation": 1, "select": 1, "test": 1}},
        {"rows": {"train": True, "validation": 1, "select": 1, "test": 1}},
        {"rows": {"train": 1}},
        {"rows": None},
        {"name": ["1"]},
        {"columns": "\x1b[31m"},
        {"version": "9" * 1000},
        {"admin": True},
    ],
)
def test_a_hostile_hello_is_refused_and_the_others_are_met(settings, tmp_path):
    with town(tmp_path, "fedavg", tiny(3)) as here:
        here.grid.registered = {NODE + i: str(i) for i in range(3)}
        spoil(here, 1, "hello", says(**settings))
        assert here.loop(ROUNDS).engine.roll.look() == [0, 2]
        refused = [line for line in here.lines if "a site was refused" in line]
        assert len(refused) == 1
        assert "'1'" in refused[0]
        assert refused[0].isprintable()


def test_an_error_is_told_as_one_printable_line_under_the_name_of_its_key(tmp_path):
    """Whatever name the site claims."""
    text = "no\n12:00:00 2 was shut out\x1b[2J\x07\u202e" + "x" * 5000
    with float64(), town(tmp_path, "fedavg", tiny(3)) as here:
        here.grid.registered = {NODE + i: str(i) for i in range(3)}
        spoil(here, 1, "hello", lambda frame: wire.pack({"error": text, "code": "", "name": "2"}))
        loop = here.loop(ROUNDS)
        assert loop.engine.roll.look() == [0, 2]
        assert here.lines.has("'1' says: no 12:00:00")
        assert all(line.isprintable() and len(line) < 1000 for line in here.lines)
    with float64(), town(tmp_path, "fedavg", tiny(3)) as here:
        spoil(here, 1, "train", lambda frame: wire.pack({"error": text, "code": "", "name": "2"}))
        here.loop(ROUNDS).go()
        assert_left_out(here, "1 refused: no 12:00:00")


def test_an_error_of_flowers_own_is_told_as_one_printable_line(tmp_path):
    with float64(), town(tmp_path, "fedavg", tiny(3)) as here:

        def spoilt(node, question, reply):
            bad = node == NODE + 1 and question.metadata.message_type == "train"
            return Message(Error(2, "a\nb\x1b[2J"), reply_to=question) if bad else reply

        here.grid.spoil = spoilt
        here.loop(ROUNDS).go()
        assert_left_out(here, r"1 cannot answer: a b\\x1b\[2J")


def test_a_message_that_flower_itself_cannot_put_together_is_its_sites_own(tmp_path):
    with float64(), town(tmp_path, "fedavg", tiny(3)) as here:
        loop = here.loop(ROUNDS)
        loop.engine.roll.look()
        pull, push, bad = here.grid.pull_messages, here.grid.push_messages, set()

        def pushed(messages):
            numbers = push(messages)
            if any(m.metadata.dst_node_id == NODE + 1 for m in messages):
                bad.update(numbers)
            return numbers

        def pulled(numbers):
            if set(numbers) & bad:
                raise ValueError("object 12 is no object")
            return pull(numbers)

        here.grid.push_messages, here.grid.pull_messages = pushed, pulled
        loop.go()
        assert [line["answered"] for line in read_exchanges(tmp_path)] == [[0, 2], [0, 2]]
        assert_left_out(here, "1 sent what cannot be read: object 12|evaluation")


@pytest.mark.parametrize(("name", "number"), [("ifca", 7), ("ifca", -1), ("fedfomo", 10**9)])
def test_an_upload_cannot_choose_what_was_not_offered(name, number, tmp_path):
    """Its whole numbers are places in the server's own tables."""

    def chosen(frame):
        content = wire.unpack(frame)
        whole = [t for t in content.tensors.values() if not t.is_floating_point()]
        for tensor in whole:
            tensor.fill_(number)
        body = b"".join(t.numpy().tobytes() for t in content.tensors.values())
        return frame._replace(head=json.dumps(content.head | {"digest": digest(body)}), body=body)

    with float64(), town(tmp_path, name, tiny(3)) as here:
        spoil(here, 1, "train", chosen)
        here.loop(ROUNDS).go()
        assert [line["answered"] for line in read_exchanges(tmp_path)] == [[0, 2], [0, 2]]
        assert_left_out(here, "which was not offered")


def larger(factor):
    """An upload whose every number is so many times larger."""

    def change(frame):
        content = wire.unpack(frame)
        body = b"".join((factor * t).numpy().tobytes() for t in content.tensors.values())
        return frame._replace(head=json.dumps(content.head | {"digest": digest(body)}), body=body)

    return change


@pytest.mark.parametrize(("outlier", "kept"), [(10.0, [0, 2, 3]), (0.0, [0, 1, 2, 3])])
def test_an_upload_far_from_what_was_sent_is_left_out_unless_the_rule_is_off(
    outlier, kept, tmp_path
):
    with float64(), town(tmp_path, "fedavg", tiny(4)) as here:
        spoil(here, 1, "train", larger(1e4))
        here.loop(ROUNDS, RULES._replace(outlier=outlier)).go()
        assert read_exchanges(tmp_path)[0]["answered"] == kept
        told = here.lines.has("round 1: 1 is left out: its upload is", "the median")
        assert told == bool(outlier)


def test_no_site_answers_for_another_nor_can_it_guess_what_to_answer(tmp_path):
    """A reply under another node's id is nobody's, and equal questions are different messages."""
    nonces = set()

    def spoil(node, question, reply):
        nonces.add(question.content.config_records["coterie"]["nonce"])
        if node == 101:
            reply.metadata.__dict__["_src_node_id"] = 100
        return reply

    with town(tmp_path, "fedavg") as here:
        here.grid.spoil = spoil
        roll = Roster(
            here.grid,
            here.federation.names,
            lambda: pack({"kind": "hello", "words": {}}),
            say=here.lines,
            greeting=2.0,
        )
        assert roll.look() == [0, 2, 3]
        assert here.lines.has("did not answer in 2 s")
    assert len(nonces) == 4
    assert all(len(nonce) == 32 for nonce in nonces)


def test_rows_that_a_site_claims_take_no_memory():
    rows = {part: [10**9] * 50 for part in ("train", "validation", "select", "test")}
    federation = server_federation([str(i) for i in range(50)], rows, DataShape(2, 3), None)
    assert federation.sizes.tolist() == [10**9] * 50


def test_a_reply_is_read_without_raising_whatever_it_is():
    for thing in (None, 3, object()):
        assert "cannot be read" in replies.read_reply(thing, "train", replies.Bounds())
