"""The verdict of a comparison, in the words of its answer; read once until its runs change."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Any

from coterie.analysis.tiles import summarize_answer
from coterie.comparison.execute import load_comparison
from coterie.core.errors import BadInput, Diverged
from coterie.ui.runs import Entry

MAX_VERDICTS = 500  # verdicts


class VerdictCache:
    """The answers of comparisons as text; one is worked out at a time."""

    def __init__(self) -> None:
        self._lock, self._known = Lock(), OrderedDict[tuple[Path, float], dict[str, Any]]()

    def of(self, entry: Entry) -> dict[str, Any]:
        """What the answer of a comparison says, its tiles, and the folder of the run to use; "" of
        one that is not finished, or compares nothing.
        """
        if entry.kind != "comparison" or entry.status != "finished":
            return _tell("")
        key = (entry.path, entry.changed)
        with self._lock:
            if key not in self._known:
                self._known[key] = _read_verdict(entry.path)
                while len(self._known) > MAX_VERDICTS:
                    self._known.popitem(last=False)
            return self._known[key]


def _read_verdict(folder: Path) -> dict[str, Any]:
    try:
        comparison = load_comparison(folder)
        answer = comparison.answer
    except (BadInput, Diverged) as problem:
        return _tell(f"No verdict: {problem}")
    if answer is None:
        return _tell(" ".join(comparison.remarks()))
    summary = summarize_answer(answer)
    use = comparison.runs[answer.use][0].folder.name if answer.use else ""
    return _tell(str(answer), summary.headline, [tile._asdict() for tile in summary.tiles], use)


def _tell(verdict: str, headline: str = "", tiles: Any = (), use: str = "") -> dict[str, Any]:
    """verdict: the whole answer as text."""
    return {"verdict": verdict, "headline": headline or verdict, "tiles": list(tiles), "use": use}
