"""Nobody but a site decides what runs there: tried by a second user of the server's machine, and by
a hostile server, against real processes.
"""

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from coterie.cli.deployment import federation
from coterie.deploy.processes import Child, find_free_port, find_program
from coterie.deploy.rehearsal import Rehearsal, list_descendants, write_digits

pytestmark = [  # of Flower's own command line
    pytest.mark.filterwarnings("ignore:'click.utils:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]

NAMES = ("north", "south")
# Started by root, because another user may not even read this Python; then it is nobody.
STRANGER = """
import json, os, pwd, sys
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

fab, ca, *ports = sys.argv[1:]
content, certificate = open(fab, "rb").read(), open(ca, "rb").read()
request = StartRunRequest(fab=Fab(hash_str=os.environ["FAB_HASH"], content=content))
clients = [
    (f"{port} {'plain' if insecure else 'TLS'}", ControlHttpClient.from_server_address(
        f"127.0.0.1:{port}", insecure, None if insecure else certificate,
        [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]))
    for port in ports for insecure in (False, True)
]
nobody = pwd.getpwnam("nobody")
os.setgroups([])
os.setgid(nobody.pw_gid)
os.setuid(nobody.pw_uid)
assert os.getuid() != 0
told = {}
for name, client in clients:
    try:
        told[name] = f"started run {client.StartRun(request).run_id}"
    except Exception as problem:
        told[name] = f"refused: {problem!r}"
print(json.dumps(told))
"""
FOREIGN_APP = """
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server, client = ServerApp(), ClientApp()

@server.main()
def main(grid, context):
    Path({marks!r}, "server").touch()
    asked = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    list(grid.send_and_receive(asked, timeout=60))

@client.query()
def query(message, context):
    Path({marks!r}, f"site-{{context.node_id}}").touch()
    return Message(RecordDict(), reply_to=message)
"""


def build_foreign_app(folder, marks):
    """A Flower app that leaves a mark wherever it runs; its file and its digest."""
    import hashlib

    from flwr.cli.build import build_fab_from_disk

    folder.mkdir()
    (folder / "foreign.py").write_text(FOREIGN_APP.format(marks=str(marks)))
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "foreign"\nversion = "1.0.0"\nlicense = "Apache-2.0"\n'
        'description = "foreign"\ndependencies = []\n'
        '[tool.flwr.app]\npublisher = "nobody"\n[tool.flwr.app.components]\n'
        'serverapp = "foreign:server"\nclientapp = "foreign:client"\n[tool.flwr.app.config]\n'
    )
    content = build_fab_from_disk(folder)
    path = folder / "foreign.fab"
    path.write_bytes(content)
    return path, hashlib.sha256(content).hexdigest()


def listening_ports(*pids):
    """Where these processes and all below them listen, as `ss -ltn` shows it to every user."""
    inodes = set()
    for top in pids:
        for pid in [top, *list_descendants(top)]:
            for link in Path(f"/proc/{pid}/fd").glob("*"):
                try:
                    inodes.add(os.readlink(link))
                except OSError:  # it has just been closed
                    continue
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            settings = line.split()
            if settings[3] == "0A" and f"socket:[{settings[9]}]" in inodes:
                ports.add(int(settings[1].rpartition(":")[2], 16))
    return sorted(ports)


def init(folder):
    write_digits(folder / "rows", NAMES, rows=60)
    settings = ["--method", "fedavg", "--rounds", "2", "--model", "mlr"]
    place = ["--sites", ",".join(NAMES), "--address", f"localhost:{find_free_port()}"]
    shape = ["--classes", "10", "--features", "64"]
    CliRunner().invoke(
        federation, ["init", str(folder / "f"), *place, *shape, *settings], catch_exceptions=False
    )
    return folder / "f"


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become a second user"
)
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc")
def test_another_user_of_the_servers_machine_starts_nothing_at_server_or_sites(tmp_path):
    """With a Flower app of its own, at every port that server and sites listen on."""
    try:
        pwd.getpwnam("nobody")
    except KeyError:
        pytest.skip("this system has no user `nobody`")
    place, marks = init(tmp_path), tmp_path / "marks"
    marks.mkdir()
    fab, digest = build_foreign_app(tmp_path / "foreign", marks)
    with Rehearsal(place, tmp_path / "rows") as rehearsal:
        server = rehearsal.server()
        site = rehearsal.site("north")
        rehearsal.until("server", "north is there", 600)  # and south is waited for
        ports = listening_ports(server.pid, site.pid)
        assert ports
        done = subprocess.run(
            [sys.executable, "-c", STRANGER, str(fab), str(place / "server" / "ca.crt")]
            + [str(port) for port in ports],
            env=os.environ | {"FAB_HASH": digest},
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
        told = json.loads(done.stdout.splitlines()[-1])
        assert len(told) == 2 * len(ports)
        assert all(line.startswith("refused") for line in told.values()), told
        rehearsal.until("server", "asked for POST /v1/control/start-run", 60)
        rehearsal.site("south")
        assert server.wait() == 0, rehearsal.lines
    assert list(marks.iterdir()) == []


def test_a_site_runs_nothing_that_a_hostile_server_sends_and_says_so(tmp_path):
    """A server with the right certificate sends the message of another Flower app, then our own
    for an experiment that nobody at the site has agreed to.
    """
    from flwr.app import ConfigRecord, Message, RecordDict

    from coterie.deploy import server_app, wire
    from coterie.deploy.config_files import read_server, split_address
    from coterie.deploy.gate import Gate
    from coterie.deploy.mailbox import Mailbox
    from coterie.deploy.roster import Roster
    from coterie.deploy.server import read_members

    place = init(tmp_path)
    server, said, lines = read_server(place / "server"), [], []
    mailbox, members = Mailbox(), read_members(place / "server", server)
    port = split_address(server.server.address)[1]
    gate = Gate("127.0.0.1", port, mailbox, place / "server", False, lines.append, members)
    rows = str(tmp_path / "rows" / "north.csv")
    command = [find_program("coterie"), "site", str(place / "sites" / "north"), "--data", rows]
    site = Child(command, tmp_path / "north.log", said.append)
    settings = server_app.read_server_plan(place / "server").settings
    roll = Roster(
        mailbox,
        server.names,
        lambda: wire.pack({"kind": "hello", "words": settings}),
        say=lines.append,
        greeting=300,
    )
    try:
        while not mailbox.get_nodes():
            assert site.poll() is None, said
        node = mailbox.get_nodes()[0].node_id
        foreign = RecordDict({"config": ConfigRecord({"app": "import os; os.system('id')"})})
        (number,) = mailbox.push_messages([Message(foreign, node, "train", ttl=600)])
        while not (replies := mailbox.pull_messages([number])):
            assert site.poll() is None, said
        assert "no message of coterie" in replies[0].error.reason
        assert any("refused a message that is not coterie's" in line for line in said)
        assert roll.look() == []
        assert any("has not agreed to the experiment" in line for line in lines)
        assert any(
            "refused a message: this site's operator has not agreed" in line for line in said
        )
        assert list_descendants(site.pid) == []
        assert listening_ports(site.pid) == []
    finally:
        site.stop()
        gate.close()
    assert not (place / "sites" / "north" / "model.safetensors").exists()
