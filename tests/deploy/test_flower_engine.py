"""The engine of real sites equals the local one, whatever goes wrong on the way."""

import json

import pytest
import torch

from coterie.core.checkpoint import list_checkpoints
from coterie.core.errors import BadInput
from coterie.deploy.config_files import Rules
from coterie.deploy.replay import read_exchanges
from coterie.deploy.wire import SCHEMA
from coterie.experiment.schedule import Schedule
from coterie.methods.registry import METHODS
from coterie.running.execute import restore_checkpoint, write_checkpoint
from helpers.federations import SEQUENTIAL, assert_same, float64, personal, play, tiny, tiny_model
from helpers.town import RULES, Error, Message, digest, finish, pack_frame, town, unpack_frame

every_method = pytest.mark.parametrize("name", sorted(METHODS))
NODE = 100  # the node of site 0; site i has 100 + i


def at_home(here, loop=None):
    """Every site's own model as one flat vector, in the order of `personal`, of the method's own
    network where a loop is given.
    """
    found = {}
    names = {}
    if loop:
        for _, chunk, views in loop.engine.points(loop.everyone, loop.payload(), loop.when()):
            point = views["personal"]
            names |= dict.fromkeys(map(int, chunk), (*point.params, *point.buffers))
    for i, tensors in here.models_at_home().items():
        point = here.models[here.architecture[i]].start(0)
        order = names.get(i, (*point.params, *point.buffers))
        found[i] = torch.cat([tensors[k].reshape(-1).to(torch.get_default_dtype()) for k in order])
    return found


def numbers(loop, but=("seconds",)):
    """The table of a run as {key: value}."""
    rows = loop.table.whole().to_pylist()
    keys = ("stage", "round", "client", "view", "part", "metric")
    return {tuple(row[k] for k in keys): row["value"] for row in rows if row["metric"] not in but}


def assert_same_numbers(a, b, but=("seconds",)):
    mine, theirs = numbers(a, but), numbers(b, but)
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        assert value == pytest.approx(theirs[key], rel=1e-7, abs=1e-7, nan_ok=True), key


def answered(here):
    """{(stage, round, exchange): who answered}, as the server wrote it down."""
    return {
        (line["stage"], line["round"], line["exchange"]): set(line["answered"])
        for line in read_exchanges(here.folder)
    }


def same_answers(name, here, rounds, **schedule):
    """The local engine with the answers that the server got."""
    loop = play(name, here.federation, here.models, rounds, SEQUENTIAL, until=0, **schedule)
    loop.answers = answered(here)
    loop.go()
    return loop


@every_method
def test_sites_equal_the_local_engine(name, tmp_path):
    """Models on the sites' disks, metrics, notes and bytes, after messages that were bytes on the
    way.
    """
    with float64(), town(tmp_path, name) as here:
        loop = here.loop(Schedule(rounds=2, eval_every=2))
        loop.go()
        finish(loop)
        local = play(name, here.federation, here.models, eval_every=2)
        assert_same(at_home(here, local), personal(local))
        assert_same_numbers(loop, local)
        assert not here.lines.has("left out")
        assert not here.lines.has("refused")


@pytest.mark.parametrize("name", ["fedavg", "ktpfl", "selffl", "persfl"])
def test_sampled_and_dropped_clients_equal_the_local_engine(name, tmp_path):
    with float64(), town(tmp_path, name, tiny(5)) as here:
        schedule = {"participation": 0.6, "dropout_clients": 0.2, "trains": "all"}
        loop = here.loop(
            Schedule(rounds=3, eval_every=1000)._replace(**schedule), RULES._replace(needed=0.0)
        )
        loop.go()
        finish(loop)
        local = play(name, here.federation, here.models, rounds=3, **schedule)
        assert_same(at_home(here), personal(local))
        assert_same_numbers(
            loop, local, ("seconds", "steps", "gradients", "bytes_down", "bytes_broadcast")
        )  # who is dropped is not asked


@pytest.mark.parametrize("name", ["ktpfl", "feddf", "fedmd"])
def test_a_model_a_site_equals_the_local_engine(name, tmp_path):
    with float64(), town(tmp_path, name, models=[tiny_model(5), tiny_model(4)]) as here:
        loop = here.loop(Schedule(rounds=2, eval_every=1000))
        loop.go()
        finish(loop)
        assert_same(at_home(here), personal(play(name, here.federation, here.models)))


def lose(here, lost):
    """Lose the replies to these (site, stage, round, exchange)."""

    def spoil(node, question, reply):
        head = json.loads(unpack_frame(question.content).head)
        return (
            None
            if (node - NODE, head.get("stage"), head.get("round"), head.get("exchange")) in lost
            else reply
        )

    here.grid.spoil = spoil


