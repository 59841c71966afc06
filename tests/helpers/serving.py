"""What tests of models in use share: a table of every kind of column, and a run of it."""

import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import uvicorn

from coterie.core.sockets import listen
from coterie.data.messages import DataWarning
from coterie.experiment.config import Experiment, change_options
from coterie.results.data_files import ROWS
from coterie.results.run import Run
from coterie.running.execute import execute
from helpers.runs import FAST

WORDS = FAST | {"client": "site", "label": "verdict", "rounds": 3, "batch_size": 8, "hidden": 6}
MIXED = "site,age,income,job,when,smokes,verdict"


def write_people(path: Path, sites: int = 3, rows: int = 40, seed: int = 0) -> Path:
    """A table with numbers, gaps, texts, American dates and truth values."""
    rng = np.random.default_rng(seed)
    lines = [MIXED]
    for site in range(sites):
        for _ in range(rows):
            age, income = rng.normal(40, 9), np.exp(rng.normal(3, 1))
            job = rng.choice(["cook", " nurse", "clerk", "NA"])
            day = f"{rng.integers(1, 13):02d}/{rng.integers(1, 29):02d}/2024"
            verdict = "sick" if age + 5 * site + rng.normal() > 44 else "well"
            cells = [f"site-{site}", f"{age:.2f}", "" if rng.random() < 0.2 else f"{income:.3f}"]
            lines.append(",".join([*cells, job, day, str(rng.random() < 0.3), verdict]))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_numbers(path: Path, sites: int = 3, rows: int = 40, seed: int = 0) -> Path:
    """A table of plain numbers."""
    rng = np.random.default_rng(seed)
    lines = ["site,a,b,verdict"]
    for site in range(sites):
        for a, b in rng.normal(size=(rows, 2)):
            verdict = "good" if b > (site - 1) * a else "bad"
            lines.append(f"site-{site},{a:.4f},{b:.4f},{verdict}")
    path.write_text("\n".join(lines) + "\n")
    return path


def people_run(folder: Path, **settings) -> Run:
    """A small run of the mixed table, in `folder`."""
    path = write_people(folder / "people.csv")
    return _run(path, folder, settings)


def numbers_run(folder: Path, sites: int = 3, **settings) -> Run:
    """A small run of the table of numbers, in `folder`."""
    return _run(write_numbers(folder / "numbers.csv", sites), folder, settings)


def _run(path: Path, folder: Path, settings: dict) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # what the table holds is no news here
        return execute(
            change_options(Experiment(), WORDS | {"dataset": str(path)} | settings), folder / "run"
        )


def held_rows(run: Run, client: int) -> np.ndarray:
    """The numbers of a client's test rows in the user's table."""
    table = pl.DataFrame(pl.from_arrow(pq.read_table(run.folder / ROWS)))
    return table.filter(client=client, part="test")["row"].to_numpy()


@contextmanager
def asking(app, wait: float = 60) -> Iterator[httpx.Client]:
    """A client of an app that runs on a free port of this machine, in a thread."""
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    end = time.monotonic() + wait
    while not server.started:
        assert time.monotonic() < end
        time.sleep(0.02)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=address, timeout=wait) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(wait)
