"""One real deployment: SuperLink and three sites as processes, TLS and node authentication, against
the local engine.
"""

import json

import numpy as np
import pytest
from click.testing import CliRunner

pytestmark = pytest.mark.filterwarnings(
    "ignore:'click.utils:DeprecationWarning"
)  # of Flower's own command line

NAMES = ("north", "south", "east")  # not in the order of their files


def test_a_deployment_of_three_sites_ends_equal_to_the_local_engine(tmp_path):
    from coterie.cli.deployment import federation
    from coterie.deploy.processes import free_port
    from coterie.deploy.rehearsal import Rehearsal, write_digits
    from coterie.deploy.replay import journal
    from coterie.results.run import load

    write_digits(tmp_path / "rows", NAMES, rows=60)
    words = ["--method", "ditto", "--rounds", "2", "--evaluate", "2", "--model", "mlr"]
    place = [
        "--sites",
        ",".join(NAMES),
        "--address",
        f"localhost:{free_port()}",
        "--classes",
        "10",
        "--features",
        "64",
    ]
    CliRunner().invoke(
        federation, ["init", str(tmp_path / "f"), *place, *words], catch_exceptions=False
    )
    with Rehearsal(tmp_path / "f", tmp_path / "rows") as rehearsal:
        server = rehearsal.server()
        for name in NAMES:
            rehearsal.site(name)
        assert server.wait() == 0, rehearsal.lines
    folder = tmp_path / "f" / "server" / "run"
    run = load(folder)
    assert run.about["status"] == "finished"
    assert run.about["clients"] == list(NAMES)
    assert [line["answered"] for line in journal(folder)] == [[0, 1, 2], [0, 1, 2]]
    assert rehearsal.difference(folder) < 1e-6
    assert np.isfinite(run.accuracy()).all()
    assert (folder / "report.html").exists()
    nodes = json.loads((tmp_path / "f" / "server" / "flower" / "nodes.json").read_text())
    assert sorted(nodes) == sorted(NAMES)
    for path in (*tmp_path.rglob("*.sock"), *(tmp_path / "f" / "sites").rglob("*.part")):
        raise AssertionError(f"{path} was left behind")
