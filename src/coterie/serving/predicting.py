"""Predictions of a file of new rows, by one client's model or by each row's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from coterie.core.errors import BadInput
from coterie.core.files import catch_write_errors, move_into_place
from coterie.results.personal_models import Models, PersonalModel, SingleModel, run_module
from coterie.serving.chunks import RowChunk, read_chunks
from coterie.serving.predictions import add_sureness, build_prediction_frame

SUFFIXES = (".csv", ".parquet")
MAX_MODELS = 256  # models in memory
ReportProgress = Callable[[float, int], None]  # (share of the file that is done, rows)


class PredictionRequest(NamedTuple):
    """What is to be predicted."""

    data: Path
    out: Path
    client: str = ""  # whose model; "" where a column says so
    client_column: str = ""
    keep: Sequence[str] = ()  # columns of the file that the output has too
    separator: str = ""
    replace: bool = False
    sure: bool = False  # also calibrated probabilities, and sets or intervals


def predict_file(
    models: Models | SingleModel,
    wanted: PredictionRequest,
    watch: ReportProgress = lambda done, rows: None,
) -> int:
    """Write the predictions of all rows, whole or not at all; how many they were."""
    _check(wanted)
    first = models.model(wanted.client or 0)
    model_of = lru_cache(MAX_MODELS)(models.model)
    wide = int(np.prod(first.intake.row_shape)) if not first.intake.is_table else 1
    temporary, count = wanted.out.with_name(wanted.out.name + ".part"), 0
    writer: Any = None
    try:
        for piece in read_chunks(wanted.data, wanted.separator, wide):
            table = _predict_chunk(models, first, model_of, piece, wanted).to_arrow()
            table = table.cast(_plain_schema(table.schema))
            with catch_write_errors(wanted.out.parent):
                writer = writer or _open_writer(temporary, wanted.out.suffix, table.schema)
                writer.write_table(table)
            count += len(table)
            watch(piece.done, count)
        if writer is None:
            raise BadInput(f"{wanted.data}: the file has no rows; fill it")
        writer.close()
        move_into_place(temporary, wanted.out)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _check(wanted: PredictionRequest) -> None:
    """Refuse what cannot be done, before anything is read."""
    if bool(wanted.client) == bool(wanted.client_column):
        raise BadInput("give --client NAME, or --client-column where a column names the client")
    if wanted.out.suffix not in SUFFIXES:
        raise BadInput(f"{wanted.out}: end it in {' or '.join(SUFFIXES)}")
    if wanted.out.is_dir():
        raise BadInput(f"{wanted.out} is a folder: give the name of a file")
    if wanted.out.exists() and not wanted.replace:
        raise BadInput(f"{wanted.out} exists already: give another --out, or --replace")
    if not wanted.out.absolute().parent.is_dir():
        raise BadInput(f"{wanted.out} is in no folder: make {wanted.out.parent} first")
    if wanted.out.exists() and wanted.data.exists() and wanted.out.samefile(wanted.data):
        raise BadInput(f"{wanted.out} holds the rows to predict: give another --out")


def _predict_chunk(
    models: Models | SingleModel,
    first: PersonalModel,
    model_of: Callable[[str], PersonalModel],
    piece: RowChunk,
    wanted: PredictionRequest,
) -> pl.DataFrame:
    """The answers of one piece, row by row."""
    owners = _row_clients(models, piece, wanted)
    rows, place_name = piece.rows, str(wanted.data)
    if isinstance(rows, pl.DataFrame):
        _check_keep(rows, wanted)
        held = rows.select(wanted.keep)
        if not first.intake.is_table:
            rows = _parse_numbers(
                rows.drop(*wanted.keep, wanted.client_column, strict=False), place_name
            )
    elif wanted.keep:
        raise BadInput(f"{place_name} has no columns, so there is nothing to --keep")
    else:
        held = pl.DataFrame()
    whose = None if wanted.client else owners.tolist()
    x = first.intake.inputs(rows, place_name, whose, piece.before)
    outputs: torch.Tensor | None = None
    temperatures, reach = np.ones(len(x)), np.zeros(len(x))
    for name in dict.fromkeys(owners.tolist()):
        at = np.flatnonzero(owners == name)
        found = run_module(model_of(name).module, x[at])
        if outputs is None:
            outputs = torch.empty(len(x), *found.shape[1:])
        outputs[torch.from_numpy(at)] = found
        if wanted.sure:
            known = model_of(name).sureness
            temperatures[at], reach[at] = known.temperature or 1.0, known.quantile
    assert outputs is not None
    numbers = pl.Series("row", np.arange(piece.before + 1, piece.before + len(x) + 1))
    start = pl.DataFrame([numbers, pl.Series("client", owners.tolist(), pl.String)])
    answers = build_prediction_frame(first.task, outputs)
    if wanted.sure:
        shares = first.task.probabilities(outputs) if first.task.names else None
        answers = add_sureness(first.task, answers, shares, temperatures, reach)
    taken = {*start.columns, *answers.columns}
    held = held.rename({n: f"{n} (given)" for n in held.columns if n in taken})
    return pl.concat([start, held, answers] if held.width else [start, answers], how="horizontal")


def _row_clients(
    models: Models | SingleModel, piece: RowChunk, wanted: PredictionRequest
) -> np.ndarray:
    """[n] the client of every row."""
    if wanted.client:
        name = models.names[models.number(wanted.client)]
        return np.full(len(piece.rows), name, object)
    column = wanted.client_column
    if not isinstance(piece.rows, pl.DataFrame) or column not in piece.rows.columns:
        raise BadInput(f"{wanted.data}: there is no column '{column}' (named in --client-column)")
    names = piece.rows[column].cast(pl.String).str.strip_chars()
    # 3.0 is the client 3, as gaps make whole numbers fractional
    names = names.zip_with(names.is_in(models.names), names.str.replace(r"\.0$", ""))
    known = names.is_in(models.names) & names.is_not_null()
    if not bool(known.fill_null(False).all()):
        at = int((~known.fill_null(False)).arg_max() or 0)
        row = piece.before + at + 1
        raise BadInput(
            f"{wanted.data}: column '{column}' is "
            + (f"'{names[at]}' in row {row:,}, and the run has no such client" if names[at] else "")
            + ("" if names[at] else f"empty in row {row:,}; name the client of every row")
        )
    return names.to_numpy()


def _check_keep(rows: pl.DataFrame, wanted: PredictionRequest) -> None:
    for name in wanted.keep:
        if name not in rows.columns:
            raise BadInput(f"{wanted.data}: there is no column '{name}' (named in --keep)")


def _parse_numbers(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """Columns of texts that spell numbers, as numbers."""
    texts = [s.name for s in frame.iter_columns() if s.dtype == pl.String]
    try:
        return frame.with_columns(pl.col(texts).str.strip_chars().cast(pl.Float64))
    except pl.exceptions.PolarsError as problem:
        why = " ".join(str(problem).split())[:150]
        raise BadInput(f"{name}: rows are arrays of numbers here, but {why}") from None


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """The same columns with types that every reader of Parquet and CSV knows."""
    views = {pa.string_view(): pa.string(), pa.large_string(): pa.string()}
    return pa.schema([field.with_type(views.get(field.type, field.type)) for field in schema])


def _open_writer(path: Path, suffix: str, schema: pa.Schema) -> Any:
    if suffix == ".parquet":
        return parquet.ParquetWriter(path, schema, compression="zstd")
    options = arrow_csv.WriteOptions(quoting_style="needed")
    return arrow_csv.CSVWriter(path, schema, write_options=options)
