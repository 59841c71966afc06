"""A site at work: holds its rows and its client's state, and answers the server's messages one at a
time.

Every message carries the experiment's words, so a site that was killed and started again knows at
once what to do; the words choose from this installation's own methods and networks, never code from
the network. The state that a message makes is kept beside the one it was made from, and counts when
a later message names it (see store).
"""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Tree
from coterie.core.version import __version__
from coterie.data.dataset import Public
from coterie.data.federation import PARTS, Federation
from coterie.data.prepare.moments import Moments
from coterie.deploy import config_files, wire
from coterie.deploy.config_files import DataShape, Privacy, combine_privacy, read_site, resolve_path
from coterie.deploy.current_model import MODEL, write_current_model
from coterie.deploy.scales import (
    MOMENTS,
    Scales,
    moments_of,
    parse_scales,
    placeholder_scales,
    scale_federation,
)
from coterie.deploy.site_rows import (
    check_rows,
    count_parts,
    read_public,
    read_rows,
    site_federation,
)
from coterie.deploy.state_store import StateStore, StoredState
from coterie.deploy.upload_privacy import protect, secure_rng
from coterie.deploy.wire import DIVERGED, LOST, Content, Head
from coterie.engines.base import ExchangeRequest, Metrics, Moment
from coterie.engines.local.engine import LocalEngine
from coterie.engines.local.states import to_tensors
from coterie.experiment.config import PYTHON, Experiment, change_options, flatten_options
from coterie.running.assembly import assemble
from coterie_relay import frames
from coterie_relay.frames import BadFrame, Frame

NO_PRIVACY = Privacy()
SOCKET_SECONDS = 60.0  # seconds for a message to come or go through the socket
KINDS = ("hello", MOMENTS, "train", "evaluate", "finish")
Config = dict[str, Any]
LogLine = Callable[[str], None]
print_line = partial(print, flush=True)
Agree = Callable[[Config], None]
Build = Callable[[Config, int, Scales | None], tuple[LocalEngine, Federation]]


class StateLost(Exception):
    """The state that a message builds on is not on this site's disk."""


class NotFinite(BadInput):
    """What this site made of a message is not finite."""


