"""Which clients a round asks."""

from __future__ import annotations

from collections.abc import Collection

from coterie.core.rng import stream
from coterie.experiment.schedule import Schedule


def sample_clients(
    schedule: Schedule, clients: int, stage: str, number: int, seed: int, poisson: bool = False
) -> Collection[int]:
    """The clients of a round: so many of them, or (Poisson) each with the chance that this
    makes."""
    count = schedule.sample_size(clients)
    if count >= clients:
        return range(clients)
    rng = stream(seed, "sample", stage, number)
    if poisson:
        return {i for i, u in enumerate(rng.random(clients)) if u < count / clients}
    return {int(i) for i in rng.choice(clients, count, replace=False)}
