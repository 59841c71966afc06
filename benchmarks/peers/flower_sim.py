"""Federated averaging with Flower's simulation: its FedAvg, its Ray backend, one core per client.

Flower itself draws the clients of a round.
"""

import logging
import os
import sys
import time

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import itertools

import common
import nets
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset

client_app, server_app = ClientApp(), ServerApp()
found: dict[str, float] = {}
moments: list[float] = []
WORDS = tuple(sys.argv[1:])  # the processes of the simulation have none of their own


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client's local epoch."""
    job = common.job(WORDS)
    client = int(context.node_config["partition-id"])
    net = nets.build(job.net, job.every_x.shape[1:])
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = map(torch.from_numpy, job.rows(client))
    optimizer = torch.optim.SGD(net.parameters(), lr=job.rate)
    steps = 0
    for rows, labels in DataLoader(TensorDataset(x, y), job.batch, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(net(rows), labels).backward()
        optimizer.step()
        steps += 1
    said = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y), "steps": steps}),
    }
    return Message(content=RecordDict(said), reply_to=message)


class Timed(FedAvg):
    """FedAvg that keeps when each round was over and how many steps its clients took."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                print(f"round {server_round}: {reply.error}", file=sys.stderr, flush=True)
        out = super().aggregate_train(server_round, replies)
        moments.append(time.perf_counter())
        sums = [reply.content["metrics"]["steps"] for reply in replies if reply.has_content()]
        found["steps"] = found.get("steps", 0) + sum(sums)
        return out


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds, then the worth of the last model."""
    job = common.job(WORDS)
    net = nets.started(job.net, job.every_x.shape[1:], job.init)
    strategy = Timed(
        fraction_train=job.cohort / job.clients,
        fraction_evaluate=0.0,
        min_train_nodes=job.cohort,  # else the first round takes those that are there yet
        min_available_nodes=job.clients,
    )
    moments.append(time.perf_counter())
    result = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(net.state_dict()), num_rounds=job.rounds
    )
    net.load_state_dict(result.arrays.to_torch_state_dict())
    accuracy, loss = nets.worth(net, job.test_x, job.test_y)
    found.update(accuracy=accuracy, loss=loss)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=common.job(WORDS).clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    seconds = [b - a for a, b in itertools.pairwise(moments)]
    common.report(seconds, int(found["steps"]), found["accuracy"], found["loss"])
