"""Keys, certificates, the files of a federation and the gate: what they let through and what they
refuse.
"""

import re
import socket
import ssl
import stat
import subprocess
import threading
import time
import warnings
from base64 import b64encode
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coterie.cli.deployment import federation
from coterie.core.errors import BadInput
from coterie.deploy import certificates as keys
from coterie.deploy.config_files import (
    DataShape,
    Privacy,
    Rules,
    ServerAddress,
    ServerConfig,
    SiteConfig,
    Sites,
    SiteSettings,
    combine_privacy,
    is_loopback,
    read_server,
    read_site,
    split_address,
    write_server,
    write_site,
)
from coterie.deploy.processes import find_free_port

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of click, by what Flower imports
    from flwr.app import Message, Metadata
    from flwr.app.message import make_message
    from flwr.app.message import message as flower_message
    from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
    from flwr.proto.message_pb2 import (
        ObjectTree,
        PullObjectRequest,
        PullObjectResponse,
        PushObjectRequest,
    )
    from flwr.supercore.constant import (
        FLEET_HTTP_PUBLIC_KEY_HEADER,
        FLEET_HTTP_SIGNATURE_HEADER,
    )
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.primitives.asymmetric import sign_message

    from coterie.deploy import connections, fleet_client, gate
    from coterie.deploy.frames import Frame, pack_frame, put_together, take_apart, unpack_frame
    from coterie.deploy.gate import Gate
    from coterie.deploy.mailbox import LARGEST, Mailbox
    from coterie.deploy.server import serve_deployment
    from coterie.deploy.site_service import explain_refusal, serve_site

SERVER = ServerConfig(
    ServerAddress("fl.example.org:8443"),
    Sites(("north", "south")),
    Rules(),
    DataShape(10, 64),
    Privacy(),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An authority, a server certificate and a site's key."""
    folder = tmp_path_factory.mktemp("federation")
    keys.make_authority(folder / "authority")
    keys.make_server_certificate(
        folder / "authority", folder / "server", ["fl.example.org", "10.1.2.3"]
    )
    for name in ("north", "south"):
        keys.make_site_key(folder / name, name)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_certificate_is_signed_by_the_authority_and_names_the_server(made):
    authority = keys.load_certificate(made / "authority" / keys.CA)
    certificate = keys.load_certificate(made / "server" / keys.CERTIFICATE)
    certificate.verify_directly_issued_by(authority)
    assert keys.hosts_of(certificate) == ["fl.example.org", "localhost", "10.1.2.3", "127.0.0.1"]
    basic = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical
    assert basic.value.ca
    usage = authority.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert keys.days_left(made / "server" / keys.CERTIFICATE) == pytest.approx(365, abs=0.1)
    assert keys.days_left(made / "authority" / keys.CA) == pytest.approx(3650, abs=0.1)


def test_private_keys_are_for_their_owner_only(made):
    for path in (
        made / "authority" / keys.CA_KEY,
        made / "server" / keys.KEY,
        made / "north" / keys.SITE_KEY,
    ):
        assert mode(path) == 0o600
        assert mode(path.parent) == 0o700
        keys.check_private(path)


def test_a_key_that_others_can_read_is_refused(tmp_path):
    keys.make_site_key(tmp_path / "north", "north")
    path = tmp_path / "north" / keys.SITE_KEY
    path.chmod(0o640)
    with pytest.raises(BadInput, match="chmod 600"):
        keys.check_private(path)


def test_a_site_key_is_what_ssh_keygen_would_make(made):
    key = serialization.load_ssh_private_key((made / "north" / keys.SITE_KEY).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP384R1)
    public = serialization.load_ssh_public_key((made / "north" / keys.SITE_PUBLIC).read_bytes())
    assert public == key.public_key()


def test_nothing_is_overwritten(made):
    before = (made / "authority" / keys.CA_KEY).read_bytes()
    for make in (
        lambda: keys.make_authority(made / "authority"),
        lambda: keys.make_server_certificate(made / "authority", made / "server", ["x"]),
        lambda: keys.make_site_key(made / "north", "north"),
    ):
        with pytest.raises(BadInput, match="exists already"):
            make()
    assert (made / "authority" / keys.CA_KEY).read_bytes() == before


def test_renewal_keeps_key_and_names_and_moves_the_end(tmp_path):
    keys.make_authority(tmp_path / "authority")
    keys.make_server_certificate(tmp_path / "authority", tmp_path, ["fl.example.org"], days=5)
    path = tmp_path / keys.CERTIFICATE
    old = keys.load_certificate(path)
    assert "expires in 5 days" in keys.check_expiry(path, "renew it")
    keys.renew_server_certificate(tmp_path / "authority", tmp_path, days=200)
    new = keys.load_certificate(path)
    assert new.public_key() == old.public_key()
    assert keys.hosts_of(new) == keys.hosts_of(old)
    assert new.serial_number != old.serial_number
    assert keys.check_expiry(path, "renew it") == ""
    assert (
        keys.renew_server_certificate(tmp_path / "authority", tmp_path, ["other.example"])[0]
        == "other.example"
    )


def test_an_expired_certificate_is_refused(made, monkeypatch):
    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) + timedelta(days=400)

    monkeypatch.setattr(keys, "datetime", Later)
    with pytest.raises(BadInput, match="expired 35 days ago: renew it"):
        keys.check_expiry(made / "server" / keys.CERTIFICATE, "renew it")


