"""Self-FL's synthetic experiment: clients estimate means drawn around a common one, with all
variances known.

    python examples/two_level_gaussian.py --repeats 200 [--write docs/results]

theta_m ~ N(1.6, s0^2), N_m observations of variance 0.1 around theta_m. Case 1 has close clients
(s0^2 = .001, N_m 10 to 20), case 2 far ones (s0^2 = 1, N_m 10 to 200). Printed are the mean errors
|theta - theta_0| of the global model and mean_m |theta_m - its truth| of the personal ones. All
repeats run at once, as gradient steps on a parabola have a closed form; the last lines run the
library's own Self-FL on one draw and compare. With --write the errors become the results files of
the paper's Figures 4, 5 and 6, which `coterie reproduce --write docs` puts on its page.

The paper gives every method the rate 1e-4 and, Self-FL aside, 50 local steps. It is silent on the
start, here 0, on lam of Ditto and pFedMe, here 1 / s0^2 (what the model calls for) beside a usual
one, and on Per-FedAvg's rate of adaptation, here 1e-4 as all rates beside 5e-4, the largest with
which no client of case 2 steps beyond its own mean.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from coterie.core.method import Train, stages_of
from coterie.core.model import Model
from coterie.data.federation import Federation
from coterie.data.pipeline import build_federation
from coterie.engines.base import EngineSetup
from coterie.engines.local.engine import LocalEngine
from coterie.engines.settings import ExecutionSettings
from coterie.experiment.schedule import Schedule
from coterie.methods import uncertainty as law
from coterie.methods.registry import METHODS
from coterie.networks.registry import build_network as net
from coterie.results.folder import describe_environment
from coterie.running.loop import Loop

THETA0, NOISE, CLIENTS, RATE, LOCAL_STEPS = 1.6, 0.1, 20, 1e-4, 50
INNER = 5  # pFedMe's steps on theta for each one on w_i, as in its authors' code
FIRST, CONVERGE = 20, 1000  # steps while s0^2 is unknown; further ones of Algorithm 2
CASES = {1: (0.001, 20), 2: (1.0, 200)}  # s0^2, largest N_m
ACTIVITY = (0.1, 0.2, 0.5, 0.8, 1.0)
SHOWN = {"everybody active": 1.0, "10 % active": 0.1}  # in the results files
PANELS = {"local parameters": "personal", "global parameter": "global"}  # and the model they show
NEGLIGIBLE = 0.001  # what the paper's standard errors stay within
LITTLE = 0.1  # an error that grows by less is insensitive to activity: our reading of the word
LIBRARY_DRAWS, LIBRARY_ROUNDS = 3, 10


class World(NamedTuple):
    """Many draws of one case, [repeats, clients] each."""

    s0sq: float
    truth: np.ndarray
    sizes: np.ndarray
    s2: np.ndarray  # variance of z
    z: np.ndarray  # each client's mean observation


class Result(NamedTuple):
    theta: np.ndarray  # [repeats], the global model
    personal: np.ndarray  # [repeats, clients]


Active = np.ndarray  # [repeats, clients], who is asked in a round
Method = Callable[[World, list[Active], float], Result]


def draw(case: int, repeats: int, rng: np.random.Generator) -> World:
    """Truths and observations."""
    s0sq, largest = CASES[case]
    sizes = rng.integers(10, largest, (repeats, CLIENTS), endpoint=True)
    s2 = NOISE / sizes
    truth = rng.normal(THETA0, np.sqrt(s0sq), (repeats, CLIENTS))
    return World(s0sq, truth, sizes, s2, rng.normal(truth, np.sqrt(s2)))


def sample(repeats: int, rounds: int, share: float, rng: np.random.Generator) -> list[Active]:
    """Who is active in each round, the same for all methods."""
    order = rng.random((rounds, repeats, CLIENTS)).argsort(-1).argsort(-1)
    return list(order < max(1, int(share * CLIENTS)))


def average(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Over clients, [repeats, 1]."""
    return np.average(values, axis=1, weights=weights)[:, None]


