"""Clients that come after training: what each method does for them.

`python benchmarks/newcomers.py` trains five pFL methods, fine-tuned FedAvg and Local on UCI HAR (4
of 21 people are new, three seeds) and on MNIST by writer (100 of 539 writers are new, one seed). It
gives every newcomer a model by the method's own rule, by fine-tuning its global model, and by
training alone, and writes docs/newcomers.json and, between the marks of docs/newcomers.md, the
tables. Runs that the JSON file has already are not repeated.
"""

import json
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from coterie.analysis.significance import mean_interval
from coterie.data.federation import Federation
from coterie.experiment.config import Experiment, change_options
from coterie.running.assembly import load_federation
from coterie.running.execute import execute

DOCS = Path(__file__).parents[1] / "docs"
PAGE, STORE = DOCS / "newcomers.md", DOCS / "newcomers.json"
BEGIN, END = "<!-- newcomers: begin -->", "<!-- newcomers: end -->"
COMMON = {
    "model": "mlr",
    "eval_every": 1000,
    "batch_size": 16,
    "path": "vectorized",
    "width": 64,
    "compile": "no",
    "threads": 1,
    "models": False,
    "checkpoint": 0,
}
DATA = {
    "UCI HAR, 4 of 21 people new": {
        "words": {
            "dataset": "uci-har",
            "pool": "train",
            "newcomers": 4,
            "lr": 0.02,
            "rounds": 30,
            "few_shot": "2,5,10,20,50,100",
        },
        "seeds": [0, 1, 2],
    },
    "MNIST by writer, 100 of 539 new": {
        "words": {
            "dataset": "mnist-writers",
            "newcomers": 100,
            "lr": 0.05,
            "rounds": 20,
            "few_shot": "5,20",
        },
        "seeds": [0],
    },
}
PERSFL = {
    "keep_models": True,
    "distil_epochs": 10,
    "lambdas": "0,0.5,1",
    "temperatures": "1,5",
}
METHODS = {
    "persfl": PERSFL,
    "pfml": {"lam": 2.0},
    "ktpfl-h": {},
    "selffl": {},
    "ucfl": {},
    "finetune": {},
    "local": {},
}
WAYS = {"rule": "own rule", "finetune": "global, fine-tuned", "local": "trained alone"}


def experiment_of(method: str, settings: dict, seed: int) -> Experiment:
    own = {f"method.{option}": value for option, value in METHODS[method].items()}
    return change_options(Experiment(), {"method": method, "seed": seed} | COMMON | settings | own)


@lru_cache(maxsize=1)
def dealt(name: str, seed: int) -> Federation:
    """The data of a seed, read once for all methods."""
    return load_federation(experiment_of("local", DATA[name]["words"], seed))


def measure(method: str, name: str, seed: int) -> dict:
    """The newcomers' test accuracies of one run, by way and by number of training rows."""
    experiment = experiment_of(method, DATA[name]["words"], seed)
    with tempfile.TemporaryDirectory() as folder:
        run = execute(experiment, Path(folder) / "run", data=dealt(name, seed))
    came = run.came
    return {
        "rule": came.rule,
        "trained": float(np.nanmean(run.accuracy())),
        "rows": came.rows,
        "all": {way: came.values(way).tolist() for way in WAYS},
        "few": {
            str(size): {way: came.values(way, size).tolist() for way in WAYS} for size in came.sizes
        },
    }


def run_all() -> dict:
    """Everything that is not in the store yet; the store after each run."""
    store = json.loads(STORE.read_text()) if STORE.exists() else {}
    for name, each in DATA.items():
        for seed in each["seeds"]:
            for method in METHODS:
                key = f"{name} / {method} / {seed}"
                if key not in store:
                    store[key] = measure(method, name, seed)
                    STORE.write_text(json.dumps(store, indent=1) + "\n")
                    print(key, flush=True)
    return store


def of(store: dict, name: str, method: str) -> list[dict]:
    """The runs of a method on a data set, seed by seed."""
    return [store[f"{name} / {method} / {seed}"] for seed in DATA[name]["seeds"]]


def shown(values: list[float]) -> str:
    found = mean_interval(values)
    return f"{100 * found.mean:.1f} ({100 * found.low:.1f} to {min(100, 100 * found.high):.1f})"


def gain(one: list[float], other: list[float]) -> str:
    found = mean_interval(np.subtract(one, other))
    return f"{100 * found.mean:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def tables(store: dict) -> str:
    """One table per data set, and one on few rows."""
    parts = []
    for name, each in DATA.items():
        seeds = len(each["seeds"])
        runs = {method: of(store, name, method) for method in METHODS}
        n = sum(len(run["rows"]) for run in runs["local"])
        rows = np.mean([count for run in runs["local"] for count in run["rows"]])
        lines = [
            f"### {name}",
            "",
            f"Test accuracy of newcomers in %, mean over {n} newcomers "
            f"({seeds} seed{'s' * (seeds > 1)}) with its 95 % interval; {rows:.0f} training rows "
            "each on average.",
            "",
            "| method | trained clients | own rule | global, fine-tuned | trained alone | "
            "own rule against fine-tuned | against alone |",
            "|---|---|---|---|---|---|---|",
        ]
        for method, found in runs.items():
            by = {way: [v for run in found for v in run["all"][way]] for way in WAYS}
            cells = [shown(by[way]) for way in WAYS]
            gains = [gain(by["rule"], by[way]) for way in ("finetune", "local")]
            trained = f"{100 * np.mean([run['trained'] for run in found]):.1f}"
            lines.append(f"| {method} | {trained} | {' | '.join([*cells, *gains])} |")
        sizes = sorted(
            set.intersection(*(set(run["few"]) for found in runs.values() for run in found)),
            key=int,
        )
        lines += ["", "With few training rows (own rule):", ""]
        lines += [f"| method | {' | '.join(sizes)} | all |", "|---" * (len(sizes) + 2) + "|"]
        for method, found in runs.items():
            means = [
                100 * np.mean([v for run in found for v in run["few"][size]["rule"]])
                for size in sizes
            ]
            means.append(100 * np.mean([v for run in found for v in run["all"]["rule"]]))
            lines.append(f"| {method} | {' | '.join(f'{value:.1f}' for value in means)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def main() -> None:
    torch.set_num_threads(1)
    store = run_all()
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{tables(store)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