def test_files_are_read_as_written(tmp_path):
    server = SERVER._replace(
        data=DataShape(3, 0, (1, 28, 28), ("a", "b", "ü"), "public.csv"), rules=Rules(0.75, 30, 3)
    )
    write_server(tmp_path, server)
    assert read_server(tmp_path) == server
    site = SiteConfig(SiteSettings("north", "[::1]:8443", "my rows.csv"), Privacy(1.5, 0.2))
    write_site(tmp_path, site)
    assert read_site(tmp_path) == site


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ('[server]\nadress = "x:1"', "did you mean 'address'"),
        ('[server]\naddress = "fl.example.org"', "give host:port"),
        ("[sever]", "did you mean 'server'"),
        ('[sites]\nnames = ["a", "A"]', "'a' twice"),
        ('[sites]\nnames = ["../x"]', "use letters, digits"),
        ("[rules]\nneeded = 1.5", "rules.needed = 1.5: give a number from 0 to 1"),
        ("[rules]\ntries = 0", "rules.tries = 0"),
        ("[data]\nfeatures = 3\nshape = [3]", "give one"),
        ('[data]\nfeatures = 3\nclasses = 2\nlabels = ["a"]', "labels"),
        ("[data]\nfeatures = 3\nvalidation = 0.5\ntest = 0.5", "leave a share"),
        ("[data]\nfeatures = 3\n[privacy]\nnoise = 1", "noise = 1 without privacy.clip"),
        ("[data]\nfeatures = 3\nclasses = 'many'", "data.classes = 'many': give a whole number"),
        ("this is no TOML", "is no TOML file"),
    ],
)
def test_a_bad_server_file_is_one_clear_line(tmp_path, wrong, told):
    (tmp_path / "server.toml").write_text(
        wrong if "[sites]" in wrong else f'{wrong}\n[sites]\nnames = ["a"]\n'
    )
    with pytest.raises(BadInput) as problem:
        read_server(tmp_path)
    assert told in str(problem.value)
    assert "\n" not in str(problem.value)
    assert "server.toml" in str(problem.value)


def test_a_site_is_at_least_as_strict_as_it_insists():
    assert combine_privacy(Privacy(), Privacy()) == Privacy(0, 0)
    assert combine_privacy(Privacy(1.0, 0.5), Privacy()) == Privacy(1.0, 0.5)
    assert combine_privacy(Privacy(1.0, 0.5), Privacy(0.3, 0.1)) == Privacy(0.3, 0.5)
    assert combine_privacy(Privacy(), Privacy(2.0, 1.0)) == Privacy(2.0, 1.0)


def test_addresses_are_hosts_and_ports():
    assert split_address("fl.example.org:8443") == ("fl.example.org", 8443)
    assert split_address("[::1]:1") == ("::1", 1)
    assert is_loopback("127.0.0.3")
    assert is_loopback("::1")
    assert not is_loopback("10.0.0.1")
    for wrong in ("x", "x:0", "x:70000", ":1", "http://x:1", "a b:1", "x:1²"):
        with pytest.raises(BadInput, match="give host:port"):
            split_address(wrong)


def call(*arguments):
    return CliRunner().invoke(federation, [str(a) for a in arguments], catch_exceptions=False)


