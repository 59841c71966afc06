"""A site's side of Flower's Fleet API: asks the server for messages and brings the replies.

It is what SuperNode does, without what SuperNode does next: nothing that comes is stored, installed
or started as a program. A message is handed to the site as a frame; what is none is refused.

A server may be hostile: what it answers is counted as it comes and never unpacked, and one that
makes no sense is a BadAnswer.
"""

from __future__ import annotations

import ssl
import threading
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.error import Error
from flwr.common.constant import TIMESTAMP_HEADER, ErrorCode
from flwr.common.serde import message_from_proto
from flwr.proto import fleet_pb2 as fleet
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import (
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    public_key_to_bytes,
    sign_message,
)
from google.protobuf.message import DecodeError

from coterie.core.memory import read_memory_limit
from coterie.deploy import certificates as keys
from coterie.deploy.config_files import is_loopback, split_address
from coterie.deploy.frames import (
    LARGEST_BODY,
    LARGEST_HEAD,
    Frame,
    pack_frame,
    put_together,
    take_apart,
    unpack_frame,
)
from coterie.deploy.logs import sanitize

CALL_SECONDS = 60.0  # seconds for an answer of the server, which holds a question open for 10
BEAT_SECONDS = 15.0  # seconds between two signs of life while the site works
LEAVE_SECONDS = 2.0  # seconds for the last word of a site that is stopped
NOT_TAKEN = (400, 403, 410, 413)  # what the server says to a reply that is of no use to it
ALIVE = "alive"  # in the folder of a site: touched whenever the server has answered
PROTOBUF = {
    "content-type": "application/protobuf",
    "accept": "application/protobuf",
    "accept-encoding": "identity",
}
MAX_ANSWER_BYTES = 2**27  # bytes of one answer: an object has 4 MB of a body, and a head
MEMORY_SHARE = 4  # a message may take this part of the machine's memory: it is held a few times
Answer = TypeVar("Answer")
LogLine = Callable[[str], None]
Work = Callable[[Frame], Frame]


class BadAnswer(Exception):
    """What the server sent is no answer to a site's request."""


def answer_message(message: Message, work: Work, say: LogLine) -> Message:
    """The reply to a message of Flower; one that holds no frame is refused, and told of."""
    try:
        frame = unpack_frame(message.content)
    except Exception as problem:  # whatever a message that is none of ours makes its reader raise
        why = sanitize(problem or type(problem).__name__)
        say(f"refused a message that is not coterie's: {why}; nothing of it was run")
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=message)
    return Message(pack_frame(work(frame)), reply_to=message)


