"""The verdict of a comparison, in the words of its answer; read once until its runs change."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock

from coterie.comparison.execute import load_comparison
from coterie.core.errors import BadInput, Diverged
from coterie.ui.runs import Entry

MAX_VERDICTS = 500  # verdicts


class VerdictCache:
    """The answers of comparisons as text; one is worked out at a time."""

    def __init__(self) -> None:
        self._lock, self._known = Lock(), OrderedDict[tuple[Path, float], str]()

    def of(self, entry: Entry) -> str:
        """What the answer of a comparison says; "" of one that is not finished, or compares
        nothing.
        """
        if entry.kind != "comparison" or entry.status != "finished":
            return ""
        key = (entry.path, entry.changed)
        with self._lock:
            if key not in self._known:
                self._known[key] = _read_verdict(entry.path)
                while len(self._known) > MAX_VERDICTS:
                    self._known.popitem(last=False)
            return self._known[key]


def _read_verdict(folder: Path) -> str:
    try:
        comparison = load_comparison(folder)
        answer = comparison.answer
    except (BadInput, Diverged) as problem:
        return f"No verdict: {problem}"
    return " ".join(comparison.remarks()) if answer is None else str(answer)