def test_init_add_and_remove_keep_numbers_and_keys(tmp_path):
    folder = tmp_path / "f"
    call(
        "init",
        folder,
        "--sites",
        "north,south",
        "--address",
        "127.0.0.1:8443",
        "--classes",
        10,
        "--features",
        64,
        "--rounds",
        3,
    )
    assert (folder / "sites" / "north" / keys.SITE_PUBLIC).read_bytes() == (
        folder / "server" / "keys" / "north.pub"
    ).read_bytes()
    assert read_site(folder / "sites" / "south").site.server == "127.0.0.1:8443"
    assert not list((folder / "server").rglob(keys.CA_KEY))
    call("add", folder, "east")
    call("remove", folder, "north")
    server = read_server(folder / "server")
    assert server.names == ("north", "south", "east")
    assert server.sites.removed == ("north",)
    assert not (folder / "server" / "keys" / "north.pub").exists()
    call("add", folder, "north")
    assert read_server(folder / "server").sites == Sites(("north", "south", "east"), ())
    with pytest.raises(BadInput, match="not empty"):
        call("init", folder, "--sites", "a", "--address", "x:1", "--classes", 2, "--features", 2)


def test_a_site_makes_its_own_key_and_only_its_public_half_travels(tmp_path):
    folder, home = tmp_path / "f", tmp_path / "at-north"
    call(
        *("init", folder, "--sites", "north", "--keys", "sites", "--address", "127.0.0.1:8443"),
        *("--classes", 10, "--features", 64),
    )
    assert not (folder / "sites").exists()
    asked = call("request", "north", "--folder", home).output
    secret = (home / keys.SITE_KEY).read_text().splitlines()[2]
    assert mode(home / keys.SITE_KEY) == 0o600
    mark = keys.compute_fingerprint((home / keys.SITE_PUBLIC).read_text())
    for wrong in ((), ("--fingerprint", "SHA256:other")):  # it is shown before anybody is let in
        with pytest.raises(BadInput, match=re.escape(mark)):
            call("approve", folder, home / "north.request", *wrong)
        assert not (folder / "server" / "keys" / "north.pub").exists()
    told = call("approve", folder, home / "north.request", "--fingerprint", mark).output
    assert mark in asked
    assert mark in told
    assert keys.encode_header(
        (folder / "server" / "keys" / "north.pub").read_text()
    ) == keys.encode_header((home / keys.SITE_PUBLIC).read_text())
    assert not any(secret in p.read_text() for p in folder.rglob("*") if p.is_file())
    assert sorted(p.name for p in (folder / "sites" / "north").iterdir()) == [keys.CA, "site.toml"]
    assert read_site(folder / "sites" / "north").site.server == "127.0.0.1:8443"
    with pytest.raises(BadInput, match="has a key already"):
        call("approve", folder, home / "north.request", "--fingerprint", mark)
    west = tmp_path / "at-west"
    call("request", "west", "--folder", west)
    mark = keys.compute_fingerprint((west / keys.SITE_PUBLIC).read_text())
    call("approve", folder, west / "west.request", "--fingerprint", mark)
    assert read_server(folder / "server").names == ("north", "west")


def test_a_site_that_is_added_later_has_the_label_of_the_others(tmp_path):
    folder, home = tmp_path / "f", tmp_path / "at-west"
    call(
        *("init", folder, "--sites", "north", "--address", "127.0.0.1:8443"),
        *("--classes", 10, "--features", 64, "--label", "outcome"),
    )
    call("add", folder, "east")
    call("request", "west", "--folder", home)
    mark = keys.compute_fingerprint((home / keys.SITE_PUBLIC).read_text())
    call("approve", folder, home / "west.request", "--fingerprint", mark)
    call("remove", folder, "east")
    call("add", folder, "south", "--label", "other")
    labels = [read_site(folder / "sites" / n).site.label for n in ("north", "west", "south")]
    assert labels == ["outcome", "outcome", "other"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no request"),
        ('[request]\nname = "../x"\nkey = "ssh-rsa AAAA"', "use letters"),
        ('[request]\nname = "x"\nkey = "ssh-rsa AAAA"', "no public key"),
        ('[request]\nname = "x"\nkey = 3', "is no request"),
        ("#" * 20_000, "is no request"),
    ],
)
def test_a_request_that_is_none_changes_nothing(text, told, tmp_path):
    folder = tmp_path / "f"
    call(
        *("init", folder, "--sites", "north", "--keys", "sites", "--address", "127.0.0.1:8443"),
        *("--classes", 10, "--features", 64),
    )
    before = (folder / "server" / "server.toml").read_text()
    (tmp_path / "x.request").write_text(text)
    with pytest.raises(BadInput, match=told):
        call("approve", folder, tmp_path / "x.request")
    assert (folder / "server" / "server.toml").read_text() == before
    assert not (folder / "sites").exists()


