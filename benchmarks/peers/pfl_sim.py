"""Federated averaging with Apple's pfl: its simulated backend, one process.

pfl measures the clients of the first round before and after they train, which cannot be turned off;
it takes the rows of a client in their order, where the others shuffle.
"""

import time
import types
from collections.abc import Iterator

import common
import nets
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel


def loss(self: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    self.train()
    return F.cross_entropy(self(x), y)


@torch.no_grad()
def metrics(self: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
    self.eval()
    return {"loss": Weighted(F.cross_entropy(self(x), y, reduction="sum").item(), len(y))}


class Watch(TrainingProcessCallback):
    """The moment at which each round was over."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.moments.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.moments.append(time.perf_counter())
        return False, Metrics()


def asked(job: common.Job) -> Iterator[int]:
    """The clients of all rounds, one after another; pfl asks for a few more than it trains."""
    for number in range(job.rounds + 2):
        yield from job.asked(number)


def main() -> None:
    job = common.job()
    torch.manual_seed(0)
    net = nets.started(job.net, job.every_x.shape[1:], job.init)
    net.loss, net.metrics = types.MethodType(loss, net), types.MethodType(metrics, net)
    users = [
        Dataset(tuple(map(torch.from_numpy, job.rows(i))), user_id=str(i))
        for i in range(job.clients)
    ]
    sampler = asked(job)
    data = FederatedDataset(lambda i: users[i], lambda: next(sampler))
    model = PyTorchModel(
        model=net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
    )
    watch = Watch()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds,
            train_cohort_size=job.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=job.rate, local_num_epochs=1, local_batch_size=job.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        callbacks=[watch],
    )
    seconds = [b - a for a, b in zip(watch.moments, watch.moments[1:], strict=False)]
    steps = sum(job.steps(job.asked(number)) for number in range(job.rounds))
    common.report(seconds, steps, *nets.worth(net, job.test_x, job.test_y))


if __name__ == "__main__":
    main()
