"""What one client's own model is worth beyond accuracy, and a detector's false accepts beside those
of a baseline.

Macro averages run over the classes that the client HOLDS in the part: it cannot be blamed for a
class it never sees, and a row taken for such a class costs recall. So recall and balanced accuracy
are one number, kept under both names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coterie.analysis.detection import FalseAccepts, false_accepts
from coterie.core.errors import BadInput
from coterie.core.files import check_regular_file
from coterie.engines.base import Engine, Moment, Send
from coterie.results.folder import write_table
from coterie.results.run import Run

SCORES = "scores.parquet"  # client, label, score: a row for each test row of a task of two classes


def relative_false_accepts(run: Run, baseline: Run, threshold: float = 0.5) -> FalseAccepts:
    """False accepts of every client's own model over those of a baseline's, the rows of all clients
    together.
    """
    mine, theirs = _read_pair(run, baseline)
    return false_accepts(mine["label"], mine["score"], theirs["score"], threshold)


def false_accepts_by_group(
    run: Run, baseline: Run, threshold: float = 0.5
) -> dict[int, FalseAccepts]:
    """The same for each true group (Self-FL: device type), every group at its own threshold; NaN
    for rows of one class alone.
    """
    mine, theirs = _read_pair(run, baseline)
    group = np.asarray(run.about["groups"])[mine["client"]]
    found = {}
    for g in np.unique(group):
        label, score, base = (
            column[group == g] for column in (mine["label"], mine["score"], theirs["score"])
        )
        both = len(np.unique(label)) == 2
        found[int(g)] = (
            false_accepts(label, score, base, threshold)
            if both
            else FalseAccepts(*[float("nan")] * 3)
        )
    return found


def _read_pair(run: Run, baseline: Run) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The scores of two runs, of the same rows."""
    mine, theirs = read_scores(run.folder), read_scores(baseline.folder)
    if not all(np.array_equal(mine[name], theirs[name]) for name in ("client", "label")):
        raise BadInput(
            f"{run.folder} and {baseline.folder} scored different test rows: compare runs on the "
            "same data, split and seed"
        )
    return mine, theirs


def read_scores(folder: Path) -> dict[str, np.ndarray]:
    """client, label and score of every test row of a run, client by client."""
    path = folder / SCORES
    try:
        table = pq.read_table(check_regular_file(path), columns=["client", "label", "score"])
    except FileNotFoundError:
        raise BadInput(
            f"{folder} has no {SCORES}: scores are written at the end of a run on data of two "
            "classes"
        ) from None
    except (pa.ArrowException, OSError) as problem:
        raise BadInput(f"{path} cannot be read: {str(problem).splitlines()[0]}") from None
    order = np.argsort(table["client"].to_numpy(), kind="stable")
    return {name: table[name].to_numpy()[order] for name in table.column_names}


def save_scores(
    engine: Engine, clients: Sequence[int], send: Send, when: Moment, folder: Path
) -> None:
    """What every client's own model says to its test rows of two classes: false accepts are counted
    from it.
    """
    found = [
        {
            "client": np.full(len(y), i, dtype=np.int32),
            "label": y.astype(np.int8),
            "score": p[:, 1].astype(np.float64),
        }
        for i, y, p in engine.predictions(clients, send, when, "test")
    ]
    if found:
        write_table(
            pa.table({k: np.concatenate([f[k] for f in found]) for k in found[0]}), folder / SCORES
        )