def test_plaintext_is_refused_beyond_this_machine(tmp_path):
    folder = tmp_path / "f"
    call(
        "init",
        folder,
        "--sites",
        "north",
        "--address",
        "10.0.0.1:8443",
        "--classes",
        10,
        "--features",
        64,
    )
    rows = tmp_path / "rows.csv"
    rows.write_text("label,a\n0,1\n")
    with pytest.raises(BadInput, match="plaintext is for this machine only"):
        serve_deployment(folder / "server", True, print)
    with pytest.raises(BadInput, match="plaintext is for this machine only"):
        serve_site(folder / "sites" / "north", rows, True, print)


def test_an_address_outside_the_certificate_is_refused_before_anything_starts(tmp_path):
    folder = tmp_path / "f"
    call(
        "init",
        folder,
        "--sites",
        "north",
        "--address",
        "localhost:8443",
        "--classes",
        10,
        "--features",
        64,
    )
    server = read_server(folder / "server")
    write_server(folder / "server", server._replace(server=ServerAddress("fl.example.org:8443")))
    with pytest.raises(BadInput, match=r"not for fl\.example\.org"):
        serve_deployment(folder / "server", False, print)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate "
            "(_ssl.c:1006)",
            "ca.crt",
        ),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "does not speak TLS"),
        ("Exit Code: 305\n[code: 2004] not registered", "does not know this site's key"),
        ("Connection attempt failed, retrying in 3 seconds", ""),
        ("SuperNode terminated gracefully.", ""),
    ],
)
def test_a_refusal_is_told_from_a_server_that_is_away(settings, told):
    assert told in explain_refusal(settings)
    assert bool(explain_refusal(settings)) == bool(told)


@pytest.fixture
def door(made):
    """A gate before a mailbox: (address, mailbox, what was refused); its own for each test, as it
    tells only so many refusals per minute.
    """
    mailbox, lines, port = Mailbox(), [], find_free_port()
    members = {
        keys.encode_header((made / name / keys.SITE_PUBLIC).read_text()): (name, node)
        for name, node in (("north", 7), ("south", 8))
    }
    gate = Gate("127.0.0.1", port, mailbox, made / "server", False, lines.append, members)
    yield f"127.0.0.1:{port}", mailbox, lines
    gate.close()


def trusting(made):
    return httpx.Client(
        verify=ssl.create_default_context(cafile=str(made / "authority" / keys.CA)),
        timeout=300,
        trust_env=False,
    )


def signed(made, seconds=0.0, name="north"):
    """The head of a request of a site, as it signs it."""
    key = serialization.load_ssh_private_key((made / name / keys.SITE_KEY).read_bytes(), None)
    text = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: keys.encode_header(
            (made / name / keys.SITE_PUBLIC).read_text()
        ),
        "flwr-timestamp": text,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, text.encode())).decode(),
    }


def post(made, address, action, request=b"", name="north"):
    """The answer to a request that a site has signed."""
    content = request if isinstance(request, bytes) else request.SerializeToString()
    with trusting(made) as client:
        url = f"https://{address}/v1/fleet/{action}"
        return client.post(url, content=content, headers=signed(made, name=name))


def arrive(made, address, name="north"):
    assert post(made, address, "activate-node", name=name).status_code == 200


def ask(mailbox, body=b"", node=7, largest=1000, seconds=600):
    """A question to a site; its number."""
    content = pack_frame(Frame(1, "{}", body))
    content.config_records["coterie"][LARGEST] = largest
    return mailbox.push_messages([Message(content, node, "train", ttl=seconds)])[0]


def reply_to(number, node=7, body=b"upload"):
    """The parts of a reply."""
    content = pack_frame(Frame(1, "{}", body))
    meta = Metadata(1, "", node, 1, number, "", 0.0, 600.0, "train")
    return take_apart(make_message(meta, content))


