"""What can be measured of a federation in a minute, on its training rows and on nothing else."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Batch
from coterie.core.model import Model
from coterie.core.point import Point
from coterie.core.rng import stream
from coterie.core.task import find_task
from coterie.data.client_rows import ClientRows
from coterie.data.federation import PARTS, Federation, part_of
from coterie.data.options import DataOptions
from coterie.data.partition.cuts import Shares
from coterie.data.partition.minimum_rows import TooFewRows, minimum_rows_of
from coterie.experiment.build import Given, models_of
from coterie.experiment.config import Experiment, Keep
from coterie.experiment.schedule import Schedule
from coterie.lab.arena.rules import Properties
from coterie.running.assembly import assemble, load_federation
from coterie.running.execute import execute_assembly, threads_of

PROBE_ROWS = 2  # training rows of a client, one to fit the probe on and one to measure it on
HELD_OUT_SHARE = 0.25  # share of a client's training rows that the probe is measured on
ROUNDS, STEPS = 10, 5  # of the probe
ROWS = 256  # training rows of a client whose gradient is taken
CLIENTS = 60  # clients that are looked at; more would take more than a minute


def load_for_probe(experiment: Experiment, data: Given = None) -> Federation:
    """The federation of an experiment, if its clients have training rows to fit a probe on and
    others to measure it on.
    """
    told = DataOptions(**{k: v for k, v in experiment.data.items() if k in DataOptions._fields})
    shares = Shares(told.validation, 0.0 if told.shared_test else told.test)
    needed = minimum_rows_of(shares, PROBE_ROWS)
    try:
        federation = load_federation(experiment, data)
    except TooFewRows as problem:
        if problem.rows >= needed:  # there are enough, but the way they are cut leaves none
            raise
        rows = problem.rows
    else:
        if federation.sizes.max() >= PROBE_ROWS:
            return federation
        rows = max(sum(map(len, parts)) for parts in zip(*_parts_of(federation), strict=True))
    fewer = minimum_rows_of(shares._replace(validation=0.0), PROBE_ROWS)
    way = "use validation = 0" if fewer <= rows else "give each client more rows"
    raise BadInput(
        f"the largest client has {rows} row{'s' * (rows != 1)}, and advice fits a probe on some "
        f"training rows and measures it on others, which takes {needed} rows with validation = "
        f"{shares.validation:g} and test = {shares.test:g}; {way}"
    )


def _parts_of(federation: Federation) -> list[Sequence[np.ndarray]]:
    return [part_of(federation, part) for part in PARTS]


def has_same_inputs(federation: Federation) -> bool:
    """Whether all training rows have the same inputs."""
    first = federation.x[torch.as_tensor(federation.train[0][:1])]
    # a few rows of each client tell most data at once
    return all(
        bool((federation.x[torch.as_tensor(rows[span])] == first).all())
        for span in (slice(ROWS), slice(ROWS, None))
        for rows in federation.train
        if len(rows[span])
    )


def measure_properties(experiment: Experiment, federation: Federation) -> Properties:
    """All properties of a federation, as an experiment would learn it; `train.rate` counts."""
    with threads_of(experiment):
        some = _sample_clients(federation, experiment.seed)
        cosines = _gradient_cosines(experiment, some)
        return Properties(
            rows=float(np.log10(np.median(federation.sizes))),
            divergence=label_divergence(federation),
            gain=_measure_gain(experiment, some),
            similarity=float(cosines.mean()) if len(cosines) else 1.0,
            groups=float(cosines.std()) if len(cosines) else 0.0,
        )


def _sample_clients(federation: Federation, seed: int) -> Federation:
    """At most CLIENTS of the clients, chosen at random, with training rows only."""
    n = federation.clients
    chosen = np.arange(n)
    if n > CLIENTS:
        chosen = np.sort(stream(seed, "probe").choice(n, CLIENTS, replace=False))
    nobody = [np.zeros(0, np.int64)] * len(chosen)
    return federation._replace(
        train=ClientRows.of(federation.train).only(chosen),
        validation=nobody,
        test=nobody,
        select=nobody,
        groups=np.asarray(federation.groups)[chosen],
        names=[federation.names[i] for i in chosen],
        truth=None if federation.truth is None else federation.truth[chosen],
    )


def label_divergence(federation: Federation) -> float:
    """How far the labels of a client lie from those of all clients, mean over clients.

    Of classes half the sum of the differences of their shares; of numbers the share of their
    variance that lies between clients.
    """
    y = federation.y.numpy()
    if federation.classes:
        kinds = federation.classes
        shares = [np.bincount(y[r], minlength=kinds) / len(r) for r in federation.train]
        common = np.mean(shares, axis=0)
        return float(np.mean([np.abs(share - common).sum() / 2 for share in shares]))
    parts = [y[rows].reshape(len(rows), -1).astype(float) for rows in federation.train]
    whole = np.concatenate(parts)
    total = float(whole.var(axis=0).sum())
    inside = float(np.average([p.var(axis=0).sum() for p in parts], weights=federation.sizes))
    return 1 - inside / total if total > 0 else 0.0


def _measure_gain(experiment: Experiment, federation: Federation) -> float:
    """Points of Local over FedAvg after a few rounds, on training rows that neither saw."""
    fit, held = [], []
    for i, rows in enumerate(federation.train):
        mixed = stream(experiment.seed, "probe", i).permutation(rows)
        cut = max(1, round(HELD_OUT_SHARE * len(rows))) if len(rows) > 1 else 0
        fit.append(np.sort(mixed[cut:]))
        held.append(np.sort(mixed[:cut]))
    probe = federation._replace(train=fit, test=held)
    ends = {name: _measure_method(experiment, probe, name) for name in ("local", "fedavg")}
    return 100 * (ends["local"] - ends["fedavg"])


def _measure_method(experiment: Experiment, federation: Federation, method: str) -> float:
    """What a method reaches in the probe, higher is better: accuracy, or the share of explained
    variance.
    """
    metric = find_task(federation.target.task).probe
    schedule = Schedule(rounds=ROUNDS, evaluate=ROUNDS, parts=("test",), metric=metric)
    train = experiment.train._replace(steps=STEPS)
    keep = Keep(checkpoint=0, models=False)
    tried = replace(
        experiment, method=method, options={}, train=train, schedule=schedule, keep=keep
    )
    with tempfile.TemporaryDirectory() as folder:
        run = execute_assembly(assemble(tried, federation), Path(folder) / method, lambda r: None)
    found = run.measured()
    return float(np.clip(found, -1, 1).mean()) * (1 if run.judged.higher else -1)


def _gradient_cosines(experiment: Experiment, federation: Federation) -> np.ndarray:
    """The cosines between the gradients of all pairs of clients, at one common random model."""
    model = models_of(experiment, federation)[0]
    start = model.start(experiment.seed)
    found = torch.stack(
        [_gradient_of(model, start, federation, rows[:ROWS]) for rows in federation.train]
    )
    found = found / found.norm(dim=1, keepdim=True).clamp(min=1e-12)
    pairs = np.triu_indices(len(found), 1)
    cosines: np.ndarray = (found @ found.T).numpy()[pairs]
    return cosines


def _gradient_of(
    model: Model, start: Point, federation: Federation, rows: np.ndarray
) -> torch.Tensor:
    where = torch.as_tensor(rows)
    x = federation.x[where]
    mask = torch.ones(len(rows))
    batch = Batch(x, federation.y[where], mask, torch.arange(len(rows)), torch.tensor(0))
    slope = model.grad(start, batch)
    return torch.cat([part.detach().flatten() for part in slope.params.values()])