@pytest.mark.parametrize("name", ["fedavg", "ktpfl", "persfl", "selffl", "scaffold"])
def test_a_lost_reply_leaves_the_old_state_on_both_sides(name, tmp_path):
    """The site has worked, the server has not heard of it: both go on from the state before, as the
    local engine does.
    """
    with float64(), town(tmp_path, name, tiny(3)) as here:
        lose(here, {(1, 0, 1, 0), (2, 0, 0, 0), (0, 0, 2, 1)})
        loop = here.loop(Schedule(rounds=3, eval_every=1000), RULES._replace(deadline=0.1))
        loop.go()
        finish(loop)
        assert answered(here)["train", 1, 0] == {0, 2}
        assert here.lines.has("train, round 2", "1 did not answer")
        local = same_answers(name, here, 3)
        assert_same(at_home(here), personal(local))
        assert_same_numbers(loop, local, ("seconds", "steps", "gradients", "bytes_down"))


def test_a_state_counts_only_when_the_next_message_names_it(tmp_path):
    with town(tmp_path, "ditto", tiny(2)) as here:
        loop = here.loop(Schedule(rounds=3, eval_every=1000), RULES._replace(deadline=0.1))
        lose(here, {(1, 0, 1, 0)})
        loop.go(until=2)
        store = here.site(1).store
        assert loop.engine.tokens == {0: "0-1-0", 1: "0-0-0"}
        assert store.tokens(loop.engine.run) == {"0-0-0", "0-1-0"}
        loop.engine.dump()
        loop.go(until=3)
        assert loop.engine.tokens == {0: "0-2-0", 1: "0-2-0"}
        assert store.tokens(loop.engine.run) == {"0-0-0", "0-2-0"}


@pytest.mark.parametrize("name", ["ktpfl", "persfl", "apfl"])
def test_a_site_that_was_stopped_goes_on_from_its_disk(name, tmp_path):
    """Without keys Flower gives it another node id: it is greeted again and known by its name."""
    with float64(), town(tmp_path, name, tiny(3)) as here:
        loop = here.loop(Schedule(rounds=3, eval_every=1000))
        loop.go(until=1)
        here.close(1)
        here.open(1, node=777)
        loop.go()
        finish(loop)
        assert here.lines.has("1 is back")
        assert_same(at_home(here), personal(play(name, here.federation, here.models, rounds=3)))


def test_a_site_that_is_away_is_left_out_and_taken_back(tmp_path):
    with float64(), town(tmp_path, "fedavg", tiny(3)) as here:
        loop = here.loop(Schedule(rounds=4, eval_every=1000))
        loop.go(until=1)
        here.close(2)
        loop.go(until=2)
        here.grid.offline.add(NODE + 2)
        loop.go(until=3)
        here.grid.offline.clear()
        here.open(2)
        loop.go()
        finish(loop)
        assert here.lines.has("round 2", "2 cannot answer", "`coterie site`")
        assert here.lines.has("round 3", "2 is not there")
        assert [sorted(who) for who in answered(here).values()] == [
            [0, 1, 2],
            [0, 1],
            [0, 1],
            [0, 1, 2],
        ]
        assert_same(at_home(here), personal(same_answers("fedavg", here, 4)))


def killed(*_):
    raise KeyboardInterrupt


def kill_at_last_receive(loop):
    """The server dies when the last exchange of a round of the last stage has come back."""
    *stages, last = loop.program
    *before, exchange = last.method.round
    method = last.method._replace(round=(*before, exchange._replace(receive=killed)))
    loop.program = (*stages, last._replace(method=method))


@pytest.mark.parametrize(("name", "stop"), [("ktpfl", 1), ("persfl", 2), ("ucfl", 1)])
def test_a_server_that_goes_back_to_its_checkpoint_is_followed_by_the_sites(name, stop, tmp_path):
    """Killed after a round that no checkpoint holds, and once more in the middle of a round."""
    with float64(), town(tmp_path, name, tiny(3)) as here:
        schedule = Schedule(rounds=2, eval_every=1000)
        first = here.loop(schedule)
        first.go(until=stop)
        write_checkpoint(first, tmp_path)
        with pytest.raises(KeyboardInterrupt):
            first.go(after=killed)
        second = here.loop(schedule, run="0000beef")
        restore_checkpoint(second, list_checkpoints(tmp_path)[-1])
        assert second.engine.run == first.engine.run
        kill_at_last_receive(second)
        with pytest.raises(KeyboardInterrupt):
            second.go()
        third = here.loop(schedule)
        restore_checkpoint(third, list_checkpoints(tmp_path)[-1])
        third.go()
        finish(third)
        assert not here.lines.has("lost its state")
        assert_same(at_home(here), personal(play(name, here.federation, here.models)))


