"""Messages, states at home, privacy, and a server and sites that are made from their files."""

import json
import os
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from coterie.core.errors import BadInput
from coterie.core.point import Point, Vector
from coterie.data.pipeline import build_federation
from coterie.deploy.audit import AUDIT, read_audit
from coterie.deploy.config_files import (
    DataShape,
    Privacy,
    Rules,
    ServerAddress,
    ServerConfig,
    SiteConfig,
    Sites,
    SiteSettings,
    read_site,
    write_server,
    write_site,
)
from coterie.deploy.consent import Consent, digest_of
from coterie.deploy.replay import (
    append_line,
    gather_sites,
    largest_difference,
    measure_overhead,
    read_exchanges,
    read_journal,
    replay,
)
from coterie.deploy.site_rows import learning_targets, read_rows
from coterie.deploy.state_store import StateStore, StoredState
from coterie.deploy.upload_privacy import change_norm, protect, secure_rng
from coterie.experiment.toml import to_toml
from helpers.federations import float64, play, tiny
from helpers.runs import settings_written
from helpers.sites import open_sites
from helpers.town import EXACT, BytesGrid, Lines, town

# isort: split
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from coterie.deploy import frames, server_app, wire
from coterie.deploy.fleet_client import answer_message
from coterie.deploy.frames import BadFrame, Frame, pack_frame, unpack_frame
from coterie.deploy.mailbox import Mailbox
from coterie.deploy.replies import Bounds, read_reply
from coterie.deploy.site import open_site
from coterie.experiment.schedule import Schedule

NAMES = ("east", "north", "south")


# Messages


def trees():
    point = Point({"a.weight": torch.randn(2, 3), "a.bias": torch.randn(2)}, {"n": torch.tensor(3)})
    yield point
    yield (
        point,
        [
            Vector({"a": torch.randn(1)}),
            {"mask": torch.tensor([True, False]), "k": torch.tensor(2**40)},
        ],
        (),
    )
    yield {
        "half": torch.randn(3).half(),
        "double": torch.randn(2).double(),
        "empty": torch.zeros(0, 4),
        "byte": torch.tensor([1]).byte(),
    }
    yield ()


@pytest.mark.parametrize("tree", list(trees()))
def test_a_message_gives_back_what_was_sent(tree):
    frame = wire.pack({"kind": "x", "number": 0.1}, tree)
    content = wire.unpack(unpack_frame(pack_frame(frame)))
    assert content.head["number"] == 0.1
    a, spec = torch.utils._pytree.tree_flatten(tree)
    b, back = torch.utils._pytree.tree_flatten(content.tree())
    assert spec == back
    assert all(p.dtype == q.dtype and torch.equal(p, q) for p, q in zip(a, b, strict=True))
    assert torch.utils._pytree.tree_structure(wire.decode_like(content, tree)) == spec


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"table": [["object", [2]]]}, "damaged"),
        ({"table": [["float32", [-2]]]}, "make no sense"),
        ({"table": [["float32", [2] * 40]]}, "make no sense"),
        ({"table": [["float32", [2**40]]]}, "need 4,398,046,511,104 bytes"),
        ({"table": "no"}, "damaged"),
        ({"tree": 3}, "make no sense"),
        ({"digest": "0"}, "not as they were sent"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused(change, match):
    frame = wire.pack({}, torch.zeros(2))
    head = json.dumps(json.loads(frame.head) | change)
    with pytest.raises(BadInput, match=match):
        wire.unpack(frame._replace(head=head))


@pytest.mark.parametrize(
    "name", ["subprocess:Popen", "antigravity:Fly", "os:system", "collections:namedtuple"]
)
def test_nothing_that_a_message_names_is_run_or_imported(name):
    frame = wire.pack({}, ())
    head = json.dumps(json.loads(frame.head) | {"tree": {"named": name, "items": [{"value": "x"}]}})
    with pytest.raises(BadInput, match="not loaded here"):
        wire.unpack(frame._replace(head=head)).tree()
    assert "antigravity" not in sys.modules


def test_a_site_that_has_gone_is_told_of_with_the_way_out():
    grid = BytesGrid()
    grid.nodes = {1: None}
    roll = server_app.Roster(
        grid, ["north"], lambda: wire.pack({"kind": "hello", "words": {}}), say=(lines := Lines())
    )
    assert roll.look() == []
    assert lines.has("a site was refused", "its connection is lost", "`coterie site`")


@pytest.mark.parametrize("size", [0, 1, frames.PIECE_BYTES, 3 * frames.PIECE_BYTES + 3])
@pytest.mark.parametrize("fill", [os.urandom, bytes])
def test_a_frame_comes_through_in_pieces(size, fill):
    """Of which some may be equal, and are then one object of Flower's."""
    Mailbox()  # gives this process an identity
    frame = Frame(1, "{}", fill(size))
    parts = frames.take_apart(Message(pack_frame(frame), 7, "train"))
    assert len(parts.objects) <= 3 + max(0, (size - 1) // frames.PIECE_BYTES)
    assert max(map(len, parts.objects.values())) < frames.PIECE_BYTES + 1000
    assert unpack_frame(frames.put_together(parts.number, parts.objects).content) == frame


def test_a_reply_that_names_one_piece_a_thousand_times_takes_no_memory():
    """1 MB on the way, 1 GB put together: it is counted first."""
    Mailbox()
    piece = ConfigRecord({frames.BODY: bytes(2**20)})
    again = {f"{frames.BODY}{k}": piece for k in range(1000)}
    content = RecordDict({**pack_frame(Frame(1, "{}", b"")), **again})
    parts = frames.take_apart(Message(content, 7, "train"))
    assert sum(map(len, parts.objects.values())) < 2**21
    tracemalloc.start()
    told = read_reply(frames.put_together(parts.number, parts.objects), "train", Bounds())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "1,048,576,000 bytes, at most 0 were asked for" in told
    assert most < 2**24


def test_objects_that_no_frame_has_are_not_put_together():
    """An array of Flower's is chunks by number, and may name one of them a million times."""
    Mailbox()
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(2))})})
    parts = frames.take_apart(Message(content, 7, "train"))
    with pytest.raises(BadFrame, match="object of kind 'Array"):
        frames.put_together(parts.number, parts.objects)


