"""A site's own count of what its noised uploads tell, over all runs, from its audit log.

Each upload is a Gaussian mechanism of deviation `noise` clip. Mechanisms of different noise add up
to one of length mu^2 = sum of (sensitivity / noise)^2 in units of clip (see
analysis/privacy_accounting). What is compared decides the sensitivity: with an upload that says
nothing (the model sent back unchanged) it is clip, with any other upload in its place 2 clip. A
budget counts the second, larger number. An upload that is sent again is the same bytes, and tells
nothing new.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coterie.analysis.privacy_accounting import epsilon_of
from coterie.deploy.audit import Event
from coterie.deploy.disclosure import Refusal

UNCHANGED, REPLACED = 1.0, 2.0  # sensitivities in units of clip
LEFT = "sent"  # the event of an upload that left


class Accountant:
    """What has left, and what may leave."""

    def __init__(self, events: Sequence[Event], delta: float, budget: float = 0.0) -> None:
        self.delta, self.budget = delta, budget
        self.uploads, self._lengths = 0, 0.0
        for event in events:
            if event["event"] == LEFT:
                self.count(event["noise"])

    def count(self, noise: float) -> None:
        """One more upload has left; those without noise are not promised anything."""
        if noise > 0:
            self.uploads += 1
            self._lengths += noise**-2

    def epsilon(self, sensitivity: float = REPLACED, more: float = 0.0) -> float:
        """What all noised uploads tell together; more: and one of this noise."""
        lengths = self._lengths + (more**-2 if more > 0 else 0.0)
        return epsilon_of(1 / (sensitivity * math.sqrt(lengths)), 1, self.delta) if lengths else 0.0

    def check(self, noise: float) -> None:
        """Refuse an upload of this noise that would spend more than the budget."""
        if not self.budget:
            return
        if noise <= 0:
            raise Refusal(
                f"this site spends at most epsilon = {self.budget:g}, and an upload without noise "
                "has none: give clip and noise in [privacy] of server.toml"
            )
        if self.epsilon(more=noise) > self.budget:
            raise Refusal(
                f"this site's budget of epsilon = {self.budget:g} is spent: it trains for nobody "
                "until its operator raises limits.epsilon in site.toml"
            )

    def sentence(self) -> str:
        """What has been told so far, and of what neighbours."""
        return (
            f"{self.uploads:,} noised uploads have left this site in all runs: epsilon = "
            f"{self.epsilon(UNCHANGED):.4g} at delta = {self.delta:.3g} against a site that sends "
            f"its model back unchanged, {self.epsilon(REPLACED):.4g} against any other site in its "
            "place"
        )
