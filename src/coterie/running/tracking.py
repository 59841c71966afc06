"""Trackers of a run that goes on: they see its numbers within a second, and never stop it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.files import catch_write_errors, read_text, write_text
from coterie.experiment.config import Experiment
from coterie.results.run import Run
from coterie.results.scalars import Scalar, iter_scalars, scalars_of_round
from coterie.results.trackers import Tracker, open_tracker
from coterie.running.loop import Loop

FILE = "tracking.json"  # {tracker: [key of the run there, last round that it has]}
PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between two times that numbers are sent


class _Open(NamedTuple):
    """A tracker and the last round that it has."""

    tracker: Tracker
    round: int


class Tracking:
    """The trackers that an experiment names; what cannot be sent is sent later, and said."""

    def __init__(self, experiment: Experiment, folder: Path, say: Callable[[str], None]):
        self.experiment, self.folder, self.say = experiment, folder, say
        self.open: dict[str, _Open] = {}
        self.waiting: list[Scalar] = []
        self.pause, self.last = PAUSE, time.monotonic()
        self.about: dict[str, Any] = {}

    def begin(self, loop: Loop, about: dict[str, Any]) -> None:
        """Open them; a run that goes on brings what they have missed."""
        self.about = about
        if not self.experiment.keep.track:
            return
        run = self._run(loop, about)
        known = _read_state(self.folder)
        for name in self.experiment.keep.track:
            key, done = known.get(name, ("", 0))
            self.open[name] = _Open(open_tracker(name, run, key, done + 1), done)
        if loop.done:
            self.waiting = list(iter_scalars(run))
        self._send()

    def _run(self, loop: Loop, about: dict[str, Any]) -> Run:
        return Run(self.folder, self.experiment, loop.table.whole(), about)

    def note(self, loop: Loop) -> None:
        """Take the round that was just played."""
        if not self.open:
            return
        found = scalars_of_round(
            loop.done,
            loop.latest.costs,
            loop.latest.measured,
            self.about["rows"],
            loop.measure,
            time.time(),
        )
        self.waiting.extend(found)
        if time.monotonic() - self.last >= self.pause:
            self._send()

    def _send(self) -> None:
        """Give every tracker what it does not have yet."""
        self.last, failed = time.monotonic(), False
        final = max((s.round for s in self.waiting), default=0)
        for name, (tracker, done) in self.open.items():
            new = [s for s in self.waiting if s.round > done]
            try:
                if new:
                    tracker.log(new)
                self.open[name] = _Open(tracker, max(done, final))
            except Exception as problem:  # a run does not end because others cannot be reached
                failed = True
                if self.pause == PAUSE:
                    self.say(f"{_first_line(problem)}; the run goes on, and {name} is tried again")
        self.pause = min(2 * self.pause, LONGEST_PAUSE) if failed else PAUSE
        if not failed:
            self.waiting = []
        if self.open:
            self._write_state()

    def _write_state(self) -> None:
        state = {name: [one.tracker.key, one.round] for name, one in self.open.items()}
        with catch_write_errors(self.folder):
            write_text(self.folder / FILE, json.dumps(state))

    def finish(self, loop: Loop, status: str) -> None:
        """Send the rest and close them."""
        if not self.open:
            return
        self._send()
        run = self._run(loop, self.about | {"status": status})
        for name, (tracker, done) in self.open.items():
            try:
                tracker.finish(run)
            except Exception as problem:
                self.say(f"{name}: {_first_line(problem)}")
            if done < loop.done:
                self.say(
                    f"{name} has no round after {done}: `coterie export {self.folder} --to {name}` "
                    "brings all of them"
                )
        self.open = {}


def _first_line(problem: Exception) -> str:
    return str(problem).strip().partition("\n")[0][:300] or type(problem).__name__


def _read_state(folder: Path) -> dict[str, tuple[str, int]]:
    """What trackers had when a run was stopped; where that cannot be read they begin anew."""
    try:
        return {
            k: (str(key), int(n)) for k, (key, n) in json.loads(read_text(folder / FILE)).items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