class FleetClient:
    """The connection of a site to its server; httpx.HTTPError where there is none."""

    def __init__(self, folder: Path, address: str, insecure: bool) -> None:
        self._key, public = generate_key_pairs() if insecure else _read_key(folder / keys.SITE_KEY)
        self._public = public_key_to_bytes(public)
        trust = False if insecure else ssl.create_default_context(cafile=str(folder / keys.CA))
        self._insecure, self._alive = insecure, folder / ALIVE
        self._http = httpx.Client(
            base_url=f"{'http' if insecure else 'https'}://{address}/v1/fleet/",
            verify=trust,
            timeout=CALL_SECONDS,
            trust_env=not is_loopback(split_address(address)[0]),  # proxies lead elsewhere
        )
        self._node: Node | None = None
        self._over = threading.Event()
        self._last: tuple[str, Message] | None = None  # a question, and its reply

    def _call(self, action: str, request: Any, kind: type[Answer], **options: Any) -> Answer:
        """One signed request."""
        when = now().isoformat()
        signed = {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self._public).decode(),
            TIMESTAMP_HEADER: when,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(self._key, when.encode())).decode(),
        }
        content, headers = request.SerializeToString(), PROTOBUF | signed
        with self._http.stream("POST", action, content=content, headers=headers, **options) as come:
            response = httpx.Response(come.status_code, content=_read(come), request=come.request)
        response.raise_for_status()
        with suppress(OSError):  # a full disk is told of where it matters
            self._alive.touch()
        try:
            return kind.FromString(response.content)  # type: ignore[attr-defined,no-any-return]
        except DecodeError:
            raise BadAnswer(f"what it answered to {action} cannot be read") from None

    def arrive(self) -> None:
        """Say that this site is there."""
        if self._insecure:
            request = fleet.RegisterNodeFleetRequest(public_key=self._public)
            self._call("register-node", request, fleet.RegisterNodeFleetResponse)
        arrival = fleet.ActivateNodeRequest(
            public_key=self._public, heartbeat_interval=BEAT_SECONDS
        )
        found = self._call("activate-node", arrival, fleet.ActivateNodeResponse)
        if self._node is None:
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        self._node = Node(node_id=found.node_id)

    def _beat(self) -> None:
        """Show that this site lives, however long its work takes."""
        while not self._over.wait(BEAT_SECONDS):
            request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=BEAT_SECONDS)
            try:
                self._call("send-node-heartbeat", request, SendNodeHeartbeatResponse)
            except (httpx.HTTPError, BadAnswer):
                continue  # whoever asks for messages hears of it

    def exchange(self, work: Work, say: LogLine) -> None:
        """Wait a while for a message, answer it, bring the reply; what was lost on the way is
        brought again, and not worked for again.
        """
        found = self._call(
            "pull-messages", fleet.PullMessagesRequest(node=self._node), fleet.PullMessagesResponse
        )
        if not found.messages_list:
            return
        proto, number = found.messages_list[0], found.messages_list[0].metadata.message_id
        if self._last is None or self._last[0] != number:
            try:
                question = self._fetch(proto, found.message_object_trees[0])
                self._last = (number, answer_message(question, work, say))
            except (httpx.HTTPError, BadAnswer):
                raise
            except Exception as problem:  # whatever a message that is none makes its reader raise
                raise BadAnswer(f"its message is none ({type(problem).__name__})") from None
        try:
            self._bring(self._last[1])
        except httpx.HTTPStatusError as problem:
            if problem.response.status_code not in NOT_TAKEN:
                raise
            say(f"the server did not take a reply: this site {sanitize(problem.response.text)}")

    def _fetch(self, proto: MessageProto, tree: ObjectTree) -> Message:
        """A message and all its objects."""
        meta, objects = proto.metadata, dict[str, bytes]()
        left = min(LARGEST_HEAD + LARGEST_BODY, read_memory_limit() // MEMORY_SHARE)
        for part in iterate_object_tree(tree):
            name = part.object_id
            if name in objects:  # a message may refer to a part twice
                continue
            request = PullObjectRequest(node=self._node, run_id=meta.run_id, object_id=name)
            objects[name] = self._call("pull-object", request, PullObjectResponse).object_content
            left -= len(objects[name]) or 1
            if left < 0:
                raise BadAnswer("its message does not fit into a fourth of this machine's memory")
        try:
            return put_together(meta.message_id, objects)
        except Exception:  # whatever objects that make no message raise
            return message_from_proto(proto)  # without content, which is none of ours

    def _bring(self, reply: Message) -> None:
        """A reply and all its objects."""
        parts = take_apart(reply)
        accepted = self._call(
            "push-messages",
            fleet.PushMessagesRequest(
                node=self._node, messages_list=[parts.proto], message_object_trees=[parts.tree]
            ),
            fleet.PushMessagesResponse,
        )
        for name in accepted.objects_to_push:
            if name not in parts.objects:
                raise BadAnswer("it asks for what is no part of a reply")
            request = PushObjectRequest(
                node=self._node,
                run_id=reply.metadata.run_id,
                object_id=name,
                object_content=parts.objects[name],
                session_id=accepted.session_id,
            )
            self._call("push-object", request, PushObjectResponse)

    def leave(self) -> None:
        """Say goodbye, if the server listens, and close."""
        self._over.set()
        last = threading.Thread(target=self._say_goodbye, name="goodbye", daemon=True)
        last.start()
        last.join(LEAVE_SECONDS)  # the time limit of a request does not hold for looking up a name
        if not last.is_alive():
            self._http.close()

    def _say_goodbye(self) -> None:
        if self._node is None:
            return
        gone = fleet.DeactivateNodeRequest(node_id=self._node.node_id)
        with suppress(httpx.HTTPError):  # else the server misses it soon
            self._call("deactivate-node", gone, fleet.DeactivateNodeResponse, timeout=LEAVE_SECONDS)


def _read(come: httpx.Response) -> bytes:
    """What is answered, as it comes."""
    content = bytearray()
    for piece in come.iter_raw():
        content += piece
        if len(content) > MAX_ANSWER_BYTES:
            raise BadAnswer(f"it answered more than {MAX_ANSWER_BYTES:,} bytes at once")
    return bytes(content)


def _read_key(path: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    """A site's key and its public half."""
    key = serialization.load_ssh_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is no key of a site: ask for a new one")
    return key, key.public_key()