def fedavg(world: World, rounds: list[Active], share: float) -> Result:
    """One model for all."""
    theta = np.zeros((len(world.z), 1))
    for active in rounds:
        own = law.descend(theta, world.z, RATE / world.s2, LOCAL_STEPS)
        theta = average(own, world.sizes * active)
    return Result(theta[:, 0], np.broadcast_to(theta, world.z.shape))


def perfedavg(alpha: float) -> Method:
    """A global model made for one step of rate alpha (first order): its gradient is taken where
    that step leads, which leaves 1 - alpha / s^2 of the way to z.
    """

    def run(world: World, rounds: list[Active], share: float) -> Result:
        theta, h = np.zeros((len(world.z), 1)), alpha / world.s2
        for active in rounds:
            own = law.descend(theta, world.z, RATE * (1 - h) / world.s2, LOCAL_STEPS)
            theta = average(own, world.sizes * active)
        return Result(theta[:, 0], law.descend(theta, world.z, h, 1))

    return run


def pfedme(lam: float | None) -> Method:
    """A personal model held to the client's copy w_i of the global one, which follows it; lam as
    for Ditto.
    """

    def run(world: World, rounds: list[Active], share: float) -> Result:
        pull = 1 / world.s0sq if lam is None else lam
        w, personal = np.zeros((len(world.z), 1)), np.zeros_like(world.z)
        curvature = 1 / world.s2 + pull
        for active in rounds:
            own, theta = w, w
            for _ in range(LOCAL_STEPS):
                aim = (world.z / world.s2 + pull * own) / curvature
                theta = law.descend(theta, aim, RATE * curvature, INNER)
                own = own - RATE * pull * (own - theta)
            personal = np.where(active, theta, personal)
            w = average(own, world.sizes * active)
        return Result(w[:, 0], personal)

    return run


def ditto(lam: float | None) -> Method:
    """A personal model held to FedAvg's with weight lam; None takes 1 / s0^2, what (1) calls
    for.
    """

    def run(world: World, rounds: list[Active], share: float) -> Result:
        pull = 1 / world.s0sq if lam is None else lam
        theta, v = np.zeros((len(world.z), 1)), np.zeros_like(world.z)
        curvature = 1 / world.s2 + pull
        for active in rounds:
            aim = (world.z / world.s2 + pull * theta) / curvature
            v = np.where(active, law.descend(v, aim, RATE * curvature, LOCAL_STEPS), v)
            own = law.descend(theta, world.z, RATE / world.s2, LOCAL_STEPS)
            theta = average(own, world.sizes * active)
        return Result(theta[:, 0], v)

    return run


def selffl(
    fl_weight: law.FlWeight = "paper", smooth: bool = True, known: bool = True, further: int = 0
) -> Method:
    """Algorithm 1, and Algorithm 2 with `further` steps to convergence.

    smooth: without it a small activity forgets a bad start sooner. known: whether s0^2 is; if not,
    it is the variance between the active clients' models, in Algorithm 2 their converged ones.
    With s0^2 known the converged models have no use.
    """

    def run(world: World, rounds: list[Active], share: float) -> Result:
        s0sq = world.s0sq if known else None
        theta, own, h = np.zeros((len(world.z), 1)), np.zeros_like(world.z), RATE / world.s2
        for active in rounds:
            pull, steps = choose(s0sq, world.s2, fl_weight)
            begin = theta - pull * (own - theta)
            own = np.where(active, law.descend(begin, world.z, h, steps), own)
            if not known:
                s0sq = between(law.descend(own, world.z, h, further), active)
            new = average(own, law.weights(s0sq, world.s2) * active)
            theta = (1 - share) * theta + share * new if smooth else new
        return Result(theta[:, 0], own)

    return run


def longer(method: Method, times: int) -> Method:
    """A method with that many times the rounds; who is active repeats itself."""
    return lambda world, rounds, share: method(world, rounds * times, share)


