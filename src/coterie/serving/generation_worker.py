"""The thread that generates: prompts that wait at the same moment go on together."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from coterie.core.errors import BadInput
from coterie.networks.pretrained import PretrainedNetwork
from coterie.serving.batching import QueueFull, ServedRun
from coterie.serving.generation import (
    Sampling,
    Tokens,
    check_language,
    check_prompt,
    ends_of,
    generate_text,
    open_tokens,
)

MAX_GROUP = 64  # prompts that go on together


class NewText(NamedTuple):
    """What a step adds to the answer."""

    text: str
    last: str = ""  # why it ends: "stop" or "length"; "": it goes on
    tokens: int = 0  # generated so far


class PendingPrompt(NamedTuple):
    """A prompt that waits, and where its text goes."""

    served: ServedRun
    client: int
    ids: list[int]
    how: Sampling
    out: asyncio.Queue[NewText | Exception]
    loop: asyncio.AbstractEventLoop

    def tell(self, what: NewText | Exception) -> None:
        """Hand over to the thread of the request."""
        self.loop.call_soon_threadsafe(self.out.put_nowait, what)


class Generator:
    """The language models of one run: a network of its own, as predictions use theirs meanwhile."""

    def __init__(self, served: ServedRun) -> None:
        self.served = served
        self._networks: dict[int, PretrainedNetwork] = {}  # by architecture

    def network(self, client: int) -> PretrainedNetwork:
        """The network of a client, with weights of nobody but the backbone's."""
        kind = self.served.architecture[client]
        if kind not in self._networks:
            about = self.served.models.weights(client).about
            name = self.served.models.names[client]
            self._networks[kind] = check_language(self.served.models.network(about), name)
        return self._networks[kind]

    def tokens(self, client: int) -> Tokens:
        """The tokenizer of the run."""
        kept = self.served.models.preparation
        if kept is None or not kept.text:
            raise BadInput("this run has no texts: use /predict")
        return open_tokens(kept.text.tokenizer, ends_of(self.network(client)))

    def read_prompt(self, client: int, prompt: str, how: Sampling) -> list[int]:
        """The tokens of a prompt, if the client's model can go on with it."""
        ids = self.tokens(client).encode(prompt)
        check_prompt(self.network(client), ids, how)
        return ids

    def run(self, jobs: Sequence[PendingPrompt]) -> None:
        """Answer some prompts of clients with one architecture."""
        first = jobs[0].client
        network: PretrainedNetwork = self.network(first)
        adapters: dict[str, Tensor] = self.served.gather([job.client for job in jobs])
        generate_text(
            network,
            adapters,
            self.tokens(first),
            [job.ids for job in jobs],
            [job.how for job in jobs],
            lambda row, text, last, count: jobs[row].tell(NewText(text, last, count)),
        )


class GenerationWorker:
    """The thread."""

    def __init__(self, waiting: int) -> None:
        self._jobs: queue.Queue[PendingPrompt | None] = queue.Queue(waiting)
        self._generators: dict[int, Generator] = {}  # by run that is served
        self._thread: threading.Thread | None = None

    def generator(self, served: ServedRun) -> Generator:
        """That of a run; those of runs that are not served any more are given up."""
        if id(served) not in self._generators:
            self._generators = {id(served): Generator(served)}
        return self._generators[id(served)]

    def ask(
        self, served: ServedRun, client: int, ids: list[int], how: Sampling
    ) -> asyncio.Queue[NewText | Exception]:
        """Where the text will come."""
        loop = asyncio.get_running_loop()
        out: asyncio.Queue[NewText | Exception] = asyncio.Queue()
        try:
            self._jobs.put_nowait(PendingPrompt(served, client, ids, how, out, loop))
        except queue.Full:
            raise QueueFull from None
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="generation", daemon=True)
            self._thread.start()
        return out

    def close(self) -> None:
        """Answer what waits, then stop."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(30)

    def _work(self) -> None:
        while True:
            jobs = [self._jobs.get()]
            while len(jobs) < MAX_GROUP and not self._jobs.empty():
                jobs.append(self._jobs.get_nowait())
            groups: dict[Any, list[PendingPrompt]] = {}
            for job in jobs:
                if job is not None:
                    kind = job.served.architecture[job.client]
                    groups.setdefault((id(job.served), kind), []).append(job)
            for some in groups.values():
                self._answer(some)
            if None in jobs:
                return

    def _answer(self, jobs: list[PendingPrompt]) -> None:
        try:
            self.generator(jobs[0].served).run(jobs)
        except Exception as problem:  # the thread must live on for the next prompts
            for job in jobs:
                job.tell(problem)