def foreign():
    """Messages that other applications of Flower send, and ours with holes in them."""
    weights = ArrayRecord({"w": Array(np.zeros(2))})
    yield RecordDict({"arrays": weights, "config": ConfigRecord({"lr": 0.1})})
    yield RecordDict()
    yield RecordDict({frames.RECORD: ConfigRecord({"head": "{}"})})
    yield RecordDict({frames.RECORD: weights})


@pytest.mark.parametrize("content", list(foreign()))
def test_what_is_no_frame_is_refused_with_one_line_and_reaches_nobody(content):
    Mailbox()
    worked, lines = [], Lines()
    reply = answer_message(Message(content, 7, "train"), worked.append, lines)
    assert reply.has_error()
    assert worked == []
    assert len(lines) == 1
    assert lines.has("refused a message that is not coterie's", "nothing of it was run")


def test_a_frame_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(frames, "LARGEST_BODY", 3)
    with pytest.raises(BadFrame, match="too large"):
        unpack_frame(pack_frame(Frame(1, "{}", b"1234")))


# States at home


def test_a_state_is_there_whole_or_not_at_all(tmp_path):
    store = StateStore(tmp_path / "state", lines := Lines())
    store.save("abcdef01", "0-0-0", StoredState(0, {"w": torch.arange(3.0)[None]}))
    assert torch.equal(store.load("abcdef01", "0-0-0").state["w"], torch.arange(3.0)[None])
    assert store.load("abcdef01", "0-1-0") is None
    path = tmp_path / "state" / "abcdef01" / "0-0-0" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert store.load("abcdef01", "0-0-0") is None
    assert lines.has("cannot be read", "damaged")


