"""Self-FL's synthetic experiment: clients estimate means drawn around a common one, with all
variances known.

    python examples/two_level_gaussian.py --repeats 200 [--write docs/results]

theta_m ~ N(1.6, s0^2), N_m observations of variance 0.1 around theta_m. Case 1 has close clients
(s0^2 = .001, N_m 10 to 20), case 2 far ones (s0^2 = 1, N_m 10 to 200). Printed are the mean errors
|theta - theta_0| of the global model and mean_m |theta_m - its truth| of the personal ones. All
repeats run at once, as gradient steps on a parabola have a closed form; the last lines run the
library's own Self-FL on one draw and compare. With --write the personal errors become the results
files of the paper's Figures 4 and 5, which `coterie reproduce --write docs` puts on its page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from coterie.core.method import Train, stages
from coterie.core.model import Model
from coterie.data.dealing import build
from coterie.data.federation import Federation
from coterie.engines.base import Setup
from coterie.engines.local.engine import LocalEngine
from coterie.engines.settings import Settings
from coterie.experiment.schedule import Schedule
from coterie.methods import uncertainty as law
from coterie.methods.registry import METHODS
from coterie.networks.nets import build as net
from coterie.results.folder import here
from coterie.running.loop import Loop

THETA0, NOISE, CLIENTS, RATE, LOCAL_STEPS = 1.6, 0.1, 20, 1e-4, 50
CASES = {1: (0.001, 20), 2: (1.0, 200)}  # s0^2, largest N_m
ACTIVITY = (0.1, 0.2, 0.5, 0.8, 1.0)
FIGURES = {1: "selffl-figure-4", 2: "selffl-figure-5"}  # of the paper, by case
SHOWN = {"everybody active": 1.0, "10 % active": 0.1}  # their columns


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


def fedavg(world: World, rounds: list[Active], share: float) -> Result:
    """One model for all."""
    theta = np.zeros((len(world.z), 1))
    for active in rounds:
        own = law.descend(theta, world.z, RATE / world.s2, LOCAL_STEPS)
        theta = np.average(own, axis=1, weights=world.sizes * active)[:, None]
    return Result(theta[:, 0], np.broadcast_to(theta, world.z.shape))


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
            theta = np.average(own, axis=1, weights=world.sizes * active)[:, None]
        return Result(theta[:, 0], v)

    return run


def selffl(fl_weight: str = "paper", smooth: bool = True) -> Method:
    """Algorithm 1 with known variances; without smoothing a small activity forgets a bad start
    sooner.
    """

    def run(world: World, rounds: list[Active], share: float) -> Result:
        w = law.weights(world.s0sq, world.s2)
        rest, h = law.without(w), RATE / world.s2
        r = law.share(world.s2, law.trust(world.s0sq, rest, fl_weight))
        steps = np.maximum(1, np.rint(law.steps(r, h)))
        theta, own = np.zeros((len(world.z), 1)), np.zeros_like(world.z)
        for active in rounds:
            begin = theta - np.minimum(w / rest, 1) * (own - theta)
            own = np.where(active, law.descend(begin, world.z, h, steps), own)
            new = np.average(own, axis=1, weights=w * active)[:, None]
            theta = (1 - share) * theta + share * new if smooth else new
        return Result(theta[:, 0], own)

    return run


def closed(fl_weight: str) -> Method:
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
    "Self-FL": selffl(),
    "Self-FL, unsmoothed": selffl(smooth=False),
    "Self-FL, exact": selffl("exact"),
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
    made = build("gaussian", validation=0, test=0.1, data_options={"case": case, "seed": seed})
    whole = [np.concatenate(rows) for rows in zip(made.train, made.test, strict=True)]
    return made._replace(train=whole)


def engine(
    data: Federation, rounds: int, seed: int = 0, sample: float = 1.0, **options: object
) -> np.ndarray:
    """The personal models of the library's Self-FL, [clients]."""
    model = Model(lambda: net("mean", data.input_shape, 1), task="squared")
    program = stages(
        METHODS["selffl"](
            model, Train(batch=0, rate=RATE), known_variance=NOISE, l_max=1000, **options
        )
    )
    settings = [Settings("vectorized", CLIENTS, "no")]
    dealt = np.zeros(data.clients, dtype=int)
    setup = Setup(
        federation=data,
        models=[model],
        programs=[program],
        architecture=dealt,
        seed=seed,
        settings=settings,
    )
    play = LocalEngine(setup)
    loop = Loop(
        play, data, Schedule(rounds=rounds, evaluate=rounds, sample=sample, parts=("train",)), seed
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


def results(case: int, table: dict[str, np.ndarray], seed: int) -> dict[str, object]:
    """A case as a results file: the personal errors of every method."""
    columns = [
        {
            "column": name,
            "recipe": "examples/two_level_gaussian.py",
            "scale": 1,
            "runs": [1, 1],
            "about": here(),
            "methods": {
                method: [{"seed": seed, "figures": {"personal": round(float(values[at, 1]), 4)}}]
                for method, values in table.items()
            },
        }
        for name, share in SHOWN.items()
        for at in (ACTIVITY.index(share),)
    ]
    return {"table": FIGURES[case], "columns": columns}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="folder of results files")
    given = parser.parse_args(arguments)
    for case, (s0sq, _) in CASES.items():
        table = errors(case, given.repeats, given.rounds, given.seed)
        if given.write:
            text = json.dumps(results(case, table, given.seed), indent=1)
            (given.write / f"{FIGURES[case]}.json").write_text(text + "\n")
        for column, what in enumerate(
            ("global |theta - theta_0|", "personal mean |theta_m - truth|")
        ):
            print(f"\nCase {case} (s0^2 = {s0sq:g}), {what}, at activity")
            print(f"{'':20}" + "".join(f"{share:>8g}" for share in ACTIVITY))
            for name, values in table.items():
                print(f"{name:20}" + "".join(f"{value:8.4f}" for value in values[:, column]))
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