def bring(made, address, parts, name="north"):
    """The last answer to a reply and its objects."""
    request = PushMessagesRequest(messages_list=[parts.proto], message_object_trees=[parts.tree])
    answer = post(made, address, "push-messages", request, name)
    for key, content in parts.objects.items():
        if answer.status_code == 200:
            part = PushObjectRequest(object_id=key, object_content=content)
            answer = post(made, address, "push-object", part, name)
    return answer


def test_a_question_goes_through_the_gate_and_its_reply_comes_back(made, door):
    address, mailbox, _ = door
    arrive(made, address)
    number = ask(mailbox, b"\0payload")
    found = PullMessagesResponse.FromString(post(made, address, "pull-messages").content)
    assert [m.metadata.message_id for m in found.messages_list] == [number]
    objects = {}
    for part in iterate_object_tree(found.message_object_trees[0]):
        request = PullObjectRequest(object_id=part.object_id)
        answer = post(made, address, "pull-object", request).content
        objects[part.object_id] = PullObjectResponse.FromString(answer).object_content
    assert unpack_frame(put_together(number, objects).content).body == b"\0payload"
    assert mailbox.pull_messages([number]) == []
    assert bring(made, address, reply_to(number)).status_code == 200
    (reply,) = mailbox.pull_messages([number])
    assert unpack_frame(reply.content).body == b"upload"
    assert reply.metadata.reply_to_message_id == number


@pytest.mark.parametrize(("node", "code"), [(7, 200), (8, 403)])
def test_a_site_cannot_answer_in_the_name_of_another(node, code, made, door):
    address, mailbox, lines = door
    arrive(made, address)
    number = ask(mailbox)
    assert bring(made, address, reply_to(number, node)).status_code == code
    assert len(mailbox.pull_messages([number])) == (code == 200)
    told = [line for line in lines if "in the name of another site" in line]
    assert bool(told) == (code == 403)
    arrive(made, address)  # which ends what is open


def test_a_site_neither_sees_nor_answers_the_questions_of_another(made, door):
    address, mailbox, _ = door
    for name in ("north", "south"):
        arrive(made, address, name)
    number, mine = ask(mailbox, b"secret"), ask(mailbox, node=8)
    found = PullMessagesResponse.FromString(
        post(made, address, "pull-messages", b"", "south").content
    )
    assert [m.metadata.message_id for m in found.messages_list] == [mine]
    for key in mailbox._questions[number].parts.objects:
        answer = post(made, address, "pull-object", PullObjectRequest(object_id=key), "south")
        assert not PullObjectResponse.FromString(answer.content).object_found
    assert bring(made, address, reply_to(number, 8), "south").status_code == 410
    assert mailbox.pull_messages([number]) == []
    for name in ("north", "south"):
        arrive(made, address, name)


def test_a_reply_is_taken_up_to_the_size_that_was_asked_for(made, door):
    """So a site with a valid key cannot fill the server's memory."""
    address, mailbox, lines = door
    arrive(made, address)
    number = ask(mailbox, largest=10_000)
    assert bring(made, address, reply_to(number, body=bytes(9_000))).status_code == 200
    assert not mailbox.pull_messages([number])[0].has_error()
    number = ask(mailbox, largest=10_000)
    assert bring(made, address, reply_to(number, body=bytes(100_000))).status_code == 413
    (reply,) = mailbox.pull_messages([number])
    assert "more than" in reply.error.reason
    assert any("north at 127.0.0.1 its reply has more than" in line for line in lines)


def test_what_was_lost_on_the_way_is_asked_again(made, door):
    address, mailbox, _ = door
    arrive(made, address)
    number = ask(mailbox)
    for _ in range(2):  # the first answer was lost
        found = PullMessagesResponse.FromString(post(made, address, "pull-messages").content)
        assert found.messages_list[0].metadata.message_id == number
    parts = reply_to(number)
    request = PushMessagesRequest(messages_list=[parts.proto], message_object_trees=[parts.tree])
    assert post(made, address, "push-messages", request).status_code == 200
    assert mailbox.pull_messages([number]) == []  # its objects have not come
    assert bring(made, address, reply_to(number)).status_code == 200
    assert len(mailbox.pull_messages([number])) == 1


