"""Ray actors: processes on this or other machines, each with a shard of the clients and the local
engine to run it.
"""

from __future__ import annotations

import importlib
import os
import secrets
import socket
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Stage, Tree
from coterie.data.dataset import Public
from coterie.data.federation import PARTS, Federation, part_of
from coterie.data.prepare.preparation import Preparation
from coterie.engines.base import EngineSetup, ExchangeRequest, Metrics, Moment, Send
from coterie.engines.local.engine import LocalEngine
from coterie.engines.settings import ExecutionSettings

PATIENCE = 60.0  # seconds that a cluster may take to find a core for a new actor
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
LOST = object()  # what there is of a task whose actor is no more
# on any system the first makes Ray listen on 127.0.0.1 alone; the second keeps other users of the
# machine out, without many words
CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
LOOPBACK = {CLUSTERS: "0", "RAY_AUTH_MODE": "token"}


# Trees on their way: NumPy arrays, which Ray hands over without copying them into a pickle


def to_arrays(tree: Tree) -> Tree:
    """A tree of tensors as one of arrays."""
    return pytree.tree_map(lambda t: t.detach().contiguous().numpy(), tree)


def from_arrays(tree: Tree) -> Tree:
    """A tree of arrays as one of tensors; what comes from Ray's store is read-only and is
    copied.
    """
    return pytree.tree_map(lambda a: torch.from_numpy(np.array(a)), tree)


class Parcel(NamedTuple):
    """Payloads for the clients of one actor; a tensor that several of them get is in it once."""

    forms: list[Tree]  # the structures that occur, with the place of a leaf in each leaf's stead
    own: dict[
        int, np.ndarray
    ]  # numbered leaves; those that other actors get too travel beside the parcel
    clients: dict[int, tuple[int, list[int]]]  # client: its form, the numbers of its leaves


def pack(
    payloads: dict[int, Tree], groups: Sequence[Sequence[int]]
) -> tuple[dict[int, np.ndarray], list[Parcel]]:
    """The leaves that several groups of clients get, and a parcel for each group."""
    numbers: dict[Any, int] = {}
    leaves: list[Tensor] = []
    specs: list[Any] = []
    entries: dict[int, tuple[int, list[int]]] = {}
    for i, payload in payloads.items():
        mine, spec = pytree.tree_flatten(payload)
        if spec not in specs:
            specs.append(spec)
        row = []
        for leaf in mine:  # one address, one tensor: all payloads are alive
            number = numbers.setdefault(
                (leaf.data_ptr(), leaf.shape, leaf.stride(), leaf.dtype), len(leaves)
            )
            if number == len(leaves):
                leaves.append(leaf)
            row.append(number)
        entries[i] = specs.index(spec), row
    forms = [pytree.tree_unflatten(list(range(spec.num_leaves)), spec) for spec in specs]
    used = [{n for i in group for n in entries[i][1]} for group in groups]
    common = {
        n for k, some in enumerate(used) for n in some if any(n in other for other in used[:k])
    }
    parcels = [
        Parcel(
            forms, {n: to_arrays(leaves[n]) for n in some - common}, {i: entries[i] for i in group}
        )
        for group, some in zip(groups, used, strict=True)
    ]
    return {n: to_arrays(leaves[n]) for n in common}, parcels


def unpack(common: dict[int, np.ndarray], parcel: Parcel) -> Send:
    """What the server sends each client of a parcel; equal leaves are one tensor again, as they
    were.
    """
    leaves = from_arrays(common | parcel.own)

    def send(i: int) -> Tree:
        form, numbers = parcel.clients[i]
        return pytree.tree_map(lambda place: leaves[numbers[place]], parcel.forms[form])

    return send


# One actor


class ActorJob(NamedTuple):
    """What all actors of a run are given alike."""

    models: Sequence[Any]
    programs: Sequence[tuple[Stage, ...]]
    public: Public | None
    seed: int
    rounds: int
    metric: str
    strict: bool
    dtype: torch.dtype


class Shard(NamedTuple):
    """What one actor is given: its clients' rows alone, and where its clients stand."""

    federation: Federation  # all clients, those of other actors without rows
    architecture: np.ndarray  # [N]
    stage: int
    states: list[tuple[list[int], Tree]]  # for each architecture