def change_reply(here, site, change):
    """Change what a site sends back to a training message."""

    def spoil(node, question, reply):
        if node != NODE + site or question.metadata.message_type != "train" or reply.has_error():
            return reply
        return Message(pack_frame(change(unpack_frame(reply.content))), reply_to=question)

    here.grid.spoil = spoil


def with_nan(frame):
    head = json.loads(frame.head)
    spoilt = b"\xff" * 8 + frame.body[8:]
    return frame._replace(head=json.dumps(head | {"digest": digest(spoilt)}), body=spoilt)


def with_shape(frame):
    head = json.loads(frame.head)
    head["table"][0][1] = head["table"][0][1][::-1]
    return frame._replace(head=json.dumps(head))


def with_structure(frame):
    head = json.loads(frame.head)
    return frame._replace(head=json.dumps(head | {"tree": {"tuple": [head["tree"]]}}))


def with_text(frame):
    head = json.loads(frame.head)
    return frame._replace(head=json.dumps(head | {"notes": {"loss": "1; import os"}}))


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        (with_nan, ("1 is left out", "NaN in 0.weight")),
        (
            with_shape,
            ("1 is left out", "float64 [6, 5] in 0.weight", "float64 [5, 6] was expected"),
        ),
        (with_structure, ("1 is left out", "another structure")),
        (with_text, ("1 sent", "notes that are no numbers")),
        (
            lambda frame: frame._replace(schema=SCHEMA + 1),
            ("1 sent what cannot be read", f"schema {SCHEMA + 1}", f"reads schema {SCHEMA}"),
        ),
        (
            lambda frame: frame._replace(body=frame.body[:-1]),
            ("1 sent what cannot be read", "damaged"),
        ),
        (
            lambda frame: frame._replace(body=b"\0" * len(frame.body)),
            ("1 sent what cannot be read", "not as they were sent"),
        ),
        (lambda frame: frame._replace(head="["), ("1 sent what cannot be read", "damaged")),
    ],
)
def test_a_bad_upload_drops_its_site_and_no_other(change, settings, tmp_path):
    with float64(), town(tmp_path, "fedavg", tiny(3)) as here:
        change_reply(here, 1, change)
        loop = here.loop(Schedule(rounds=2, eval_every=1000))
        loop.go()
        assert here.lines.has("train, round 1", *settings), here.lines
        assert here.lines.has("the server could not use the last reply", "round 1", settings[-1]), (
            here.lines
        )  # the site says it too
        assert [sorted(who) for who in answered(here).values()] == [[0, 2], [0, 2]]
        here.grid.spoil = lambda node, question, reply: reply
        finish(loop)
        assert_same(at_home(here), personal(same_answers("fedavg", here, 2)))


def test_a_site_started_again_in_mid_exchange_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.deploy.roster.LOOK_SECONDS", 0.1)
    with float64(), town(tmp_path, "ditto", tiny(3)) as here:

        def killed(node, question, reply):
            if node != NODE + 1 or question.metadata.message_type != "train":
                return reply
            here.grid.activated[node] = "later"
            return None

        here.grid.spoil = killed
        loop = here.loop(Schedule(rounds=2, eval_every=1000), rules=RULES._replace(deadline=3600.0))
        loop.go(until=1)
        here.grid.spoil = lambda node, question, reply: reply
        loop.go()
        assert here.lines.has("1 was started again while it worked")
        assert [sorted(who) for who in answered(here).values()] == [[0, 2], [0, 1, 2]]
        finish(loop)
        assert_same(at_home(here), personal(same_answers("ditto", here, 2)))


def test_a_site_refuses_another_schema_with_a_clear_line_on_both_sides(tmp_path):
    with town(tmp_path, "fedavg", tiny(2)) as here:
        loop = here.loop(Schedule(rounds=1, eval_every=1000))
        pack = loop.engine.roll._hello
        loop.engine.roll._hello = lambda: pack()._replace(schema=9)
        assert loop.engine.roll.look() == []
        assert here.lines.has(
            "a site was refused", "'0' says", "schema 9", f"reads schema {SCHEMA}"
        )
        assert here.lines.has("refused a message", "schema 9")


def test_too_few_answers_are_asked_for_again_and_then_the_run_stops(tmp_path):
    with float64(), town(tmp_path, "fedavg", tiny(4)) as here:
        asked = []

        def spoil(node, question, reply):
            if question.metadata.message_type != "train":
                return reply
            asked.append(node - NODE)
            return (
                Message(Error(2, "no"), reply_to=question)
                if node != NODE and len(asked) <= 4
                else reply
            )

        here.grid.spoil = spoil
        loop = here.loop(Schedule(rounds=2, eval_every=1000), Rules(0.75, 0.2, 2))
        loop.go(until=1)
        assert asked == [0, 1, 2, 3, 1, 2, 3]  # who has answered is not asked again
        assert here.lines.has("1 of 4 sites answered and 3 are needed")
        assert read_exchanges(here.folder)[0]["tries"] == 2
        for i in (1, 2):
            here.close(i)
        with pytest.raises(
            BadInput,
            match=r"2 of 4 sites answered in 2 tries and 3 are needed.*start the server again",
        ):
            loop.go()
        assert loop.done == 1
        for i in (1, 2):
            here.open(i)
        loop.go()
        finish(loop)
        assert_same(at_home(here), personal(play("fedavg", here.federation, here.models)))