def test_a_site_that_leaves_is_not_waited_for(made, door):
    address, mailbox, _ = door
    arrive(made, address)
    number = ask(mailbox)
    assert 7 in [node.node_id for node in mailbox.get_nodes()]
    assert post(made, address, "deactivate-node").status_code == 200
    assert 7 not in [node.node_id for node in mailbox.get_nodes()]
    (reply,) = mailbox.pull_messages([number])
    assert "start it with `coterie site`" in reply.error.reason
    assert post(made, address, "pull-messages").status_code == 409  # it has to arrive again


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/fleet/get-fab",
        "/v1/fleet/get-run",
        "/v1/fleet/register-node",
        "/docs",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/x",
    ],
)
def test_the_gate_is_shut_for_everything_else(made, door, path):
    address, _, lines = door
    for method in ("GET", "POST"):
        # a raw path, because a client would tidy it up
        request = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        assert b" 404 " in raw(made, address, request)
    assert any("which is not for sites" in line for line in lines)


def raw(made, address, request):
    host, port = split_address(address)
    context = ssl.create_default_context(cafile=str(made / "authority" / keys.CA))
    with (
        socket.create_connection((host, port)) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        secured.sendall(request.encode())
        return secured.recv(4096)


def test_the_gate_holds_a_question_until_there_is_a_message(made, door):
    address, mailbox, _ = door
    arrive(made, address)
    numbers = []
    later = threading.Timer(1.0, lambda: numbers.append(ask(mailbox)))
    later.start()
    found = PullMessagesResponse.FromString(post(made, address, "pull-messages").content)
    later.join()
    assert len(numbers) == 1
    assert [m.metadata.message_id for m in found.messages_list] == numbers
    arrive(made, address)


def test_a_reply_that_announces_millions_of_objects_keeps_nobody_waiting(made, door):
    """Two bytes announce an object: so many are counted, in requests of so many bytes."""
    address, mailbox, lines = door
    arrive(made, address)
    number = ask(mailbox)
    parts = reply_to(number)
    few, many = (ObjectTree(children=[ObjectTree()] * n) for n in (200_000, 600_000))
    for tree, line in ((many, "more than 1,048,576 bytes"), (few, "more than 4,096 objects")):
        request = PushMessagesRequest(messages_list=[parts.proto], message_object_trees=[tree])
        assert post(made, address, "push-messages", request).status_code == 413
        assert any(line in said for said in lines)
    (reply,) = mailbox.pull_messages([number])
    assert "more than 4,096 objects" in reply.error.reason


def test_an_address_in_a_refusal_is_that_of_the_connection(made, door):
    """Whoever is refused could name another one in the head of its request."""
    address, _, lines = door
    with trusting(made) as client:
        client.post(f"https://{address}/run", headers={"X-Forwarded-For": "203.0.113.9"})
    assert [line for line in lines if "/run" in line] == [
        "refused: 127.0.0.1 asked for POST /run, which is not for sites"
    ]


def test_a_site_that_starts_again_and_again_fills_no_log(made, door):
    address, _, lines = door
    with trusting(made) as client:
        for _ in range(50):
            client.post(f"https://{address}/v1/fleet/activate-node", headers=signed(made))
    assert sum("north has started again" in line for line in lines) == 1


def test_a_look_whether_the_gate_is_there_is_no_refusal(door):
    address, _, lines = door
    before = list(lines)
    socket.create_connection(split_address(address)).close()
    time.sleep(0.2)
    assert lines == before


def test_who_is_refused_at_the_gate_is_told_on_the_servers_side(made, door):
    address, _, lines = door
    with (
        pytest.raises(httpx.ConnectError),
        httpx.Client(trust_env=False) as client,
    ):  # knows other authorities only
        client.post(f"https://{address}/v1/fleet/pull-messages")
    with pytest.raises(httpx.HTTPError), httpx.Client(trust_env=False) as client:
        client.post(f"http://{address}/v1/fleet/pull-messages").raise_for_status()
    with trusting(made) as client:
        assert client.post(f"https://{address}/v1/fleet/activate-node").status_code == 400
    until = time.monotonic() + 300
    wanted = (
        "does not trust this server's certificate",
        "spoke plaintext",
        "has a key that no site",
    )
    while time.monotonic() < until and not all(any(w in line for line in lines) for w in wanted):
        time.sleep(0.05)
    for option in wanted:
        assert any(option in line for line in lines), (option, lines)


def test_a_site_that_has_started_again_takes_the_place_of_its_old_self(made, door):
    address, mailbox, lines = door
    arrive(made, address)
    (before,) = [node.last_activated_at for node in mailbox.get_nodes() if node.node_id == 7]
    number = ask(mailbox)
    arrive(made, address)
    (after,) = [node.last_activated_at for node in mailbox.get_nodes() if node.node_id == 7]
    assert after != before  # whoever waits for the old one hears of it
    assert any("north has started again" in line for line in lines)
    assert bring(made, address, reply_to(number)).status_code == 410


def answer_to(made, address, head):
    """The status of a request whose head is given line by line."""
    lines = [f"{name}: {value}" for name, value in head.items()]
    request = "\r\n".join(["POST /v1/fleet/push-object HTTP/1.1", "Host: x", *lines, "", ""])
    return raw(made, address, request).split(b" ")[1]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda head: {}, "has a key that no site"),
        (lambda head: {**head, FLEET_HTTP_SIGNATURE_HEADER: "AAAA"}, "but not its private key"),
        (lambda head: {**head, "flwr-timestamp": "yesterday"}, "but not its private key"),
        (
            lambda head: {k: v for k, v in head.items() if k != FLEET_HTTP_SIGNATURE_HEADER},
            "but signs nothing",
        ),
    ],
)
def test_no_body_is_read_before_the_head_proves_a_site(made, door, change, line):
    """The refusal comes although not a byte of the announced body was sent."""
    address, _, lines = door
    head = change(signed(made)) | {"Content-Length": 199_000_000}
    assert answer_to(made, address, head) == b"401"
    assert any(line in said for said in lines)


