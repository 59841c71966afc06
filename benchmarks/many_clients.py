"""Ten thousand clients of Synthetic(0.5, 0.5) with FedProx's sizes, 1 % active: memory, and time a
round.

`python benchmarks/many_clients.py [clients] [rounds]` prints one line; without arguments it runs
1,000 and 10,000 clients with 100 active in both, each in a process of its own so that memory is
measured alone.
"""

import resource
import subprocess
import sys
import time

import torch


def one(clients: int, rounds: int, active: int = 100) -> str:
    import numpy as np

    from coterie.core.method import Train, stages
    from coterie.core.model import Model
    from coterie.data.dealing import build
    from coterie.engines.base import Setup
    from coterie.engines.local.engine import LocalEngine
    from coterie.engines.settings import Settings
    from coterie.experiment.schedule import Schedule
    from coterie.methods.registry import METHODS
    from coterie.networks import nets
    from coterie.running.loop import Loop

    begin = time.perf_counter()
    data = build(
        "synthetic",
        clients=clients,
        data_options={"clients": clients, "sizes": "fedprox", "draws": "streams"},
    )
    loaded = time.perf_counter() - begin
    model = Model(lambda: nets.build("mlr", (60,), 10), input_shape=(60,))
    program = stages(METHODS["ditto"](model, Train(batch=10, rate=0.01, steps=20)))
    setup = Setup(
        federation=data,
        models=[model],
        programs=[program],
        architecture=np.zeros(clients, dtype=int),
        settings=[Settings("vectorized", 100, "no")],
    )
    loop = Loop(
        LocalEngine(setup), data, Schedule(rounds=rounds, sample=active, evaluate=rounds), 0
    )
    times: list[float] = []
    loop.go(lambda loop, report: times.append(report.seconds))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    typical = 1000 * sorted(times)[len(times) // 2]
    return (
        f"{clients:,} clients, {len(data.y):,} rows, {active} active: {typical:.0f} ms a round "
        "(median, evaluation not "
        f"included), peak memory {memory:.2f} GiB (evaluation of everyone included), data made in "
        f"{loaded:.1f} s"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        print(one(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20))
    else:
        for crowd in ("1000", "10000"):
            subprocess.run([sys.executable, __file__, crowd, "20"], check=True)
