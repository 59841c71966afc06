"""Secure sums at sites: equal to bare uploads up to rounding, and no upload on the wire."""

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from coterie.cli.deployment import federation as commands
from coterie.core.errors import BadInput
from coterie.deploy.audit import AUDIT, read_audit
from coterie.deploy.config_files import read_server, read_site, write_server, write_site
from coterie.deploy.current_model import MODEL
from coterie.deploy.processes import find_free_port
from coterie.deploy.rehearsal import Rehearsal, write_digits
from helpers.sites import NAMES, open_sites

# isort: split
from coterie.deploy import server_app

ROUNDING = 1e-6  # of float32 models; the sum itself is rounded to 2^-24


def made(folder, method="fedavg", secure=True, deadline=5.0):
    """A deployment over digits."""
    write_digits(folder / "rows", NAMES, rows=60)
    settings = ["init", str(folder / "all"), "--sites", ",".join(NAMES), "--address"]
    settings += [f"localhost:{find_free_port()}"]
    settings += ["--method", method, "--classes", "10", "--features", "64", "--model", "mlr"]
    settings += ["--rounds", "2", "--eval-every", "2"]
    assert CliRunner().invoke(commands, settings, catch_exceptions=False).exit_code == 0
    for name in NAMES:
        site = read_site(folder / "all" / "sites" / name)
        home = site.site._replace(data=str(folder / "rows" / f"{name}.csv"))
        write_site(folder / "all" / "sites" / name, site._replace(site=home))
    server = read_server(folder / "all" / "server")
    changed = server._replace(
        privacy=server.privacy._replace(secure_sum=secure),
        rules=server.rules._replace(outlier=0.0, deadline=deadline),
    )
    write_server(folder / "all" / "server", changed)
    return folder / "all"


def play(place):
    with open_sites(place) as (grid, lines):
        server_app.play(grid, place / "server", lines)
    models = [load_file(place / "sites" / name / MODEL) for name in NAMES]
    return models, grid


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_a_secure_sum_is_the_mean_of_bare_uploads_up_to_rounding(tmp_path, method):
    (hidden, grid), (bare, _) = (
        play(made(tmp_path / name, method, secure))
        for name, secure in (("secure", True), ("bare", False))
    )
    gaps = [(a[k] - b[k]).abs().max() for a, b in zip(hidden, bare, strict=True) for k in a]
    assert torch.stack(gaps).max() < ROUNDING
    assert any(b"peers" in message for message in grid.seen), "no masks were exchanged"


def test_three_processes_sum_behind_masks_what_the_local_engine_averages(tmp_path):
    place = made(tmp_path, deadline=600.0)
    with Rehearsal(place, tmp_path / "rows") as rehearsal:
        server = rehearsal.server()
        for name in NAMES:
            rehearsal.site(name)
        assert server.wait() == 0, rehearsal.lines
        assert rehearsal.difference(place / "server" / "run") < ROUNDING
    for name in NAMES:
        events = read_audit(place / "sites" / name / AUDIT)
        sums = [e["sites"] for e in events if e["event"] == "revealed"]
        assert sums == [[0, 1, 2]] * 2, "one sum of all for each round"


def test_a_method_that_needs_single_uploads_is_refused_by_name(tmp_path):
    with pytest.raises(BadInput, match="ucfl needs every upload"):
        server_app.read_server_plan(made(tmp_path, "ucfl") / "server")
