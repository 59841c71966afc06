"""A site at work: holds its rows and its client's state, and answers the server's messages one at a
time.

Every message carries the experiment's settings, so a site that was killed and started again knows
at once what to do; they choose from this installation's own methods and networks, never code from
the network. The state that a message makes is kept beside the one it was made from, and counts when
a later message names it (see store).
"""

from __future__ import annotations

import json
import re
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
from coterie.data.federation import PARTS, Federation
from coterie.deploy import config_files, cross_site, wire
from coterie.deploy.accountant import Accountant
from coterie.deploy.answers import AnswerBook, Plan, digest_question, plan_of
from coterie.deploy.audit import AUDIT, AuditLog
from coterie.deploy.config_files import (
    DataShape,
    Limits,
    Privacy,
    check_network,
    check_no_function,
    combine_privacy,
    parse_privacy,
    read_site,
    resolve_path,
)
from coterie.deploy.consent import digest_of
from coterie.deploy.current_model import MODEL, keep_old_model, write_current_model
from coterie.deploy.disclosure import (
    Refusal,
    Unfit,
    list_scores,
    refusing,
    round_logged,
    text_for_others,
)
from coterie.deploy.frames import Frame
from coterie.deploy.logs import sanitize
from coterie.deploy.policy import count_agreements, digest_data
from coterie.deploy.scales import (
    MOMENTS,
    Scales,
    parse_scales,
    placeholder_scales,
    scale_federation,
    sum_rows,
)
from coterie.deploy.secure_masks import STEPS, Masker
from coterie.deploy.site_rows import (
    SiteFile,
    SiteRows,
    check_rows,
    count_parts,
    read_public,
    site_federation,
    to_public,
)
from coterie.deploy.state_store import RUN_PATTERN, StateStore, StoredState
from coterie.deploy.statistics import ColumnSums
from coterie.deploy.upload_privacy import protect, secure_rng
from coterie.deploy.wire import DIVERGED, LOST, Content, Head
from coterie.engines.base import ExchangeRequest, Metrics, Moment
from coterie.engines.local.engine import LocalEngine
from coterie.engines.local.states import to_tensors
from coterie.experiment.config import PYTHON, Experiment, change_options, flatten_options
from coterie.running.assembly import assemble

NO_PRIVACY, LIMITS = Privacy(), Limits()
REPLIES = "replies"  # in the folder of a site's state: uploads that may be asked for again
MAX_REFUSAL, MAX_REPORTED = (
    2_000,
    100,
)  # characters of a refusal in this site's own log, and how many
KINDS = (
    "hello",
    MOMENTS,
    "train",
    *STEPS,
    "evaluate",
    "finish",
    cross_site.MODEL,
    cross_site.JUDGE,
)
Config = dict[str, Any]
LogLine = Callable[[str], None]
print_line = partial(print, flush=True)
# the experiment, the run where there is one, the log, and how many training rows there are
Agree = Callable[[Config, str, AuditLog, Callable[[], int]], None]
Build = Callable[[Config, int, Scales | None], tuple[LocalEngine, Federation]]


class StateLost(Refusal):
    """The state that a message builds on is not on this site's disk."""


class NotFinite(Refusal):
    """What this site made of a message is not finite."""


def agree_to_all(config: Config, run: str, log: AuditLog, rows: Callable[[], int]) -> None:
    """For a site that nobody but its owner asks."""


