"""Federated averaging with Coterie, on the rows of the same file."""

import tempfile
from pathlib import Path

import common
import nets
import numpy as np
import torch

import coterie
from coterie.data.federation import Federation
from coterie.results.metric_table import total_of, values_of
from coterie.running.loop import RoundReport


def federation(job: common.Job) -> Federation:
    """The rows of a job, with the test rows dealt evenly."""
    n, every = job.starts[-1], len(job.every_y)
    none = [np.zeros(0, np.int64)] * job.clients
    return Federation(
        name="exported",
        x=torch.from_numpy(job.every_x),
        y=torch.from_numpy(job.every_y),
        classes=10,
        train=np.split(np.arange(n), job.starts[1:-1]),
        validation=none,
        test=np.array_split(np.arange(n, every), job.clients),
        groups=np.zeros(job.clients, dtype=int),
        names=[str(i) for i in range(job.clients)],
    )


def main() -> None:
    job = common.job()
    shape = job.every_x.shape[1:]
    seconds: list[float] = []

    def watch(report: RoundReport) -> None:
        if report.clients:
            seconds.append(report.seconds)

    with tempfile.TemporaryDirectory() as folder:
        run = coterie.run(
            "fedavg",
            dataset=federation(job),
            model=(lambda: nets.build("cnn", shape)) if job.net == "cnn" else job.net,
            batch_size=job.batch,
            lr=job.rate,
            rounds=job.rounds,
            participation=1.0 if job.cohort == job.clients else job.cohort,
            eval_every=job.rounds,
            parts=("test",),
            out=Path(folder) / "run",
            models=False,  # every client's is the same
            watch=watch,
        )
    accuracy, loss = (
        float(np.average(values_of(run.table, metric, "test", "personal")[1], weights=run.rows))
        for metric in ("accuracy", "loss")
    )
    common.report(seconds, int(total_of(run.table, "steps")), accuracy, loss)


if __name__ == "__main__":
    main()