def choose(s0sq: law.Array, s2: np.ndarray, fl_weight: law.FlWeight) -> tuple[law.Array, law.Array]:
    """How far beyond the global model Self-FL's clients start, and their steps."""
    if s0sq is None:
        return 0.0, FIRST
    w = law.weights(s0sq, s2)
    rest = law.sum_of_others(w)
    r = law.share(s2, law.trust(s0sq, rest, fl_weight))
    return np.minimum(w / rest, 1), np.maximum(1, np.rint(law.steps(r, RATE / s2)))


def between(models: np.ndarray, active: Active) -> np.ndarray:
    """The variance between the models of active clients, [repeats, 1]."""
    return average((models - average(models, active)) ** 2, active)


def closed(fl_weight: law.FlWeight) -> Method:
    """What Self-FL aims at, with everybody's data in hand."""

    def run(world: World, rounds: list[Active], share: float) -> Result:
        personal = law.fl_optimum(world.z, world.s0sq, world.s2, fl_weight)
        return Result(law.global_optimum(world.z, world.s0sq, world.s2), personal)

    return run


def local(world: World, rounds: list[Active], share: float) -> Result:
    """Every client's own mean; the global model is their plain mean."""
    return Result(world.z.mean(1), world.z)


METHODS_HERE: dict[str, Method] = {
    "local optimum": local,
    "FedAvg": fedavg,
    "Ditto, lam 1": ditto(1.0),
    "Ditto, lam 1/s0^2": ditto(None),
    "pFedMe, lam 15": pfedme(15.0),
    "pFedMe, lam 1/s0^2": pfedme(None),
    "Per-FedAvg, alpha 1e-4": perfedavg(1e-4),
    "Per-FedAvg, alpha 5e-4": perfedavg(5e-4),
    "Self-FL": selffl(),
    "Self-FL, unsmoothed": selffl(smooth=False),
    "Self-FL, rounds x 5": longer(selffl(), 5),
    "Self-FL, exact": selffl("exact"),
    "Algorithm 2": selffl(further=CONVERGE),
    "Algorithm 1, s0^2 unknown": selffl(known=False),
    "Algorithm 2, s0^2 unknown": selffl(known=False, further=CONVERGE),
    "theta_FL (3)": closed("paper"),
    "Bayes estimate": closed("exact"),
}


def errors(case: int, repeats: int, rounds: int, seed: int) -> dict[str, np.ndarray]:
    """For each method [activity, 2]: mean error of the global model and of the personal ones."""
    rng = np.random.default_rng([seed, case])
    world = draw(case, repeats, rng)
    out = {name: np.empty((len(ACTIVITY), 2)) for name in METHODS_HERE}
    for k, share in enumerate(ACTIVITY):
        active = sample(repeats, rounds, share, rng)
        for name, method in METHODS_HERE.items():
            theta, personal = method(world, active, share)
            out[name][k] = np.abs(theta - THETA0).mean(), np.abs(personal - world.truth).mean()
    return out


def estimates(s0sq: float, largest: int, draws: int = 4000) -> list[float]:
    """Mean |error| of the local optimum, theta_FL and the Bayes estimate; sizes are uniform from 10
    to `largest`.
    """
    rng = np.random.default_rng(1)
    s2 = 0.1 / rng.integers(10, largest, (draws, 20), endpoint=True)
    truth = rng.normal(1.6, np.sqrt(s0sq), s2.shape)
    z = rng.normal(truth, np.sqrt(s2))
    return [
        float(np.abs(e - truth).mean())
        for e in (z, law.fl_optimum(z, s0sq, s2), law.fl_optimum(z, s0sq, s2, "exact"))
    ]


def federation(case: int, seed: int) -> Federation:
    """One draw as a federation whose clients train on all their observations."""
    made = build_federation(
        "gaussian", validation=0, test=0.1, data_options={"case": case, "seed": seed}
    )
    whole = [np.concatenate(rows) for rows in zip(made.train, made.test, strict=True)]
    return made._replace(train=whole)


