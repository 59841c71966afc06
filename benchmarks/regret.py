"""How good the choice of a method is: what the rule loses on test rows against other rules.

`python benchmarks/regret.py run` plays comparisons on five data sets and writes what every client
reached to docs/results/regret.json; `python benchmarks/regret.py` prints the table of that file and
writes it into docs/evaluation.md. Regret: the best mean over clients on test rows, known only
afterwards, minus that of the chosen method, in points.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import make_classification

import coterie
from coterie.analysis.choice import choose
from coterie.data.read.file_rows import UserData
from coterie.data.read.user_data import from_arrays

ROOT = Path(__file__).resolve().parent.parent
STORE, PAGE = ROOT / "docs" / "results" / "regret.json", ROOT / "docs" / "evaluation.md"
BEGIN, END = "<!-- regret -->", "<!-- end of regret -->"
METHODS = ["local", "fedavg", "finetune", "ditto", "fedper", "persfl", "ucfl"]
SEEDS = 5  # of each kind; LARGE of those that take long
LARGE = 3
Found = dict[str, Any]


def made(seed: int) -> UserData:
    """A table of 20 clients with 30 rows each, in two groups that name the classes differently."""
    x, y = make_classification(600, 12, n_informative=8, n_classes=4, random_state=seed)
    clients = np.arange(len(y)) % 20
    return from_arrays(x.astype(np.float32), (y + clients % 2) % 4, clients, "made table")


def settings(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, words) of every kind of comparison."""
    yield "digits, 3 classes each", {"dataset": "digits", "num_clients": 20}
    mixed = {
        "dataset": "digits",
        "partition": "dirichlet",
        "partition.alpha": 0.3,
        "num_clients": 20,
    }
    yield "digits, Dirichlet 0.3", mixed
    yield "digits, alike", {"dataset": "digits", "partition": "iid", "num_clients": 20}
    options: dict[str, Any] = {
        "dataset": "synthetic",
        "partition": "dirichlet",
        "partition.alpha": 0.5,
        "num_clients": 20,
    }
    options |= {"rows": 2000, "model": "dnn"}
    yield "synthetic, Dirichlet 0.5", options
    yield "a made table, two groups", {"dataset": made(seed), "model": "dnn"}
    rotated = {"dataset": "digits", "partition": "iid", "num_clients": 20, "rotate": 4}
    yield "digits, four rotations", rotated
    if seed < LARGE:
        yield (
            "MNIST, pairs",
            {"dataset": "mnist", "partition": "pairs", "rows": 2000, "model": "dnn"},
        )
        yield "UCI HAR, 12 persons", {"dataset": "uci-har", "num_clients": 12, "scale": "none"}


def play(options: dict[str, Any], seed: int) -> Found:
    """One comparison: what every client reached with every method, and the bytes."""
    with tempfile.TemporaryDirectory() as place:
        result = coterie.compare(
            METHODS,
            seeds=[seed],
            out=Path(place) / "c",
            rounds=15,
            eval_every=100,
            models=False,
            checkpoint=0,
            watch=lambda *_: None,
            **options,
        )
        return {
            name: {
                "select": _plain(runs[0].accuracy("select")),
                "test": _plain(runs[0].accuracy("test")),
                "bytes": row.bytes_down + row.bytes_up,
            }
            for (name, runs), row in zip(result.runs.items(), result.rows(), strict=True)
        }


def _plain(values: np.ndarray) -> list[float | None]:
    return [None if v != v else round(float(v), 6) for v in values]


def run() -> None:
    """Play what is not in the store yet."""
    known = json.loads(STORE.read_text()) if STORE.exists() else {}
    for seed in range(SEEDS):
        for name, options in settings(seed):
            key = f"{name}; seed {seed}"
            if key not in known:
                begin = time.perf_counter()
                known[key] = play(options, seed)
                print(f"{key}: {time.perf_counter() - begin:.0f} s", flush=True)
                STORE.write_text(json.dumps(known, indent=0) + "\n")


def values_of(found: Found, part: str) -> dict[str, np.ndarray]:
    """{method: [1, clients]} of a part."""
    return {name: np.array([each[part]], dtype=float) for name, each in found.items()}


def shipped(found: Found) -> str:
    """One standard error, then the fewest bytes: the rule of the answer."""
    traffic = {name: each["bytes"] for name, each in found.items()}
    return str(choose(values_of(found, "select"), traffic, True).name)


def top(found: Found) -> str:
    """The highest mean on select rows."""
    means = {name: np.nanmean(a) for name, a in values_of(found, "select").items()}
    return max(means, key=lambda name: means[name])


RULES: dict[str, Callable[[Found], str]] = {
    "one standard error, fewest bytes (shipped)": shipped,
    "highest mean on select rows": top,
    "always Local": lambda found: "local",
    "always FedAvg": lambda found: "fedavg",
}


def table(known: dict[str, Found]) -> list[str]:
    """The table as Markdown: a row per rule, a column per data set."""
    kinds = list(dict.fromkeys(key.partition(";")[0] for key in known))
    clients = [len(next(iter(f.values()))["test"]) for f in known.values()]
    lines = [
        f"{len(known)} comparisons of {len(METHODS)} methods ({', '.join(METHODS)}), 15 rounds, "
        f"{min(clients)} to {max(clients)} clients.",
        "",
        f"| rule | mean regret | largest | worse than Local | {' | '.join(kinds)} |",
        "|---" * (4 + len(kinds)) + "|",
    ]
    for rule, pick in RULES.items():
        lost, below, by_kind = [], [], {kind: [] for kind in kinds}
        for key, found in known.items():
            means = {n: 100 * float(np.nanmean(a)) for n, a in values_of(found, "test").items()}
            chosen = pick(found)
            lost.append(max(means.values()) - means[chosen])
            below.append(means["local"] - means[chosen])
            by_kind[key.partition(";")[0]].append(lost[-1])
        worse = [b for b in below if b > 1e-9]
        said = f"{len(worse)}, by {max(worse):.1f} at most" if worse else "0"
        cells = [f"{np.mean(by_kind[kind]):.2f}" for kind in kinds]
        lines.append(
            f"| {rule} | {np.mean(lost):.2f} | {max(lost):.1f} | {said} | {' | '.join(cells)} |"
        )
    said = ", ".join(f"{name} {gap:+.1f}" for name, gap in optimism(known).items())
    return [*lines, "", f"Mean on select rows minus mean on test rows, in points: {said}."]


def optimism(known: dict[str, Found]) -> dict[str, float]:
    """{method: how much better it looks on the rows that choose than on test rows}."""
    gaps: dict[str, list[float]] = {name: [] for name in METHODS}
    for found in known.values():
        for name, each in found.items():
            select, test = (np.array(each[part], dtype=float) for part in ("select", "test"))
            gaps[name].append(100 * float(np.nanmean(select) - np.nanmean(test)))
    return {name: float(np.mean(values)) for name, values in gaps.items()}


def main() -> None:
    if sys.argv[1:] == ["run"]:
        run()
    lines = table(json.loads(STORE.read_text()))
    print("\n".join(lines))
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + "\n".join([BEGIN, *lines, END]) + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