def test_states_that_nobody_names_go_and_two_runs_stay(tmp_path):
    store = StateStore(tmp_path, Lines())
    for number, run in enumerate(("aaaaaaaa", "bbbbbbbb", "cccccccc")):
        for token in ("0-0-0", "0-1-0", "0-2-0"):
            store.save(run, token, StoredState(0, ()))
        os.utime(tmp_path / run, (number, number))
    store.keep("cccccccc", {"0-1-0", "0-2-0"})
    assert store.tokens("cccccccc") == {"0-1-0", "0-2-0"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bbbbbbbb", "cccccccc"]


@pytest.mark.parametrize(
    ("run", "token"),
    [("../../etc", "0-0-0"), ("abcdef01", "../0-0-0"), ("abcdef01", "/tmp/x"), ("", "0-0-0")],
)
def test_a_message_cannot_name_a_place_outside_the_store(run, token, tmp_path):
    store = StateStore(tmp_path / "state", Lines())
    for act in (lambda: store.load(run, token), lambda: store.save(run, token, StoredState(0, ()))):
        with pytest.raises(BadInput, match="is no name of"):
            act()
    assert not (tmp_path / "state").exists()


# Privacy


def model(value):
    buffers = {"count": torch.tensor(7), "mean": torch.zeros(2)}
    return Point({"w": torch.full((4, 2), value), "b": torch.full((2,), value)}, buffers)


def test_a_change_is_clipped_to_exactly_the_norm_and_keeps_its_direction():
    sent, upload = model(1.0), model(3.0)
    out = protect(upload, sent, 0.5, 0.0, np.random.default_rng(0))
    assert change_norm(out, sent) == pytest.approx(0.5, rel=1e-6)
    assert torch.allclose(
        (out - sent).params["w"] / 2,
        ((upload - sent) * (0.5 / change_norm(upload, sent))).params["w"] / 2,
    )
    assert out.buffers["count"] == 7
    assert (
        protect(upload, sent, 1e6, 0.0, np.random.default_rng(0))
        .params["w"]
        .allclose(upload.params["w"])
    )
    assert protect(upload, sent, 0.0, 0.0, np.random.default_rng(0)) is upload


def test_noise_has_the_deviation_it_says_and_leaves_numbers_that_were_sent_alone():
    sent = Point({"w": torch.zeros(400, 500)})
    upload = (Point({"w": torch.full((400, 500), 0.01)}), torch.arange(5))
    out, ids = protect(upload, (sent, torch.arange(5)), 2.0, 1.5, np.random.default_rng(0))
    noise = out.params["w"] - upload[0].params["w"] * 2.0 / change_norm(upload, (sent,))
    assert float(noise.std()) == pytest.approx(3.0, rel=0.01)
    assert abs(float(noise.mean())) < 0.02
    assert torch.equal(ids, torch.arange(5))


def test_what_an_upload_is_measured_from():
    """The model that was sent, the first of a stack, or nothing."""
    sent, upload = model(1.0), model(1.5)
    stacked = torch.utils._pytree.tree_map(lambda t: torch.stack([t, t + 100]), sent)
    for payload in (sent, (torch.tensor(3), {"deep": sent}), (stacked, torch.tensor(1))):
        assert change_norm((upload, torch.arange(3)), payload) == pytest.approx(
            change_norm(upload, sent)
        )
    assert change_norm(upload, torch.tensor(3)) == pytest.approx(1.5 * 10**0.5)
    assert change_norm((upload, torch.tensor([3.0, 4.0])), sent) == pytest.approx(
        (change_norm(upload, sent) ** 2 + 25) ** 0.5
    )


def test_noise_of_a_site_cannot_be_drawn_again():
    assert not np.array_equal(secure_rng().random(4), secure_rng().random(4))


@pytest.mark.parametrize("name", ["fedavg", "persfl", "fedfomo", "scaffold"])
def test_a_site_clips_what_it_sends_and_not_what_it_keeps(name, tmp_path):
    with float64(), town(tmp_path, name, tiny(2), privacy=(1e-3, 0.0)) as here:
        loop = here.loop(Schedule(rounds=1, eval_every=1000))
        sent, got = [], []
        exchange, original = loop.program[0].method.round[0], loop.engine.replies
        loop.engine.replies = lambda uploads, when: got.extend(uploads) or original(uploads, when)
        sent = [exchange.send(loop.position.server, i, np.random.default_rng(0)) for i in range(2)]
        loop.go(until=1)
        for upload in got:
            for k, i in enumerate(upload.clients):
                one = torch.utils._pytree.tree_map(lambda t: t[k], upload.upload)
                assert change_norm(one, sent[i]) <= 1e-3 * (1 + 1e-9)
        local = play(name, here.federation, here.models, until=1)
        kept = here.site(0).store.load(loop.engine.run, "0-0-0")
        theirs = local.engine.states[0].gather([0])
        for a, b in zip(
            *(torch.utils._pytree.tree_leaves(t) for t in (kept.state, theirs)), strict=True
        ):
            torch.testing.assert_close(a, b)


# A server and its sites, from files


def make_federation(
    folder, method="fedavg", rounds=2, public=0, model=None, server=None, options=None
):
    """The folders that `coterie federation init` makes, with a CSV of digits at every site."""
    x, y = load_digits(return_X_y=True)
    x = x[:, 20:36].round(1)
    (folder / "files").mkdir(parents=True)
    head = ",".join(f"p{k}" for k in range(16)) + ",label"
    for i, name in enumerate(NAMES):
        rows = slice(40 * i, 40 * i + 30 + 5 * i)
        np.savetxt(
            folder / "files" / f"{name}.csv",
            np.c_[x[rows], y[rows]],
            "%g",
            ",",
            header=head,
            comments="",
        )
        site = folder / "sites" / name
        site.mkdir(parents=True)
        home = SiteSettings(
            name,
            "localhost:8443",
            str(folder / "files" / f"{name}.csv"),
            public="public.csv" if public else "",
        )
        write_site(site, SiteConfig(home, Privacy(), EXACT))
    place = folder / "server"
    place.mkdir()
    shape = DataShape(
        10, 16, public="public.csv" if public else "", validation=0.25, test=0.25, seed=3
    )
    settings = {
        "server": ServerAddress(),
        "sites": Sites(NAMES),
        "rules": Rules(0.5, 5.0, 2),
        "data": shape,
        "privacy": Privacy(),
    }
    write_server(place, ServerConfig(**(settings | (server or {}))))
    if public:
        for where in (place, *(folder / "sites" / name for name in NAMES)):
            np.savetxt(
                where / "public.csv",
                np.c_[x[-public:], y[-public:]],
                "%g",
                ",",
                header=head,
                comments="",
            )
    experiment = {
        "method": method,
        "seed": 5,
        "train": {"batch_size": 8},
        "schedule": {"rounds": rounds},
        "options": options or {},
    }
    (place / "experiment.toml").write_text(
        to_toml({**experiment, "model": model or {"name": "mlr"}})
    )
    return place


def simulated(folder):
    """The same rows in a simulation over a folder with one file a client."""
    return build_federation(folder / "files", seed=3, validation=0.25, test=0.25, scale="none")


def model_files(folder):
    return {i: folder / "sites" / name / "model.safetensors" for i, name in enumerate(NAMES)}


def test_a_run_of_real_sites_leaves_what_any_run_leaves_and_equals_a_simulation(tmp_path):
    """The journal replayed by the local engine gives the sites' models."""
    place = make_federation(tmp_path)
    with open_sites(tmp_path) as (grid, said):
        server_app.play(grid, place, server_app.build_logger(place, print))
    run = server_app.load_run(place / "run")
    assert run.about["clients"] == list(NAMES)
    assert run.about["status"] == "finished"
    assert np.isfinite(run.accuracy()).all()
    assert not (place / "run" / "split.parquet").exists()
    loop = replay(place / "run", simulated(tmp_path))
    assert largest_difference(loop, model_files(tmp_path)) < 1e-5
    np.testing.assert_allclose(
        run.accuracy(), loop.evaluate()["personal", "test", "accuracy"], atol=1e-6
    )
    assert "finished" in (place / "deployment.log").read_text()
    assert said.has("the run is over", "model.safetensors")
    exchanges, rounds = measure_overhead(place / "run")
    assert len(exchanges) == len(read_exchanges(place / "run")) >= len(rounds)
    assert min(exchanges) >= 0
    assert sum(rounds) == pytest.approx(sum(exchanges))


def test_two_architectures_public_rows_and_a_site_that_comes_late(tmp_path):
    place = make_federation(
        tmp_path,
        "ktpfl",
        2,
        40,
        {"name": "mlr,dnn", "hidden": 4},
        options={"draw": 20, "public_batch_size": 8},
    )
    with open_sites(tmp_path) as (grid, _):
        grid.offline = {3}
        waiting = Lines()
        thread = threading.Thread(target=server_app.play, args=(grid, place, waiting), daemon=True)
        thread.start()
        while not waiting.has("waiting for"):
            time.sleep(0.01)
        assert waiting.has("waiting for south")
        grid.offline = set()
        thread.join(600)
    assert waiting.has("finished")
    federation = simulated(tmp_path)._replace(public=server_app.read_server_plan(place).public)
    assert largest_difference(replay(place / "run", federation), model_files(tmp_path)) < 1e-5


def test_a_run_goes_on_from_its_checkpoint_and_a_finished_one_gives_its_models_again(tmp_path):
    place = make_federation(tmp_path, "ditto", 3)
    with open_sites(tmp_path) as (grid, _):
        count = []

        def spoil(node, question, reply):
            count.append(question.metadata.message_type)
            if count.count("train") > 7:  # in the third round
                raise KeyboardInterrupt
            return reply

        grid.spoil = spoil
        with pytest.raises(KeyboardInterrupt):
            server_app.play(grid, place, Lines())
        grid.spoil = lambda node, question, reply: reply
        grid.offline = {2}  # nobody waits for it: how many rows it has is known
        server_app.play(grid, place, lines := Lines())
        assert lines.has("going on after round 2 of 3")
        assert lines.has(
            "at the end north is not there", "it will when the server is started again"
        )
        early = model_files(tmp_path)[1].read_bytes()  # of the last evaluation that it took part in
        grid.offline = set()
        server_app.play(grid, place, Lines())
        assert model_files(tmp_path)[1].read_bytes() != early
    assert [sorted(line["answered"]) for line in read_exchanges(place / "run")] == [
        [0, 1, 2],
        [0, 1, 2],
        [0, 2],
    ]
    assert (
        largest_difference(replay(place / "run", simulated(tmp_path)), model_files(tmp_path)) < 1e-5
    )


class Stop(Exception):
    """The server is stopped."""


@pytest.mark.parametrize(
    ("file", "before", "after", "line"),
    [
        (
            "experiment.toml",
            "batch_size = 8",
            "batch_size = 9",
            "train.batch_size was 8 .* experiment.toml says 9",
        ),
        ("experiment.toml", "seed = 5", "seed = 6", "seed was 5 .* says 6: write it back, or move"),
        ("experiment.toml", "rounds = 2", "rounds = 3", "schedule.rounds was 2"),
        ("server.toml", "seed = 3", "seed = 4", "data.seed was 3 .* server.toml says 4"),
        ("server.toml", "clip = 0.0", "clip = 1.0", "privacy.clip was 0.0 .* says 1.0"),
    ],
)
def test_a_server_goes_on_only_with_the_words_that_the_run_began_with(
    file, before, after, line, tmp_path
):
    place = make_federation(tmp_path)

    def stopped(said):
        if "round 1 of" in said:
            raise Stop

    with open_sites(tmp_path) as (grid, _):
        with pytest.raises(Stop):
            server_app.play(grid, place, stopped)
        text = (place / file).read_text()
        assert before in text
        (place / file).write_text(text.replace(before, after))
        with pytest.raises(BadInput, match=line) as caught:
            server_app.play(grid, place, Lines())
        assert "\n" not in str(caught.value)
        (place / file).write_text(text)
        server_app.play(grid, place, Lines())


def test_a_server_whose_run_is_older_than_a_word_goes_on_with_its_default(tmp_path):
    place = make_federation(tmp_path)

    def stopped(said):
        if "round 1 of" in said:
            raise Stop

    with open_sites(tmp_path) as (grid, _):
        with settings_written(lacks=("train.momentum",)), pytest.raises(Stop):
            server_app.play(grid, place, stopped)
        about = place / "run" / "run.json"
        known = json.loads(about.read_text())
        del known["server"]["privacy.clip"]
        about.write_text(json.dumps(known))
        text = (place / "server.toml").read_text()
        (place / "server.toml").write_text(text.replace("clip = 0.0", "clip = 1.0"))
        with pytest.raises(BadInput, match=r"privacy\.clip was its default 0\.0 .* says 1\.0"):
            server_app.play(grid, place, Lines())
        (place / "server.toml").write_text(text)
        assert server_app.play(grid, place, Lines()).about["status"] == "finished"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda rows: "label,p0\n" + "1,2\n" * 30,
            r"rows of shape \[1\], but this deployment works on \[16\]",
        ),
        (
            lambda rows: rows.replace(",9\n", ",11\n"),
            "'south' says: its file has a label which this deployment does not know",
        ),
        (lambda rows: "\n".join(rows.splitlines()[:3]), "none of them in its"),
        (
            lambda rows: rows.replace("p0,p1", "p1,p0"),
            "feature columns of 'south' are not those of 'east'",
        ),
    ],
)
def test_a_site_whose_rows_do_not_fit_is_refused_with_a_clear_line(change, match, tmp_path):
    place = make_federation(tmp_path)
    path = tmp_path / "files" / "south.csv"
    path.write_text(change(path.read_text()))
    with open_sites(tmp_path) as (grid, _):
        plan, told, lines = server_app.read_server_plan(place), {}, Lines()
        hello = wire.pack({"kind": "hello", "words": plan.settings})
        roll = server_app.Roster(
            grid,
            NAMES,
            lambda: hello,
            lambda i, head: server_app._admit(plan, told, i, head),
            lines,
        )
        assert roll.look() == [0, 1]
    import re

    assert re.search(match, "\n".join(lines)), lines