def engine(
    data: Federation, rounds: int, seed: int = 0, sample: float = 1.0, **options: object
) -> np.ndarray:
    """The personal models of the library's Self-FL, [clients]."""
    model = Model(lambda: net("mean", data.input_shape, 1), task="squared")
    program = stages_of(
        METHODS["selffl"](
            model, Train(batch_size=0, lr=RATE), known_variance=NOISE, l_max=1000, **options
        )
    )
    settings = [ExecutionSettings("vectorized", CLIENTS, "no")]
    dealt = np.zeros(data.clients, dtype=int)
    setup = EngineSetup(
        federation=data,
        models=[model],
        programs=[program],
        architecture=dealt,
        seed=seed,
        settings=settings,
    )
    play = LocalEngine(setup)
    loop = Loop(
        play,
        data,
        Schedule(rounds=rounds, eval_every=rounds, participation=sample, parts=("train",)),
        seed,
    )
    loop.go()
    ((_, _, views),) = play.points(loop.everyone, loop.payload(), loop.when())
    return views["personal"].params["theta"][:, 0].numpy()


def world(data: Federation, case: int) -> World:
    """A federation as one draw."""
    z = np.array([[float(data.y[torch.as_tensor(rows)].double().mean()) for rows in data.train]])
    return World(
        CASES[case][0], data.truth.numpy().T, data.sizes[None], NOISE / data.sizes[None], z
    )


# Results files

Errors = dict[str, np.ndarray]  # of one case, as `errors` gives them


def column(
    name: str, view: str, found: dict[str, float], seed: int, claims: list[list[object]]
) -> dict[str, object]:
    """One column of a results file: an error of every method, and what became of the claims."""
    return {
        "column": name,
        "recipe": "examples/two_level_gaussian.py",
        "scale": 1,
        "finished": [f"seed{seed}"],
        "wanted": 1,
        "seeds": 1,
        "about": describe_environment(),
        "claims": claims,
        "methods": {
            method: [{"seed": seed, "figures": {view: round(float(value), 5)}}]
            for method, value in found.items()
        },
    }


def at(table: Errors, view: str, share: float) -> dict[str, float]:
    """Every method's error at an activity."""
    place = ACTIVITY.index(share), ("global", "personal").index(view)
    return {method: values[place] for method, values in table.items()}


def compared(table: Errors, seed: int) -> list[dict[str, object]]:
    """Figure 4: methods beside each other."""
    return [
        column(f"{panel}, {name}", view, at(table, view, share), seed, [])
        for panel, view in PANELS.items()
        for name, share in SHOWN.items()
    ]


def insensitive(table: Errors, seed: int) -> list[dict[str, object]]:
    """Figure 5: methods at several activities."""
    columns = []
    for panel, view in PANELS.items():
        found = {
            f"{method}, {name}": error
            for name, share in SHOWN.items()
            for method, error in at(table, view, share).items()
        }
        ours, base = (
            [at(table, view, share)[method] for share in ACTIVITY]
            for method in ("Self-FL", "FedAvg")
        )
        said = (
            f"Self-FL's error hardly depends on activity: {min(ours):.4f} to {max(ours):.4f} over "
            f"the five (FedAvg's: {min(base):.4f} to {max(base):.4f})"
        )
        holds = bool(max(ours) < (1 + LITTLE) * min(ours))
        columns.append(column(panel, view, found, seed, [[holds, said]]))
    return columns


