"""A server or a site ends when it is told to, wherever it is at that moment."""

import signal
import socket
import subprocess
import sys
import threading
import time

from flwr.proto.node_pb2 import Node

from coterie.deploy.fleet_client import LEAVE_SECONDS, FleetClient
from coterie.deploy.processes import STUCK_SECONDS, find_free_port


def test_a_stopped_process_says_so_even_where_its_own_signal_cannot_end_it():
    """As the first process of a container; a Job that ends with 0 would be complete."""
    code = (
        "import signal; from coterie.deploy.processes import end_by_signal;"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]);"
        "end_by_signal(signal.SIGTERM)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 128 + 15


def test_a_process_that_is_stuck_in_a_call_ends_within_seconds():
    """Looking up a name where no name server answers takes long and hears of no signal."""
    code = (
        "import hashlib; from coterie.deploy.processes import stoppable\n"
        "with stoppable():\n"
        "    print('stuck', flush=True)\n"
        "    hashlib.pbkdf2_hmac('sha256', b'', b'', 2**30)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "stuck\n"
            time.sleep(1)  # it is about to be
            process.terminate()
            assert process.wait(4 * STUCK_SECONDS) == 128 + signal.SIGTERM
        finally:
            process.kill()


def test_a_site_waits_for_no_name_server_when_it_leaves(tmp_path, monkeypatch):
    client = FleetClient(tmp_path, f"localhost:{find_free_port()}", insecure=True)
    client._node = Node(node_id=1)
    over = threading.Event()

    def look_up(*given, **named):
        over.wait(60)
        raise socket.gaierror("no name server answers")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    begin = time.monotonic()
    client.leave()
    assert time.monotonic() - begin < 5 * LEAVE_SECONDS
    over.set()
    for thread in [t for t in threading.enumerate() if t.name == "goodbye"]:
        thread.join()
