"""One real deployment: a server and three sites as processes, TLS and node authentication, against
the local engine.
"""

import os
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from click.testing import CliRunner

from coterie.deploy.rehearsal import list_descendants

pytestmark = pytest.mark.filterwarnings(
    "ignore:'click.utils:DeprecationWarning"
)  # of what Flower imports

NAMES = ("north", "south", "east")  # not in the order of their files
EXCHANGE_SECONDS = 0.5  # beyond the slowest site's own work, on a quiet machine
GONE_SECONDS = 5.0  # after SIGTERM, on a quiet machine


def pace():
    """How many times longer than on a quiet machine things may take here."""
    return max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))


def test_a_deployment_of_three_sites_ends_equal_to_the_local_engine(tmp_path):
    from coterie.cli.deployment import federation
    from coterie.deploy.processes import find_free_port
    from coterie.deploy.rehearsal import Rehearsal, write_digits
    from coterie.deploy.replay import measure_overhead, read_exchanges
    from coterie.results.run import load_run

    write_digits(tmp_path / "rows", NAMES, rows=60)
    settings = ["--method", "ditto", "--rounds", "8", "--eval-every", "8", "--model", "mlr"]
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
        federation, ["init", str(tmp_path / "f"), *place, *settings], catch_exceptions=False
    )
    with Rehearsal(tmp_path / "f", tmp_path / "rows") as rehearsal:
        server = rehearsal.server()
        for name in NAMES:
            rehearsal.site(name)
        with watch_processes(rehearsal) as below:
            assert server.wait() == 0, rehearsal.lines
        assert below == set(), "a server and a site are one process each"
        begin = time.monotonic()
        rehearsal.stop(*rehearsal.running)
        assert time.monotonic() - begin < GONE_SECONDS * pace()
        assert all("stopped" in lines[-1] for lines in (rehearsal.lines[n] for n in NAMES))
    folder = tmp_path / "f" / "server" / "run"
    run = load_run(folder)
    assert run.about["status"] == "finished"
    assert run.about["clients"] == list(NAMES)
    assert [line["answered"] for line in read_exchanges(folder)] == [[0, 1, 2]] * 8
    assert median(measure_overhead(folder)[0]) < EXCHANGE_SECONDS * pace()
    cli = ["add", str(tmp_path / "f"), "late"]  # has no part in a run that is over
    assert CliRunner().invoke(federation, cli, catch_exceptions=False).exit_code == 0
    cli = ["replay", str(tmp_path / "f"), "--data", str(tmp_path / "rows")]
    said = CliRunner().invoke(federation, cli, catch_exceptions=False).output.split()
    assert said[: said.index("sites")][-1] == str(len(NAMES))
    assert float(said[-1]) < 1e-6
    assert np.isfinite(run.accuracy()).all()
    assert (folder / "report.html").exists()
    left = [*(tmp_path / "f").rglob("*.sock"), *(tmp_path / "f").rglob("*.part")]
    assert not left, "was left behind"


@contextmanager
def watch_processes(rehearsal):
    """The processes that are ever seen below a server or site."""
    below, over = set(), threading.Event()

    def look():
        while not over.wait(0.2):
            for child in list(rehearsal.running.values()):
                for pid in list_descendants(child.pid):
                    with suppress(OSError):  # it has just ended
                        below.add(Path(f"/proc/{pid}/cmdline").read_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield below
    finally:
        over.set()
        thread.join()


def test_a_stopped_server_is_gone_soon_and_goes_on_from_its_checkpoint(tmp_path):
    """Without keys, on this machine."""
    from coterie.cli.deployment import federation
    from coterie.deploy.processes import find_free_port
    from coterie.deploy.rehearsal import Rehearsal, write_digits
    from coterie.results.run import load_run

    write_digits(tmp_path / "rows", NAMES[:2], rows=60)
    place = ["--sites", ",".join(NAMES[:2]), "--address", f"localhost:{find_free_port()}"]
    settings = ["--method", "fedavg", "--rounds", "60", "--eval-every", "60", "--model", "mlr"]
    shape = ["--classes", "10", "--features", "64"]
    CliRunner().invoke(
        federation, ["init", str(tmp_path / "f"), *place, *shape, *settings], catch_exceptions=False
    )
    with Rehearsal(tmp_path / "f", tmp_path / "rows") as rehearsal:
        rehearsal.server("--insecure")
        for name in NAMES[:2]:
            rehearsal.site(name, "--insecure")
        rehearsal.until("server", "round 2 of", 600)
        begin = time.monotonic()
        rehearsal.stop("server")
        assert time.monotonic() - begin < GONE_SECONDS * pace()
        server = rehearsal.server("--insecure")
        rehearsal.until("server", "going on after round", 600)
        assert server.wait() == 0, rehearsal.lines
    run = load_run(tmp_path / "f" / "server" / "run")
    assert run.about["status"] == "finished"
    assert rehearsal.difference(tmp_path / "f" / "server" / "run") < 1e-6
