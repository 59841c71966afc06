"""What the metrics of a run say so far: a curve per part and view, and every client at the last
measured round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from coterie.core.checkpoint import list_checkpoints
from coterie.core.errors import BadInput
from coterie.core.files import check_regular_file
from coterie.results.folder import METRICS
from coterie.results.metric_table import EVERYONE, MARK, Table, curve_of, values_of

METRICS_SHOWN = ("accuracy", "loss")
MAX_CLIENTS = 2000  # clients drawn


def find_metrics_file(folder: Path) -> Path | None:
    """The table of a finished run, else that of its last checkpoint."""
    places = (folder / METRICS, *(c / MARK for c in reversed(list_checkpoints(folder))))
    return next((p for p in places if p.is_file()), None)


def version_of(path: Path | None) -> str:
    """Changes when the file does; "" where there is none."""
    try:
        found = path.stat() if path else None
    except OSError:  # its checkpoint has just made room for the next
        found = None
    return f"{found.st_mtime_ns:x}-{found.st_size:x}" if found else ""


def read_curves(path: Path, names: list[str]) -> dict[str, Any]:
    """{"curves": mean over clients by round, "clients": each one's last value}."""
    table = Table.read(path).whole()
    rows = table.filter((pc.field("client") != EVERYONE) & (pc.field("part") != ""))
    rows = rows.filter(pc.field("metric").isin(_select_metrics(rows)))
    keys = ("metric", "part", "view")
    plain = (
        pa.table({k: rows[k].cast(pa.string()) for k in keys})
        .group_by(list(keys))
        .aggregate([])
        .to_pylist()
    )
    curves = []
    for key in sorted(plain, key=lambda k: tuple(k.values())):
        rounds, numbers = curve_of(rows, key["metric"], key["part"], key["view"])
        curves.append({**key, "rounds": rounds.tolist(), "values": _to_finite(numbers)})
    return {"curves": curves, "clients": _last_values(rows, curves, names)}


def _select_metrics(rows: pa.Table) -> list[str]:
    """The metrics that are drawn: the usual ones, and what else was measured round by round."""
    pairs = pa.table({"metric": rows["metric"].cast(pa.string()), "round": rows["round"]})
    counts = pairs.group_by("metric").aggregate([("round", "count_distinct")]).to_pylist()
    most = max((found["round_count_distinct"] for found in counts), default=0)
    often = [f["metric"] for f in counts if 1 < f["round_count_distinct"] == most]
    return sorted({*METRICS_SHOWN, *often})


def _last_values(
    rows: pa.Table, curves: list[dict[str, Any]], names: list[str]
) -> dict[str, Any] | None:
    """Every client's own model at the last measured round, on test data where they are measured."""
    found = [
        c for c in curves if c["view"] == "personal" and any(v is not None for v in c["values"])
    ]
    metric = "accuracy" if any(c["metric"] == "accuracy" for c in found) else "loss"
    parts = [c["part"] for c in found if c["metric"] == metric]
    if not parts:
        return None
    part = next((p for p in ("test", "validation") if p in parts), parts[0])
    clients, numbers = values_of(rows, metric, part)
    called = [names[i] if i < len(names) else str(i) for i in clients[:MAX_CLIENTS].tolist()]
    described = {
        "metric": metric,
        "part": part,
        "round": int(pc.max(rows["round"]).as_py()),
        "all": len(clients),
    }
    return {**described, "names": called, "values": _to_finite(numbers[:MAX_CLIENTS])}


def _to_finite(numbers: Iterable[float]) -> list[float | None]:
    return [float(v) if math.isfinite(v) else None for v in numbers]


def read_progress_rows(path: Path, part: str) -> list[dict[str, Any]]:
    """A run's curve as lines of progress, for a run that wrote none."""
    table = Table.read(path).whole()
    lines: dict[int, dict[str, Any]] = {}
    for metric in METRICS_SHOWN:
        rounds, numbers = curve_of(table, metric, part)
        for r, v in zip(rounds.tolist(), _to_finite(numbers), strict=True):
            lines.setdefault(r, {"round": r})[metric] = v
    return [lines[r] for r in sorted(lines)]


def read_last_metrics(path: Path, part: str) -> tuple[int, float | None, float | None]:
    """(rounds, accuracy, loss) at the end of a run's table."""
    table = Table.read(path).whole()
    last = [_to_finite(curve_of(table, metric, part)[1][-1:]) or [None] for metric in METRICS_SHOWN]
    return int(np.max(table["round"].to_numpy(), initial=0)), last[0][0], last[1][0]


def check_metrics(path: Path) -> None:
    """Refuse a table that is missing or cut off; only its end is read."""
    try:
        pq.read_schema(check_regular_file(path))
    except FileNotFoundError:
        raise BadInput(f"{path.name} is missing, though the run is finished: run again") from None
    except (pa.ArrowException, OSError):
        raise BadInput(f"{path.name} is damaged: restore it from a copy, or run again") from None