class Site:
    """One client: `answer` takes a message and gives the reply; it raises nothing that a message
    could cause.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        about: Callable[[Config], Head],  # what a hello is answered with
        build: Build,  # the words of an experiment, the client's number, the scale -> its engine
        sums: Callable[[Config, int], Moments],  # what the sites' common scale is made of
        privacy: Privacy = NO_PRIVACY,
        say: LogLine = print_line,
        state: str = "state",
        agree: Agree = lambda words: None,  # raises BadInput for words that this site does not run
    ):
        self.name, self.folder, self._about, self._build, self._privacy, self._log = (
            name,
            folder,
            about,
            build,
            privacy,
            say,
        )
        self.store = StateStore(resolve_path(folder, state), say)
        self._compute_sums, self._agree = sums, agree
        self._built: tuple[str, LocalEngine, Federation] | None = None

    def answer(self, frame: Frame) -> Frame:
        """The reply to a message; an error is told on both sides."""
        begin = time.perf_counter()
        try:
            content = wire.unpack(frame)
            head, tree = self._handle(content)
            return wire.pack({"error": "", **head, "seconds": time.perf_counter() - begin}, tree)
        except StateLost as lost:
            return self._refusal(str(lost), LOST)
        except NotFinite as problem:
            return self._refusal(str(problem), DIVERGED)
        except BadInput as problem:
            return self._refusal(str(problem))
        # a bug, or a message that fits nothing here: the server hears of it, the site goes on
        except Exception as problem:
            traceback.print_exc()
            return self._refusal(f"{type(problem).__name__}: {problem}")

    def _refusal(self, why: str, code: str = "") -> Frame:
        line = " ".join(why.split())[:500]
        self._log(f"refused a message: {line}")
        return wire.pack({"error": line, "code": code, "name": self.name})

    def _handle(self, content: Content) -> tuple[Head, Tree]:
        head = content.head
        kind, words = head.get("kind"), head.get("words")
        if kind not in KINDS or not isinstance(words, dict):
            raise BadInput(
                f"the message is of kind '{kind}': install the same version of coterie at the "
                "server and at every site"
            )
        self._agree(words)
        if kind == "hello":
            self.engine(words, 0)  # refuses what could not run here
            return {"name": self.name, "version": __version__, **self._about(words)}, ()
        number = _read_whole(head, "site")
        if head.get("name") != self.name:
            raise BadInput(
                f"the message is for site '{head.get('name')}', this is '{self.name}': start the "
                "server again"
            )
        if head.get("refused"):
            self._log(
                "the server could not use the last reply. "
                f"{' '.join(str(head['refused']).split())[:500]}"
            )
        if kind == MOMENTS:
            return {"name": self.name}, self._pack_moments(words, number)
        engine, federation = self.engine(words, number, parse_scales(head.get("scales")))
        have = {part: len(getattr(federation, part)[number]) for part in PARTS}
        if head.get("rows") != have:
            raise BadInput(
                f"the data of '{self.name}' have changed since the run began (rows "
                f"{head.get('rows')}, now {have})"
            )
        when = self._enter_stage(engine, head, number)
        payload = to_tensors(content.tree())
        if kind == "train":
            return self._train(engine, head, number, when, payload)
        if kind == "evaluate":
            return self._evaluate(engine, federation, head, number, when, payload), ()
        self._measure(engine, federation, head, number, when, payload, PARTS, final=False)
        self._log(f"the run is over: the model of '{self.name}' is {self.folder / MODEL}")
        return {"name": self.name}, ()

    def engine(
        self, words: Config, number: int, scales: Scales | None = None
    ) -> tuple[LocalEngine, Federation]:
        """The engine of these words and this scale of the columns, built once."""
        key = json.dumps([words, number, scales], sort_keys=True)
        if self._built is None or self._built[0] != key:
            self._built = (key, *self._build(words, number, scales))
        return self._built[1:]

    def _effective_privacy(self, words: Config) -> Privacy:
        """What this site does to what leaves it."""
        return combine_privacy(Privacy(*words.get("privacy", ())), self._privacy)

    def _pack_moments(self, words: Config, number: int) -> Tree:
        """What standardising needs to know of this site's training rows."""
        guard = self._effective_privacy(words)
        if guard.clip or guard.noise:
            raise BadInput(
                f"[privacy] of '{self.name}' lets no mean of its columns out: write scale = "
                '"none" into [data] of server.toml'
            )
        found = self._compute_sums(words, number)
        return tuple(
            torch.as_tensor(part, dtype=torch.float64)
            for part in (found.count, found.total, found.squares)
        )

    def _enter_stage(self, engine: LocalEngine, head: Head, number: int) -> Moment:
        """Put the engine where the message says: its stage, and the client's state that it builds
        on.
        """
        stage, base, run = _read_whole(head, "stage"), head.get("base"), str(head.get("run"))
        a = int(engine.architecture[number])
        if stage >= len(engine.programs[a]):
            raise BadInput(
                f"the message is of stage {stage}, the method has {len(engine.programs[a])}"
            )
        kept = None if base is None else self.store.load(run, str(base))
        if base is not None and kept is None:
            raise StateLost(f"site '{self.name}' lost its state {base}")
        nobody: list[Any] = [([], None) for _ in engine.models]
        if kept is None:
            engine.restore(nobody, stage)
        else:
            mine = [([number], kept.state) if k == a else empty for k, empty in enumerate(nobody)]
            engine.restore(mine, min(kept.stage, stage))
            for later in range(kept.stage + 1, stage + 1):
                engine.enter(later)
        return Moment(engine.programs[a][stage].name, _read_whole(head, "round"))

    def _train(
        self, engine: LocalEngine, head: Head, number: int, when: Moment, payload: Tree
    ) -> tuple[Head, Tree]:
        index, run, words = _read_whole(head, "exchange"), str(head["run"]), head["words"]
        a = int(engine.architecture[number])
        if index >= len(engine.method(a).round):
            raise BadInput(
                f"the message is of exchange {index}, the method has {len(engine.method(a).round)}"
            )
        trip = ExchangeRequest(
            number=index,
            when=when,
            clients=[number],
            send=lambda _: payload,
            answered={number},
            averaged={number},
        )
        (worked,) = engine.work(trip)
        if worked.broken:
            raise NotFinite(
                "the update of this site is not finite: lower the rate of training, or look at the "
                "site's data"
            )
        engine.keep(worked, trip.answered)
        token = f"{engine.stage}-{when.round}-{index}"
        self.store.save(run, token, StoredState(engine.stage, worked.state))
        self.store.keep(run, {token, *(str(t) for t in head.get("keep", []))})
        guard = self._effective_privacy(words)
        upload = pytree.tree_map(lambda t: t[0], worked.upload)
        upload = protect(upload, payload, guard.clip, guard.noise, secure_rng())
        noted = engine.client_notes([number]) if guard.measures else {}
        notes = {name: values[number] for name, values in noted.items()}
        return {"token": token, "effort": list(worked.effort), "notes": notes}, upload

    def _evaluate(
        self,
        engine: LocalEngine,
        federation: Federation,
        head: Head,
        number: int,
        when: Moment,
        payload: Tree,
    ) -> Head:
        parts, final = [p for p in head.get("parts", []) if p in PARTS], bool(head.get("final"))
        found = self._measure(engine, federation, head, number, when, payload, parts, final)
        if not self._effective_privacy(head["words"]).measures:
            return {"values": []}
        return {"values": [[*key, float(column[0])] for key, column in found.items()]}

    def _measure(
        self,
        engine: LocalEngine,
        federation: Federation,
        head: Head,
        number: int,
        when: Moment,
        payload: Tree,
        parts: Sequence[str],
        final: bool,
    ) -> Metrics:
        """What the client's own model is worth now; the model is kept for whoever predicts here."""

        def send(_: int) -> Tree:
            return payload

        found = engine.evaluate([number], send, when, parts, final)
        place = self.folder / MODEL
        write_current_model(engine, federation, number, send, when, place, head["words"], found)
        return found


