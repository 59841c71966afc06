"""Who is there: Flower's nodes and the sites behind them, and how to ask them all at once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo

from coterie.core.errors import BadInput
from coterie.deploy.frames import RECORD, Frame, pack_frame
from coterie.deploy.logs import sanitize
from coterie.deploy.mailbox import LARGEST
from coterie.deploy.replies import Answer, Bounds, check_hello, read_reply
from coterie.deploy.wire import Head

POLL_SECONDS = 0.02  # seconds between two looks for replies, which are in this process
# seconds that a message lives longer than it is waited for, so that who is late is told of in our
# words
SPARE_SECONDS = 5.0
LOOK_SECONDS = (
    2.0  # seconds between two looks whether those who are to reply have been started again
)
REGREET_SECONDS = (
    30.0  # seconds before a node that was refused, or did not answer, is greeted again
)
GREETING_SECONDS = 60.0  # seconds for a hello, at most
TYPES = {
    "hello": "query",
    "moments": "query",
    "train": "train",
    "shares": "query",
    "masked": "query",
    "reveal": "query",
    "evaluate": "evaluate",
    "finish": "train",
    "model": "query",
    "judge": "query",
}
NO_ARRAYS = Bounds()
NONCE = "nonce"
LogLine = Callable[[str], None]


class Grid(Protocol):
    """What is used of Flower's Grid."""

    def get_nodes(self) -> Iterable[NodeInfo]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class Roster:
    """Sites by number; a node tells its site's name when greeted, and is greeted again when Flower
    gives it another id.
    """

    def __init__(
        self,
        grid: Grid,
        names: Sequence[str],
        hello: Callable[[], Frame],
        admit: Callable[[int, Head], None] = lambda number, head: (
            None
        ),  # raises BadInput where a site does not fit
        say: LogLine = print,
        greeting: float = GREETING_SECONDS,
    ):
        self.grid, self.names, self._hello, self._admit, self._log = (
            grid,
            list(names),
            hello,
            admit,
            say,
        )
        self._greeting = greeting
        self.nodes: dict[int, int] = {}  # site -> node
        self._refused: dict[int, str] = {}  # node -> why, which is told once
        self._greeted: dict[int, float] = {}  # node -> when, in vain

    def look(self) -> list[int]:
        """The sites that are online, after greeting those who are new."""
        online = {int(node.node_id): node for node in self.grid.get_nodes()}
        known, now = set(self.nodes.values()), time.monotonic()
        new = [
            n
            for n in online
            if n not in known and now - self._greeted.get(n, -REGREET_SECONDS) >= REGREET_SECONDS
        ]
        for node, answer in self._send(
            {n: self._hello() for n in new}, "hello", self._greeting
        ).items():
            self._greeted[node] = now
            try:
                self._meet(node, answer, str(online[node].name))
                self._refused.pop(node, None)
            except Exception as problem:  # one site's words must not keep the others waiting
                why = sanitize(problem or type(problem).__name__)
                if self._refused.get(node) != why:
                    self._log(f"a site was refused: {why}")
                self._refused[node] = why
        return sorted(i for i, node in self.nodes.items() if node in online)

    def list_refusals(self) -> list[str]:
        """Why nodes that are online take no part."""
        online = {int(node.node_id) for node in self.grid.get_nodes()}
        return [why for node, why in self._refused.items() if node in online]

    def _meet(self, node: int, answer: Answer, registered: str) -> None:
        head = check_hello(answer, registered)
        name = head.get("name")
        if name not in self.names:
            raise BadInput(
                f"'{sanitize(name, 80)}' is no site of this deployment: add it with `coterie "
                "federation add`"
            )
        if registered and registered != name:  # what its key was registered for
            raise BadInput(
                f"a node says that it is '{name}', but has the key of '{registered}': give every "
                "site its own folder"
            )
        number = self.names.index(name)
        self._admit(number, head)
        self._log(f"{name} is there" if number not in self.nodes else f"{name} is back")
        self.nodes[number] = (
            # the newest counts: after a restart without keys the old one is listed for a while
            node
        )

    def ask(
        self,
        questions: Mapping[int, Frame],
        kind: str,
        seconds: float,
        bounds: Mapping[int, Bounds] | None = None,  # of the replies that hold arrays
    ) -> dict[int, Answer]:
        """Every site's reply, or why there is none; comes back when all have answered or the time
        is over.
        """
        most = bounds or {}
        online = self.look() if questions else []
        answers: dict[int, Answer] = dict.fromkeys(questions, "is not there")
        sites = {self.nodes[i]: i for i in questions if i in online}
        for node, answer in self._send(
            {n: questions[i] for n, i in sites.items()},
            kind,
            seconds,
            {n: most[i] for n, i in sites.items() if i in most},
        ).items():
            answers[sites[node]] = answer
        return answers

    def _send(
        self,
        frames: Mapping[int, Frame],
        kind: str,
        seconds: float,
        bounds: Mapping[int, Bounds] | None = None,
    ) -> dict[int, Answer]:
        """The same by node."""
        most = bounds or {}
        waiting: dict[str, int] = {}
        begun = self._online_since() if frames else {}
        for node, frame in frames.items():
            content, bound = pack_frame(frame), most.get(node, NO_ARRAYS)
            # the number of a message is a digest of it: who cannot guess it cannot answer it
            content.config_records[RECORD][NONCE] = secrets.token_hex(16)
            content.config_records[RECORD][LARGEST] = bound.head + bound.body
            message = Message(content, node, TYPES[kind], ttl=seconds + SPARE_SECONDS)
            waiting |= {number: node for number in self.grid.push_messages([message]) if number}
        answers: dict[int, Answer] = dict.fromkeys(frames, f"did not answer in {seconds:g} s")
        until = time.monotonic() + seconds
        looked = time.monotonic()
        while waiting:
            for number, node in list(waiting.items()):
                answer = self._pull(number, node, kind, most.get(node, NO_ARRAYS))
                if answer is not None:
                    answers[waiting.pop(number)] = answer
            if time.monotonic() - looked >= LOOK_SECONDS:
                looked, now = time.monotonic(), self._online_since()
                for number, node in list(waiting.items()):
                    if node not in now:  # it left, or has been silent for too long
                        answers[waiting.pop(number)] = "went away while it worked"
                    elif now[node] != begun.get(node):  # the message died with its old process
                        answers[waiting.pop(number)] = "was started again while it worked"
            if not waiting or time.monotonic() >= until:
                break
            time.sleep(POLL_SECONDS)
        return answers

    def _pull(self, number: str, node: int, kind: str, bound: Bounds) -> Answer | None:
        """The reply to one message, if there is one.

        Each is fetched by itself: Flower puts a message together from its parts, and one that
        cannot be put together would take the others of the same call with it.
        """
        try:
            replies = list(self.grid.pull_messages([number]))
        except Exception as problem:
            return f"sent what cannot be read: {sanitize(problem or type(problem).__name__)}"
        mine = [
            reply
            for reply in replies
            if reply.metadata.reply_to_message_id == number
            and int(reply.metadata.src_node_id) == node
        ]
        return read_reply(mine[0], kind, bound) if mine else None

    def _online_since(self) -> dict[int, str]:
        """When each node that is online came online."""
        return {int(node.node_id): str(node.last_activated_at) for node in self.grid.get_nodes()}
