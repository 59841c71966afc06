"""New rows with their labels, read as the rows of a run were, and cut in its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from coterie.core.errors import BadInput
from coterie.core.rng import stream
from coterie.core.task import find_task
from coterie.data.arrays import hash_rows
from coterie.data.client_rows import ClientRows
from coterie.data.federation import PARTS, Federation, list_rows, part_of
from coterie.data.messages import warn
from coterie.data.partition.copies import find_copies
from coterie.data.partition.cuts import Shares, cut_at_points, halve_held
from coterie.data.prepare.inputs import InputBuilder, to_frame_or_array
from coterie.data.prepare.preparation import add_client_scale, read_later_rows
from coterie.data.read.columns import RowSource, blank_cells
from coterie.data.read.number_forms import parse_form, parse_numbers
from coterie.experiment.build import Given
from coterie.experiment.config import PYTHON, Experiment
from coterie.results.data_files import ROWS
from coterie.results.folder import read_about
from coterie.results.personal_models import Models
from coterie.running.assembly import load_federation
from coterie.serving.chunks import read_chunks

MAX_LISTED = 5  # classes named in a line


class LabelledRows(NamedTuple):
    """Rows of one client, prepared, with what is learnt of their labels."""

    x: np.ndarray  # [n, ...] inputs
    y: np.ndarray  # [n] classes, or [n] or [n, labels] numbers as a network learns them
    parts: dict[str, np.ndarray]  # rows of each of PARTS
    scale: list[list[float]] | None  # the client's own, where clients have one

    @property
    def counts(self) -> dict[str, int]:
        """How many rows each part has."""
        return {part: len(rows) for part, rows in self.parts.items()}


class OwnRows(NamedTuple):
    """All rows that a client had in training, prepared."""

    x: np.ndarray  # [n, ...]
    y: np.ndarray  # [n] or [n, labels], as a network learns them


def own_rows_of(federation: Federation, client: int) -> OwnRows:
    """A client's rows of every part."""
    rows = np.concatenate([part_of(federation, part)[client] for part in PARTS])
    return OwnRows(federation.x[rows].numpy(), federation.y[rows].numpy())


def load_trained_rows(folder: Path, experiment: Experiment, given: Given = None) -> Federation:
    """The data that a run was trained on, if they are still there and as they were."""
    if given is None and str(experiment.dataset["name"]).startswith(PYTHON):
        raise BadInput(f"{folder} was trained on Python objects: give them again as dataset=")
    federation = load_federation(experiment, given)
    path = folder / ROWS
    if path.is_file():
        known = pq.read_table(path)  # of an earlier version: without the names
        if not known.equals(list_rows(federation).select(known.column_names)):
            raise BadInput(
                f"{folder}: its data have changed since it was trained ({path} lists other rows); "
                "restore them"
            )
    if federation.names != read_about(folder)["clients"]:
        raise BadInput(f"{folder} has other clients than its data now: restore them")
    return federation


def read_rows(rows: Any, separator: str = "") -> tuple[pl.DataFrame, str]:
    """A table from a file or from Python, and what it is called in messages."""
    if not isinstance(rows, str | Path):
        found = to_frame_or_array(rows)
        place = "rows"
    else:
        place = str(rows)
        pieces = [piece.rows for piece in read_chunks(Path(rows), separator)]
        frames = [piece for piece in pieces if isinstance(piece, pl.DataFrame)]
        if len(frames) < len(pieces):
            raise BadInput(f"{place}: arrays name no label; give a table")
        found = pl.concat(frames) if frames else pl.DataFrame()
    if not isinstance(found, pl.DataFrame):
        raise BadInput(f"{place}: arrays name no label; give a table with the columns of training")
    if not found.height:
        raise BadInput(f"{place}: there are no rows; fill it")
    return found, place


def labels_of(models: Models, frame: pl.DataFrame, place: str) -> np.ndarray:
    """What is learnt of the labels of a table; classes are those of training."""
    kept = models.preparation
    target = kept.target if kept else None
    if kept is None or target is None or not target.columns or kept.shape:
        raise BadInput(
            f"{models.folder} was not trained on a table of your own with a label column: its "
            "models can predict, but not learn from new files"
        )
    lacking = [name for name in target.columns if name not in frame.columns]
    if lacking:
        raise BadInput(f"{place}: there is no column '{lacking[0]}', the label in training")
    frame = blank_cells(frame.select(target.columns), kept.missing_values)
    for name in target.columns:
        gaps = frame[name].is_null().to_numpy().nonzero()[0]
        if len(gaps):
            raise BadInput(f"{place}: '{name}' is empty in row {gaps[0] + 1:,}; fill or remove it")
    for name, text in zip(target.columns, target.forms, strict=False):
        form = parse_form(text)
        if form and frame[name].dtype == pl.String:
            numbers = parse_numbers(frame[name].str.strip_chars(), form)
            odd = numbers.is_null().to_numpy().nonzero()[0]
            if len(odd):
                raise BadInput(
                    f"{place}: '{name}' is '{frame[name][int(odd[0])]}' in row {odd[0] + 1:,}, "
                    f"not a number as {form}"
                )
            frame = frame.with_columns(numbers)
    if find_task(target.task).has_numbers:
        found = [_read_numbers(frame[name], place) for name in target.columns]
        return target.scale(found[0] if len(found) == 1 else np.stack(found, 1))
    known = models.about.get("labels") or [str(k) for k in range(models.about["classes"])]
    return _read_classes(frame[target.columns[0]], list(known), place)


