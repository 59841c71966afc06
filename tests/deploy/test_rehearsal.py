"""One real deployment: SuperLink and three sites as processes, TLS and node authentication, against
the local engine.
"""

import json
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from coterie.deploy.rehearsal import list_descendants

pytestmark = pytest.mark.filterwarnings(
    "ignore:'click.utils:DeprecationWarning"
)  # of Flower's own command line

NAMES = ("north", "south", "east")  # not in the order of their files


def test_a_deployment_of_three_sites_ends_equal_to_the_local_engine(tmp_path):
    from coterie.cli.deployment import federation
    from coterie.deploy.processes import find_free_port
    from coterie.deploy.rehearsal import Rehearsal, write_digits
    from coterie.deploy.replay import read_exchanges
    from coterie.results.run import load_run

    write_digits(tmp_path / "rows", NAMES, rows=60)
    words = ["--method", "ditto", "--rounds", "2", "--evaluate", "2", "--model", "mlr"]
    place = [
        "--sites",
        ",".join(NAMES),
        "--address",
        f"localhost:{find_free_port()}",
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
        rehearsal.until("server", "round 1 of", 600)
        others_cannot_take_tasks(rehearsal)
        assert server.wait() == 0, rehearsal.lines
    folder = tmp_path / "f" / "server" / "run"
    run = load_run(folder)
    assert run.about["status"] == "finished"
    assert run.about["clients"] == list(NAMES)
    assert [line["answered"] for line in read_exchanges(folder)] == [[0, 1, 2], [0, 1, 2]]
    assert rehearsal.difference(folder) < 1e-6
    assert np.isfinite(run.accuracy()).all()
    assert (folder / "report.html").exists()
    nodes = json.loads((tmp_path / "f" / "server" / "flower" / "nodes.json").read_text())
    assert sorted(nodes) == sorted(NAMES)
    left = [*tmp_path.rglob("*.sock"), *(tmp_path / "f" / "sites").rglob("*.part")]
    left += tmp_path.rglob("token-*")
    assert not left, "was left behind"


def others_cannot_take_tasks(rehearsal):
    """Whoever asks the ports of this machine without the secret gets no task, and no command line
    shows a token.
    """
    lines = [line for child in rehearsal.running.values() for line in command_lines(child.pid)]
    assert any("flower-superlink" in line for line in lines)
    assert any("flower-supernode" in line for line in lines)
    assert not any("--token " in line for line in lines)
    ports = [re.search(r"--host 127\.0\.0\.1 --port (\d+)", line) for line in lines]
    asked = [acquire(int(found[1]), rehearsal.folder) for found in ports if found]
    assert asked == ["refused"] * (1 + len(NAMES))


def acquire(port, folder):
    """What Flower's own client, which trusts every certificate of ours, is told on a port."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime.runtime_http_client import RuntimeHttpClient

    for ca in folder.glob("s*/**/ca.crt"):
        client = RuntimeHttpClient.from_server_address(
            server_address=f"127.0.0.1:{port}",
            insecure=False,
            root_certificates=ca.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        )
        try:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=["clientapp"]))
        except Exception as problem:
            if "CERTIFICATE_VERIFY_FAILED" in str(problem):
                continue
            return "refused" if "401 Unauthorized" in str(problem) else repr(problem)
        finally:
            client.close()
        return f"given {found}"
    return "no certificate fits"


def command_lines(pid):
    """Of a process and all below it."""
    found = []
    for number in [pid, *list_descendants(pid)]:
        with suppress(OSError):  # it has just ended
            text = Path(f"/proc/{number}/cmdline").read_bytes()
            found.append(text.replace(b"\0", b" ").decode())
    return found
