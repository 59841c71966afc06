"""A site that claims more than it has decides nothing for the others."""

import json
import time

import numpy as np
import pytest

from coterie.data.federation import PARTS
from coterie.data.prepare.moments import Moments
from coterie.deploy.claims import cap_moments, cap_sizes, describe_caps
from coterie.deploy.config_files import (
    DataShape,
    Privacy,
    Rules,
    ServerAddress,
    ServerConfig,
    SiteConfig,
    Sites,
    SiteSettings,
    write_server,
    write_site,
)
from coterie.deploy.scales import find_outliers, pool_scales
from coterie.experiment.toml import to_toml
from helpers.sites import open_sites
from helpers.town import EXACT, Lines, Message, digest, pack_frame, unpack_frame

# isort: split
from coterie.deploy import server_app, wire
from coterie.deploy.replay import gather_sites, largest_difference, replay
from coterie.deploy.site import open_site

NAMES = ("east", "middle", "north", "south", "west")
LIAR, MANY = 5, 10**9  # the node of west; rows that it claims


def test_nobody_counts_for_more_than_a_multiple_of_the_median():
    sizes = np.array([30, 40, 0, 50, MANY])
    assert cap_sizes(sizes, 10.0).tolist() == [30, 40, 0, 50, 450]
    assert cap_sizes(sizes, 0.0).tolist() == sizes.tolist()
    assert cap_sizes(sizes[3:], 10.0).tolist() == [50, MANY]  # of two, who is unusual?
    (line,) = describe_caps("abcde", sizes, 10.0)
    assert "e says that it has 1,000,000,000 training rows and counts for 450" in line


def ages(rng, rows, deviation=12.0):
    return Moments.of(rng.normal(50, deviation, (rows, 1)))


def test_a_claimed_billion_of_rows_does_not_make_everybodys_scale():
    rng = np.random.default_rng(0)
    honest = {i: ages(rng, 60) for i in range(3)}
    few = ages(rng, 60, 1e-3)
    liar = Moments(few.count * 10**7, few.total * 1e7, few.squares * 1e7)
    before = pool_scales([*honest.values()]).spread[0]
    assert pool_scales([*honest.values(), liar]).spread[0] < before / 100  # what it would do
    found = honest | {3: liar}
    assert list(find_outliers(found, 10.0)) == [3]
    even = Moments(
        liar.count, liar.total, 0 * liar.squares
    )  # a column that is the same in all rows
    found = honest | {3: even}
    assert find_outliers(found, 10.0) == {}
    capped = cap_moments(found, 10.0)
    assert pool_scales([*capped.values()]).spread[0] > before / 3
    assert [capped[i] is honest[i] for i in honest] == [True] * 3


def make_federation(folder, experiment, **rules):
    """Sites whose label is the sign of a column, at their folders."""
    rng = np.random.default_rng(0)
    (folder / "files").mkdir()
    for name in NAMES:
        x = rng.normal(size=(60, 2))
        rows = np.column_stack([x, x[:, 0] > 0])
        path = folder / "files" / f"{name}.csv"
        np.savetxt(path, rows, "%.4g", ",", header="a,b,label", comments="")
        place = folder / "sites" / name
        place.mkdir(parents=True)
        write_site(place, SiteConfig(SiteSettings(name, data=str(path)), Privacy(), EXACT))
    place = folder / "server"
    place.mkdir()
    write_server(
        place,
        ServerConfig(
            ServerAddress(),
            Sites(NAMES),
            Rules(0.5, 60.0, 2, **rules),
            DataShape(2, 2),
            Privacy(),
        ),
    )
    settings = {"method": "fedavg", "model": {"name": "mlr"}, "train": {"lr": 0.5}}
    (place / "experiment.toml").write_text(
        to_toml({**settings, "schedule": {"rounds": 3}, **experiment})
    )
    return place


class Liar:
    """West claims a billion rows, and sends its change of the model turned round."""

    def __init__(self, folder, factor):
        self.site, self.factor, self.rows = open_site(folder, Lines()), factor, None

    def __call__(self, question):
        frame = unpack_frame(question.content)
        asked = json.loads(frame.head)
        claimed = frame._replace(head=json.dumps(asked | {"rows": self.rows}))
        reply = self.site.answer(claimed)
        head, body = json.loads(reply.head), reply.body
        assert not head["error"], head
        if asked["kind"] == "hello":
            self.rows, head["rows"] = head["rows"], dict.fromkeys(PARTS, MANY)
        if asked["kind"] == "train":
            sent, mine = wire.unpack(frame).tensors, wire.unpack(reply).tensors
            turned = [sent[k] + self.factor * (mine[k] - sent[k]) for k in mine]
            body = b"".join(t.numpy().tobytes() for t in turned)
            head["digest"] = digest(body)
        return Message(
            pack_frame(reply._replace(head=json.dumps(head), body=body)), reply_to=question
        )


def play(folder, factor=-3.0, guard=None, **rules):
    """The accuracy of the honest sites, and what the server said."""
    folder.mkdir(exist_ok=True)
    place = make_federation(folder, {"guard": guard} if guard else {}, **rules)
    liar = Liar(folder / "sites" / "west", factor)
    with open_sites(folder, NAMES) as (grid, _):
        grid.spoil = lambda node, question, reply: liar(question) if node == LIAR else reply
        run = server_app.play(grid, place, lines := Lines())
    return float(np.nanmean(run.accuracy()[:-1])), lines


def test_a_site_that_claims_a_billion_rows_does_not_own_the_mean(tmp_path):
    believed, _ = play(tmp_path / "believed", claims=0.0)
    begin = time.process_time()
    bounded, lines = play(tmp_path / "bounded", factor=1.0, claims=10.0)
    assert lines.has("west says that it has 1,000,000,000 training rows", "rules.claims")
    assert believed < 0.5 < 0.8 < bounded
    assert time.process_time() - begin < 30  # nothing is done a billion times


@pytest.mark.parametrize("rule", ["median", "trimmed", "krum", "norm"])
def test_robust_averages_hold_at_real_sites_against_a_liar(rule, tmp_path):
    """With equal weights nobody has most of them."""
    robust, _ = play(tmp_path / "robust", -8.0, {"robust": rule}, claims=1.0, outlier=0.0)
    assert robust > 0.8


def test_without_a_robust_average_the_liar_has_its_way(tmp_path):
    assert play(tmp_path / "plain", -8.0, claims=1.0, outlier=0.0)[0] < 0.6


def test_a_run_with_a_bounded_claim_is_replayed_as_it_was(tmp_path):
    """A large site counts for less at the server, and in the replay of it."""
    place = make_federation(tmp_path, {}, claims=1.0)
    path = tmp_path / "files" / "west.csv"
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *rows, *rows, *rows]))
    with open_sites(tmp_path, NAMES) as (grid, _):
        server_app.play(grid, place, lines := Lines())
    assert lines.has("west says that it has 108 training rows and counts for 36")
    again = replay(place / "run", gather_sites(tmp_path / "files", server_app.read_server(place)))
    files = {i: tmp_path / "sites" / n / "model.safetensors" for i, n in enumerate(NAMES)}
    assert largest_difference(again, files) < 1e-6
