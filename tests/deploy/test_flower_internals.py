"""What is used of Flower beyond its public interface is what docs/deployment.md names, and is the
Fleet API of the installed version.
"""

import ast
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from coterie.deploy import certificates as keys
from coterie.deploy.processes import find_free_port

pytestmark = pytest.mark.filterwarnings("ignore:'click.utils:DeprecationWarning")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "src" / "coterie" / "deploy"


def used_modules():
    """The modules of Flower that a deployment imports."""
    found = set()
    for path in DEPLOY.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found |= {name for name in names if name.split(".")[0] == "flwr"}
    return found


def test_the_page_names_all_that_is_used_of_flower():
    text = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    section = text[text.index("**What is used of Flower.**") :]
    named = set(re.findall(r"`(flwr[\w.]*)`", section.partition("\n\n")[0]))
    used = used_modules()
    assert used
    strange = {m for m in used if not any(m == n or m.startswith(f"{n}.") for n in named)}
    idle = {n for n in named if not any(m == n or m.startswith(f"{n}.") for m in used)}
    assert (strange, idle) == (set(), set())


def test_the_installed_flower_is_one_that_was_tried():
    assert tuple(map(int, version("flwr").split(".")[:2])) in {(1, 41), (1, 42)}


def test_requests_go_to_paths_of_flowers_fleet_api():
    from flwr.superlink.routers.fleet.router import router

    from coterie.deploy.gate import FLEET, REGISTRATION
    from coterie.deploy.mailbox import ACTIONS

    theirs = {route.path for route in router.routes}
    assert {FLEET + action for action in (*ACTIONS, REGISTRATION)} <= theirs


def test_flowers_own_client_fetches_a_message_and_brings_a_reply(tmp_path):
    """The one that SuperNode uses, with its own signatures."""
    from flwr.app import Message
    from flwr.proto import fleet_pb2 as fleet
    from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    from coterie.deploy.frames import Frame, pack_frame, put_together, take_apart, unpack_frame
    from coterie.deploy.gate import Gate
    from coterie.deploy.mailbox import Mailbox

    keys.make_authority(tmp_path / "authority")
    keys.make_server_certificate(tmp_path / "authority", tmp_path / "server", ["localhost"])
    keys.make_site_key(tmp_path / "north", "north")
    key = serialization.load_ssh_private_key(
        (tmp_path / "north" / keys.SITE_KEY).read_bytes(), None
    )
    public = keys.encode_header((tmp_path / "north" / keys.SITE_PUBLIC).read_text())
    mailbox, port, lines = Mailbox(), find_free_port(), []
    members = {public: ("north", 7)}
    gate = Gate("127.0.0.1", port, mailbox, tmp_path / "server", False, lines.append, members)
    client = FleetHttpClient.from_server_address(
        f"127.0.0.1:{port}",
        False,
        (tmp_path / "authority" / keys.CA).read_bytes(),
        [NodeAuthHttpInterceptor(key, key.public_key())],
    )
    try:
        node = Node(node_id=client.ActivateNode(fleet.ActivateNodeRequest()).node_id)
        (number,) = mailbox.push_messages(
            [Message(pack_frame(Frame(2, "{}", b"payload")), 7, "train", ttl=600)]
        )
        found = client.PullMessages(fleet.PullMessagesRequest(node=node))
        objects = {
            part.object_id: client.PullObject(
                PullObjectRequest(node=node, run_id=1, object_id=part.object_id)
            ).object_content
            for part in iterate_object_tree(found.message_object_trees[0])
        }
        question = put_together(number, objects)
        assert unpack_frame(question.content).body == b"payload"
        reply = take_apart(Message(pack_frame(Frame(2, "{}", b"upload")), reply_to=question))
        told = client.PushMessages(
            fleet.PushMessagesRequest(
                node=node, messages_list=[reply.proto], message_object_trees=[reply.tree]
            )
        )
        assert set(told.objects_to_push) == set(reply.objects)
        for name, content in reply.objects.items():
            part = PushObjectRequest(node=node, run_id=1, object_id=name, object_content=content)
            assert client.PushObject(part).stored
        assert unpack_frame(mailbox.pull_messages([number])[0].content).body == b"upload"
        assert lines == []
    finally:
        client.close()
        gate.close()
