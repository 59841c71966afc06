"""Requests that wait at the same moment are answered together, many clients in one call.

One thread takes all that waits, prepares the rows in one go, and runs the models of all clients
stacked. While it works, the next requests gather. Nothing is delayed to make groups larger.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import BadInput
from coterie.results.models import Weights
from coterie.results.personal_models import Models, ModelTask
from coterie.results.sureness import Sureness, read_sureness
from coterie.serving.model_cache import ModelCache
from coterie.serving.request_rows import RequestRows, RowReader

MAX_GROUP = 256  # requests of one group
MAX_STACKED_ROWS = 64  # rows of a request that is not stacked with others any more


class Prediction(NamedTuple):
    """What a model says of the rows of one request."""

    predictions: np.ndarray  # [n]
    probabilities: np.ndarray | None  # [n, classes]


class ServedRun:
    """The models of one run, ready to answer; used by one thread at a time."""

    def __init__(self, folder: Path, capacity: int, build: Callable[[], Any] | None = None) -> None:
        self.models = Models(folder, build)
        self.capacity = capacity
        first = self.models.weights(0)
        self.task: ModelTask = self.models.task(first.about)
        self.reader = RowReader(self.models.intake(0, first.about))
        self.architecture: list[int] = self.models.architecture
        self._lock = threading.Lock()  # predictions and generated texts share the slots
        self.slots: dict[int, ModelCache] = {}  # by architecture
        self._read: dict[int, Weights] = {0: first}  # files of the group that is answered now
        self._slots_of(0)  # refuses a network that cannot be built, before anyone asks

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.models.folder

    def sureness(self, client: int) -> Sureness:
        """How sure a client's model is, as `coterie explain` has fitted it."""
        models = self.models
        try:
            return read_sureness(models.folder, models.names[client], models.version(client))
        except BadInput:  # which names a folder of this machine
            raise BadInput(
                "how sure this model is has not been fitted: leave sure out, or have `coterie "
                "explain` run where it is served"
            ) from None

    def _slots_of(self, client: int) -> ModelCache:
        """The models of a client's network."""
        kind = self.architecture[client]
        if kind not in self.slots:
            network = self.models.network(self._weights(client).about)
            self.slots[kind] = ModelCache(network, self.capacity)
        return self.slots[kind]

    def _weights(self, client: int) -> Weights:
        if client not in self._read:
            self._read[client] = self.models.weights(client)
        return self._read[client]

    def _tensors(self, client: int) -> dict[str, Tensor]:
        return self._weights(client).tensors

    def answer(
        self, clients: Sequence[int], rows: Sequence[RequestRows]
    ) -> list[Prediction | BadInput]:
        """The answers to some requests, each a client and its rows."""
        inputs = self._prepare_inputs(clients, rows)
        found: list[Prediction | BadInput] = [BadInput("not answered")] * len(rows)
        groups: dict[tuple[int, int], list[int]] = {}
        for k, client in enumerate(clients):
            size = 1 << (rows[k].height - 1).bit_length()  # like with like: little is padded
            kind = self.architecture[client]
            groups.setdefault((kind, size if size <= MAX_STACKED_ROWS else -k - 1), []).append(k)
        width = min(MAX_GROUP, self.capacity)
        with self._lock:
            for members in groups.values():
                for start in range(0, len(members), width):
                    self._run(members[start : start + width], clients, inputs, found)
            self._read = {}
        return found

    def gather(self, clients: Sequence[int]) -> dict[str, Tensor]:
        """What the clients of some requests, all of one architecture, have of their own, stacked
        request by request.
        """
        with self._lock:
            slots, held = self._slots_of(clients[0]), list(dict.fromkeys(clients))
            if len(held) > self.capacity:
                raise BadInput(
                    f"{len(held)} models at once, but --models {self.capacity}: raise it"
                )
            slots.take(held, self._tensors)
            self._read = {}
            return slots.pick(slots.places(clients))

    def _prepare_inputs(
        self, clients: Sequence[int], rows: Sequence[RequestRows]
    ) -> list[np.ndarray]:
        """The inputs of every request; cells of all are prepared in one go."""
        joint = [k for k, one in enumerate(rows) if one.cells is not None]
        found: list[Any] = [one.x for one in rows]
        if joint:
            cells = [rows[k].cells for k in joint]
            counts = [rows[k].height for k in joint]
            owners = [self.models.names[clients[k]] for k in joint for _ in range(rows[k].height)]
            x = self.reader.prepare(np.concatenate([c for c in cells if c is not None]), owners)
            for k, part in zip(joint, np.split(x, np.cumsum(counts)[:-1]), strict=True):
                found[k] = part
        return found

    def _load_models(
        self, members: list[int], clients: Sequence[int], found: list[Prediction | BadInput]
    ) -> list[int]:
        """The requests whose models are in memory now; a damaged file fails its own alone."""
        good = []
        for k in members:
            try:
                self._slots_of(clients[k]).take([clients[k]], self._tensors)
                good.append(k)
            except BadInput as problem:
                found[k] = problem
        return good

    def _run(
        self,
        members: list[int],
        clients: Sequence[int],
        inputs: list[np.ndarray],
        found: list[Prediction | BadInput],
    ) -> None:
        """Run the models of some requests stacked, rows padded to the longest."""
        members = self._load_models(members, clients, found)
        if not members:
            return
        slots = self._slots_of(clients[members[0]])
        counts = [len(inputs[k]) for k in members]
        sample = inputs[members[0]]
        x = np.zeros((len(members), max(counts), *sample.shape[1:]), sample.dtype)
        for j, k in enumerate(members):
            x[j, : counts[j]] = inputs[k]
        taken = slots.places([clients[k] for k in members])
        outputs = slots.run(taken, torch.from_numpy(x))
        flat = torch.cat([outputs[j, :n] for j, n in enumerate(counts)])
        predictions = self.task.answers(flat)
        shares = self.task.probabilities(flat) if self.task.names else None
        end = 0
        for k, n in zip(members, counts, strict=True):
            at = slice(end, end + n)
            found[k] = Prediction(predictions[at], None if shares is None else shares[at])
            end += n


