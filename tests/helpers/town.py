"""A federation in one process: real sites, and a Grid that turns every message into bytes and
back.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from coterie.core.method import Train, stages_of
from coterie.data.federation import PARTS, part_of
from coterie.deploy.answers import describe_plan
from coterie.deploy.config_files import Limits, Privacy, Rules
from coterie.engines.base import EngineSetup
from coterie.engines.local.engine import LocalEngine
from coterie.experiment.schedule import Schedule
from coterie.methods.registry import METHODS
from coterie.running.loop import Loop, stage_lengths_of
from helpers.federations import MODELS, OPTIONS, TRAIN, tiny, tiny_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of click, by what Flower imports
    from flwr.app import Message
    from flwr.app.error import Error
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    from coterie.deploy.fleet_client import answer_message
    from coterie.deploy.flower_engine import FlowerEngine
    from coterie.deploy.frames import Frame, pack_frame, unpack_frame
    from coterie.deploy.mailbox import AWAY
    from coterie.deploy.roster import Roster
    from coterie.deploy.scales import moments_of, scale_federation
    from coterie.deploy.site import Site
    from coterie.deploy.statistics import ColumnSums
    from coterie.deploy.wire import digest, pack

__all__ = [
    "EXACT",
    "RULES",
    "BytesGrid",
    "Error",
    "Lines",
    "Message",
    "Town",
    "digest",
    "finish",
    "pack_frame",
    "town",
    "unpack_frame",
]

RULES = Rules(needed=0.5, deadline=1.0, tries=2)
EXACT = Limits(rows=1, digits=0)  # tiny federations are compared to the last digit


class Lines(list):
    """What was said, in order."""

    def __call__(self, line: str) -> None:
        self.append(line)

    def has(self, *settings: str) -> bool:
        return any(all(option in line for option in settings) for line in self)


class BytesGrid(Grid):
    """Nodes of this process; `spoil` may change a reply, or lose it by giving None."""

    def __init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        # node id -> how the site there answers; None: its process has ended, and is not missed yet
        self.nodes: dict[int, Callable[[Frame], Frame] | None] = {}
        self.lines = Lines()  # what sites say of messages that are none
        self.registered: dict[int, str] = {}  # what a node's key was registered for
        self.offline: set[int] = set()
        self.activated: dict[int, str] = {}  # when a node came online
        self.spoil: Callable[[int, Message, Message], Message | None] = (
            lambda node, question, reply: reply
        )
        self.seen: list[bytes] = []
        self._replies: dict[str, Message] = {}
        self._count = 0

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *given: Any, **named: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [n for n in self.nodes if n not in self.offline]

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(
                node_id=n,
                name=self.registered.get(n, ""),
                last_activated_at=self.activated.get(n, ""),
            )
            for n in self.get_node_ids()
        ]

    def push_messages(self, messages: Any) -> list[str]:
        pushed = []
        for message in messages:
            self._count += 1
            message.metadata.__dict__["_message_id"] = str(self._count)
            question, node = self._carried(message), message.metadata.dst_node_id
            work = self.nodes[node]
            if work is None:
                reply = Message(Error(5, AWAY), reply_to=question)
            else:
                reply = answer_message(question, work, self.lines)
            spoilt = self.spoil(node, question, self._carried(reply))
            if spoilt is not None:
                self._replies[str(self._count)] = spoilt
            pushed.append(str(self._count))
        return pushed

    def pull_messages(self, message_ids: Any) -> list[Message]:
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError

    def _carried(self, message: Message) -> Message:
        """The message after a trip over the wire."""
        data = message_to_proto(message).SerializeToString()
        self.seen.append(data)
        proto = ProtoMessage()
        proto.ParseFromString(data)
        return message_from_proto(proto)


class Town:
    """Sites of a federation, and the server's side of them."""

    def __init__(
        self,
        folder: Path,
        federation: Any,
        models: list[Any],
        programs: list[Any],
        seed: int,
        privacy: Privacy,
    ):
        self.folder, self.federation, self.models, self.programs, self.seed = (
            folder,
            federation,
            models,
            programs,
            seed,
        )
        self.architecture = np.arange(federation.clients) % len(models)
        self.grid, self.lines = BytesGrid(), Lines()
        self._nodes: dict[int, int] = {}  # client -> node
        self.privacy, self.limits = privacy, EXACT
        for i in range(federation.clients):
            self.open(i)

    def setup(self, federation: Any) -> EngineSetup:
        """What an engine of this federation is given."""
        return EngineSetup(
            federation=federation,
            models=self.models,
            programs=self.programs,
            architecture=self.architecture,
            seed=self.seed,
        )

    def plan(self, schedule: Schedule) -> dict[str, Any]:
        """What the sites agree to be asked."""
        lengths = stage_lengths_of(self.programs[0], schedule)
        return describe_plan(self.programs[0], lengths, schedule.every, schedule.measured)

    def site(self, i: int) -> Site:
        """Client i as a site: it has its own rows only."""
        none = np.zeros(0, np.int64)
        own = {
            part: [
                rows if k == i else none for k, rows in enumerate(part_of(self.federation, part))
            ]
            for part in PARTS
        }
        federation = self.federation._replace(**own)
        engine = LocalEngine(self.setup(federation).alone())
        rows = {part: len(own[part][i]) for part in PARTS}

        def build(settings: Any, number: int, scales: Any) -> tuple[LocalEngine, Any]:
            mine = scale_federation(federation, scales)
            engine.take(mine, engine.architecture)
            return engine, mine

        home = self.folder / f"site-{i}"
        home.mkdir(exist_ok=True)
        return Site(
            federation.names[i],
            home,
            lambda settings: {"rows": rows},
            build,
            lambda settings, n: ColumnSums(rows["train"], moments_of(federation, n)),
            self.privacy,
            self.lines,
            limits=self.limits,
        )

    def open(self, i: int, node: int | None = None, site: Site | None = None) -> None:
        """Start a site; under a new node id where one is given."""
        if node is not None:
            self.grid.nodes.pop(self._nodes[i], None)
        self._nodes[i] = node or 100 + i
        self.grid.nodes[self._nodes[i]] = (site or self.site(i)).answer

    def close(self, i: int) -> None:
        """Stop a site's process; its folder stays."""
        self.grid.nodes[self._nodes[i]] = None

    def loop(
        self,
        schedule: Schedule,
        rules: Rules = RULES,
        run: str = "abcdef01",
        journal: Path | None = None,
    ) -> Loop:
        """A server as it starts."""
        roll = Roster(
            self.grid,
            self.federation.names,
            lambda: pack({"kind": "hello", "words": {}}),
            say=self.lines,
        )
        hollow = self.federation._replace(x=self.federation.x[:0], y=self.federation.y[:0])
        engine = FlowerEngine(
            self.setup(hollow),
            roll=roll,
            run=run,
            config={"privacy": [], "method": "", "options": {}, "train": {}, "seed": self.seed}
            | self.plan(schedule),
            rules=rules,
            journal=journal or self.folder / "answers.jsonl",
            say=self.lines,
        )
        return Loop(engine, hollow, schedule, self.seed)

    def models_at_home(self) -> dict[int, Any]:
        """What every site has on its disk at the end."""
        files = {
            i: self.folder / f"site-{i}" / "model.safetensors"
            for i in range(self.federation.clients)
        }
        return {i: load_file(path) for i, path in files.items() if path.exists()}


@contextmanager
def town(
    folder: Path,
    name: str,
    federation: Any = None,
    models: Any = None,
    seed: int = 0,
    privacy: Any = (),
    train: Train = TRAIN,
    **options: Any,
) -> Iterator[Town]:
    """A federation whose sites run one method."""
    federation = federation or tiny(4)
    models = models or [MODELS.get(name, tiny_model)()]
    programs = [
        stages_of(METHODS[name](model, train, **(OPTIONS.get(name, {}) | options)))
        for model in models
    ]
    yield Town(folder, federation, models, programs, seed, Privacy(*privacy))


def finish(loop: Loop) -> None:
    """The end of a run, as an experiment ends it."""
    loop.engine.finish(loop.everyone, loop.payload(), loop.when())
