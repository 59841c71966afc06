"""What the server has for its sites, and they for it: questions, replies and who is there.

It is the part of Flower's SuperLink that a deployment needs, the Fleet API, in the server's own
process and memory. SuperLink's other two interfaces, which start programs at the server and at
sites, do not exist here. The run uses it as a Grid of Flower; sites reach it through the gate only.

A site has one thing in hand at a time, so whoever asks for a message gets the oldest question that
it has not answered: what was lost on the way is asked again. A reply is taken up to the size that
was asked for, so no site fills the memory of the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from flwr.app import ConfigRecord, Message
from flwr.app.error import Error
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto import fleet_pb2 as fleet
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import (
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_object_id, iterate_object_tree
from flwr.supercore.task_identity import TaskIdentity

from coterie.deploy.frames import RECORD, Parts, put_together, take_apart

AWAY_SECONDS = 45.0  # seconds without any word of a site before it is taken for gone
LARGEST = "largest"  # of a question's record: the most bytes that its reply may have
SPARE_BYTES = 2**16  # bytes of a reply beyond its frame: metadata, names of records
MAX_OBJECTS = 4_096  # objects of one reply
AWAY = "its connection is lost: start it with `coterie site`"


class Refused(Exception):
    """A request that is not answered: the status of HTTP, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass
class Node:
    """A site that is there."""

    name: str  # of its key; "" without keys
    since: str  # tells this start of the site from another
    heard: float  # when it last said anything


@dataclass(eq=False)
class Question:
    """A message to a site, until its reply is fetched."""

    node: int
    asked: Message  # without content
    parts: Parts
    until: float
    largest: int  # bytes of its reply
    reply: str = ""  # the number of the reply
    missing: set[str] = field(default_factory=set)  # objects of the reply that have not come
    came: dict[str, bytes] = field(default_factory=dict)
    problem: str = ""  # why there is no reply


