"""What a run costs: bytes, client-steps and simulated time a round, and accuracy against each of
them.

The time of a round is that of User-Centric FL, with bytes in place of its streams, so that it holds
for every method: a payload of half a model takes half a downlink. Its unit is the time of one
model's downlink.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from coterie.core.errors import BadInput, suggest_name
from coterie.results.metric_table import EVERYONE, curve_of
from coterie.results.run import Run

Uplink = Literal["serial", "parallel"]
Axis = Literal["round", "bytes", "broadcast", "steps", "gradients", "time"]
AXES = ("round", "bytes", "broadcast", "steps", "gradients", "time")
FLOAT = 4  # bytes


class System(NamedTuple):
    """Links and clients in downlinks of one model: a client computes for T_min + Exp(mu), the
    slowest decides.
    """

    rho: float  # an uplink of one model
    t_min: float
    mu: float  # inf: every client takes T_min


SYSTEMS = {
    "slow uplink": System(4, 1, 1),  # wireless, and clients one cannot rely on
    "fast uplink": System(2, 1, inf),  # wireless
    "wired": System(1, 1, inf),
}


def harmonic(m: int) -> float:
    """H_m = 1 + 1/2 + ... + 1/m."""
    return float((1 / np.arange(1, m + 1)).sum())


def _time_of(down: float, clients: int, up: float, system: System, uplink: Uplink) -> float:
    """Broadcasts, the slowest client, uploads one after another (or at once), all in models."""
    if uplink not in ("serial", "parallel"):
        raise BadInput(f"uplink = '{uplink}'{suggest_name(uplink, ('serial', 'parallel'))}")
    if system.mu <= 0:
        raise BadInput(f"mu = {system.mu:g}: give a rate above 0 (inf: no delay)")
    sent = up if uplink == "serial" else up / max(clients, 1)
    return down + system.t_min + harmonic(clients) / system.mu + system.rho * sent


def round_time(
    streams: int, clients: int, rho: float, t_min: float, mu: float, uplink: Uplink = "serial"
) -> float:
    """Expected time of a round in downlinks of one model: k + T_min + H_m / mu + m rho.

    The paper prints no sum: uplinks one after another fit its claim that extra streams cost little
    at rho = 4.
    """
    if clients < 1:
        raise BadInput(f"a round of {clients} clients: give at least 1 client")
    return _time_of(streams, clients, clients, System(rho, t_min, mu), uplink)


def simulate_rounds(
    streams: Sequence[int],
    clients: Sequence[int],
    rho: float,
    t_min: float,
    mu: float,
    uplink: Uplink = "serial",
) -> np.ndarray:
    """[rounds] simulated time at the end of every round, from the distinct models sent and the
    clients asked in each.
    """
    return np.cumsum(
        [round_time(k, m, rho, t_min, mu, uplink) for k, m in zip(streams, clients, strict=True)]
    )


def rounds_to_reach(rounds: ArrayLike, values: ArrayLike, target: float) -> int | None:
    """The first round whose value is at least the target; None if there is none."""
    reached = np.asarray(rounds)[np.asarray(values, dtype=float) >= target]
    return int(reached.min()) if len(reached) else None


# From the table of a run


class Costs(NamedTuple):
    """What every round cost, [rounds] each."""

    round: np.ndarray
    clients: np.ndarray  # that answered
    down: np.ndarray  # bytes, to every client by itself
    broadcast: np.ndarray  # bytes, what is alike for several clients sent once
    up: np.ndarray  # bytes
    steps: np.ndarray  # client-steps: one client on one mini-batch
    gradients: np.ndarray  # evaluations in them
    seconds: np.ndarray  # measured here, without evaluation

    def sum(self) -> Costs:
        """The same up to and with each round; rounds and clients stay as they are."""
        return Costs(self.round, self.clients, *(np.cumsum(column) for column in self[2:]))


def costs_of(run: Run) -> Costs:
    """Every round's costs from a run's table.

    A client-step is one step of one client on its mini-batch, in all passes of a round, those that
    only score included; padding is not counted. A gradient is one evaluation of a network's
    gradient on a mini-batch: pFedMe takes K a step, Ditto two, PersFL one for each student of its
    grid, a step that only scores none.
    """
    rows = run.table.filter((pc.field("client") == EVERYONE) & (pc.field("view") == ""))
    rounds = np.unique(rows["round"].to_numpy())
    usual = run.experiment.schedule.sample_size(
        len(run.about["clients"])
    )  # a table of an older run does not say who answered
    names = ("bytes_down", "bytes_broadcast", "bytes_up", "steps", "gradients", "seconds")
    return Costs(
        rounds,
        _column_of(rows, "clients", rounds, usual).astype(int),
        *(_column_of(rows, name, rounds) for name in names),
    )


def _column_of(rows: pa.Table, metric: str, rounds: np.ndarray, missing: float = 0.0) -> np.ndarray:
    mine = rows.filter(pc.field("metric") == metric)
    found = np.full(len(rounds), float(missing))
    found[np.searchsorted(rounds, mine["round"].to_numpy())] = mine["value"].to_numpy()
    return found


def model_bytes_of(run: Run) -> float:
    """Bytes of one model; where architectures differ, the mean over clients."""
    sizes = np.array([model["parameters"] for model in run.about["models"]])
    return float(FLOAT * sizes[np.asarray(run.about["architecture"])].mean())


def system_of(system: str | System) -> System:
    """A system by its name, or as it is."""
    if isinstance(system, str) and system not in SYSTEMS:
        raise BadInput(f"system = '{system}'{suggest_name(system, SYSTEMS)}")
    return SYSTEMS[system] if isinstance(system, str) else system


def simulated_time(
    run: Run, system: str | System = "slow uplink", uplink: Uplink = "serial"
) -> np.ndarray:
    """[rounds] time at the end of every round in downlinks of one model.

    A round takes broadcast / S + T_min + H_m / mu + rho up / S for models of S bytes and m clients
    that answer (uplinks at once: rho up / (S m)); a round of several exchanges computes once.
    FedAvg and UCFL have `round_time`.
    """
    found, s, chosen = costs_of(run), model_bytes_of(run), system_of(system)
    each = zip(found.broadcast / s, found.clients, found.up / s, strict=True)
    return np.cumsum([_time_of(down, int(m), up, chosen, uplink) for down, m, up in each])


def cumulative_costs_of(
    run: Run, axis: Axis, system: str | System = "slow uplink", uplink: Uplink = "serial"
) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, what was spent up to and with each).

    axis: "round", "bytes" (down to every client by itself, and up), "broadcast" (the same with
        shared payloads sent once), "steps" or "gradients" of all clients, or simulated "time".
    """
    if axis not in AXES:
        raise BadInput(f"accuracy against '{axis}'{suggest_name(axis, AXES)}")
    found = costs_of(run).sum()
    if axis == "time":
        return found.round, simulated_time(run, system, uplink)
    columns = {
        "round": found.round,
        "bytes": found.down + found.up,
        "broadcast": found.broadcast + found.up,
        "steps": found.steps,
        "gradients": found.gradients,
    }
    return found.round, columns[axis]


def costs_until(
    run: Run,
    round: int,
    axis: Axis,
    system: str | System = "slow uplink",
    uplink: Uplink = "serial",
) -> float:
    """What was spent up to and with a round."""
    rounds, x = cumulative_costs_of(run, axis, system, uplink)
    return float(x[np.searchsorted(rounds, round)])


def accuracy_against(
    run: Run,
    axis: Axis,
    part: str = "test",
    view: str = "personal",
    system: str | System = "slow uplink",
    uplink: Uplink = "serial",
) -> tuple[np.ndarray, np.ndarray]:
    """(x, mean accuracy over clients) at every round that was measured, x as in `spent`; losses
    where there are no classes.
    """
    rounds, means = curve_of(run.table, run.measure, part, view)
    every, x = cumulative_costs_of(run, axis, system, uplink)
    return x[np.searchsorted(every, rounds)], means