class PendingRequest(NamedTuple):
    """A request that waits."""

    served: ServedRun
    client: int
    rows: RequestRows
    done: asyncio.Future[Prediction]
    loop: asyncio.AbstractEventLoop


class QueueFull(Exception):
    """Too many requests wait already."""


class BatchWorker:
    """The thread that answers."""

    def __init__(self, waiting: int) -> None:
        self.groups = self.grouped = 0
        self._jobs: queue.Queue[PendingRequest | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._work, name="models", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return self._jobs.qsize()

    def ask(self, served: ServedRun, client: int, rows: RequestRows) -> asyncio.Future[Prediction]:
        """The answer to come; Busy where too many wait."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Prediction] = loop.create_future()
        try:
            self._jobs.put_nowait(PendingRequest(served, client, rows, done, loop))
        except queue.Full:
            raise QueueFull from None
        return done

    def close(self) -> None:
        """Answer what waits, then stop."""
        self._jobs.put(None)
        self._thread.join(30)

    def _work(self) -> None:
        while True:
            jobs = [self._jobs.get()]
            while len(jobs) < MAX_GROUP and not self._jobs.empty():
                jobs.append(self._jobs.get_nowait())
            self._answer([job for job in jobs if job is not None and not job.done.cancelled()])
            if None in jobs:
                return

    def _answer(self, jobs: list[PendingRequest]) -> None:
        for served in dict.fromkeys(job.served for job in jobs):  # two during a reload
            some = [job for job in jobs if job.served is served]
            self.groups, self.grouped = self.groups + 1, self.grouped + len(some)
            found: Sequence[Prediction | Exception]
            try:
                found = served.answer([job.client for job in some], [job.rows for job in some])
            except Exception as problem:  # the thread must live on for the next requests
                found = [problem] * len(some)
            for loop in dict.fromkeys(job.loop for job in some):
                answered = [(j, f) for j, f in zip(some, found, strict=True) if j.loop is loop]
                loop.call_soon_threadsafe(_deliver, answered)


def _deliver(answered: list[tuple[PendingRequest, Prediction | Exception]]) -> None:
    for job, found in answered:
        if job.done.done():  # it waited too long and has gone
            continue
        if isinstance(found, Exception):
            job.done.set_exception(found)
        else:
            job.done.set_result(found)
