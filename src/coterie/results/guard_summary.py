"""What a reader must know of a run's guard: the privacy that was promised, and who attacked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.results.run import Run

MEMBERS = {"client": "client", "example": "training row", "site": "site"}


def format_privacy(facts: Mapping[str, Any]) -> str:
    """The promise of a run, from run.json, as a sentence."""
    who = MEMBERS[facts["unit"]]
    if "replaced" in facts:  # by each upload on its own: what it is compared with matters
        who = (
            f"site that sends each upload once, against one that sends its model back unchanged; "
            f"{facts['replaced']:.4g} against any other site in its place"
        )
    return (
        f"Privacy: epsilon = {facts['epsilon']:.4g} at delta = {facts['delta']:.3g} for one "
        f"{who} (noise {facts['noise']:.4g}, clip {facts['clip']:g}, "
        f"{facts['releases']:,} releases, sampling: {facts['sampling']}). It covers "
        f"{facts['covers']}, not measures or logged quantities."
    )


def format_guard(run: Run) -> list[str]:
    """Sentences on the guard of a run; none where it has none."""
    said = [format_privacy(run.about["privacy"])] if run.about.get("privacy") else []
    hostile = run.about.get("attackers", [])
    if hostile:
        guard = run.experiment.guard
        rule = f"uploads are averaged by --robust {guard.robust}"
        said.append(
            f"Under attack ({guard.attack}): {len(hostile)} of {len(run.rows)} clients are "
            f"hostile, figures are of the others; "
            f"{rule if guard.robust != 'none' else 'uploads are averaged as usual'}."
        )
    return said
