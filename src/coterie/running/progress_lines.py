"""Progress as plain lines, where nobody draws a bar: a file, a pipe, a Python program."""

from __future__ import annotations

import sys
import time
from typing import Any

from coterie.running.loop import RoundReport, print_messages

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0  # seconds between two lines of a run: they double


class RunCounter:
    """Which run is played, since when, and how much of all runs is done."""

    def __init__(self, runs: int):
        self.runs, self.begin, self.seen = runs, time.monotonic(), dict[Any, float]()

    def place(self, label: str, seed: int | None, report: RoundReport) -> str:
        """The run in words, as in "run 5 of 16: ucfl seed 0"."""
        self.seen.setdefault((label, seed), time.monotonic())
        name = label if seed is None else f"{label} seed {seed}"
        runs = max(self.runs, len(self.seen))
        return name if runs == 1 else f"run {len(self.seen)} of {runs}: {name}"

    def estimate_left(self, report: RoundReport) -> float:
        """Seconds until all runs are done, as the runs so far let expect."""
        runs = max(self.runs, len(self.seen))
        done = (len(self.seen) - 1 + report.round / max(1, report.rounds)) / runs
        return (time.monotonic() - self.begin) * (1 - done) / max(done, 1e-9)


class LineProgress(RunCounter):
    """A line per finished run where there are several, and a line after every pause: lines become
    fewer the longer a run takes.
    """

    def __init__(self, runs: int):
        super().__init__(runs)
        self.pause, self.last = FIRST_PAUSE, time.monotonic()
        self.value = ""  # what was measured last

    def note(self, label: str, seed: int | None, report: RoundReport) -> None:
        print_named(label, seed, report)
        if not report.rounds:  # said between two rounds
            return
        place, now = self.place(label, seed, report), time.monotonic()
        if report.value is not None:
            self.value = f", {report.measure} {report.value:.4g}"
        if report.round >= report.rounds:
            if self.runs > 1:
                more = len(self.seen) < self.runs
                rest = f", {format_seconds(self.estimate_left(report))} left" if more else ""
                _print(f"{place}: {format_seconds(now - self.seen[label, seed])}{rest}")
            self.pause, self.last, self.value = FIRST_PAUSE, now, ""
        elif now - self.last >= self.pause:
            rest = f"{format_seconds(self.estimate_left(report))} left"
            _print(f"{place}: round {report.round} of {report.rounds}{self.value}, {rest}")
            self.pause, self.last = min(2 * self.pause, LONGEST_PAUSE), now


def print_named(label: str, seed: int | None, report: RoundReport) -> None:
    """Say what must be said of a run, with its name."""
    print_messages(report, f"{label}: " if seed is None else f"{label} seed {seed}: ")


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def format_seconds(seconds: float) -> str:
    """Seconds, or minutes and hours of many."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