class Site:
    """One client: `answer` takes a message and gives the reply; it raises nothing that a message
    could cause.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        about: Callable[[Config], Head],  # what a hello is answered with
        build: Build,  # the settings of an experiment, the client's number, the scale -> its engine
        sums: Callable[[Config, int], ColumnSums],  # what the sites' common scale is made of
        privacy: Privacy = NO_PRIVACY,
        say: LogLine = print_line,
        state: str = "state",
        agree: Agree = agree_to_all,  # raises BadInput for settings that this site does not run
        limits: Limits = LIMITS,
        data: str = "",  # a digest of its rows
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
        self._compute_sums, self._agree, self._limits, self._data = sums, agree, limits, data
        self._built: tuple[str, LocalEngine, Federation] | None = None
        self.log = AuditLog(folder / AUDIT)
        self.book = AnswerBook(self.log, self.store.folder / REPLIES)
        self._masker = Masker(self.book.reveal)
        self.accountant = Accountant(self.log.events, privacy.delta, limits.epsilon)
        self._reported: set[str] = set()  # refusals, which are not reported twice

    def answer(self, frame: Frame) -> Frame:
        """The reply to a message; an error is told on both sides."""
        begin = time.perf_counter()
        try:
            with refusing():
                content = wire.unpack(frame)
            reply = self._handle(content)
            seconds = time.perf_counter() - begin
            return reply._replace(head=json.dumps(json.loads(reply.head) | {"seconds": seconds}))
        except StateLost as lost:
            return self._refuse(lost, LOST)
        except NotFinite as problem:
            return self._refuse(problem, DIVERGED)
        except BadInput as problem:
            return self._refuse(problem)
        # a bug, or a message that fits nothing here: the server hears of it, the site goes on
        except Exception as problem:
            traceback.print_exc()
            return self._refuse(problem)

    def _refuse(self, problem: Exception, code: str = "") -> Frame:
        """Say why here, and to the server without anything of this site's own."""
        known = isinstance(problem, BadInput)
        line = sanitize(problem if known else repr(problem), MAX_REFUSAL)
        if line not in self._reported:
            self._log(f"refused a message: {line}")
        self._reported = {*self._reported, line} if len(self._reported) < MAX_REPORTED else {line}
        shared = " ".join(text_for_others(problem).split())[:500]
        return wire.pack({"error": shared, "code": code, "name": self.name})

    def _handle(self, content: Content) -> Frame:
        """The reply, but for the seconds that it took."""
        head = content.head
        kind, config = head.get("kind"), head.get("words")
        if kind not in KINDS or not isinstance(config, dict):
            raise Refusal(
                f"the message is of kind '{kind}': install the same version of coterie at the "
                "server and at every site"
            )
        run = "" if kind in ("hello", MOMENTS) else _read_run(head)
        if kind == "hello":
            _check_version(head)
        self._agree(config, run, self.log, lambda: self._about(config)["rows"]["train"])
        self._check_masks(config)
        if kind == "hello":
            self.engine(config, 0)  # refuses what could not run here
            return _pack({"name": self.name, "version": __version__, **self._about(config)})
        number = _read_whole(head, "site")
        if head.get("name") != self.name:
            raise Refusal(
                f"the message is for site '{head.get('name')}', this is '{self.name}': start the "
                "server again"
            )
        if head.get("refused"):
            self._log(f"the server could not use the last reply. {sanitize(head['refused'])}")
        if kind == MOMENTS:
            return self._sum_columns(config, number)
        if kind in STEPS:
            rows = self._about(config)["rows"]["train"]
            return self._masker.answer(kind, head, run, _read_token(head), number, rows)
        with refusing():
            scales = parse_scales(head.get("scales"))
        engine, federation = self.engine(config, number, scales)
        have = {part: len(getattr(federation, part)[number]) for part in PARTS}
        if head.get("rows") != have:
            raise Refusal(
                f"the data of '{self.name}' have changed since the run began (rows "
                f"{head.get('rows')}, now {have})"
            )
        self._enter_run(run, config, number)
        plan = plan_of(config, engine.programs[int(engine.architecture[number])])
        with refusing():
            payload = to_tensors(content.tree())
        if kind == "train":
            reply = self._train(engine, head, number, plan, payload)
            if not self._effective_privacy(config).secure_sum:
                return reply
            question = self._digest_question(head, number)
            return self._masker.begin(reply, run, _read_token(head), question)
        if kind == "evaluate":
            return self._evaluate(engine, federation, head, number, plan, payload)
        when = self._enter_stage(engine, head, number)
        if kind in (cross_site.MODEL, cross_site.JUDGE):
            cross_site.check_end(plan.rounds, engine.stage, when)
            act = self._send_model if kind == cross_site.MODEL else self._judge_model
            return act(engine, head, number, when, payload)
        self._measure(engine, federation, head, number, when, payload, PARTS, final=False)
        self._log(f"the run is over: the model of '{self.name}' is {self.folder / MODEL}")
        if self.accountant.uploads:
            self._log(self.accountant.sentence())
        return _pack({"name": self.name})

    def _check_masks(self, config: Config) -> None:
        """Refuse an experiment with bare uploads where this site insists on masks."""
        with refusing():
            asked = parse_privacy(config.get("privacy", []))
        if self._privacy.secure_sum and not asked.secure_sum:
            raise Refusal(
                f"'{self.name}' sends masked uploads only: write secure_sum = true into [privacy] "
                "of server.toml"
            )

    def _enter_run(self, run: str, config: Config, number: int) -> None:
        """Note a run that begins, and rows that have changed since it did; the model of the run
        before it is kept under that run's name.
        """
        last = self.book.last_run
        if last and not self.book.knows(run) and (self.folder / MODEL).exists():
            keep_old_model(self.folder, last)
        if not self.book.enter_run(run, digest_of(config), number, self._data):
            self._log(
                f"the rows of '{self.name}' have changed since the run {run} began: it goes on "
                "with those of now"
            )

    def engine(
        self, config: Config, number: int, scales: Scales | None = None
    ) -> tuple[LocalEngine, Federation]:
        """The engine of these settings and this scale of the columns, built once."""
        key = json.dumps([config, number, scales], sort_keys=True)
        if self._built is None or self._built[0] != key:
            self._built = (key, *self._build(config, number, scales))
        return self._built[1:]

    def _effective_privacy(self, config: Config) -> Privacy:
        """What this site does to what leaves it; a budget covers uploads only, so nothing else
        leaves where there is one.
        """
        with refusing():
            asked = parse_privacy(config.get("privacy", []))
        both = combine_privacy(asked, self._privacy)
        return both._replace(measures=False) if self._limits.epsilon else both

    def _sum_columns(self, config: Config, number: int) -> Frame:
        """What standardising needs to know of this site's training rows."""
        guard = self._effective_privacy(config)
        if guard.clip or guard.noise or self._limits.epsilon:
            raise Refusal(
                f"[privacy] of '{self.name}' lets no mean of its columns out: write scale = "
                '"none" into [data] of server.toml'
            )
        found = self._compute_sums(config, number)
        if found.rows < self._limits.rows:
            raise Refusal(
                f"'{self.name}' has fewer than {self._limits.rows} training rows, and tells no "
                "mean of so few (limits.rows)"
            )
        columns = digest_data(config)
        agreement = count_agreements(columns, self.log.events)
        self.book.sum_columns(columns, number, self._data, agreement)
        sums = tuple(
            torch.as_tensor(part, dtype=torch.float64)
            for part in (found.moments.count, found.moments.total, found.moments.squares)
        )
        facts = {"facts": found.facts} if found.facts else {}
        return _pack({"name": self.name, **facts}, sums)

    def _enter_stage(self, engine: LocalEngine, head: Head, number: int) -> Moment:
        """Put the engine where the message says: its stage, and the client's state that it builds
        on.
        """
        stage, base, run = _read_whole(head, "stage"), head.get("base"), str(head.get("run"))
        a = int(engine.architecture[number])
        if stage >= len(engine.programs[a]):
            raise Refusal(
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
        self, engine: LocalEngine, head: Head, number: int, plan: Plan, payload: Tree
    ) -> Frame:
        """The upload, the same one to the same question."""
        index, run, config = _read_whole(head, "exchange"), str(head["run"]), head["words"]
        token = _read_token(head)
        question = self._digest_question(head, number)
        known = self.book.find_upload(run, token, question)
        if known is not None:
            return known
        guard = self._effective_privacy(config)
        self.accountant.check(guard.noise)
        when = self._enter_stage(engine, head, number)
        plan.check_round(engine.stage, when.round)
        a = int(engine.architecture[number])
        if index >= len(engine.method(a).round):
            raise Refusal(
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
        try:
            (worked,) = engine.work(trip)
            if worked.broken:
                raise NotFinite(
                    "the update of this site is not finite: lower the rate of training, or look at "
                    "the site's data"
                )
        except Exception:  # that there is no update tells something of the rows: it counts
            self.book.note_failure(run, token, question)
            raise
        engine.keep(worked, trip.answered)
        self.store.save(run, token, StoredState(engine.stage, worked.state))
        self.store.keep(run, {token, *(str(t) for t in head.get("keep", []))})
        upload = pytree.tree_map(lambda t: t[0], worked.upload)
        with refusing():
            upload = protect(upload, payload, guard.clip, guard.noise, secure_rng())
        noted = engine.client_notes([number]) if guard.sends_measures else {}
        logged = {name: values[number] for name, values in noted.items()}
        notes = round_logged(logged, head["rows"]["train"], self._limits)
        reply = _pack({"token": token, "effort": list(worked.effort), "notes": notes}, upload)
        tells = any(t.is_floating_point() for t in pytree.tree_leaves(upload))
        noise = guard.noise if tells else 0.0
        spent = self.accountant.epsilon(more=noise)
        self.book.keep_upload(
            run, token, question, reply, clip=guard.clip, noise=noise, epsilon=spent
        )
        self.accountant.count(noise)
        return reply

    def _digest_question(self, head: Head, number: int) -> str:
        """What decides the answer to a message."""
        config = head["words"]
        network = [*config.get("architecture", ())][number : number + 1]
        fields = ("run", "site", "stage", "round", "exchange", "base", "scales")
        return digest_question(head, f"{digest_of(config)} {network}", *fields)

    def _evaluate(
        self,
        engine: LocalEngine,
        federation: Federation,
        head: Head,
        number: int,
        plan: Plan,
        payload: Tree,
    ) -> Frame:
        """The scores of the client's own model, once per round and part."""
        parts, final = [p for p in head.get("parts", []) if p in PARTS], bool(head.get("final"))
        when = self._enter_stage(engine, head, number)
        if not self._effective_privacy(head["words"]).sends_measures:
            self._measure(engine, federation, head, number, when, payload, parts, final)
            return _pack({"values": []})
        plan.check_evaluation(engine.stage, when.round, parts)
        place = (str(head["run"]), engine.stage, when.round)
        question = self._digest_question(head, number)
        known = self.book.find_scores(*place, parts, question)
        new = [part for part in parts if part not in known]
        if new:
            found = self._measure(engine, federation, head, number, when, payload, new, final)
            scores = list_scores(found, head["rows"], self._limits)
            fresh = {part: [s for s in scores if s[1] == part] for part in new}
            self.book.keep_scores(*place, question, fresh)
            known |= fresh
        return _pack({"values": [list(score) for part in parts for score in known[part]]})

    def _send_model(
        self, engine: LocalEngine, head: Head, number: int, when: Moment, payload: Tree
    ) -> Frame:
        """This site's own model, for the others to measure."""
        config, run, token = head["words"], str(head["run"]), cross_site.MODEL
        cross_site.check_agreed(config, self._effective_privacy(config), self._limits, number)
        question = self._digest_question(head, number)
        known = self.book.find_upload(run, token, question)
        if known is not None:
            return known
        point = cross_site.own_model(engine, number, lambda _: payload, when)
        reply = _pack({}, point)
        self.book.keep_upload(run, token, question, reply, clip=0.0, noise=0.0, epsilon=0.0)
        return reply

    def _judge_model(
        self, engine: LocalEngine, head: Head, number: int, when: Moment, point: Tree
    ) -> Frame:
        """What the own model of a site is worth here, once for each site."""
        config, owner = head["words"], _read_whole(head, "of")
        cross_site.check_agreed(config, self._effective_privacy(config), self._limits, owner)
        part = f"{cross_site.TEST} by the model of {config[cross_site.SITES][owner]}"
        place, question = (str(head["run"]), engine.stage, when.round), digest_question(head, part)
        known = self.book.find_scores(*place, [part], question)
        if part not in known:
            a = int(engine.architecture[owner])
            with refusing():
                wire.check_like(point, engine.models[a].start(0))
            scores = cross_site.judge_model(engine, a, point, number, head["rows"], self._limits)
            known = {part: scores}
            self.book.keep_scores(*place, question, known)
        return _pack({"values": [list(score) for score in known[part]]})

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


def _pack(head: Head, tree: Tree = ()) -> Frame:
    """A reply that is no error."""
    return wire.pack({"error": "", **head}, tree)


def _read_whole(head: Head, option: str) -> int:
    value = head.get(option)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise Refusal(
            f"the message's {option} is {str(value)[:80]}: it must be a whole number of 0 or more"
        )
    return value


def _read_token(head: Head) -> str:
    """What names the exchange of a message."""
    return "-".join(str(_read_whole(head, option)) for option in ("stage", "round", "exchange"))


def _read_run(head: Head) -> str:
    run = str(head.get("run"))
    if not re.fullmatch(RUN_PATTERN, run):  # it names a folder, and comes from the network
        raise Refusal(f"the message's run '{run[:80]}' is no name of a run")
    return run


def _check_version(head: Head) -> None:
    """Refuse a server of another version; one that does not say is told ours, and compares."""
    version = head.get("version", __version__)
    if version != __version__:
        raise Refusal(
            f"this site runs coterie {__version__}, the server {str(version)[:40]}: install the "
            "same version at both"
        )


# From a folder


def open_site(folder: Path, say: LogLine = print_line, agree: Agree = agree_to_all) -> Site:
    """The site of a folder with a site.toml; its data are read now, so that a mistake is seen at
    once.
    """
    settings = read_site(folder)
    home = settings.site
    file = SiteFile(resolve_path(folder, home.data), home.label, home.features)
    shown = resolve_path(folder, home.public) if home.public else None

    def about(config: Config) -> Head:
        shape = shape_of(config)
        rows = file.rows(shape)
        check_rows(rows, shape)
        public = read_public(shown, home.label, shape) if shown else None
        return {
            "rows": count_parts(rows, shape),
            "columns": rows.columns,
            "public": to_public(public).checksum if public else "",
        }

    def raw(config: Config, number: int) -> Federation:
        shape = shape_of(config)
        public = read_public(shown, home.label, shape) if shown and config.get("public") else None
        return site_federation(
            file.rows(shape),
            shape,
            home.name,
            number,
            len(config["architecture"]),
            _check_public(public, config, home.public),
        )

    def build(config: Config, number: int, scales: Scales | None) -> tuple[LocalEngine, Federation]:
        shape = shape_of(config)
        federation = scale_federation(raw(config, number), scales or placeholder_scales(shape))
        with refusing():
            return build_engine(config, federation, number), federation

    def sums(config: Config, number: int) -> ColumnSums:
        return sum_rows(raw(config, number), number, shape_of(config), settings.limits)

    return Site(
        home.name,
        folder,
        about,
        build,
        sums,
        settings.privacy,
        say,
        home.state,
        agree,
        settings.limits,
        file.digest,
    )


def shape_of(config: Config) -> DataShape:
    """What the rows must look like, as the server says."""
    with refusing():
        shape: DataShape = config_files.read_table(DataShape, config.get("data", {}), "data")
        config_files.check_shape(shape)
    return shape


def _check_public(public: SiteRows | None, config: Config, place: str) -> SiteRows | None:
    """The public rows, if they are the server's."""
    wanted = config.get("public", "")
    if not wanted:
        return None
    if public is None:
        raise Refusal("this deployment has public rows: name the file with `public` in site.toml")
    if to_public(public).checksum != wanted:
        what = "is not the public file of this deployment (another checksum): copy the server's"
        raise Unfit(f"{place} {what}", f"its public file {what}")
    return public


def build_engine(config: Config, federation: Federation, number: int) -> LocalEngine:
    """The engine of an experiment's settings, from the methods and networks that are installed
    here.
    """
    sections: Config = {
        name: config[name]
        for name in ("method", "seed", "model", "train", "options")
        if name in config
    }
    check_no_function(str(config.get("metric", "")))
    experiment = change_options(
        Experiment(),
        flatten_options(
            {
                "dataset": {"name": f"{PYTHON}{federation.name}"},
                "schedule": {"metric": str(config.get("metric", ""))},
                **sections,
            }
        ),
    )
    check_network(experiment.model)
    assembly = assemble(
        experiment, federation, architecture=config["architecture"], clients=[number]
    )
    return LocalEngine(assembly.setup.alone())
