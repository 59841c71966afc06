"""A running service: the run it serves now, who may ask, and how another run takes over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.errors import BadInput, CannotWrite, format_value
from coterie.core.files import path_exists
from coterie.results.added_models import FILE as LATER
from coterie.results.folder import ABOUT
from coterie.results.models import MODELS
from coterie.serving.batching import BatchWorker, ServedRun
from coterie.serving.generation_worker import GenerationWorker
from coterie.serving.metrics import ServiceMetrics
from coterie.serving.openapi import build_document
from coterie.serving.tokens import FILE, Tokens, open_tokens


class ServiceLimits(NamedTuple):
    """What one service takes on."""

    bytes: int = 10_000_000  # of a body
    rows: int = 10_000  # of a request
    seconds: float = 10.0  # to send a body, and to wait for an answer
    waiting: int = 1_000  # requests
    models: int = 1_000  # in memory, of each network


class Snapshot(NamedTuple):
    """What one request sees, whatever is reloaded meanwhile."""

    served: ServedRun
    tokens: Tokens | None  # None: whoever reaches it may ask


class Service:
    """What all requests share."""

    def __init__(
        self,
        folder: Path,
        tokens: Path | None,  # None: whoever reaches it may ask
        limits: ServiceLimits,
        build: Callable[[], Any] | None = None,
    ) -> None:
        self.folder, self.limits, self._build = folder, limits, build
        self.token_file = tokens
        self.seen = self.version()
        self.current = self._open(folder)
        self.worker, self.numbers = BatchWorker(limits.waiting), ServiceMetrics()
        self.generation = GenerationWorker(limits.waiting)
        self.openapi = self._build_openapi()
        self._lock = threading.Lock()

    @property
    def served(self) -> ServedRun:
        return self.current.served

    @property
    def tokens(self) -> Tokens | None:
        return self.current.tokens

    def _open(self, folder: Path) -> Snapshot:
        """The models of a folder, and who may ask for them."""
        served = ServedRun(folder, self.limits.models, self._build)
        if self.token_file is None:
            return Snapshot(served, None)
        try:
            return Snapshot(served, open_tokens(self.token_file, served.models.names))
        except CannotWrite as problem:
            why = str(problem).partition(":")[0]
            raise BadInput(f"{why}: say with --tokens FILE where the tokens may lie") from None

    def _build_openapi(self) -> dict[str, Any]:
        served = self.served
        return build_document(
            served.reader.intake, served.task, self.limits.rows, self.tokens is not None
        )

    def version(self) -> tuple[str, float]:
        """Which run lies at the folder now: it may be a link that is turned to a newer one."""
        try:
            later = self.folder / MODELS / LATER  # models that came after training
            files = [self.folder / ABOUT, *([later] if later.exists() else [])]
            return str(self.folder.resolve()), max(path.stat().st_mtime for path in files)
        except OSError:
            return "", 0.0

    def reload(self, beside: str = "") -> dict[str, Any]:
        """Serve the folder as it is now, or another one beside it.

        Requests that wait are answered by the run that they were asked of. A run that cannot be
        served changes nothing.
        """
        with self._lock:
            folder = self._sibling_folder(beside) if beside else self.folder
            self.current = self._open(folder)
            self.folder = folder
            self.openapi, self.seen = self._build_openapi(), self.version()
            self.numbers.reloads += 1
            return self.describe()

    def _sibling_folder(self, name: str) -> Path:
        """A folder beside the present one, by its plain name."""
        if name != Path(name).name or "\0" in name or name in (".", ".."):
            raise BadInput(f"run = {format_value(name)}: name a folder beside {self.folder.name}")
        found = self.folder.absolute().parent / name
        if not path_exists(found):  # nor can there be one, where the name is too long
            raise BadInput(f"run = {format_value(name)}: there is no such folder beside this run")
        return found

    def describe(self) -> dict[str, Any]:
        """What the service says of itself."""
        models = self.served.models
        return {
            "status": "ok",
            "run": self.folder.name,
            "clients": len(models.names),
            "data": models.about["data"],
        }

    def gauges(self) -> dict[str, tuple[str, str, float]]:
        """The numbers of the moment."""
        slots = list(self.served.slots.values())
        return {
            "waiting": ("gauge", "Requests that wait.", self.worker.waiting),
            "groups_total": (
                "counter",
                "Groups of requests answered together.",
                self.worker.groups,
            ),
            "grouped_total": ("counter", "Requests in these groups.", self.worker.grouped),
            "models_loaded": ("gauge", "Models in memory.", sum(len(s) for s in slots)),
            "model_hits_total": ("counter", "Models found there.", sum(s.hits for s in slots)),
            "model_misses_total": ("counter", "Models read.", sum(s.misses for s in slots)),
            "model_evictions_total": (
                "counter",
                "Models given up.",
                sum(s.evictions for s in slots),
            ),
        }


def default_token_file(folder: Path) -> Path:
    """Where the tokens of a run lie unless they are elsewhere."""
    return folder / FILE