def alike(case: int, table: Errors, seed: int) -> list[dict[str, object]]:
    """Figure 6 on one case: Algorithms 1 and 2 with known variances."""
    columns = []
    for name, share in SHOWN.items():
        gaps = [
            abs(found["Self-FL"] - found["Algorithm 2"])
            for found in (at(table, view, share) for view in PANELS.values())
        ]
        apart = library_gap(case, share)
        claims = [
            [
                bool(max(gaps) <= NEGLIGIBLE),
                f"the errors of Algorithms 1 and 2 differ by {gaps[0]:.4f} (local parameters) and "
                f"{gaps[1]:.4f} (global parameter)",
            ],
            [
                bool(apart <= NEGLIGIBLE),
                f"the library's own two, {LIBRARY_DRAWS} draws of {LIBRARY_ROUNDS} rounds, give "
                f"local parameters that differ by at most {apart:.1g}",
            ],
        ]
        title = f"{'close' if case == 1 else 'far'} clients, {name}"
        columns.append(column(title, "personal", at(table, "personal", share), seed, claims))
    return columns


def library_gap(case: int, share: float) -> float:
    """The largest distance between the personal models of the library's Algorithms 1 and 2."""
    gaps = []
    for seed in range(LIBRARY_DRAWS):
        data = federation(case, seed)
        first, second = (
            engine(
                data,
                LIBRARY_ROUNDS,
                seed,
                share,
                known_spread=CASES[case][0],
                augmented=augmented,
            )
            for augmented in (False, True)
        )
        gaps.append(float(np.abs(first - second).max()))
    return max(gaps)


def write(folder: Path, tables: dict[int, Errors], seed: int) -> None:
    """The results files of Figures 4, 5 and 6."""
    files = {
        "selffl-figure-4": compared(tables[1], seed),
        "selffl-figure-5": insensitive(tables[2], seed),
        "selffl-figure-6": alike(1, tables[1], seed) + alike(2, tables[2], seed),
    }
    for name, columns in files.items():
        text = json.dumps({"table": name, "columns": columns}, indent=1)
        (folder / f"{name}.json").write_text(text + "\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="folder of results files")
    given = parser.parse_args(arguments)
    tables = {case: errors(case, given.repeats, given.rounds, given.seed) for case in CASES}
    if given.write:
        write(given.write, tables, given.seed)
    for case, (s0sq, _) in CASES.items():
        for k, what in enumerate(("global |theta - theta_0|", "personal mean |theta_m - truth|")):
            print(f"\nCase {case} (s0^2 = {s0sq:g}), {what}, at activity")
            print(f"{'':26}" + "".join(f"{share:>8g}" for share in ACTIVITY))
            for name, values in tables[case].items():
                print(f"{name:26}" + "".join(f"{value:8.4f}" for value in values[:, k]))
    print("\nMean |error| of the estimates themselves, 4,000 draws of 20 clients")
    print(f"{'':20}{'local':>8}{'theta_FL':>10}{'Bayes':>8}")
    for s0sq, largest in ((0.001, 20), (1.0, 200), (0.01, 20)):
        print(
            f"{f's0^2 = {s0sq:g}':20}"
            + "".join(
                f"{e:{w}.4f}" for e, w in zip(estimates(s0sq, largest), (8, 10, 8), strict=True)
            )
        )
    rounds = min(given.rounds, 10)
    print(
        f"\nThe library's Self-FL on one draw, {rounds} rounds, everybody active (case 1 nears "
        "its aim by 4 % a round):"
    )
    print(f"{'':20}{'to the above':>14}{'to its aim':>12}")
    for case, (s0sq, _) in CASES.items():
        data = federation(case, given.seed)
        one = world(data, case)
        for fl_weight in law.FL_WEIGHTS:
            got = engine(data, rounds, fl_weight=fl_weight, known_spread=s0sq)
            same = selffl(fl_weight)(one, [np.ones_like(one.z)] * rounds, 1.0).personal
            aim = law.fl_optimum(one.z, s0sq, one.s2, fl_weight)
            gaps = np.abs(got - same).max(), np.abs(got - aim).max()
            print(f"{f'case {case}, {fl_weight}':20}{gaps[0]:14.1e}{gaps[1]:12.4f}")


if __name__ == "__main__":
    main()