def test_a_site_that_lost_its_disk_begins_anew(tmp_path):
    with town(tmp_path, "ditto", tiny(3)) as here:
        loop = here.loop(Schedule(rounds=3, eval_every=1000))
        loop.go(until=1)
        site = here.site(2)
        site.store.keep(loop.engine.run, set())
        loop.go(until=2)
        assert here.lines.has("round 2", "2 refused", "lost its state 0-0-0")
        assert 2 not in loop.engine.tokens
        loop.go()
        assert loop.engine.tokens[2] == "0-2-0"
        assert read_exchanges(here.folder)[-1]["anew"] == [2]
        finish(loop)
        assert len(at_home(here)) == 3


def test_a_site_that_lost_its_disk_in_the_middle_of_a_round_sits_the_rest_out(tmp_path):
    """The second exchange has nothing that a newcomer could begin with."""
    with float64(), town(tmp_path, "ktpfl", tiny(3)) as here:
        asked = []

        def spoil(node, question, reply):
            head = json.loads(unpack_frame(question.content).head)
            asked.append((node - NODE, head.get("round"), head.get("exchange")))
            if asked[-1] == (2, 0, 0):
                here.site(2).store.keep(head["run"], set())
            return reply

        here.grid.spoil = spoil
        with pytest.raises(BadInput, match="2 of 3 sites answered"):
            here.loop(Schedule(rounds=2, eval_every=1000), Rules(0.9, 0.2, 2)).go()
        assert asked.count((2, 0, 1)) == 1  # not as a newcomer
        here.loop(Schedule(rounds=2, eval_every=1000)).go()
        lines = [(line["answered"], line["anew"]) for line in read_exchanges(here.folder)]
        assert lines == [([0, 1, 2], []), ([0, 1], []), ([0, 1, 2], [2]), ([0, 1, 2], [])]


def test_no_row_of_data_is_ever_in_a_message(tmp_path):
    """A number that stands in every row, and every row itself, are looked for in the bytes of all
    messages.
    """
    federation = tiny(3)
    x = federation.x.clone()
    x[:, 2] = 1234.5678
    federation = federation._replace(x=x)
    for name in ("persfl", "ktpfl", "fedfomo"):
        (tmp_path / name).mkdir()
        with town(tmp_path / name, name, federation) as here:
            loop = here.loop(Schedule(rounds=1, eval_every=1))
            loop.go()
            finish(loop)
            sent = b"".join(here.grid.seen)
            assert len(sent) > 10_000
            assert x[0, 2].numpy().tobytes() not in sent
            assert not any(row.numpy().tobytes() in sent for row in x)
            assert not any(row.numpy().tobytes()[:8] in sent for row in x)


def test_a_site_whose_key_belongs_to_another_is_refused(tmp_path):
    with town(tmp_path, "fedavg", tiny(2)) as here:
        here.grid.registered = {NODE: "0", NODE + 1: "0"}
        loop = here.loop(Schedule(rounds=1, eval_every=1000))
        assert loop.engine.roll.look() == [0]
        assert here.lines.has("says that it is '1', but has the key of '0'")


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_a_site_that_diverges_is_left_out_and_counted_as_on_the_local_engine(name, tmp_path):
    """It is asked once per round, keeps its old state, and its numbers reach nobody."""
    federation = tiny(4)
    x = federation.x.clone()
    x[torch.as_tensor(federation.train[3])] *= 1e37
    federation = federation._replace(x=x)
    with town(tmp_path, name, federation) as here:
        loop, said = here.loop(Schedule(rounds=2, eval_every=1000)), []
        loop.go(lambda loop, report: said.append((report.left_out, report.said)))
        assert [count for count, _ in said] == [1, 1]
        lines = [line for _, some in said for line in some]
        assert sum("the update of client" in line for line in lines) == 1  # it is said once
        assert sum("the update of this site is not finite" in line for line in here.lines) >= 2
        assert [line["tries"] for line in read_exchanges(here.folder)] == [1, 1]
        assert all(line["answered"] == [0, 1, 2] for line in read_exchanges(here.folder))
        local = play(name, federation, here.models, settings=SEQUENTIAL, eval_every=1000)
        finish(loop)
        theirs = personal(local)
        assert_same(
            {i: m for i, m in at_home(here).items() if i < 3}, {i: theirs[i] for i in range(3)}
        )
