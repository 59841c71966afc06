"""One scale for the rows of all sites: that of a simulation on the same rows."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from coterie.cli.deployment import federation as commands
from coterie.core.errors import BadInput
from coterie.data.pipeline import build_federation
from coterie.deploy.config_files import (
    DataShape,
    Privacy,
    Rules,
    ServerAddress,
    ServerConfig,
    Sites,
    check_server,
)
from coterie.deploy.replay import gather_sites
from coterie.deploy.roster import Roster
from coterie.deploy.scales import (
    FILE,
    ask_scales,
    moments_of,
    parse_scales,
    pool_scales,
    read_scales,
    scale_federation,
)
from coterie.deploy.wire import pack
from coterie.experiment.schedule import Schedule
from helpers.federations import assert_same, float64, personal, play, tiny
from helpers.town import finish, pack_frame, town, unpack_frame

NAMES = ("east", "north", "south")


def files(folder):
    """A file for each site, of columns on very different scales, one of them constant."""
    rng = np.random.default_rng(0)
    for k, name in enumerate(NAMES):
        n = 40 + 10 * k
        x = rng.normal(size=(n, 3)) * (1, 50, 1e4) + (k, 1e5, -3)
        rows = np.column_stack([np.arange(n) % 2, x, np.full(n, 7.0)])
        text = "\n".join(",".join(f"{v:.10g}" for v in row) for row in rows)
        (folder / f"{name}.csv").write_text(f"label,a,b,c,d\n{text}\n")
    return folder


def server(**data) -> ServerConfig:
    return ServerConfig(ServerAddress(), Sites(NAMES), Rules(), DataShape(2, 4, **data), Privacy())


def test_rows_of_sites_are_scaled_as_a_simulation_scales_them(tmp_path):
    rows = gather_sites(files(tmp_path), server(seed=3, scale="standard"))
    scales = pool_scales([moments_of(rows, i) for i in range(3)])
    mine = scale_federation(rows, scales)
    theirs = build_federation(tmp_path, seed=3, data_options={"label": "label"})
    assert theirs.names == list(NAMES)
    assert theirs.preparation.scale == "standard"
    for part in ("train", "validation", "test"):
        for i in range(3):
            a, b = mine.x[getattr(mine, part)[i]], theirs.x[getattr(theirs, part)[i]]
            order = [t[:, 0].argsort() for t in (a, b)]
            torch.testing.assert_close(a[order[0]], b[order[1]], rtol=1e-6, atol=1e-6)
    train = mine.x[np.concatenate(mine.train)].double()
    torch.testing.assert_close(train.mean(0), torch.zeros(4).double(), atol=1e-5, rtol=0)
    assert train[:, 3].tolist() == [0.0] * len(train)
    torch.testing.assert_close(
        train[:, :3].square().mean(0), torch.ones(3).double(), atol=1e-4, rtol=0
    )


def roll_of(here) -> Roster:
    hello = pack({"kind": "hello", "words": {}})
    return Roster(here.grid, here.federation.names, lambda: hello, say=here.lines)


def asked(here):
    sizes = [len(rows) for rows in here.federation.train]
    return ask_scales(roll_of(here), {"privacy": []}, sizes, 6, 5.0, here.lines)


def test_sites_agree_on_the_scale_of_all_their_rows_and_train_on_it(tmp_path):
    with float64(), town(tmp_path, "fedavg") as here:
        scales = asked(here)
        whole = here.federation
        assert scales == pool_scales([moments_of(whole, i) for i in range(whole.clients)])
        loop = here.loop(Schedule(rounds=2, eval_every=1000))
        loop.engine.scales = scales
        loop.go()
        finish(loop)
        there = {
            i: torch.cat([tensors[k].reshape(-1) for k in here.models[0].start(0).params])
            for i, tensors in here.models_at_home().items()
        }
        assert_same(there, personal(play("fedavg", scale_federation(whole, scales))))
        with pytest.raises(AssertionError):
            assert_same(there, personal(play("fedavg", whole)))


def test_a_site_that_insists_on_privacy_tells_no_mean_and_is_scaled_by_the_others(tmp_path):
    with town(tmp_path, "fedavg", privacy=Privacy(1.0, 0.0)) as here:
        with pytest.raises(BadInput, match="no site told the mean"):
            asked(here)
        assert here.lines.has("lets no mean of its columns out")


def test_a_site_with_impossible_sums_is_left_out_and_nobody_else(tmp_path):
    def spoil(node, question, reply):
        head = json.loads(unpack_frame(question.content).head)
        if node != 101 or head["kind"] != "moments":
            return reply
        many = torch.full((6,), 1e6, dtype=torch.float64)
        frame = pack({"error": "", "name": "1", "seconds": 0.0}, (many, many, many))
        reply.content = pack_frame(frame)
        return reply

    with town(tmp_path, "fedavg") as here:
        here.grid.spoil = spoil
        scales = asked(here)
        others = [moments_of(here.federation, i) for i in range(4) if i != 1]
        assert scales == pool_scales(others)
        assert here.lines.has("counts cells that", "without its rows")


def test_one_site_cannot_scale_the_rows_of_the_others(tmp_path):
    """A mean that no honest site is near is left out, by name; different sites are not."""

    def spoil(node, question, reply):
        if node != 101 or json.loads(unpack_frame(question.content).head)["kind"] != "moments":
            return reply
        count = torch.full((6,), float(len(here.federation.train[1])), dtype=torch.float64)
        frame = pack({"error": "", "name": "1", "seconds": 0.0}, (count, 1e9 * count, count))
        reply.content = pack_frame(frame)
        return reply

    with town(tmp_path, "fedavg") as here:
        sizes = [len(rows) for rows in here.federation.train]
        settings = roll_of(here), {"privacy": []}, sizes, 6, 5.0, here.lines
        honest = ask_scales(*settings, outlier=10.0)
        assert honest == asked(here)
        here.grid.spoil = spoil
        assert max(asked(here).centre) > 1e8
        others = [moments_of(here.federation, i) for i in range(4) if i != 1]
        assert ask_scales(*settings, outlier=10.0) == pool_scales(others)
        assert here.lines.has(": 1 has mean or deviation 1e+09", "without its rows")


def test_public_rows_are_scaled_alike():
    whole = tiny()
    scales = pool_scales([moments_of(whole, i) for i in range(whole.clients)])
    centre, spread = (torch.tensor(v) for v in scales[:2])
    torch.testing.assert_close(
        scale_federation(whole, scales).public.x, ((whole.public.x - centre) / spread).float()
    )


def test_a_run_goes_on_with_the_scale_that_it_began_with(tmp_path):
    assert read_scales(tmp_path) is None
    whole = tiny()
    scales = pool_scales([moments_of(whole, i) for i in range(whole.clients)])
    (tmp_path / FILE).write_text(json.dumps(scales))
    assert read_scales(tmp_path) == scales


@pytest.mark.parametrize(
    "given", [[[1.0], [-1.0]], [[1.0], []], ["x", [1.0]], [[float("nan")], [1]]]
)
def test_a_scale_that_makes_no_sense_is_refused(given):
    with pytest.raises(BadInput, match="the scale of the columns"):
        parse_scales(given)


def test_a_scale_is_refused_where_noise_does_not_cover_it():
    with pytest.raises(BadInput, match=r"privacy.noise does not cover"):
        check_server(server(scale="standard")._replace(privacy=Privacy(1.0, 1.0)))
    with pytest.raises(BadInput, match="flat lists"):
        check_server(
            server(scale="standard")._replace(data=DataShape(2, 0, (1, 2), scale="standard"))
        )


def init(tmp_path, text, *more):
    (tmp_path / "like.csv").write_text(text)
    settings = ["init", str(tmp_path / "out"), "--sites", "a,b", "--address", "localhost:8443"]
    return CliRunner().invoke(commands, [*settings, "--like", str(tmp_path / "like.csv"), *more])


def test_a_table_of_numbers_is_scaled_unless_told_otherwise(tmp_path):
    table = "label,a,b\n" + "".join(f"{k % 2},{k},{k * k}\n" for k in range(12))
    assert init(tmp_path, table).exception is None
    assert 'scale = "standard"' in (tmp_path / "out" / "server" / "server.toml").read_text()