def test_a_clock_that_is_wrong_is_named_on_both_sides(made, door):
    address, _, lines = door
    with trusting(made) as client:
        answer = client.post(
            f"https://{address}/v1/fleet/activate-node", headers=signed(made, -4e3)
        )
    assert answer.status_code == 400
    assert re.search(r"clock skew: the site's clock is 4,0\d\d s behind", answer.json()["detail"])
    assert any(re.search(r"the clock of north is 4,0\d\d s behind", line) for line in lines)
    assert "clock" in explain_refusal(f"Exit Code: 305\n[code: 2004] {answer.json()['detail']}")


@pytest.mark.parametrize(
    ("ahead", "code"), [(295, 200), (6, 200), (-270, 200), (330, 400), (-304, 400)]
)
def test_clocks_may_differ_by_five_minutes_either_way(ahead, code, made, door):
    address, _, _ = door
    with trusting(made) as client:
        url = f"https://{address}/v1/fleet/activate-node"
        assert client.post(url, headers=signed(made, ahead)).status_code == code


@pytest.mark.parametrize("ahead", [295, -270])
def test_a_site_whose_clock_differs_answers_questions_that_live_shorter(
    ahead, made, door, monkeypatch
):
    """From its arrival to its reply; how long a question lives is for the server's clock to say."""
    address, mailbox, _ = door
    (made / "north" / keys.CA).write_bytes((made / "authority" / keys.CA).read_bytes())
    monkeypatch.setattr(fleet_client, "now", lambda: datetime.now(UTC) + timedelta(seconds=ahead))
    site = fleet_client.FleetClient(made / "north", address, insecure=False)
    try:
        site.arrive()
        number = ask(mailbox, b"question", seconds=200)
        monkeypatch.setattr(flower_message, "now", fleet_client.now)
        site.exchange(lambda frame: frame._replace(body=b"answer"), lambda line: None)
        (reply,) = mailbox.pull_messages([number])
        assert unpack_frame(reply.content).body == b"answer"
    finally:
        site.leave()