def _read_numbers(column: pl.Series, place: str) -> np.ndarray:
    found = column.cast(pl.Float64, strict=False)
    bad = (~found.is_finite().fill_null(False)).to_numpy().nonzero()[0]
    if len(bad):
        raise BadInput(
            f"{place}: '{column.name}' is {column[int(bad[0])]!r} in row {bad[0] + 1:,}, no number"
        )
    return found.to_numpy()


def _read_classes(column: pl.Series, known: list[str], place: str) -> np.ndarray:
    """The number of every row's class."""
    code = {name: k for k, name in enumerate(known)}
    texts = [str(value) for value in column.to_list()]
    found = np.empty(len(texts), np.int64)
    for k, text in enumerate(texts):
        spelled = (text, text.strip(), text.strip().removesuffix(".0"))
        name = next((name for name in spelled if name in code), None)
        if name is None:
            more = ", ..." * (len(known) > MAX_LISTED)
            raise BadInput(
                f"{place}: '{column.name}' is '{text}' in row {k + 1:,}, a class that training "
                f"did not have: it has {', '.join(known[:MAX_LISTED])}{more}"
            )
        found[k] = code[name]
    return found


def load_labelled_rows(
    models: Models,
    experiment: Experiment,
    rows: Any,
    client: str,
    before: OwnRows | None = None,
    **more: Any,
) -> LabelledRows:
    """New rows of a client, prepared as in training and cut in the shares of the run.

    before: the client's rows of training; a new one that is a copy of such a row is left out, as
    the model may have trained on it, or be about to train on one of its test rows.
    """
    frame, place = read_rows(rows, **more)
    y = labels_of(models, frame, place)
    kept = models.preparation
    assert kept is not None
    shape = tuple(models.about["input_shape"])
    if before is not None:
        x = InputBuilder(kept, shape, client).inputs(frame, place)
        new = ~np.isin(_hash_labelled(x, y), _hash_labelled(*before))
        gone = int((~new).sum())
        if gone and not find_copies(_flatten(before.x), before.y).apart:
            if gone == len(y):
                raise BadInput(f"{place}: the run has all its rows already; give new ones")
            warn(f"{place}: {gone:,} of {len(y):,} rows are rows of the run already: left out")
            frame, y = frame.filter(new), y[new]
    later = read_later_rows(kept, frame, RowSource((place,), (frame.height,)))
    parts = _split_parts(experiment, y, find_copies(later.x, y).row, client, place)
    if kept.scale == "client" and client not in kept.clients:
        kept = add_client_scale(kept, client, later.x[parts["train"]], later.columns)
    x = InputBuilder(kept, shape, client).inputs(frame, place)
    own = kept.clients.get(client) if kept.scale == "client" else None
    return LabelledRows(x=x, y=y, parts=parts, scale=[list(own[0]), list(own[1])] if own else None)


def _flatten(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1)


def _hash_labelled(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[n] what equal rows with equal labels have in common."""
    return hash_rows(_flatten(y).astype(np.float32), hash_rows(_flatten(x)))


def _split_parts(
    experiment: Experiment, y: np.ndarray, copies: np.ndarray, client: str, place: str
) -> dict[str, np.ndarray]:
    """The rows of each part, in the shares of the run: in their order where the run cut by order,
    else at random, copies of a row in one part.
    """
    settings = experiment.dataset
    validation, test = float(settings.get("validation", 0.2)), float(settings.get("test", 0.2))
    mixed = settings.get("cut") != "order"
    rngs = [stream(experiment.seed, "later", client)] if mixed else None
    every = ClientRows.of([np.arange(len(y))])
    cut = cut_at_points(every, Shares(validation, test or 0.2), rngs, copies if mixed else None)
    (train,), (held,), (tested,) = (list(part) for part in cut)
    chosen = held[:0]
    if settings.get("select", True):
        held, chosen = halve_held(held, copies[held] if mixed else None)
    parts = dict(zip(PARTS, (train, held, chosen, tested), strict=True))
    if not len(train) or not len(tested) or (validation and not len(held)):
        raise BadInput(
            f"{place}: {len(y)} rows are too few for a train, a validation and a test part; "
            "give more"
        )
    return parts
