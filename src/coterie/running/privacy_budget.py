"""What a run may tell of one client or one row, counted before it starts.

client: the server sees sums of clipped changes with noise, one per exchange. A client is asked with
the same chance in every round (Poisson) where not all are asked. Two federations are neighbours if
one has one client more.

example: a row takes part in as many noised gradients as its epochs have; batches are cut from a
shuffled order, not drawn anew, so sampling adds nothing and nothing is claimed for it. Two
federations are neighbours if one row is replaced by an empty one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.analysis.privacy_accounting import epsilon_of, find_noise
from coterie.core.errors import BadInput
from coterie.core.guard import Guard
from coterie.core.method import Batch, BatchPlan, Exchange, Facts, Stage, Train, keep_server
from coterie.core.model import GRADIENT_COUNT
from coterie.core.rng import stream
from coterie.data.federation import Federation
from coterie.engines.local.batches import FULL_BATCH, count_steps
from coterie.engines.local.states import to_tensors
from coterie.experiment.schedule import Schedule
from coterie.methods.declare import UploadDeclaration
from coterie.running.sampling import sample_clients


class Budget(NamedTuple):
    """What is promised at the end of a run, and by what."""

    unit: str  # "client" or "example"
    epsilon: float
    delta: float
    clip: float
    noise: float  # deviation of the noise in units of clip
    releases: int  # mechanisms that one client or one row takes part in, at most
    share: float = 1.0  # the chance that a client takes part in a round

    def facts(self) -> dict[str, Any]:
        """As run.json has it."""
        return self._asdict() | {"sampling": self.sampling, "covers": "uploads"}

    @property
    def sampling(self) -> str:
        """How members are drawn, as the accountant knows it."""
        if self.unit == "example":
            return "shuffled epochs, counted without amplification"
        return "poisson" if self.share < 1 else "everyone"


def check_private(guard: Guard, method: str, declared: UploadDeclaration, train: Train) -> None:
    """Refuse a method whose uploads hold what the guarantee does not cover."""
    if guard.dp == "client" and declared.uploads != "mean":
        why = {
            "models": "its server looks at uploads one by one",
            "other": "its uploads are not averaged models",
            "nothing": "it uploads nothing",
        }[declared.uploads]
        raise BadInput(
            f"dp = client covers a mean of models, and {method} is not covered ({why}): choose a "
            "method such as fedavg or ditto"
        )
    if guard.dp == "client" and train.weighting != "equal":
        raise BadInput("dp = client bounds a client's part in an equal mean: add --weighting equal")
    if guard.dp == "example" and declared.rows != "gradients":
        raise BadInput(
            f"dp = example covers gradients, and clients of {method} use their rows in another way "
            "too: choose a method such as fedavg or ditto"
        )


def budget_of(
    guard: Guard,
    program: Sequence[Stage],
    federation: Federation,
    facts: Facts,
    schedule: Schedule,
    lengths: Sequence[int],
    seed: int,
) -> Budget | None:
    """The promise of a run, its noise chosen where only an epsilon is given."""
    if guard.dp == "none":
        return None
    share = 1.0
    if guard.dp == "client":
        share = schedule.sample_size(federation.clients) / federation.clients
        releases = sum(n * count_uploads(stage) for stage, n in zip(program, lengths, strict=True))
    else:
        releases = _count_row_gradients(program, federation, facts, schedule, lengths, seed)
    # a round that asks nobody releases no noise: its chance is part of delta
    nobody = releases * (1 - share) ** federation.clients
    delta = guard.dp_delta - nobody
    if delta <= 0:
        raise BadInput(
            f"dp_delta = {guard.dp_delta:g} is below the chance {nobody:.2g} that some round asks "
            "nobody: raise --participation or --dp-delta"
        )
    noise = guard.dp_noise or find_noise(guard.dp_epsilon, releases, delta, share)
    return Budget(
        unit=guard.dp,
        epsilon=epsilon_of(noise, releases, delta, share),
        delta=guard.dp_delta,
        clip=guard.dp_clip,
        noise=noise,
        releases=releases,
        share=share,
    )


def count_uploads(stage: Stage) -> int:
    """Exchanges of a round from which the server learns."""
    return sum(exchange.receive is not keep_server for exchange in stage.method.round)


def _count_row_gradients(
    program: Sequence[Stage],
    federation: Federation,
    facts: Facts,
    schedule: Schedule,
    lengths: Sequence[int],
    seed: int,
) -> int:
    """Noised gradients of one row, of the client that has most."""
    n = federation.clients
    total = np.zeros(n, dtype=np.int64)
    for stage, rounds in zip(program, lengths, strict=True):
        asked = np.zeros(n, dtype=np.int64)
        for number in range(rounds):
            if stage.everyone or schedule.trains == "all":
                asked += 1
            else:
                asked[list(sample_clients(schedule, n, stage.name, number, seed))] += 1
        sizes, back = np.unique(federation.sizes, return_inverse=True)
        total += asked * np.array([_count_per_round(stage, facts, int(n)) for n in sizes])[back]
    return int(total.max())


def _count_per_round(stage: Stage, facts: Facts, rows: int) -> int:
    """Noised gradients of one row of a client with so many rows in one round."""
    return sum(
        _count_epochs(work.plan, rows) * _count_gradients(stage, exchange, facts)
        for exchange in stage.method.round
        for work in exchange.passes
        if work.plan and work.plan.part == "train"
    )


def _count_epochs(plan: BatchPlan, rows: int) -> int:
    """How often a pass comes to the same row, at most."""
    per_epoch = -(-rows // min(plan.batch_size or FULL_BATCH, rows))
    return -(-count_steps(plan, rows) * plan.batches // per_epoch)


def _count_gradients(stage: Stage, exchange: Exchange, facts: Facts) -> int:
    """Gradients in one step of the exchange, the most of its passes."""
    method, model = stage.method, facts.models[0]
    server = method.init(stream(0, "init"), facts)
    payload = to_tensors(exchange.send(server, 0, stream(0, "send")))
    carry = exchange.start(to_tensors(method.join(payload, stream(0, "join"))), payload)
    most = 0
    for work in exchange.passes:
        before = GRADIENT_COUNT.value
        batch = _make_empty_row(model.input_shape or (), work.plan.batches) if work.plan else None
        carry = work.step(carry, batch)
        most = max(most, GRADIENT_COUNT.value - before)
    return most


def _make_empty_row(shape: tuple[int, ...], batches: int) -> Batch:
    """One empty row per batch."""
    lead = (batches, 1) if batches > 1 else (1,)
    return Batch(
        x=torch.zeros(*lead, *shape),
        y=torch.zeros(lead, dtype=torch.int64),
        mask=torch.ones(lead),
        place=torch.zeros(lead, dtype=torch.int64),
        key=torch.arange(batches) if batches > 1 else torch.tensor(0),
        pace=torch.ones(()),
    )
