"""Five methods under attack: a fifth of the clients send -50 times their change.

`python benchmarks/under_attack.py` trains every method four times on digits (Dirichlet) and on
MNIST (two classes per client): clean, with honest clients only, attacked, and attacked with
--robust norm. It writes docs/robustness.json and, between the marks of docs/robustness.md, a table
and docs/pictures/robustness.svg. Runs that the JSON file has already are not repeated.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from coterie.core.errors import Diverged
from coterie.data.federation import Federation
from coterie.experiment.config import Experiment, change_options
from coterie.running.assembly import assemble, load_federation, open_loop
from coterie.running.upload_guard import attackers_of

DOCS = Path(__file__).parents[1] / "docs"
PAGE, STORE, PICTURE = DOCS / "robustness.md", DOCS / "robustness.json", DOCS / "pictures"
BEGIN, END = "<!-- attack: begin -->", "<!-- attack: end -->"
SHARE = 0.2
ENGINE = {"path": "vectorized", "width": 20, "compile": "no", "eval_every": 1000}
DATA = {
    "digits, Dirichlet 0.5": {
        "dataset": "digits",
        "partition": "dirichlet",
        "alpha": 0.5,
        "num_clients": 20,
        "lr": 0.3,
        "rounds": 60,
    },
    "MNIST, two classes per client": {
        "dataset": "mnist",
        "partition": "pairs",
        "num_clients": 20,
        "lr": 0.1,
        "rounds": 30,
        "rows": 6000,
        "model": "mlr",
    },
}
METHODS = {
    "fedavg": {},
    "ditto": {},
    "persfl": {"distil_epochs": 5, "lambdas": "0.5", "temperatures": "1"},
    "ucfl": {},
    "selffl": {},
}
VARIANTS = {
    "clean": {},
    "without the attackers": {},
    "attacked": {"attack": "scale", "attackers": SHARE},
    "attacked, --robust norm": {"attack": "scale", "attackers": SHARE, "robust": "norm"},
}


def honest_only(whole: Federation, good: list[int]) -> Federation:
    """The federation as if the attackers had never come."""
    parts = {
        part: [getattr(whole, part)[i] for i in good] for part in ("train", "validation", "test")
    }
    return whole._replace(**parts, groups=whole.groups[good], names=[whole.names[i] for i in good])


def accuracy(settings: dict, whole: Federation, good: list[int], variant: str) -> float | None:
    """The honest clients' mean test accuracy at the end of one run, in %; None: it diverged."""
    experiment = change_options(Experiment(), {**settings, **VARIANTS[variant]})
    alone = variant == "without the attackers"
    loop = open_loop(assemble(experiment, honest_only(whole, good) if alone else whole))
    try:
        loop.go()
    except Diverged:  # the attack has won
        return None
    found = loop.evaluate()["personal", "test", "accuracy"]
    return round(100 * float(np.mean(found if alone else found[good])), 2)


def run_all() -> Iterator[dict]:
    """Every run that the store does not have yet; what there is after each data set."""
    found = json.loads(STORE.read_text()) if STORE.exists() else {}
    done: list[str] = []
    for name, data in DATA.items():
        base = change_options(Experiment(), {**data, **ENGINE})
        whole = load_federation(base)
        guard = base.guard._replace(attack="scale", attackers=SHARE)
        hostile = attackers_of(guard, whole.clients, base.seed)
        good = [i for i in range(whole.clients) if i not in hostile]
        for method, options in METHODS.items():
            for variant in VARIANTS:
                row = found.setdefault(name, {}).setdefault(method, {})
                if variant in row:
                    continue
                settings = {"method": method, **data, **ENGINE, **options}
                row[variant] = accuracy(settings, whole, good, variant)
                print(name, method, variant, row[variant], flush=True)
                STORE.write_text(json.dumps(found, indent=1) + "\n")
        done.append(name)
        yield {data: found[data] for data in done}


def table(found: dict) -> str:
    """One row per data set and method."""
    heads = ["data", "method", *VARIANTS]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * len(VARIANTS)]
    for name, rows in found.items():
        for method, row in rows.items():
            cells = [
                f"{row[variant]:.1f}" if row[variant] is not None else "diverged"
                for variant in VARIANTS
            ]
            lines.append("| " + " | ".join([name, method, *cells]) + " |")
    return "\n".join(lines)


def draw(found: dict) -> None:
    """The same as bars."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(found), figsize=(5.5 * len(found), 3.6), sharey=True, squeeze=False
    )
    axes = axes[0]
    colours = ["#4477aa", "#66ccee", "#ee6677", "#228833"]
    for axis, (name, rows) in zip(axes, found.items(), strict=True):
        for k, variant in enumerate(VARIANTS):
            at = np.arange(len(rows)) + 0.2 * (k - 1.5)
            axis.bar(
                at,
                [row[variant] or 0 for row in rows.values()],
                0.2,
                label=variant,
                color=colours[k],
            )
        axis.set_xticks(range(len(rows)), list(rows))
        axis.set_title(name)
    axes[0].set_ylabel("mean test accuracy of honest clients, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=2)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    figure.savefig(PICTURE / "robustness.svg", metadata={"Date": None})


def main() -> None:
    torch.set_num_threads(1)
    for found in run_all():
        draw(found)
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
