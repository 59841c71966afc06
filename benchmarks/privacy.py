"""What privacy costs: MNIST by writer, accuracy against epsilon.

`python benchmarks/privacy.py` trains FedAvg on the 539 writers without privacy and with
client-level privacy at three epsilons, and writes docs/privacy.json and, between the marks of
docs/privacy.md, a table and docs/pictures/privacy.svg. Runs that the JSON file has already are not
repeated.
"""

import json
from pathlib import Path

import numpy as np
import torch

from coterie.experiment.config import Experiment, change_options
from coterie.running.assembly import assemble, load_federation, open_loop

DOCS = Path(__file__).parents[1] / "docs"
PAGE, STORE, PICTURE = DOCS / "privacy.md", DOCS / "privacy.json", DOCS / "pictures"
BEGIN, END = "<!-- privacy: begin -->", "<!-- privacy: end -->"
WORDS = {
    "method": "fedavg",
    "dataset": "mnist-writers",
    "model": "mlr",
    "rounds": 15,
    "lr": 0.05,
    "batch_size": 32,
    "weighting": "equal",
    "eval_every": 1000,
    "path": "vectorized",
    "width": 64,
    "compile": "no",
    "parts": "test",
}
DELTA = 1e-3  # below one over the number of writers
CLIP = 0.5
EPSILONS = (2.0, 8.0, 32.0)


def trained(guard: dict, whole: object) -> dict:
    """One run: its accuracy, and what was promised."""
    assembly = assemble(change_options(Experiment(), {**WORDS, **guard}), whole)
    loop = open_loop(assembly)
    loop.go()
    found = loop.evaluate()["personal", "test", "accuracy"]
    promise = assembly.budget.facts() if assembly.budget else {}
    return {"accuracy": round(100 * float(np.nanmean(found)), 2), **promise}


def run_all() -> dict:
    """Every run that the store does not have yet."""
    found = json.loads(STORE.read_text()) if STORE.exists() else {}
    whole = None
    for epsilon in (None, *EPSILONS):
        name = "none" if epsilon is None else f"{epsilon:g}"
        if name in found:
            continue
        whole = whole or load_federation(change_options(Experiment(), WORDS))
        guard = {"dp": "client", "dp_clip": CLIP, "dp_epsilon": epsilon, "dp_delta": DELTA}
        found[name] = trained({} if epsilon is None else guard, whole)
        print(name, found[name], flush=True)
        STORE.write_text(json.dumps(found, indent=1) + "\n")
    return found


def table(found: dict) -> str:
    """One row per epsilon."""
    lines = ["| epsilon | delta | noise | mean test accuracy, % |", "|---:|---:|---:|---:|"]
    for row in found.values():
        cells = ["none", "", ""]
        if "epsilon" in row:
            cells = [f"{row['epsilon']:.2f}", f"{row['delta']:g}", f"{row['noise']:.2f}"]
        lines.append(f"| {' | '.join(cells)} | {row['accuracy']:.1f} |")
    return "\n".join(lines)


def draw(found: dict) -> None:
    """Accuracy against epsilon."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in found.values() if "epsilon" in row]
    figure, axis = plt.subplots(figsize=(5.5, 3.4))
    axis.plot([r["epsilon"] for r in rows], [r["accuracy"] for r in rows], "o-", color="#4477aa")
    axis.axhline(found["none"]["accuracy"], color="#888888", linestyle="--", label="no privacy")
    axis.set_xscale("log")
    axis.set_xlabel(f"epsilon for one writer, delta = {DELTA:g}")
    axis.set_ylabel("mean test accuracy, %")
    axis.legend()
    figure.tight_layout()
    figure.savefig(PICTURE / "privacy.svg", metadata={"Date": None})


def main() -> None:
    torch.set_num_threads(1)
    found = run_all()
    draw(found)
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