def test_a_site_refuses_words_that_are_not_its_own(tmp_path):
    place = make_federation(tmp_path, public=10)
    site = open_site(tmp_path / "sites" / "east", Lines())
    settings = server_app.read_server_plan(place).settings

    def error(**changes):
        return wire.unpack(
            site.answer(wire.pack({"kind": "hello", "words": settings | changes}))
        ).head["error"]

    assert error() == ""
    assert "unknown method 'os.system'" in error(method="os.system")
    assert "python:" in error(model={"name": "python:evil"})
    assert "is not the public file of this deployment" in error(public="0" * 32)
    assert "assigns networks that it does not name" in error(architecture=[5])
    assert "batch" in error(train={"batch_size": "many"})
    head = {
        "kind": "train",
        "words": settings,
        "run": "abcdef01",
        "site": 0,
        "name": "west",
        "rows": {},
        "stage": 0,
        "round": 0,
    }
    assert (
        "for site 'west', this is 'east'" in wire.unpack(site.answer(wire.pack(head))).head["error"]
    )
    assert (
        "have changed since the run began"
        in wire.unpack(site.answer(wire.pack(head | {"name": "east"}))).head["error"]
    )
    assert "schema 7" in wire.unpack(site.answer(Frame(7, "{}", b""))).head["error"]
    assert "damaged" in wire.unpack(site.answer(Frame(wire.SCHEMA, "", b""))).head["error"]


