"""The engine of a deployment: payloads and uploads travel as Flower messages, states stay on
the sites' own disks.

The server remembers, for every site, the token of the last state it accepted. A message names it as
the base to build on; a reply makes a new state count only when it was accepted here. So a lost
reply, a site that was killed and a server that went back to its checkpoint all leave both sides
with the same state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from coterie.core import rng as streams
from coterie.core.errors import BadInput
from coterie.core.method import Tree
from coterie.core.point import stack
from coterie.data.federation import PARTS, Federation, part_of
from coterie.deploy import cross_site, wire
from coterie.deploy.audit import AuditLog
from coterie.deploy.claims import cap_sizes
from coterie.deploy.config_files import FEWEST_SUMMED, Rules, parse_privacy
from coterie.deploy.logs import sanitize
from coterie.deploy.replay import append_line
from coterie.deploy.replies import (
    Answer,
    Bounds,
    SiteWork,
    accept_work,
    check_reply,
    compute_bounds,
    read_measures,
)
from coterie.deploy.roster import Roster
from coterie.deploy.scales import Scales
from coterie.deploy.secure_masks import restore_upload
from coterie.deploy.secure_round import SecureSum, SumFailed, sum_uploads
from coterie.deploy.upload_privacy import change_norm, check_covered
from coterie.deploy.wire import DIVERGED, LOST, Content
from coterie.engines.base import (
    Effort,
    Engine,
    EngineSetup,
    ExchangeRequest,
    ExchangeResult,
    Metrics,
    Moment,
    Predictions,
    Send,
    Uploads,
    Views,
    count_download,
)
from coterie.engines.local.states import to_tensors

RULES = Rules()
RETRY_SECONDS = 15.0  # seconds before a site is asked again for what it did not do
LogLine = Callable[[str], None]
Weigh = Callable[[Mapping[int, int]], dict[int, int]]  # of training rows: see secure_round


class FlowerEngine(Engine):
    """Clients are sites; only payloads, uploads and numbers cross the network."""

    def __init__(
        self,
        setup: EngineSetup,
        *,
        roll: Roster,
        run: str,  # names the run on the sites' disks
        config: Mapping[str, Any],  # of the experiment, for the sites
        rules: Rules = RULES,
        removed: Sequence[int] = (),  # sites that are never asked again
        journal: Path | None = None,  # a line for each exchange: who was asked, who answered
        scales: Scales | None = None,  # of the columns; None: rows are as they are
        say: LogLine = print,
        audit: AuditLog | None = None,  # the same for whoever checks afterwards
        secure: Weigh | None = None,  # the weights of sites in a secure sum; None: bare uploads
    ):
        self.rules, self._weigh = rules, secure
        super().__init__(setup.alone())
        self.roll, self.run, self.config, self.journal, self._log = (
            roll,
            run,
            config,
            journal,
            say,
        )
        self._audit = audit
        self.removed, self.scales = frozenset(removed), scales
        self.tokens: dict[int, str] = {}  # the state of each site that counts
        self._saved: dict[int, str] = {}  # the same at the last checkpoint
        self._refused: dict[
            int, str
        ] = {}  # why a site's last reply was left out, for the site to say too
        self._lost_state: set[int] = set()  # sites that had a state once and have lost it
        self._broken: set[int] = set()  # sites whose update in this exchange is not finite
        self._notes: dict[int, dict[str, float]] = {}
        self._template_states: dict[
            int, Tree
        ] = {}  # a state of each architecture, for its structure
        self._unmeasured: dict[str, set[int]] = {}  # by part, at the last evaluation

    def take(self, federation: Federation, architecture: np.ndarray) -> None:
        super().take(federation, architecture)
        self.rows = [
            {part: len(part_of(federation, part)[i]) for part in PARTS}
            for i in range(federation.clients)
        ]
        self.sizes = cap_sizes(self.sizes, self.rules.claims)

    def enter(self, stage: int) -> None:
        self.stage = stage  # sites change their states when the next message comes
        self._template_states = {}

    def dump(self) -> Tree:
        self._saved = dict(self.tokens)
        return {
            "run": self.run,
            "tokens": dict(self.tokens),
            "sites": list(self.roll.names[: len(self.sizes)]),
        }

    def restore(self, dumped: Tree, stage: int) -> None:
        self.stage, self.run = stage, dumped["run"]
        self.tokens, self._saved = dict(dumped["tokens"]), dict(dumped["tokens"])

    # One trip to the sites and back

    @torch.no_grad()
    def exchange(self, trip: ExchangeRequest) -> ExchangeResult:
        begin = time.perf_counter()
        index, when, averaged = trip.number, trip.when, trip.averaged
        asked = [i for i in sorted(trip.clients) if i in trip.answered and i not in self.removed]
        if index:  # who lost its state in the middle of a round has nothing to go on from
            asked = [i for i in asked if i in self.tokens]
        payloads = {i: to_tensors(trip.send(i)) for i in asked}
        likes = {
            a: self._upload_template(index, a, payloads)
            for a in sorted({int(self.architecture[i]) for i in asked})
        }
        if parse_privacy(self.config.get("privacy", [])).noise:
            for i in asked:
                check_covered(likes[int(self.architecture[i])], payloads[i])
        token = f"{self.stage}-{when.round}-{index}"
        works: dict[int, SiteWork] = {}
        self._broken = set()
        summed = None
        if self._is_masked(likes, averaged):
            tries, summed = self._sum_until_enough(
                index, when, asked, payloads, likes, works, token
            )
        else:
            tries = self._ask_until_enough(index, when, asked, payloads, likes, works, token)
        for i, work in works.items():
            self.tokens[i], self._notes[i] = work.token, work.notes
        anew = sorted(self._lost_state & set(works))
        self._lost_state -= set(works)
        uploads = []
        for a in likes:
            ids = [i for i in works if i in averaged and self.architecture[i] == a]
            if ids:
                bare = summed is None
                whole = stack([works[i].upload for i in ids]) if bare else _repeat(summed, len(ids))
                uploads.append(Uploads(a, ids, whole))
        traffic = count_download(list(payloads.values()), set(), trip.shared)
        up = sum(_count_bytes(works[i].upload) for i in works if i in averaged)
        if summed is not None:  # a masked number has 8 bytes
            up = 8 * len(works) * sum(t.numel() for t in pytree.tree_leaves(summed))
        self.note(
            stage=when.stage,
            round=when.round,
            exchange=index,
            asked=asked,
            answered=sorted(works),
            anew=anew,
            tries=tries,
            bytes=up,
            seconds=time.perf_counter() - begin,
            training=max((w.seconds for w in works.values()), default=0.0),
            time=time.time(),
        )
        effort = reduce(Effort.plus, (w.effort for w in works.values()), Effort())
        traffic = traffic._replace(up=up, **effort._asdict())
        return ExchangeResult(
            self.replies(uploads, when), traffic, set(works), frozenset(self._broken)
        )

    def _ask_until_enough(
        self,
        index: int,
        when: Moment,
        asked: list[int],
        payloads: dict[int, Tree],
        likes: dict[int, Tree],
        works: dict[int, SiteWork],
        token: str,
    ) -> int:
        """Ask until enough sites have answered; those who have are not asked again. The number of
        times it took.
        """
        needed = self._count_needed(asked)
        far: set[int] = set()  # sites whose upload was too far from what was sent
        for attempt in range(1, self.rules.tries + 1):
            missing = {
                i: payloads[i]
                for i in asked
                if i not in works
                and i not in far
                and i not in self._broken  # and would be again
                and (index == 0 or i in self.tokens)
            }
            most = {a: compute_bounds(like) for a, like in likes.items()}
            sizes = {i: most[int(self.architecture[i])] for i in missing}
            begin = time.monotonic()
            answers = self._ask("train", when, missing, sizes, exchange=index)
            longest = 1.1 * (time.monotonic() - begin) + 1  # clocks may run a little differently
            for i, answer in answers.items():
                try:
                    a = int(self.architecture[i])
                    notes = self.method(a).describes
                    works[i] = accept_work(answer, token, likes[a], missing[i], notes, longest)
                except Exception as problem:  # whatever is wrong with one reply is its site's own
                    self._leave_out(
                        i, answer, self._format_moment(when), _describe_problem(problem)
                    )
            for i, why in self._find_outliers(works, payloads).items():
                del works[i]
                far.add(i)
                self._leave_out(i, answers.get(i, ""), self._format_moment(when), why)
            if len(works) + len(self._broken) >= needed or not asked:
                return attempt
            if attempt < self.rules.tries:
                self._log(
                    f"{self._format_moment(when)}: {len(works)} of {len(asked)} sites answered "
                    f"and {needed} "
                    "are needed: "
                    f"asking the others again ({attempt} of {self.rules.tries} tries)"
                )
                self._wait([i for i in asked if i not in works])
        raise BadInput(
            f"{self._format_moment(when)}: {len(works)} of {len(asked)} sites answered in "
            f"{self.rules.tries} "
            f"tries and {needed} are needed: "
            "the run stops and its state is kept; start the server again when they are back, or "
            "lower rules.needed"
        )

    def _count_needed(self, asked: Sequence[int]) -> int:
        """How many of the asked sites must answer."""
        return max(1, math.ceil(self.rules.needed * len(asked) - 1e-9))

    def _is_masked(self, likes: Mapping[int, Tree], averaged: Set[int]) -> bool:
        """Whether uploads are summed behind masks: where there are any that reach the server."""
        return bool(self._weigh and averaged and pytree.tree_leaves(list(likes.values())))

    def _sum_until_enough(
        self,
        index: int,
        when: Moment,
        asked: list[int],
        payloads: dict[int, Tree],
        likes: dict[int, Tree],
        works: dict[int, SiteWork],
        token: str,
    ) -> tuple[int, Tree]:
        """The mean of what the sites hold, begun again without those who fail on the way; `works`
        has those who are in it. The number of times it took.
        """
        ((a, like),) = likes.items()
        needed = max(FEWEST_SUMMED, self._count_needed(asked))
        left, at = list(asked), self._format_moment(when)
        for attempt in range(1, self.rules.tries + 1):
            works.clear()
            nothing: dict[int, Tree] = {a: ()}
            self._ask_until_enough(index, when, left, payloads, nothing, works, token)
            try:
                found = self._sum_masked(index, when, works, like, needed, token)
            except SumFailed as failed:
                self._log(f"{at}: {failed} ({attempt} of {self.rules.tries} tries)")
                left = failed.again if len(failed.again) >= needed else left
                if attempt < self.rules.tries:
                    self._wait([i for i in asked if i not in left] or left)
                continue
            for i in set(works) - set(found.answered):
                del works[i]
            return attempt, restore_upload(found.total, like)
        raise BadInput(
            f"{at}: no secure sum of {needed} sites in {self.rules.tries} tries: the run stops and "
            "its state is kept; start the server again when they are back"
        )

    def _sum_masked(
        self,
        index: int,
        when: Moment,
        works: Mapping[int, SiteWork],
        like: Tree,
        needed: int,
        token: str,
    ) -> SecureSum:
        """The mean over those who answered, as one vector."""
        assert self._weigh is not None

        def ask(kind: str, contents: Mapping[int, Any], sizes: Any) -> dict[int, Answer]:
            nothing: dict[int, Tree] = dict.fromkeys(contents, ())
            return self._ask(kind, when, nothing, sizes, contents, exchange=index)

        def leave_out(i: int, answer: Answer, why: str) -> None:
            self._leave_out(i, answer, self._format_moment(when), why)

        weights = self._weigh({i: int(self.sizes[i]) for i in works})
        keys = {i: work.keys for i, work in works.items()}
        length = sum(t.numel() for t in pytree.tree_leaves(like))
        found = sum_uploads(ask, leave_out, keys, weights, length, needed, self.run, token)
        whole = sum(weights[i] for i in found.answered)
        return found._replace(total=found.total / whole)

    def _find_outliers(
        self, works: Mapping[int, SiteWork], payloads: Mapping[int, Tree]
    ) -> dict[int, str]:
        """Sites whose upload changed far more of what they were sent than the others' did, and
        why they are left out; sites are compared with those of their own architecture.
        """
        out: dict[int, str] = {}
        for a in sorted({int(self.architecture[i]) for i in works} if self.rules.outlier else ()):
            norms = {
                i: change_norm(work.upload, payloads[i])
                for i, work in works.items()
                if self.architecture[i] == a
            }
            usual = float(np.median(list(norms.values())))
            for i, norm in norms.items():
                if not math.isfinite(norm) or norm > self.rules.outlier * usual > 0:
                    out[i] = (
                        f"is left out: its upload is {norm:.3g} from what it was sent, "
                        f"the median of the round is {usual:.3g} (rules.outlier = "
                        f"{self.rules.outlier:g})"
                    )
        return out

    def _leave_out(self, i: int, answer: Answer, at: str, why: str) -> None:
        """Say whose reply does not count and why, here and, with the next message, at the site."""
        self._drop_reply(i, answer, f"{at}: {self.roll.names[i]} {why}")
        if not (isinstance(answer, Content) and answer.head.get("error")):  # else it said so itself
            self._refused[i] = f"{at}: this site {why}"

    def _wait(self, missing: Sequence[int]) -> None:
        """A pause, longer while none of the missing sites is there."""
        begin, deadline = time.monotonic(), self.rules.deadline
        time.sleep(min(RETRY_SECONDS, deadline / 4))
        while not set(missing) & set(self.roll.look()) and time.monotonic() < begin + deadline:
            time.sleep(min(1.0, deadline / 4))

    def _ask(
        self,
        kind: str,
        when: Moment,
        payloads: Mapping[int, Tree],
        sizes: Mapping[int, Bounds] | None = None,  # of replies that hold arrays
        each: Mapping[int, Mapping[str, Any]] | None = None,  # what one site alone is told
        **more: Any,
    ) -> dict[int, Answer]:
        questions = {}
        for i, payload in payloads.items():
            head = {
                "kind": kind,
                "words": self.config,
                "run": self.run,
                "site": i,
                "name": self.roll.names[i],
                "rows": self.rows[i],
                "stage": self.stage,
                "round": when.round,
                "base": self.tokens.get(i),
                "refused": self._refused.pop(i, ""),
                **({} if self.scales is None else {"scales": self.scales}),
                "keep": [known[i] for known in (self.tokens, self._saved) if i in known],
                **more,
                **((each or {}).get(i, {})),
            }
            questions[i] = wire.pack(head, payload)
        return self.roll.ask(questions, kind, self.rules.deadline, sizes)

    def _drop_reply(self, i: int, answer: Answer, line: str) -> None:
        """Say who does not count, and forget a state that its site has lost."""
        self._log(line)
        if isinstance(answer, Content) and answer.head.get("code") == DIVERGED:
            self._broken.add(i)
        if isinstance(answer, Content) and answer.head.get("code") == LOST and i in self.tokens:
            self.tokens.pop(i)
            self._saved.pop(i, None)
            self._lost_state.add(i)
            self._log(f"{self.roll.names[i]} begins anew, like a newcomer, when it is asked next")

    def _upload_template(self, index: int, a: int, payloads: Mapping[int, Tree]) -> Tree:
        """What an upload of this architecture looks like: that of a client without any rows."""
        payload = next(p for i, p in payloads.items() if self.architecture[i] == a)
        method, none = self.method(a), torch.tensor(1)
        exchange = method.round[index]
        state = self._template_states.get(a)
        if state is None or index == 0:
            state = to_tensors(method.join(payload, streams.stream(self.seed, "join", "structure")))
        if exchange.prepare:
            state = to_tensors(exchange.prepare(state, payload, none))
        carry = exchange.start(state, payload)
        for work in exchange.passes:
            carry = work.step(carry, None) if work.plan is None else carry
        state, upload = exchange.finish(carry, state, payload)
        self._template_states[a] = to_tensors(state)
        return to_tensors(upload)

    def _format_moment(self, when: Moment) -> str:
        return f"{when.stage}, round {when.round + 1}"

    def note(self, **line: Any) -> None:
        """A line of the journal."""
        if self.journal is not None:
            append_line(self.journal, line)
        if self._audit is not None:
            sites = {"asked", "answered"} & set(line)
            names = {option: [self.roll.names[i] for i in line[option]] for option in sites}
            where = {option: line[option] for option in ("stage", "round", "exchange")}
            came = {"came": line["came"]} if "came" in line else {}
            size = line.get("bytes", 0)
            self._audit.add("exchange", run=self.run, **where, **names, **came, bytes=size)

    # Numbers

    @torch.no_grad()
    def evaluate(
        self,
        clients: Sequence[int],
        send: Send,
        when: Moment,
        parts: Sequence[str] = PARTS,
        final: bool = False,
    ) -> Metrics:
        out: Metrics = {
            ("personal", p, m): np.full(len(clients), np.nan)
            for p in parts
            for m in ("loss", self.models[0].goal.measure)
        }
        asked = {i: to_tensors(send(i)) for i in clients if i not in self.removed}
        place = {i: k for k, i in enumerate(clients)}
        self._unmeasured = {part: set(clients) for part in parts}
        for i, answer in self._ask("evaluate", when, asked, parts=list(parts), final=final).items():
            with self._leaving_out(i, answer, f"evaluation after {when.stage}, round {when.round}"):
                views = ("personal", *self.method(int(self.architecture[i])).views)
                task = self.models[int(self.architecture[i])].task
                values = read_measures(check_reply(answer), views, parts, self.rows[i], task)
                for view, part, metric, value in values:
                    self._unmeasured[part].discard(i)
                    empty = np.full(len(clients), np.nan)
                    out.setdefault((view, part, metric), empty)[place[i]] = value
        return out

    def unmeasured(self, part: str) -> Set[int]:
        return self._unmeasured.get(part, set())

    def client_notes(self, clients: Sequence[int]) -> dict[str, dict[int, float]]:
        out: dict[str, dict[int, float]] = {}
        for i in clients:
            for name, value in self._notes.get(i, {}).items():
                out.setdefault(name, {})[i] = value
        return out

    def points(self, clients: Sequence[int], send: Send, when: Moment) -> Views:
        return iter(())  # models stay with the sites

    def predictions(
        self, clients: Sequence[int], send: Send, when: Moment, part: str
    ) -> Predictions:
        return iter(())

    @torch.no_grad()
    def cross_sites(
        self, clients: Sequence[int], send: Send, when: Moment
    ) -> list[cross_site.Score]:
        """What every site's own model is worth at every site; who does not answer is left out."""
        asked = {i: to_tensors(send(i)) for i in clients if i not in self.removed}
        likes = {i: self.models[int(self.architecture[i])].start(0) for i in asked}
        sizes = {i: compute_bounds(like) for i, like in likes.items()}
        models: dict[int, Tree] = {}
        for i, answer in self._ask(cross_site.MODEL, when, asked, sizes).items():
            with self._leaving_out(i, answer, f"model of {self.roll.names[i]}"):
                models[i] = wire.decode_like(check_reply(answer), likes[i])
        scores: list[cross_site.Score] = []
        for owner, point in models.items():
            questions: dict[int, Tree] = dict.fromkeys(asked, point)
            for i, answer in self._ask(cross_site.JUDGE, when, questions, of=owner).items():
                with self._leaving_out(i, answer, f"model of {self.roll.names[owner]}"):
                    task = self.models[int(self.architecture[owner])].task
                    parts = (cross_site.TEST,)
                    found = read_measures(
                        check_reply(answer), ("personal",), parts, self.rows[i], task
                    )
                    pair = (self.roll.names[owner], self.roll.names[i])
                    scores += [(*pair, metric, value) for _, _, metric, value in found]
        return scores

    @contextmanager
    def _leaving_out(self, i: int, answer: Answer, at: str) -> Iterator[None]:
        """Whatever is wrong with one reply is its site's own."""
        try:
            yield
        except Exception as problem:
            self._leave_out(i, answer, at, _describe_problem(problem))

    @torch.no_grad()
    def finish(self, clients: Sequence[int], send: Send, when: Moment) -> None:
        """Let every site write its own model; who is away gets another chance while the others
        do.
        """
        left = {i: to_tensors(send(i)) for i in clients if i not in self.removed}
        for attempt in range(min(2, self.rules.tries)):
            for i, answer in self._ask("finish", when, left).items():
                try:
                    check_reply(answer)
                    del left[i]
                except Exception as problem:  # whatever is wrong with one reply is its site's own
                    last = "; it will when the server is started again" if attempt else ""
                    self._drop_reply(
                        i,
                        answer,
                        f"at the end {self.roll.names[i]} {_describe_problem(problem)}: it has "
                        "not written its "
                        f"model{last}",
                    )
            if not left:
                return


def _describe_problem(problem: Exception) -> str:
    """What is wrong with a reply, as one line."""
    known = isinstance(problem, BadInput)
    return sanitize(problem if known else f"is left out: {type(problem).__name__} ({problem})")


def _repeat(tree: Tree, times: int) -> Tree:
    """A stack of the same tree, whose mean is that tree; takes no memory."""
    return pytree.tree_map(lambda t: t.expand(times, *t.shape), tree)


def _count_bytes(upload: Tree) -> int:
    return sum(t.nbytes for t in pytree.tree_leaves(upload))
