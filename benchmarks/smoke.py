"""Fails when the engine is no longer much faster than a plain PyTorch loop.

MLR with FedAvg on one thread, in turns with the plain loop: load slows both alike. On a machine
that is busier than its cores, single turns say little, so that the best of several medians counts.
"""

import sys

import torch
from workloads import MLR, engine_side, in_turns, plain_side, ratio

from coterie.engines.settings import ExecutionSettings

LEAST, TRIES, TURNS = 8.0, 4, 9


def main() -> None:
    torch.set_num_threads(1)
    exchange, _ = engine_side(MLR, "fedavg", ExecutionSettings(), free_threads=False)
    sides = {"plain": plain_side(MLR, "fedavg"), "auto": exchange}
    best = 0.0
    for _ in range(TRIES):
        best = max(best, ratio(in_turns(sides, TURNS), "plain", "auto"))
        print(f"{MLR.label}: {best:.1f} times the plain loop (at least {LEAST:g})", flush=True)
        if best >= LEAST:
            return
    sys.exit(f"the engine is {best:.1f} times as fast as a plain loop: it was {LEAST:g} and more")


if __name__ == "__main__":
    main()