@pytest.mark.parametrize("section", ["engine", "dataset", "partition", "keep", "data", "split"])
def test_words_without_effect_on_real_sites_are_refused(section, tmp_path):
    place = make_federation(tmp_path)
    path = place / "experiment.toml"
    path.write_text(path.read_text() + f'\n[{section}]\nname = "x"\n')
    with pytest.raises(BadInput, match=rf"\[{section}\] has no effect on real sites"):
        server_app.read_server_plan(place)


def test_a_run_starts_with_a_quorum_when_patience_is_over(tmp_path):
    rules = Rules(0.5, 5.0, 2, quorum=0.6, patience=0.0)
    place = make_federation(tmp_path, server={"rules": rules})
    with open_sites(tmp_path) as (grid, _):
        grid.offline = {2}
        run = server_app.play(grid, place, lines := Lines())
        assert lines.has("starting with 2 of 3 sites", "left out of this run: north")
        grid.offline = set()  # too late for this run
        server_app.play(grid, place, Lines())
    assert run.about["rows"]["train"][1] == 0
    assert all(line["asked"] == [0, 2] for line in read_exchanges(place / "run"))


def test_who_comes_first_with_other_columns_keeps_nobody_out(tmp_path):
    """Most sites decide; of two that differ, neither is said to be wrong, and the run waits."""
    place = make_federation(tmp_path)
    path = tmp_path / "files" / "east.csv"
    path.write_text(path.read_text().replace("p0,p1", "p1,p0"))
    plan, told, lines = server_app.read_server_plan(place), {}, Lines()
    with open_sites(tmp_path) as (grid, _):
        hello = wire.pack({"kind": "hello", "words": plan.settings})
        roll = server_app.Roster(
            grid,
            NAMES,
            lambda: hello,
            lambda i, head: server_app._admit(plan, told, i, head),
            lines,
        )
        grid.offline = {2, 3}
        roll.look()
        grid.offline = {3}
        assert roll.look() == [0, 1]
        assert server_app._group_by_columns(plan, told) == ["east", "north"]
        assert not lines.has("refused")
        grid.offline = set()
        roll.look()
        server_app._turn_away(plan, roll, told, lines)
    assert sorted(roll.nodes) == [1, 2]
    assert lines.has("the feature columns of 'east' are not those of 'north'")


