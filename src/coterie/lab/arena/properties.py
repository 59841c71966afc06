"""What can be measured of a federation in a minute, on its training rows and on nothing else."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from coterie.analysis.nan_math import mean_of
from coterie.core.method import Batch
from coterie.core.model import Model
from coterie.core.point import Point
from coterie.core.rng import stream
from coterie.core.task import find_task
from coterie.data.client_rows import ClientRows
from coterie.data.federation import Federation
from coterie.experiment.build import models_of
from coterie.experiment.config import Experiment, Keep
from coterie.experiment.schedule import Schedule
from coterie.lab.arena.rules import Properties
from coterie.running.assembly import assemble
from coterie.running.execute import execute_assembly, threads_of

HELD_OUT_SHARE = 0.25  # share of a client's training rows that the probe is measured on
ROUNDS, STEPS = 10, 5  # of the probe
ROWS = 256  # training rows of a client whose gradient is taken
CLIENTS = 60  # clients that are looked at; more would take more than a minute


def measure_properties(experiment: Experiment, federation: Federation) -> Properties:
    """All properties of a federation, as an experiment would learn it; `train.lr` counts."""
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
    schedule = Schedule(rounds=ROUNDS, eval_every=ROUNDS, parts=("test",), metric=metric)
    train = experiment.train._replace(local_steps=STEPS)
    keep = Keep(checkpoint=0, models=False)
    tried = replace(
        experiment, method=method, options={}, train=train, schedule=schedule, keep=keep
    )
    with tempfile.TemporaryDirectory() as folder:
        run = execute_assembly(assemble(tried, federation), Path(folder) / method, lambda r: None)
    found = run.client_values()
    # a client of few rows may have no such number
    return mean_of(np.clip(found, -1, 1)) * (1 if run.judged.higher else -1)


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
    gradient = model.grad(start, batch)
    return torch.cat([part.detach().flatten() for part in gradient.params.values()])
