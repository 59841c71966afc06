"""What real sites keep to themselves, and what their noise promises."""

import numpy as np
import pytest

from coterie.analysis.privacy_accounting import epsilon_of
from coterie.core.errors import BadInput
from coterie.core.guard import Guard
from coterie.deploy.config_files import (
    DataShape,
    Privacy,
    Rules,
    ServerAddress,
    ServerConfig,
    Sites,
    check_server,
    combine_privacy,
    write_server,
)
from coterie.deploy.server_app import promise_of, read_server_plan
from coterie.deploy.site import build_engine
from coterie.experiment.schedule import Schedule
from coterie.running.upload_guard import UploadGuard
from helpers.federations import float64, play, tiny
from helpers.town import finish, town


def test_a_site_that_keeps_its_measures_sends_none_and_still_trains(tmp_path):
    with float64(), town(tmp_path, "selffl", privacy=Privacy(measures=False)) as here:
        loop = here.loop(Schedule(rounds=2, eval_every=1))
        loop.go()
        finish(loop)
        assert all(np.isnan(column).all() for column in loop.evaluate().values())
        assert loop.engine.client_notes([0, 1, 2, 3]) == {}
        assert len(here.models_at_home()) == 4
        assert not here.lines.has("left out")


def test_the_stricter_side_decides_what_leaves_a_site():
    both = combine_privacy(Privacy(clip=2.0, noise=1.0), Privacy(clip=1.0, measures=False))
    assert (both.clip, both.noise, both.measures) == (1.0, 1.0, False)


def test_noise_at_sites_is_counted_over_all_uploads_of_a_run():
    for name, uploads in (("fedavg", 3), ("ucfl", 4), ("persfl", 3)):
        loop = play(name, until=0, rounds=3)
        told = promise_of(Privacy(1.0, 2.0, 1e-4), loop)["privacy"]
        assert told["releases"] == uploads
        assert told["epsilon"] == pytest.approx(epsilon_of(2.0, uploads, 1e-4))
    assert promise_of(Privacy(1.0), loop) == {}


def test_noise_is_refused_for_uploads_that_it_does_not_cover(tmp_path):
    """IFCA's choice of a model is a whole number that comes from the rows; FedFomo's ids were sent,
    and a network counts batches.
    """
    folders = [tmp_path / name for name in ("site", "server", "other")]
    for folder in folders:
        folder.mkdir()
    with float64(), town(folders[0], "ifca", privacy=Privacy(1.0, 2.0)) as here:
        with pytest.raises(BadInput, match="0 of 4 sites answered"):
            here.loop(Schedule(rounds=1)).go()
        assert here.lines.has("privacy.noise does not cover it: leave noise out")
        assert not here.models_at_home()
    settings = {"privacy": list(Privacy(1.0, 2.0))}
    with float64(), town(folders[1], "ifca") as here:
        loop = here.loop(Schedule(rounds=1))
        loop.engine.config |= settings
        with pytest.raises(BadInput, match=r"privacy\.noise does not cover it"):
            loop.go()
    with float64(), town(folders[2], "fedfomo", privacy=Privacy(1.0, 2.0)) as here:
        here.loop(Schedule(rounds=1)).go()
        assert not here.lines.has("left out")


def test_a_delta_that_is_no_chance_is_refused():
    server = ServerConfig(
        ServerAddress(), Sites(("a",)), Rules(), DataShape(2, 4), Privacy(delta=0.0)
    )
    with pytest.raises(BadInput, match=r"privacy.delta = 0"):
        check_server(server)


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        ('attack = "scale"\nattackers = 0.2', "is for simulations"),
        ('dp = "client"\ndp_clip = 1.0\ndp_noise = 1.0', "which every site knows"),
    ],
)
def test_a_guard_for_simulations_is_refused_at_real_sites(guard, said, tmp_path):
    write_server(
        tmp_path,
        ServerConfig(ServerAddress(), Sites(("a", "b")), Rules(), DataShape(2, 4), Privacy()),
    )
    (tmp_path / "experiment.toml").write_text(f'method = "fedavg"\n[guard]\n{guard}\n')
    with pytest.raises(BadInput, match=said):
        read_server_plan(tmp_path)


def test_a_function_by_name_is_called_at_no_site(tmp_path):
    config = ServerConfig(ServerAddress(), Sites(("a", "b")), Rules(), DataShape(2, 4), Privacy())
    write_server(tmp_path, config)
    (tmp_path / "experiment.toml").write_text('[schedule]\nmetric = "os:abort"\n')
    with pytest.raises(BadInput, match="real sites do not call"):
        read_server_plan(tmp_path)
    with pytest.raises(BadInput, match="real sites do not call"):
        build_engine({"metric": "os:abort"}, None, 0)
    settings = {"model": {"name": "os:abort"}, "architecture": [0, 0]}
    with pytest.raises(BadInput, match="is not loaded"):  # a site has no plugins, and imports none
        build_engine(settings, tiny(2), 0)


@pytest.mark.parametrize("net", ["hf:/srv/any", "hf:somebody/net:lora_r=2", "dnn,hf:/srv/any"])
def test_a_server_does_not_choose_what_a_site_reads_or_fetches(net, tmp_path):
    """Folders and names on a hub: a policy would agree to any of them."""
    with pytest.raises(BadInput, match="is not for a server to choose"):
        build_engine({"model": {"name": net}, "architecture": [0, 0]}, tiny(2), 0)
    config = ServerConfig(ServerAddress(), Sites(("a", "b")), Rules(), DataShape(2, 4), Privacy())
    write_server(tmp_path, config)
    (tmp_path / "experiment.toml").write_text(f'[model]\nname = "{net}"\n')
    with pytest.raises(BadInput, match="is not for a server to choose"):
        read_server_plan(tmp_path)


def test_robust_averages_are_the_same_at_real_sites(tmp_path):
    with float64(), town(tmp_path, "fedavg", tiny(6)) as here:
        loop = here.loop(Schedule(rounds=2, eval_every=1000))
        loop.gate = UploadGuard(Guard(robust="median"))
        loop.go()
        local = play("fedavg", here.federation, here.models, until=0)
        local.gate = UploadGuard(Guard(robust="median"))
        local.go()
        far, near = loop.position.server.w.params, local.position.server.w.params
        assert all(np.allclose(far[k], near[k], atol=1e-9) for k in near)
        plain = play("fedavg", here.federation, here.models).position.server.w.params
        assert not all(np.allclose(plain[k], near[k], atol=1e-6) for k in near)