def test_a_site_runs_only_the_experiment_that_its_operator_agreed_to(tmp_path):
    place = make_federation(tmp_path)
    home, settings = tmp_path / "sites" / "east", server_app.read_server_plan(place).settings

    def hello(changed, **consent):
        lines = Lines()
        site = open_site(home, lines, Consent(home, lines, **consent))
        frame = wire.pack({"kind": "hello", "words": changed})
        return wire.unpack(site.answer(frame)).head["error"], lines

    error, lines = hello(settings)
    assert "has not agreed to the experiment" in error
    assert "--accept" in error
    assert lines.has("method:", "fedavg")
    assert hello(settings, ask=lambda digest: False)[0]
    assert hello(settings, accept=True)[0] == ""
    assert read_site(home).site.experiment == digest_of(settings)
    assert hello(settings)[0] == ""
    assert (
        hello(settings | {"architecture": [0] * 9})[0] == ""
    )  # one more site is no other experiment
    for change in ({"seed": 6}, {"method": "ditto"}, {"privacy": [1.0, 0.0]}):
        error, _ = hello(settings | change)
        assert f"it agreed to {digest_of(settings)}" in error
    assert hello(settings | {"seed": 6}, ask=lambda digest: True)[0] == ""
    assert hello(settings)[0] == ""  # both are agreed to, each for one run
    site = read_site(home)
    write_site(home, site._replace(site=site.site._replace(experiment="")))
    assert hello(settings)[0], "taken out of site.toml, it is agreed to no more"