def shard_of(federation: Federation, clients: Iterable[int]) -> Federation:
    """The same federation with the rows of some clients only, as arrays and numbered anew."""
    mine = set(clients)
    parts = {name: part_of(federation, name) for name in PARTS}
    none = np.zeros(0, dtype=np.int64)
    rows = np.unique(np.concatenate([none, *(lists[i] for lists in parts.values() for i in mine)]))
    where: Any = {
        name: [np.searchsorted(rows, own) if i in mine else none for i, own in enumerate(lists)]
        for name, lists in parts.items()
    }
    picked: Any = {"x": federation.x[rows].numpy(), "y": federation.y[rows].numpy()}
    unused: Any = dict.fromkeys(("public", "table", "truth", "rows", "place"))
    kept = federation.preparation  # of which an engine needs how images were scaled
    if kept is not None:
        kept = Preparation(kept.scale, affine=kept.affine, channels=kept.channels)
    return federation._replace(**picked, **where, **unused, preparation=kept)


class Actor:
    """The process that holds a shard; Ray calls its methods one after another."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.engine: LocalEngine

    def process(self) -> int:
        return os.getpid()

    def hold(self, job: ActorJob, shard: Shard) -> None:
        """Take over clients as they stand; whatever was held before is let go."""
        torch.set_default_dtype(job.dtype)
        x, y = from_arrays((shard.federation.x, shard.federation.y))
        federation = shard.federation._replace(x=x, y=y, public=job.public)
        setup = EngineSetup(
            federation=federation,
            models=job.models,
            programs=job.programs,
            architecture=shard.architecture,
            seed=job.seed,
            rounds=job.rounds,
            metric=job.metric,
            strict=job.strict,
        )
        self.engine = LocalEngine(setup)
        held = [(clients, from_arrays(stacked)) for clients, stacked in shard.states]
        self.engine.restore(held, shard.stage)

    def enter(self, stage: int) -> None:
        self.engine.enter(stage)

    def do(
        self,
        what: str,
        common: dict[int, np.ndarray],
        parcel: Parcel,
        settings: Sequence[ExecutionSettings],
        when: Moment,
        *rest: Any,
    ) -> Any:
        """One of the tasks below for the clients of a parcel."""
        self.engine.use(settings)
        with torch.no_grad():
            return getattr(self, what)(list(parcel.clients), unpack(common, parcel), when, *rest)

    def work(
        self, clients: list[int], send: Send, when: Moment, index: int, answered: set[int]
    ) -> list[Any]:
        """An exchange: (architecture, clients, effort, broken, new states, uploads) chunk by
        chunk.
        """
        done = []
        for worked in self.engine.work(_build_request(index, when, clients, send)):
            self.engine.keep(worked, answered)
            state, upload = to_arrays(worked.state), to_arrays(worked.upload)
            about = worked.architecture, worked.clients, worked.effort, worked.broken
            done.append((*about, state, upload))
        return done

    def choose(
        self, clients: list[int], send: Send, when: Moment, index: int
    ) -> list[ExecutionSettings]:
        """The settings that suit these clients, by timing."""
        return self.engine.choose(_build_request(index, when, clients, send))

    def evaluate(
        self, clients: list[int], send: Send, when: Moment, parts: Sequence[str], final: bool
    ) -> tuple[list[int], Metrics]:
        return clients, self.engine.evaluate(clients, send, when, parts, final)

    def points(self, clients: list[int], send: Send, when: Moment) -> list[Any]:
        return [
            (a, chunk, to_arrays(views))
            for a, chunk, views in self.engine.points(clients, send, when)
        ]

    def predictions(self, clients: list[int], send: Send, when: Moment, part: str) -> list[Any]:
        return list(self.engine.predictions(clients, send, when, part))


def _build_request(index: int, when: Moment, clients: list[int], send: Send) -> ExchangeRequest:
    """An exchange as an actor sees it: who is kept and averaged is decided elsewhere."""
    return ExchangeRequest(
        number=index, when=when, clients=clients, send=send, answered=set(), averaged=set()
    )


# All of them


def ray_module(address: str = "") -> Any:
    """Ray, which is an extra; it reads its switches while it is imported."""
    if "ray" not in sys.modules:
        for name, value in (QUIET if address else QUIET | LOOPBACK).items():
            os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise BadInput("engine = 'ray' needs Ray: pip install 'coterie[ray]'") from None


def _connect(address: str, cores: int) -> bool:
    """Join the cluster of an address, or start one of this machine alone; False where Ray was
    running already.
    """
    if address:
        check_address(address)
    elif not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(
            32
        )  # else Ray would leave one in the home folder, for all later clusters
    ray = ray_module(address)
    if ray.is_initialized():
        return False
    if not address and os.environ.setdefault(CLUSTERS, "0") == "0":
        # read when Ray is imported, which others may have done before
        vars(importlib.import_module("ray._private.ray_constants"))["ENABLE_RAY_CLUSTER"] = False
    try:
        where = (
            {"address": address}
            if address
            else {"address": "local", "include_dashboard": False, "num_cpus": cores or None}
        )
        ray.init(**where, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as problem:
        line = str(problem).strip().partition("\n")[0]
        raise BadInput(
            f"ray_address = '{address}': {line}" if address else f"Ray did not start: {line}"
        ) from None
    return True


def check_address(address: str) -> None:
    """Refuse, within seconds, an address where no cluster is; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise BadInput(
            f"ray_address = '{address}': give HOST:PORT of the head node, as in 10.0.0.5:6379"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise BadInput(
            f"ray_address = '{address}': no Ray answers there ({why}); `ray start --head` starts "
            "one"
        ) from None


class ActorPool:
    """Actors in numbered seats, and the cluster they are on where it was started for them."""

    def __init__(self, address: str = "", actors: int = 0, threads: int = 1, most: int = 2**16):
        self.threads, self.tenant = threads, object()  # tenant: whose clients the actors hold
        self.started = _connect(address, actors * threads)
        self.ray = ray_module()
        bad = self.ray.exceptions
        self.losses = (
            bad.RayActorError,
            bad.ObjectLostError,
            bad.NodeDiedError,
            bad.WorkerCrashedError,
            bad.OutOfMemoryError,
        )
        cores = int(self.ray.cluster_resources().get("CPU", 0))
        count = min(actors or max(1, cores // threads), most)
        try:
            if count * threads > cores:
                raise BadInput(
                    f"actors = {count} of {threads} threads each, but the Ray cluster has {cores} "
                    "cores: give fewer"
                )
            self.actors = {seat: self._new() for seat in range(count)}
            late = self.ray.wait(
                [a.process.remote() for a in self.actors.values()],
                num_returns=count,
                timeout=2 * PATIENCE,
            )[1]
            if late:
                raise BadInput(
                    f"{len(late)} of {count} Ray actors found no core in {2 * PATIENCE:g} s: give "
                    "fewer --actors"
                )
            self.processes()
        except self.losses as problem:
            self.close()
            why = str(problem).strip().splitlines()[-1]
            raise BadInput(
                f"a Ray actor did not start ({why}): every node needs the same coterie, Ray and "
                "Python"
            ) from None
        except BadInput:
            self.close()
            raise

    def _new(self) -> Any:
        return (
            self.ray.remote(Actor)
            .options(num_cpus=self.threads, max_restarts=0)
            .remote(self.threads)
        )

    def processes(self) -> dict[int, int]:
        """The process of each actor."""
        return {seat: self.ray.get(actor.process.remote()) for seat, actor in self.actors.items()}

    def get(self, ref: Any) -> Any:
        """What came of a task, or LOST; what a user can mend is one line here too."""
        try:
            return self.ray.get(ref)
        except self.losses:
            return LOST
        except self.ray.exceptions.RayTaskError as problem:
            if isinstance(problem.cause, BadInput):
                raise problem.cause from None
            raise

    def renew(self, seat: int) -> bool:
        """A new actor in the seat of a lost one, if the cluster has a core for it; else the seat is
        gone.
        """
        self.ray.kill(self.actors.pop(seat))
        actor = self._new()
        ready, _ = self.ray.wait([actor.process.remote()], timeout=PATIENCE)
        if ready:
            self.actors[seat] = actor
        else:
            self.ray.kill(actor)
        return bool(ready)

    def close(self) -> None:
        """Let the actors go, and the cluster if it was started for them."""
        if not self.ray.is_initialized():
            return
        for actor in getattr(self, "actors", {}).values():
            self.ray.kill(actor)
        if self.started:
            self.ray.shutdown()