def test_a_site_cannot_send_more_than_one_request_may_hold(made, door):
    address, _, lines = door
    head = signed(made)
    assert answer_to(made, address, head | {"Content-Length": gate.MAX_REQUEST_BYTES + 1}) == b"413"
    assert answer_to(made, address, head | {"Content-Length": "1e3"}) == b"400"
    with trusting(made) as client:
        endless = (bytes(2**20) for _ in range(gate.MAX_REQUEST_BYTES // 2**20 + 8))
        with suppress(httpx.TransportError):  # the gate may end the connection while we send
            url = f"https://{address}/v1/fleet/push-object"
            assert client.post(url, content=endless, headers=head).status_code == 413
    assert any("north at 127.0.0.1 sent more than" in line for line in lines)


def test_bodies_that_are_announced_and_not_sent_shut_nobody_out(made, door):
    """Eight bodies of 64 MB of one site, of which a byte comes: the site itself and all others
    still come in.
    """
    address, mailbox, lines = door
    context = ssl.create_default_context(cafile=str(made / "authority" / keys.CA))
    for name in ("north", "south"):
        arrive(made, address, name)
    with ExitStack() as stack:
        for _ in range(8):
            plain = stack.enter_context(socket.create_connection(split_address(address), 30))
            held = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            head = [f"{k}: {v}" for k, v in signed(made).items()]
            size = f"Content-Length: {gate.MAX_REQUEST_BYTES}"
            start = ["POST /v1/fleet/push-object HTTP/1.1", "Host: x", size, *head, "", "x"]
            held.sendall("\r\n".join(start).encode())
        for name, node in (("south", 8), ("north", 7)):
            number = ask(mailbox, node=node)
            assert bring(made, address, reply_to(number, node), name).status_code == 200
            assert len(mailbox.pull_messages([number])) == 1
    assert not any("share of the gate" in line for line in lines)


def test_a_site_fills_its_own_share_of_the_gate_and_no_other(made, door, monkeypatch):
    monkeypatch.setattr(gate, "MAX_REQUEST_BYTES", 2**20)
    monkeypatch.setattr(gate, "MAX_TOTAL_BYTES", 2**21)
    address, _, lines = door
    context = ssl.create_default_context(cafile=str(made / "authority" / keys.CA))
    with ExitStack() as stack:
        for _ in range(3):  # two fill the share, the third is refused
            plain = stack.enter_context(socket.create_connection(split_address(address), 30))
            held = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            head = [f"{k}: {v}" for k, v in signed(made).items()]
            size = f"Content-Length: {2**20}"
            start = ["POST /v1/fleet/push-object HTTP/1.1", "Host: x", size, *head, "", ""]
            held.sendall("\r\n".join(start).encode() + bytes(600_000))
        until = time.monotonic() + 300
        while not any("north at 127.0.0.1 sent more than its share" in line for line in lines):
            assert time.monotonic() < until
            time.sleep(0.05)
        arrive(made, address, "south")
        assert post(made, address, "send-node-heartbeat", b"", "south").status_code == 200


def test_half_open_connections_and_large_bodies_keep_no_site_out(made, door):
    """491 connections that never end their handshake or head, and four bodies of 199 MB without a
    key, all from the site's own address.
    """
    address, _, _ = door
    context = ssl.create_default_context(cafile=str(made / "authority" / keys.CA))
    with ExitStack() as stack:
        for number in range(491):
            plain = stack.enter_context(socket.create_connection(split_address(address), 30))
            with suppress(OSError):
                if number % 10 == 0:
                    secured = context.wrap_socket(plain, server_hostname="127.0.0.1")
                    stack.enter_context(secured)
                    secured.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\n")
        for _ in range(4):
            plain = stack.enter_context(socket.create_connection(split_address(address), 30))
            large = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            start = "POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 199000000"
            with suppress(OSError):
                large.sendall(start.encode() + b"\r\n\r\n" + bytes(2**20))
        arrive(made, address)
        for _ in range(3):
            assert post(made, address, "send-node-heartbeat").status_code == 200


def test_who_says_nothing_is_let_go_and_who_came_first_goes_first(made, door, monkeypatch):
    address, _, _ = door
    monkeypatch.setattr(connections, "PROOF_SECONDS", 0.5)
    with socket.create_connection(split_address(address), 30) as silent:
        assert silent.recv(1) == b""  # ended by the gate
    monkeypatch.undo()
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(split_address(address), 30))
            for _ in range(connections.MAX_PER_ADDRESS + 8)
        ]
        assert all(one.recv(1) == b"" for one in silent[:8])
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)


def test_refusals_are_few_lines_of_printable_words(made, door):
    address, _, lines = door
    before = len(lines)
    for number in range(80):
        raw(made, address, f"GET /%1b[2J%0aok{number} HTTP/1.1\r\nHost: x\r\n\r\n")
    assert 0 < len(lines) - before <= 31
    assert all(line.isprintable() for line in lines)


def test_a_taken_port_is_one_clear_line(made, door):
    address, mailbox, _ = door
    port = split_address(address)[1]
    with pytest.raises(BadInput, match="cannot be listened on"):
        Gate("127.0.0.1", port, mailbox, made / "server", False, print, {})


def test_openssl_accepts_the_chain(made):
    files = [str(made / "authority" / keys.CA), str(made / "server" / keys.CERTIFICATE)]
    done = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