def test_labels_are_numbered_as_the_server_says(tmp_path):
    (tmp_path / "a.csv").write_text("x,label\n" + "1,cat\n2,dog\n" * 5)
    rows = read_rows(tmp_path / "a.csv", "label")
    assert learning_targets(rows, DataShape(3, 1, labels=("dog", "bird", "cat")))[:2].tolist() == [
        2,
        0,
    ]


def test_a_journal_that_is_none_and_other_rows_are_refused(tmp_path):
    with pytest.raises(BadInput, match=r"no answers\.jsonl"):
        read_exchanges(tmp_path)
    place = make_federation(tmp_path)
    with open_sites(tmp_path) as (grid, _):
        server_app.play(grid, place, Lines())
    with pytest.raises(BadInput, match="other rows or another order"):
        replay(
            place / "run", build_federation(tmp_path / "files", seed=3, validation=0.2, test=0.25)
        )


def test_a_run_is_replayed_whatever_the_order_of_its_sites(tmp_path):
    """Files come in the order of their names, sites in that of server.toml."""
    place = make_federation(tmp_path, "ditto")
    order = ("north", "south", "east")
    server = server_app.read_server(place)
    write_server(place, server._replace(sites=Sites(order)))
    with open_sites(tmp_path) as (grid, _):
        server_app.play(grid, place, Lines())
    files = {i: tmp_path / "sites" / name / "model.safetensors" for i, name in enumerate(order)}
    federation = gather_sites(tmp_path / "files", server_app.read_server(place))
    assert federation.names == list(order)
    assert largest_difference(replay(place / "run", federation), files) < 1e-5
    with pytest.raises(BadInput, match=r"in another order than north, south, east.*gather_sites"):
        replay(place / "run", simulated(tmp_path))
    (tmp_path / "files" / "south.csv").rename(tmp_path / "files" / "elsewhere.csv")
    with pytest.raises(BadInput, match=r"must have one file south\.\*"):
        gather_sites(tmp_path / "files", server_app.read_server(place))


def test_a_torn_line_of_the_journal_is_told_and_refused_where_it_matters(tmp_path):
    place = make_federation(tmp_path)
    with open_sites(tmp_path) as (grid, _):
        server_app.play(grid, place, Lines())
    path = place / "run" / "answers.jsonl"
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first + second[:20] + "\n" + second)
    loop = replay(place / "run", simulated(tmp_path), say=(lines := Lines()))
    assert lines.has("line 2 cannot be read", "nothing is missing")
    assert largest_difference(loop, model_files(tmp_path)) < 1e-5
    for text in (first[:20] + "\n" + second, first + second[:20]):
        path.write_text(text)
        with pytest.raises(BadInput, match=r"does not say who answered in train.*back-up"):
            replay(place / "run", simulated(tmp_path))


