"""What a site has answered, so that no question gets more out of it than was agreed to.

The rules, whoever asks:

- A question of training is known by its run, stage, round and exchange. Asked again, it gets the
  same upload, byte for byte, while that is kept. Another question in its place, as of a server that
  went back to its checkpoint, is worked on anew and counts, as does one whose work failed, which
  tells something too; after MAX_ANSWERS there are no more.
- A part is measured once in a round, in the rounds and parts of the agreement, and rounds only go
  forwards. Asked again for the same model, the same numbers are given; for another one, none.
- Of a masked upload, shares are revealed for one sum: the same sites, and the same weight of this
  one. The difference of two sums may be one upload.
- A run belongs to one experiment and one number of this site, which decides how rows are cut; means
  and deviations are told of the same rows only.

All of it is in the site's audit log, so it holds after a restart too.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.files import catch_write_errors
from coterie.core.method import Stage
from coterie.deploy.audit import AuditLog, Event
from coterie.deploy.disclosure import Refusal
from coterie.deploy.frames import Frame

MAX_ANSWERS = 5  # times that one upload is worked on: a server that was killed may ask again
SIZES = struct.Struct("<IQ")  # of a kept upload: schema, bytes of head
RUN, MEASURED, SUMMED, REVEALED = "run", "measured", "summed", "revealed"
SENT, FAILED = "sent", "failed"
Score = tuple[str, str, str, float]  # view, part, metric, value
Config = Mapping[str, Any]


class Plan(NamedTuple):
    """What a site agreed to be asked: see `plan_of`."""

    stages: tuple[str, ...]
    rounds: tuple[int, ...]  # of each stage
    every: int  # rounds between two evaluations
    parts: tuple[str, ...]  # that are measured

    def check_round(self, stage: int, round: int) -> None:
        """Refuse a round that the run does not have."""
        if round > self.rounds[stage]:
            raise Refusal(
                f"the message is of round {round + 1} of {self.stages[stage]}, and this site has "
                f"agreed to {self.rounds[stage]}"
            )

    def check_evaluation(self, stage: int, round: int, parts: Sequence[str]) -> None:
        """Refuse to measure what is not measured then."""
        self.check_round(stage, round)
        done = sum(self.rounds[:stage]) + round
        strange = [part for part in parts if part not in self.parts]
        if strange or (done % self.every and round != self.rounds[stage]):
            what = f"{strange[0]} rows" if strange else f"an evaluation after round {done}"
            raise Refusal(f"{what[:80]}: that is not part of what this site has agreed to")


def describe_plan(
    program: Sequence[Stage], rounds: Sequence[int], every: int, parts: Sequence[str]
) -> dict[str, Any]:
    """The settings of an experiment that say what a site will be asked."""
    return {
        "stages": [
            {"name": stage.name, "rounds": n, "messages": len(stage.method.round)}
            for stage, n in zip(program, rounds, strict=True)
        ],
        "evaluate": every,
        "parts": list(parts),
    }


def plan_of(settings: Config, program: Sequence[Stage]) -> Plan:
    """The same, read, if it is of this program."""
    try:
        rounds = tuple(int(stage["rounds"]) for stage in settings["stages"])
        plan = Plan(
            tuple(stage.name for stage in program),
            rounds,
            max(1, int(settings["evaluate"])),
            tuple(str(part) for part in settings["parts"]),
        )
        fits = describe_plan(program, rounds, plan.every, plan.parts)
        good = all(settings[name] == fits[name] for name in fits)
        good &= all(s.rounds in (None, n) for s, n in zip(program, rounds, strict=True))
        good &= min(rounds) >= 0
    except (KeyError, TypeError, ValueError):
        good = False
    if not good:
        raise Refusal(
            "the experiment does not say as this method has it how many rounds and messages there "
            "are and what is measured: install the same version of coterie at the server and at "
            "every site"
        )
    return plan


def digest_question(head: Config, experiment: str, *fields: str) -> str:
    """What decides the answer to a message: its own words, and the arrays with it."""
    asked = {name: head.get(name) for name in (*fields, "tree", "table", "digest")}
    return digest_text(json.dumps([experiment, asked], sort_keys=True))


def digest_text(text: str) -> str:
    """A short name of a text."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class AnswerBook:
    """What was answered, and so may be answered."""

    def __init__(self, log: AuditLog, folder: Path) -> None:
        self._log, self._folder = log, folder  # of the uploads that may be asked for again
        self._runs: dict[str, Event] = {}
        self._sums: dict[str, Event] = {}  # by the columns, see policy.digest_data
        self._worked: Counter[tuple[str, str]] = Counter()  # by run and token
        self._scores: dict[tuple[str, int, int, str], Event] = {}
        self._reveals: dict[tuple[str, str, str], Event] = {}
        for event in log.events:
            self._learn(event)

    def _learn(self, event: Event) -> None:
        kind = event["event"]
        if kind == RUN:
            self._runs[event["run"]] = event
        elif kind == SUMMED:
            self._sums[event["columns"]] = event
        elif kind in (SENT, FAILED):
            self._worked[event["run"], event["token"]] += 1
        elif kind == REVEALED:
            self._reveals[event["run"], event["token"], event["question"]] = event
        elif kind == MEASURED:
            place = (event["run"], event["stage"], event["round"], event["part"])
            self._scores[place] = event

    def _write(self, event: str, **settings: Any) -> None:
        self._learn(self._log.add(event, **settings))

    # Runs

    @property
    def last_run(self) -> str:
        """The run that was begun last; "": none yet."""
        return next(reversed(self._runs), "")

    def knows(self, run: str) -> bool:
        """Whether a run was begun."""
        return run in self._runs

    def enter_run(self, run: str, experiment: str, site: int, data: str) -> bool:
        """Begin a run or go on with it; whether the rows are those that it began with."""
        known = self._runs.get(run)
        if known is None:
            self._write(RUN, run=run, experiment=experiment, site=site, data=data)
            return True
        if (known["experiment"], known["site"]) != (experiment, site):
            raise Refusal(
                f"the run {run} was begun with another experiment, or another number of this "
                "site: start a new run"
            )
        if known["data"] != data:
            self._write(RUN, run=run, experiment=experiment, site=site, data=data)
        return bool(known["data"] == data)

    def sum_columns(self, columns: str, site: int, data: str, agreement: int) -> None:
        """Note that sums of columns leave; those of other rows do not, until the operator agrees
        again: the difference of two sums may be one row.
        """
        known = self._sums.get(columns)
        facts = {"site": site, "data": data, "agreement": agreement}
        if known is None or known["agreement"] < agreement:
            self._write(SUMMED, columns=columns, **facts)
        elif {name: known[name] for name in facts} != facts:
            raise Refusal(
                "this site has told means of its columns already, of other rows than it has now: "
                "its operator may agree again with `coterie federation approve`"
            )

    # Training

    def find_upload(self, run: str, token: str, question: str) -> Frame | None:
        """The answer that was given to this very question; Refusal where no more are given."""
        path = self._place(run, token, question)
        if path.exists():
            return _read_frame(path)
        if self._worked[run, token] >= MAX_ANSWERS:
            raise Refusal(
                f"this site has worked {MAX_ANSWERS} times on round {token} of the run {run}, and "
                "answers no more"
            )
        return None

    def note_failure(self, run: str, token: str, question: str) -> None:
        """Write down that there is no upload, before anybody hears of it."""
        self._write(FAILED, run=run, token=token, question=question)

    def keep_upload(
        self, run: str, token: str, question: str, frame: Frame, **facts: float
    ) -> None:
        """Write down that an upload leaves, before it does, and keep it for who asks again."""
        size = len(frame.head) + len(frame.body)
        settings = {"run": run, "token": token, "question": question, "bytes": size}
        self._write(SENT, **settings, upload=hashlib.sha256(frame.body).hexdigest(), **facts)
        path = self._place(run, token, question)
        self._forget_uploads(path.parent, token.rpartition("-")[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_frame(path, frame)

    def reveal(
        self, run: str, token: str, question: str, sites: Sequence[int], weight: int
    ) -> None:
        """Write down for which sum the masks of an upload come off; Refusal where it was another
        one.
        """
        known = self._reveals.get((run, token, question))
        if known is None:
            settings = {"run": run, "token": token, "question": question}
            self._write(REVEALED, **settings, sites=list(sites), weight=weight)
        elif (known["sites"], known["weight"]) != (list(sites), weight):
            raise Refusal(
                f"this site's upload of round {token} may be part of one sum, that of the sites "
                f"{known['sites']} with its weight {known['weight']}, and not of another: start "
                "these sites, or begin a new run"
            )

    def _forget_uploads(self, run: Path, round: str) -> None:
        """Delete the uploads of other rounds and runs: nobody goes back to them."""
        for path in [*run.glob("*"), *(self._folder.glob("*"))]:
            if path.parent == run and not path.name.startswith(f"{round}-"):
                path.unlink()
            elif path.parent == self._folder and path != run:
                shutil.rmtree(path, ignore_errors=True)

    def _place(self, run: str, token: str, question: str) -> Path:
        return self._folder / run / f"{token}-{question}"

    # Scores

    def find_scores(
        self, run: str, stage: int, round: int, parts: Sequence[str], question: str
    ) -> dict[str, list[Score]]:
        """What was told of these parts for this very model; Refusal where it was another, or where
        a later round was measured already.
        """
        found: dict[str, list[Score]] = {}
        for part in parts:
            known = self._scores.get((run, stage, round, part))
            others = (place[1:3] for place in self._scores if (place[0], place[3]) == (run, part))
            later = any(place > (stage, round) for place in others)
            if known is not None and known["question"] == question:
                found[part] = [tuple(score) for score in known["values"]]
            elif known is not None or later:
                what = "another model" if known is not None else "a later round"
                raise Refusal(
                    f"this site measures its {part} rows once in a round, and has measured {what} "
                    "already"
                )
        return found

    def keep_scores(
        self,
        run: str,
        stage: int,
        round: int,
        question: str,
        scores: Mapping[str, Sequence[Score]],
    ) -> None:
        """Write down what leaves, before it does."""
        for part, values in scores.items():
            place = {"run": run, "stage": stage, "round": round, "part": part}
            self._write(MEASURED, **place, question=question, values=[list(v) for v in values])


def _write_frame(path: Path, frame: Frame) -> None:
    """A frame as a file, whole or not at all."""
    head = frame.head.encode()
    temporary = path.with_name(path.name + ".part")
    with catch_write_errors(path.parent):
        temporary.write_bytes(SIZES.pack(frame.schema, len(head)) + head + frame.body)
        os.replace(temporary, path)


def _read_frame(path: Path) -> Frame:
    content = path.read_bytes()
    schema, size = SIZES.unpack_from(content)
    begin = SIZES.size + size
    return Frame(schema, content[SIZES.size : begin].decode(), content[begin:])
