"""Coterie with default words against scikit-learn's logistic regression, on exactly the same rows.

Two questions on each data set: what a client reaches alone (`local` against one regression per
client), and what all rows together reach (one client that holds everything against one regression).
Rows of every part are those of the run's rows.parquet, inputs those that its preparation made. The
third table is `examples/school_table.py`: 60 clients, mixed columns, gaps, 3 % positives.

Run it: python benchmarks/against_sklearn.py [uci-har] [mnist-writers] [schools]
"""

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

import coterie
from coterie.analysis.nan_math import mean_of
from coterie.analysis.scores import score_task
from coterie.data.federation import PARTS, Federation, list_rows
from coterie.experiment.build import federation_of
from coterie.results.run import Run

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from school_table import COLUMNS, school_table  # it lies in another folder

MEASURES = ("accuracy", "auc", "log_loss")
WORDS: dict[str, dict[str, Any]] = {
    "uci-har": {"dataset": "uci-har"},
    "mnist-writers": {"dataset": "mnist-writers", "num_clients": 60},
    "schools": {"client": "school", "label": "dropout", "features": COLUMNS},
}


class Found(NamedTuple):
    """Means over clients of each measure."""

    who: str
    values: dict[str, float]


def regression(federation: Federation) -> dict[str, float]:
    """One logistic regression per client, on its training rows."""
    x, y = federation.x.numpy().reshape(len(federation.x), -1), federation.y.numpy()
    found = []
    for train, test in zip(federation.train, federation.test, strict=True):
        said = np.zeros((len(test), federation.classes))
        held = np.unique(y[train])
        if len(held) > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                fitted = LogisticRegression(max_iter=500).fit(x[train], y[train])
            said[:, fitted.classes_] = fitted.predict_proba(x[test])
        else:
            said[:, held] = 1
        found.append(score_task("classes", y[test], said, MEASURES))
    return {name: mean_of([one[name] for one in found]) for name in MEASURES}


def pooled(federation: Federation) -> Federation:
    """One client that holds every row."""
    parts = {part: [np.unique(np.concatenate(getattr(federation, part)))] for part in PARTS}
    return federation._replace(names=["everyone"], groups=np.zeros(1, np.int64), **parts)


def reached(run: Run) -> dict[str, float]:
    return {"accuracy": mean_of(run.accuracy())} | {
        name: value for name, value in run.scores().items() if name in MEASURES
    }


def compared(name: str, folder: Path, **more: Any) -> list[Found]:
    """Alone and together, ours and theirs."""
    settings = dict(WORDS[name])
    if name == "schools":
        school_table().write_csv(folder / "schools.csv")
        settings["dataset"] = str(folder / "schools.csv")
    alone = coterie.run("local", out=folder / f"{name}-alone", **settings, **more)
    federation = federation_of(alone.experiment)
    if not pq.read_table(alone.folder / "rows.parquet").equals(list_rows(federation)):
        raise SystemExit(f"{name}: the run trained on other rows")
    everyone = pooled(federation)
    together = coterie.run("local", out=folder / f"{name}-pooled", dataset=everyone, **more)
    return [
        Found("alone: coterie", reached(alone)),
        Found("alone: scikit-learn", regression(federation)),
        Found("pooled: coterie", reached(together)),
        Found("pooled: scikit-learn", regression(everyone)),
    ]


def main(*names: str, **more: Any) -> None:
    console = Console(width=80)
    with tempfile.TemporaryDirectory() as folder:
        for name in names or tuple(WORDS):
            grid = Table("", *MEASURES, title=name)
            for who, values in compared(name, Path(folder), **more):
                grid.add_row(who, *(f"{values.get(m, np.nan):.4f}" for m in MEASURES))
            console.print(grid)


if __name__ == "__main__":
    main(*sys.argv[1:])