def _read_whole(head: Head, word: str) -> int:
    value = head.get(word)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise BadInput(
            f"the message's {word} is {str(value)[:80]}: it must be a whole number of 0 or more"
        )
    return value


# From a folder


def open_site(folder: Path, say: LogLine = print_line, agree: Agree = lambda words: None) -> Site:
    """The site of a folder with a site.toml; its data are read now, so that a mistake is seen at
    once.
    """
    settings = read_site(folder)
    home = settings.site
    rows = read_rows(resolve_path(folder, home.data), home.label, home.features)
    public = read_public(resolve_path(folder, home.public), home.label) if home.public else None

    def about(words: Config) -> Head:
        shape = shape_of(words)
        check_rows(rows, shape)
        return {
            "rows": count_parts(len(rows.y), shape),
            "columns": rows.columns,
            "public": public.checksum if public else "",
        }

    def raw(words: Config, number: int) -> Federation:
        clients = len(words["architecture"])
        return site_federation(
            rows,
            shape_of(words),
            home.name,
            number,
            clients,
            _check_public(public, words, home.public),
        )

    def build(words: Config, number: int, scales: Scales | None) -> tuple[LocalEngine, Federation]:
        federation = scale_federation(
            raw(words, number), scales or placeholder_scales(shape_of(words))
        )
        return build_engine(words, federation, number), federation

    def sums(words: Config, number: int) -> Moments:
        return moments_of(raw(words, number), number)

    return Site(home.name, folder, about, build, sums, settings.privacy, say, home.state, agree)


def shape_of(words: Config) -> DataShape:
    """What the rows must look like, as the server says."""
    shape: DataShape = config_files.read_table(DataShape, words.get("data", {}), "data")
    config_files.check_shape(shape)
    return shape


def _check_public(public: Public | None, words: Config, place: str) -> Public | None:
    """The public rows, if they are the server's."""
    wanted = words.get("public", "")
    if not wanted:
        return None
    if public is None:
        raise BadInput("this deployment has public rows: name the file with `public` in site.toml")
    if public.checksum != wanted:
        raise BadInput(
            f"{place} is not the public file of this deployment (another checksum): copy the "
            "server's"
        )
    return public


def build_engine(words: Config, federation: Federation, number: int) -> LocalEngine:
    """The engine of an experiment's words, from the methods and networks that are installed
    here.
    """
    sections: Config = {
        name: words[name]
        for name in ("method", "seed", "model", "train", "options")
        if name in words
    }
    experiment = change_options(
        Experiment(),
        flatten_options(
            {
                "data": {"name": f"{PYTHON}{federation.name}"},
                "schedule": {"metric": str(words.get("metric", ""))},
                **sections,
            }
        ),
    )
    assembly = assemble(
        experiment, federation, architecture=words["architecture"], clients=[number]
    )
    return LocalEngine(assembly.setup.alone())


def serve_folder(
    folder: Path,
    path: Path,
    say: LogLine = print_line,
    stop: Callable[[], bool] = lambda: False,
    agree: Agree = lambda words: None,
) -> None:
    """Answer what comes over a Unix socket, one message at a time, until `stop` says so."""
    serve_socket(open_site(folder, say, agree), path, say, stop)


def serve_socket(
    site: Site, path: Path, say: LogLine = print_line, stop: Callable[[], bool] = lambda: False
) -> None:
    """A site on its socket; only the owner of the file may connect."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen()
        listener.settimeout(0.2)
        say(f"site '{site.name}' is ready")
        while not stop():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(SOCKET_SECONDS)
                try:
                    frames.send(connection, site.answer(frames.receive(connection)))
                except (OSError, BadFrame) as problem:
                    say(f"a message was lost on the way through this machine: {problem}")
    path.unlink(missing_ok=True)