def test_a_line_after_a_torn_one_is_whole(tmp_path):
    path = tmp_path / "answers.jsonl"
    append_line(path, {"stage": "a", "round": 0, "exchange": 0})
    path.write_text(path.read_text() + '{"stage": "a", "rou')
    append_line(path, {"stage": "a", "round": 1, "exchange": 0})
    lines, torn = read_journal(tmp_path)
    assert [line["round"] for line in lines] == [0, 1]
    assert torn == [2]


def test_a_lost_state_is_replayed_too(tmp_path):
    place = make_federation(tmp_path, "ditto", 3)
    with open_sites(tmp_path) as (grid, _):

        def spoil(node, question, reply):
            head = json.loads(unpack_frame(question.content).head)
            if node == 1 and head["kind"] == "train" and head["round"] == 0:
                spoil.site = Path(tmp_path / "sites" / "east" / "state" / head["run"])
            if node == 3 and head["kind"] == "train" and head["round"] == 0:
                StateStore(spoil.site.parent, Lines()).keep(spoil.site.name, set())
            return reply

        grid.spoil = spoil
        server_app.play(grid, place, lines := Lines())
    assert lines.has("east", "lost its state")
    assert [line["anew"] for line in read_exchanges(place / "run")] == [[], [], [0]] or [
        line["anew"] for line in read_exchanges(place / "run")
    ] == [[], [0], []]
    assert (
        largest_difference(replay(place / "run", simulated(tmp_path)), model_files(tmp_path)) < 1e-5
    )


@pytest.mark.parametrize("method", ["apfl", "fedamp"])
def test_a_site_that_is_added_to_a_run_under_way_takes_part(method, tmp_path):
    place = make_federation(tmp_path, method, 3)
    server = server_app.read_server(place)
    write_server(place, server._replace(sites=Sites(NAMES[:2])))
    with open_sites(tmp_path) as (grid, _):
        grid.offline = {3}
        stop = Lines()

        def say(line):
            stop(line)
            if "round 2 of 3" in line:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            server_app.play(grid, place, say)
        write_server(place, server)
        grid.offline = set()
        run = server_app.play(grid, place, lines := Lines())
    assert lines.has("new in this run: south")
    assert run.about["clients"] == list(NAMES)
    assert [line["answered"] for line in read_exchanges(place / "run") if "came" not in line] == [
        [0, 1],
        [0, 1],
        [0, 1, 2],
    ]
    assert np.isfinite(run.accuracy()).all()
    assert all(path.exists() for path in model_files(tmp_path).values())
    with pytest.raises(BadInput, match="south came to"):
        replay(place / "run", simulated(tmp_path))


def test_a_site_that_is_added_to_a_running_server_joins_in(tmp_path):
    """Between two rounds, once it is there; both ends have written down what happened."""
    place = make_federation(tmp_path, "ditto", 4)
    server = server_app.read_server(place)
    write_server(place, server._replace(sites=Sites(NAMES[:2])))
    with open_sites(tmp_path) as (grid, _):
        grid.registered = {number + 1: name for number, name in enumerate(NAMES)}
        grid.offline, lines = {3}, Lines()

        def say(line):
            lines(line)
            if "round 1 of 4" in line:
                write_server(place, server)  # its key is known, but it is not there
            if "round 2 of 4" in line:
                grid.offline = set()

        run = server_app.play(grid, place, say)
    assert lines.has("new in this run: south")
    assert run.about["clients"] == list(NAMES)
    asked = [line["answered"] for line in read_exchanges(place / "run") if "came" not in line]
    assert asked == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    events = read_audit(place / AUDIT)
    assert [e["site"] for e in events if e["event"] == "joined"][:2] == ["east", "north"]
    assert sum(e["event"] == "exchange" for e in events) >= 4
    sent = [e for e in read_audit(tmp_path / "sites" / "south" / AUDIT) if e["event"] == "sent"]
    assert len(sent) >= 2
    assert all(e["bytes"] > 0 for e in sent)


def test_a_site_that_is_removed_is_neither_waited_for_nor_asked(tmp_path):
    place = make_federation(tmp_path, "fedfomo", server={"sites": Sites(NAMES, ("north",))})
    with open_sites(tmp_path, ("east", "south")) as (grid, _):
        run = server_app.play(grid, place, lines := Lines())
    assert run.about["rows"]["train"][1] == 0
    assert np.isnan(run.accuracy()).tolist() == [False, True, False]
    assert all(line["asked"] == [0, 2] for line in read_exchanges(place / "run"))
    assert not lines.has("north")
