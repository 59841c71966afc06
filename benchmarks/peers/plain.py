"""Federated averaging as a plain PyTorch loop: one client after another, a DataLoader,
`backward()`, `SGD.step()`.
"""

import time

import common
import nets
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    job = common.job()
    torch.manual_seed(0)
    net = nets.started(job.net, job.every_x.shape[1:], job.init)
    loaders = []
    for i in range(job.clients):
        x, y = map(torch.from_numpy, job.rows(i))
        loaders.append(DataLoader(TensorDataset(x, y), job.batch, shuffle=True))
    w = [p.detach().clone() for p in net.parameters()]
    seconds, steps = [], 0
    for number in range(job.rounds):
        begin = time.perf_counter()
        asked = job.asked(number)
        w = one_round(net, w, [loaders[i] for i in asked], job.rate)
        seconds.append(time.perf_counter() - begin)
        steps += job.steps(asked)
    put(net, w)
    common.report(seconds, steps, *nets.worth(net, job.test_x, job.test_y))


def put(net: torch.nn.Module, w: list[torch.Tensor]) -> None:
    """Give the network these parameters."""
    with torch.no_grad():
        for p, a in zip(net.parameters(), w, strict=True):
            p.copy_(a)


def one_round(
    net: torch.nn.Module, w: list[torch.Tensor], loaders: list[DataLoader], rate: float
) -> list[torch.Tensor]:
    """The average of the clients' models after one epoch each, by their rows."""
    net.train()
    rows = [len(loader.dataset) for loader in loaders]
    total = [torch.zeros_like(a) for a in w]
    for loader, mine in zip(loaders, rows, strict=True):
        put(net, w)
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for t, p in zip(total, net.parameters(), strict=True):
                t.add_(p, alpha=mine / sum(rows))
    return total


if __name__ == "__main__":
    main()