class Mailbox:
    """Thread-safe: the run asks, the gate answers for the sites."""

    def __init__(self) -> None:
        # what a message of Flower says of its sender
        TaskIdentity.run_id, TaskIdentity.task_id = 1, 1
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        self._nodes: dict[int, Node] = {}
        self._questions: dict[str, Question] = {}  # oldest first
        self._lock = threading.RLock()
        self._starts = 0
        self.ring: Callable[[int], None] = lambda node: None  # there is a question for this node

    # For the run, as Flower's Grid

    def get_nodes(self) -> list[NodeInfo]:
        """The sites that are there."""
        with self._lock:
            found = {n: node for n, node in self._nodes.items() if self._is_there(n)}
        return [
            NodeInfo(node_id=n, name=node.name, last_activated_at=node.since)
            for n, node in found.items()
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Ask sites; the numbers of the questions."""
        numbers = []
        for message in messages:
            parts, meta = take_apart(message), message.metadata
            record = message.content.config_records.get(RECORD, ConfigRecord())
            largest = record.get(LARGEST, 0)
            assert isinstance(largest, int)  # it is ours
            until = time.monotonic() + meta.ttl
            with self._lock:
                self._forget_expired()
                asked = remove_content_from_message(message)
                self._questions[parts.number] = Question(
                    meta.dst_node_id, asked, parts, until, largest + SPARE_BYTES
                )
            numbers.append(parts.number)
            self.ring(meta.dst_node_id)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are whole, and errors in the name of sites that have gone."""
        found = []
        for number in message_ids:
            with self._lock:
                question = self._questions.get(number)
                if question is None:
                    continue
                problem = question.problem or ("" if self._is_there(question.node) else AWAY)
                whole = question.reply and not question.missing
                if not problem and not whole:
                    continue
                del self._questions[number]
            if problem and not whole:
                error = Error(ErrorCode.NODE_UNAVAILABLE, problem)
                found.append(Message(error, reply_to=question.asked))
            else:
                found.append(put_together(question.reply, question.came))
        return found

    def _is_there(self, node: int) -> bool:
        known = self._nodes.get(node)
        return known is not None and time.monotonic() - known.heard < AWAY_SECONDS

    def _forget_expired(self) -> None:
        now = time.monotonic()
        self._questions = {n: q for n, q in self._questions.items() if q.until > now}

    # For the sites, as Flower's Fleet API; who asks is known by its key, whatever a request says

    def answer(self, action: str, node: int, name: str, body: bytes) -> bytes:
        """The answer to a request of a site."""
        kind, act = ACTIONS[action]
        request = kind.FromString(body)
        with self._lock:
            if act is Mailbox._activate:
                return self._activate(node, name).SerializeToString()
            if node not in self._nodes:
                raise Refused(409, "the site has not said that it is there")
            self._nodes[node].heard = time.monotonic()
            answer: bytes = act(self, node, request).SerializeToString()
            return answer

    def _activate(self, node: int, name: str) -> fleet.ActivateNodeResponse:
        """A site has been started: what its old self was asked is asked no more."""
        self._starts += 1
        self._nodes[node] = Node(name, f"start {self._starts}", time.monotonic())
        self._questions = {n: q for n, q in self._questions.items() if q.node != node}
        return fleet.ActivateNodeResponse(node_id=node)

    def _deactivate(self, node: int, request: Any) -> fleet.DeactivateNodeResponse:
        del self._nodes[node]
        return fleet.DeactivateNodeResponse()

    def _beat(self, node: int, request: Any) -> SendNodeHeartbeatResponse:
        return SendNodeHeartbeatResponse(success=True)

    def _open_questions(self, node: int) -> list[Question]:
        now = time.monotonic()
        return [
            q
            for q in self._questions.values()
            if q.node == node and q.until > now and not q.problem and (not q.reply or q.missing)
        ]

    def has_news(self, node: int) -> bool:
        """Whether there is a question for a site, or it has to say first that it is there."""
        with self._lock:
            return node not in self._nodes or bool(self._open_questions(node))

    def knows(self, node: int) -> bool:
        """Whether a site has said that it is there, and not that it leaves."""
        return node in self._nodes

    def _pull(self, node: int, request: Any) -> fleet.PullMessagesResponse:
        parts = [q.parts for q in self._open_questions(node)[:1]]
        return fleet.PullMessagesResponse(
            messages_list=[p.proto for p in parts], message_object_trees=[p.tree for p in parts]
        )

    def _pull_object(self, node: int, request: PullObjectRequest) -> PullObjectResponse:
        for question in self._open_questions(node):
            content = question.parts.objects.get(request.object_id)
            if content is not None:
                return PullObjectResponse(
                    object_found=True, object_available=True, object_content=content
                )
        return PullObjectResponse()

    def _push(self, node: int, request: fleet.PushMessagesRequest) -> fleet.PushMessagesResponse:
        """The metadata of a reply, and which objects it will have."""
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise Refused(400, "sent no reply, or several at once")
        meta, tree = request.messages_list[0].metadata, request.message_object_trees[0]
        if meta.src_node_id != node:
            raise Refused(403, "answered in the name of another site")
        question = self._questions.get(meta.reply_to_message_id)
        if question is None or question not in self._open_questions(node):
            raise Refused(410, "answered a question that is not open, or no more")
        parts = list(islice(iterate_object_tree(tree), MAX_OBJECTS + 1))
        if len(parts) > MAX_OBJECTS:
            question.problem = f"its reply has more than {MAX_OBJECTS:,} objects"
            raise Refused(413, question.problem)
        names = {part.object_id for part in parts}
        question.reply, question.missing, question.came = tree.object_id, names, {}
        return fleet.PushMessagesResponse(results={tree.object_id: 0}, objects_to_push=names)

    def _push_object(self, node: int, request: PushObjectRequest) -> PushObjectResponse:
        name, content = request.object_id, request.object_content
        for question in self._open_questions(node):
            if name not in question.missing:
                continue
            if get_object_id(content) != name:
                raise Refused(400, "sent an object that is not what its name says")
            if len(content) + sum(map(len, question.came.values())) > question.largest:
                question.problem = f"its reply has more than {question.largest:,} bytes"
                question.came.clear()
                raise Refused(413, question.problem)
            question.came[name] = content
            question.missing.discard(name)
            return PushObjectResponse(stored=True)
        return PushObjectResponse(stored=False)


ACTIONS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "activate-node": (fleet.ActivateNodeRequest, Mailbox._activate),
    "deactivate-node": (fleet.DeactivateNodeRequest, Mailbox._deactivate),
    "send-node-heartbeat": (SendNodeHeartbeatRequest, Mailbox._beat),
    "pull-messages": (fleet.PullMessagesRequest, Mailbox._pull),
    "push-messages": (fleet.PushMessagesRequest, Mailbox._push),
    "pull-object": (PullObjectRequest, Mailbox._pull_object),
    "push-object": (PushObjectRequest, Mailbox._push_object),
}
